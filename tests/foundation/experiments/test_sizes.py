"""The width that comes nearest to a target of compute, its FLOPs as torch counts them."""

from typing import Any

import pytest
import torch

from events.recipes import tiny
from events.world import make_world
from foundation.baselines.configs import InterFormerConfig, WukongConfig
from foundation.batch import GemBatch
from foundation.config import GemConfig
from foundation.experiments import sizes
from foundation.experiments.sizes import FAMILIES, HISTORY_LENGTH, LAYERS, WIDTHS, sized
from foundation.experiments.timed_case import random_batch
from foundation.flops import count_flops
from foundation.layout import InputLayout
from foundation.models import build

SMALL_WIDTHS = (4, 8, 12, 20)


@pytest.fixture(scope="module")
def layout() -> InputLayout:
    return InputLayout(make_world(tiny())[0].schema)


@pytest.fixture(scope="module")
def batch(layout: InputLayout) -> GemBatch:
    return random_batch(layout, 4, HISTORY_LENGTH, torch.device("cpu"))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_nearest_of_all_widths_is_found(
    family: str, layout: InputLayout, batch: GemBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "WIDTHS", SMALL_WIDTHS)
    counted = {width: sizes._counted(family, width, LAYERS[1e5], layout, batch)[1] for width in SMALL_WIDTHS}
    assert sorted(counted.values()) == list(counted.values())  # or the search could not stop early
    for target in (1e5, 3.2e5):
        found = sized(family, target, layout, batch)
        assert found.width == min(counted, key=lambda width: abs(counted[width] / target - 1))
        assert found.flops == counted[found.width]
        assert (found.target, found.layers) == (target, LAYERS[target])


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_are_those_that_torch_counts_for_one_example(family: str, layout: InputLayout, batch: GemBatch) -> None:
    config, flops = sizes._counted(family, 16, 2, layout, batch)
    other = random_batch(layout, 7, HISTORY_LENGTH, torch.device("cpu"))
    # some products of weights are computed once a batch, whatever its rows
    assert flops == pytest.approx(count_flops(build(layout, config).eval(), other) / 7, rel=0.01)
    assert flops > sizes._counted(family, 16, 1, layout, batch)[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_each_width_gives_a_config_of_that_width(width: int) -> None:
    kinds: dict[str, Any] = {"Kunlun": GemConfig, "InterFormer": InterFormerConfig, "Wukong": WukongConfig}
    assert set(kinds) == set(FAMILIES)
    for family, kind in kinds.items():
        config = FAMILIES[family](width, 3)
        assert type(config) is kind
        assert (config.dim, config.layers, config.history_length) == (width, 3, HISTORY_LENGTH)
        assert config.dim % config.heads == 0
