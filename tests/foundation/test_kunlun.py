"""The wiring of one layer, arrow by arrow (Kunlun, figure 1), CompSkip, and towers of other widths."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from foundation.config import GemConfig, Tower
from foundation.kunlun import KunlunLayer, Parts, Stream, TowerLayer, parts, summaries
from foundation.presets import tiny_model
from foundation.rote import rotary_table
from foundation.towers import SequenceGeometry

CONFIG = replace(tiny_model(), layers=4)
MASK = torch.tensor([[True] * 4, [True] * 2 + [False] * 2])
LAYER, ATTENTION_ONLY, POOLED_ONLY = Parts(True, True, True), Parts(False, True, False), Parts(True, False, True)
NOTHING = Parts(False, False, False)


def layer(number: int = 0, **changes: Any) -> KunlunLayer:
    return KunlunLayer(replace(CONFIG, **changes), number=number, set_tokens=5)


def inputs(*widths: int, summary: bool = False) -> tuple[list[Stream], torch.Tensor]:
    """A stream for a tower of each width, with a summary of an earlier layer if wanted; and the set tokens."""
    streams = []
    for width in widths or (CONFIG.dim,):
        geometry = SequenceGeometry(MASK, rotary_table(torch.rand(2, 4), width // CONFIG.heads))
        h = torch.randn(2, CONFIG.pooled_tokens, CONFIG.dim) if summary else None
        streams.append(Stream(torch.randn(2, 4, width), geometry, h))
    return streams, torch.randn(2, 5, CONFIG.dim)


def own(module: KunlunLayer) -> TowerLayer:
    (tower,) = module.towers
    assert isinstance(tower, TowerLayer)
    return tower


def test_wiring() -> None:
    module, (streams, x) = layer(), inputs()
    tower, stream = own(module), streams[0]
    assert tower.weight_gen is not None
    assert tower.pffn is not None
    assert tower.hsp is not None
    assert tower.attention is not None
    p = tower.pffn(stream.s_BTE, *tower.weight_gen(x))
    h = tower.hsp(p, MASK)
    (after,), next_x = module(streams, x)
    torch.testing.assert_close(after.h_BPD, h)
    torch.testing.assert_close(next_x, module.interaction(x, h))
    torch.testing.assert_close(after.s_BTE, tower.attention(p, MASK, stream.geometry.rotary))


def test_pooling_does_not_read_the_attention() -> None:
    module, given = layer(), inputs()
    streams, _ = module(*given)
    summaries(streams).sum().backward()
    tower = own(module)
    assert tower.attention is not None
    assert all(parameter.grad is None for parameter in tower.attention.parameters())
    assert tower.weight_gen is not None
    assert all(parameter.grad is not None for parameter in tower.weight_gen.parameters())


def test_pooling_of_the_layer_s_input() -> None:
    module, (streams, x) = layer(hsp_input="seq_in"), inputs()
    (after,), _ = module(streams, x)
    tower = own(module)
    assert tower.hsp is not None
    torch.testing.assert_close(after.h_BPD, tower.hsp(streams[0].s_BTE, MASK))


def test_interaction_over_a_summary_of_the_set_tokens() -> None:
    module, (streams, x) = layer(global_input="x_sum"), inputs()
    assert module.summary is not None
    after, next_x = module(streams, x)
    summary = module.summary(x)
    assert summary.shape == (2, CONFIG.summary_tokens, CONFIG.dim)
    torch.testing.assert_close(next_x, module.interaction(x, summaries(after), summary))


def test_compskip_alternates() -> None:
    even, odd = layer(0, compskip=True), layer(1, compskip=True)
    streams, x = inputs()
    between, x = even(streams, x)
    after, _ = odd(between, x)
    first, second = own(even), own(odd)
    assert first.attention is None
    assert second.hsp is None
    assert second.pffn is None
    assert second.weight_gen is None
    assert after[0].h_BPD is between[0].h_BPD
    assert second.attention is not None
    expected = second.attention(between[0].s_BTE, MASK, streams[0].geometry.rotary)
    torch.testing.assert_close(after[0].s_BTE, expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [LAYER, LAYER, LAYER, POOLED_ONLY]),
        ({"compskip": True}, [POOLED_ONLY, ATTENTION_ONLY, POOLED_ONLY, NOTHING]),
        ({"compskip": True, "layers": 3}, [POOLED_ONLY, ATTENTION_ONLY, POOLED_ONLY]),
        ({"hsp_input": "seq_in"}, [LAYER, LAYER, LAYER, Parts(False, False, True)]),
        ({"pffn": "none"}, [Parts(False, True, True)] * 3 + [Parts(False, False, True)]),
        ({"layers": 1}, [POOLED_ONLY]),
    ],
)
def test_parts_that_nobody_reads_are_left_out(changes: dict[str, Any], expected: list[Parts]) -> None:
    config = replace(CONFIG, **changes)
    assert [parts(config, config.towers[0], number) for number in range(config.layers)] == expected


def narrow() -> tuple[GemConfig, tuple[Tower, Tower]]:
    whole = CONFIG.towers[0]
    shallow = replace(whole, dim=8, layers=1, pooled_tokens=2)
    return replace(CONFIG, personalisation=(whole, shallow)), (whole, shallow)


def test_a_tower_with_fewer_layers_keeps_serving_its_last_summary() -> None:
    config, (whole, shallow) = narrow()
    streams, x = inputs(CONFIG.dim, 8)
    for number in range(3):
        module = KunlunLayer(config, number=number, set_tokens=5)
        before, (streams, x) = streams, module(streams, x)
        assert summaries(streams).shape == (2, whole.pooled_tokens + shallow.pooled_tokens, CONFIG.dim)
        if number:
            assert streams[1].h_BPD is before[1].h_BPD
            assert streams[1].s_BTE is before[1].s_BTE
            assert not list(module.towers[1].parameters())


def test_summaries_of_narrow_towers_come_at_the_shared_width() -> None:
    config, _ = narrow()
    module, (streams, x) = KunlunLayer(config, number=0, set_tokens=5), inputs(CONFIG.dim, 8)
    after, _ = module(streams, x)
    tower = module.towers[1]
    assert isinstance(tower, TowerLayer)
    assert tower.narrow is not None
    assert tower.widen is not None
    assert tower.weight_gen is not None
    assert tower.pffn is not None
    assert tower.hsp is not None
    p = tower.pffn(streams[1].s_BTE, *tower.weight_gen(tower.narrow(x)))
    torch.testing.assert_close(after[1].h_BPD, tower.widen(tower.hsp(p, MASK)))
