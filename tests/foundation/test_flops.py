"""The formula agrees with torch's counter, part by part; cost grows as the attention says; what the levers save."""

from dataclasses import replace
from typing import Any

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from events.log import InteractionLog
from foundation.config import GemConfig, Tower
from foundation.flops import count_flops, flops_by_module, forward_flops
from foundation.gem import Gem
from foundation.layout import InputLayout
from foundation.presets import base_model, large_model, small_model, tiny_model
from tests.foundation.fake_batches import fake_batch

ROWS = 16
"""Rows over which what a batch does once (the queries of the seeds) does not count."""
RICH = Tower(types=("click",), dim=32, heads=2, layers=3, pooled_tokens=4, window=6, length=40)
POOR = Tower(types=("all",), dim=16, heads=2, layers=2, pooled_tokens=2, window=3, length=30)
CONFIGS: dict[str, GemConfig] = {
    "tiny": tiny_model(),
    "small": small_model(),
    "base": base_model(),
    "depth": GemConfig.from_depth(4, aspect=8, history_length=70),
}
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "full": {"attention": "full"},
    "block": {"attention": "block", "block": 16},
    "window": {"history_length": 150},
    "hstu": {"mixer": "hstu", "history_length": 150},
    "hstu block": {"mixer": "hstu", "attention": "block", "block": 16},
    "hstu full": {"mixer": "hstu", "attention": "full"},
    "plain": {"pffn": "plain"},
    "none": {"pffn": "none"},
    "pma": {"pooling": "pma"},
    "linear": {"compression": "linear"},
    "compskip": {"compskip": True},
    "seq_in": {"hsp_input": "seq_in"},
    "x_sum": {"global_input": "x_sum"},
    "projections": {"gdpa_projections": True},
    "values": {"hsp_values": False},
    "attentive": {"attentive_fm": True},
    "partition": {"expert_view": "partition"},
    "shallow": {"pair_products": False, "first_order": False},
    "extras": {"domain_experts": 8, "aggregates": 12},
    "towers": {"personalisation": (replace(RICH, types=("all",)), POOR)},
}


@pytest.fixture
def layout(tiny_log: InteractionLog) -> InputLayout:
    return InputLayout(tiny_log.schema)


def check(layout: InputLayout, config: GemConfig) -> None:
    """Formula and counter within 2 % for each part of each layer and for the whole."""
    formula = forward_flops(config, layout, config.history_length)
    model = Gem(layout, config).eval()
    counted = flops_by_module(model, fake_batch(layout, [config.history_length] * ROWS, aggregates=config.aggregates))
    assert counted[""] / ROWS == pytest.approx(formula.total, rel=0.02)
    for number, layer in enumerate(formula.layers):

        def of(*names: str, number: int = number) -> float:
            found = [
                count
                for tower in range(len(config.towers))
                for name in names
                if (count := counted.get(f"layers.{number}.towers.{tower}.{name}"))
            ]
            return sum(found) / ROWS

        assert of("weight_gen", "narrow") == pytest.approx(layer.weight_gen, rel=0.02)
        assert of("pffn") == pytest.approx(layer.pffn, rel=0.02)
        assert of("attention") == pytest.approx(layer.attention, rel=0.02)
        assert of("hsp", "widen") == pytest.approx(layer.hsp, rel=0.02)
        interaction = counted[f"layers.{number}.interaction"] + counted.get(f"layers.{number}.summary", 0)
        assert interaction / ROWS == pytest.approx(layer.interaction, rel=0.02)


@pytest.mark.parametrize("name", CONFIGS)
def test_formula_and_counter_agree(layout: InputLayout, name: str) -> None:
    check(layout, CONFIGS[name])


@pytest.mark.parametrize("name", CHANGES)
def test_formula_and_counter_agree_under_every_switch(layout: InputLayout, name: str) -> None:
    check(layout, replace(small_model(), layers=3, **CHANGES[name]))


