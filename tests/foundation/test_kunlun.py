"""The wiring of one layer, arrow by arrow (Kunlun, figure 1)."""

import pytest
import torch

from foundation.kunlun import KunlunLayer, SequenceGeometry
from foundation.recipes import tiny

CONFIG = tiny().model


@pytest.fixture
def parts() -> tuple[KunlunLayer, torch.Tensor, torch.Tensor, SequenceGeometry]:
    layer = KunlunLayer(CONFIG, set_tokens=5, last=False)
    mask = torch.tensor([[True] * 4, [True] * 2 + [False] * 2])
    geometry = SequenceGeometry.of(mask, torch.rand(2, 4), CONFIG)
    return layer, torch.randn(2, 4, CONFIG.dim), torch.randn(2, 5, CONFIG.dim), geometry


def test_wiring(parts: tuple[KunlunLayer, torch.Tensor, torch.Tensor, SequenceGeometry]) -> None:
    layer, s, x, geometry = parts
    assert layer.attention is not None
    p = layer.pffn(s, *layer.weight_gen(x))
    h = layer.hsp(p, geometry.mask_BT)
    next_s, next_x, summary = layer(s, x, geometry)
    torch.testing.assert_close(summary, h)
    torch.testing.assert_close(next_x, layer.interaction(x, h))
    torch.testing.assert_close(next_s, layer.attention(p, geometry.visible_B1TT, geometry.rotary))


def test_pooling_does_not_read_the_attention(
    parts: tuple[KunlunLayer, torch.Tensor, torch.Tensor, SequenceGeometry],
) -> None:
    layer, s, x, geometry = parts
    _, _, summary = layer(s, x, geometry)
    summary.sum().backward()
    assert layer.attention is not None
    assert all(parameter.grad is None for parameter in layer.attention.parameters())
    assert layer.weight_gen.mix_k.weight.grad is not None


def test_the_last_layer_has_no_attention() -> None:
    assert KunlunLayer(CONFIG, set_tokens=5, last=True).attention is None