def test_formula_and_counter_agree_at_large(layout: InputLayout) -> None:
    """Nothing is computed: tensors without storage are counted as well."""
    config = large_model()
    with FakeTensorMode():
        counted = count_flops(Gem(layout, config).eval(), fake_batch(layout, [512] * ROWS))
    assert counted / ROWS == pytest.approx(forward_flops(config, layout, 512).total, rel=0.02)


@pytest.mark.parametrize(("attention", "seen"), [("full", 1000), ("window", 201), ("block", 64)])
def test_the_parts_are_those_of_the_published_model(layout: InputLayout, attention: str, seen: int) -> None:
    """The formulas in full, without our additions, at d 384, T 1000, w 100, F 128, 256 seeds, 32 tokens, k 8."""
    d, t, f, sums, seeds, pooled, k = 384, 1000, 128, 16, 256, 32, 8
    base = GemConfig.from_depth(6, history_length=t - 1)
    config = replace(base, attention=attention, window=100, gdpa_projections=True)  # type: ignore[arg-type]
    layer, n = forward_flops(config, layout, t - 1).layers[0], len(layout.columns) + 1
    assert layer.pffn == 4 * t * f * d + 4 * t * d**2
    assert layer.attention == pytest.approx(8 * t * d**2 + 4 * t * seen * d, rel=0.02)
    assert layer.hsp == 4 * t * d**2 + 4 * seeds * t * d + k * (2 * pooled * seeds * d + 2 * pooled * d**2)
    assert layer.weight_gen == 2 * n * sums * d + 4 * sums * f * d + 6 * sums * d**2
    j, rank, hidden, experts = n + pooled, config.fm_rank, config.fm_hidden, config.experts
    from_fm = sum((n // experts + (number < n % experts)) // 2 for number in range(experts))
    products = experts * (4 * j * rank * d + 2 * j * rank * hidden)
    assert layer.interaction == products + 2 * hidden * from_fm * d + 2 * (n - from_fm) * j * d


@pytest.mark.parametrize("attention", ["window", "block"])
def test_cost_is_linear_in_the_history(layout: InputLayout, attention: str) -> None:
    costs = []
    for length in (1024, 2048, 4096):
        config = replace(base_model(), attention=attention, history_length=length)  # type: ignore[arg-type]
        costs.append(forward_flops(config, layout, length).total)
    assert (costs[2] - costs[1]) / (costs[1] - costs[0]) == pytest.approx(2, rel=0.01)
    counted = [
        count_flops(Gem(layout, replace(tiny_model(), attention=attention, history_length=length)), batch)  # type: ignore[arg-type]
        for length in (512, 1024, 2048)
        for batch in [fake_batch(layout, [length])]
    ]
    assert (counted[2] - counted[1]) / (counted[1] - counted[0]) == pytest.approx(2, rel=0.01)


def test_full_attention_is_quadratic(layout: InputLayout) -> None:
    costs = [
        forward_flops(replace(base_model(), attention="full", history_length=length), layout, length)
        .layers[1]
        .attention
        for length in (1024, 2048)
    ]
    assert costs[1] > 3.5 * costs[0]


def test_a_shorter_history_costs_less_and_a_longer_one_is_cut(layout: InputLayout) -> None:
    costs = [forward_flops(small_model(), layout, length).total for length in (0, 10, 30, 99)]
    assert costs[0] < costs[1] < costs[2] == costs[3]


def test_compskip_saves_what_is_reported(layout: InputLayout) -> None:
    """43.1 % in Kunlun; half of the sequence's part and nothing of the interaction."""
    on, off = (forward_flops(replace(large_model(), compskip=flag), layout, 512) for flag in (True, False))
    assert 0.35 < 1 - on.layers_total / off.layers_total < 0.48


def test_a_tower_that_finds_few_events_costs_less(layout: InputLayout) -> None:
    config = replace(small_model(), layers=3, personalisation=(RICH, POOR))
    all_of_them = forward_flops(config, layout, 30)
    few = forward_flops(config, layout, 30, tower_events=(3, 27))
    assert few.layers_total < all_of_them.layers_total
    assert few.layers[2].interaction == all_of_them.layers[2].interaction
