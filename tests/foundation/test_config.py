"""The configuration refuses what does not fit, travels as JSON, and grows from one dial."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from contracts.errors import InputError
from foundation.config import CHOICES, GemConfig, Tower
from foundation.presets import tiny_model

TOWER = Tower(types=("click", 0), dim=8, heads=2, layers=1, pooled_tokens=2, window=3, length=4)


@pytest.mark.parametrize(
    "config", [tiny_model(), replace(tiny_model(), personalisation=(TOWER,), extraction=("score", "hidden-0"))]
)
def test_survives_json(config: GemConfig) -> None:
    assert GemConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("change", [{"colour": 1}, {"time": {"rotary": 1, "clock": 2}}, {"personalisation": [{}]}])
def test_unknown_fields_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="train the checkpoint again"):
        GemConfig.from_json({**tiny_model().to_json(), **change})


def test_a_missing_field_is_refused() -> None:
    raw = tiny_model().to_json()
    del raw["compskip"]
    with pytest.raises(InputError, match="compskip"):
        GemConfig.from_json(raw)


@pytest.mark.parametrize("name", CHOICES)
def test_unknown_choices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        GemConfig(**{**vars(tiny_model()), name: "other"})


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 18},
        {"heads": 3},
        {"layers": 0},
        {"seeds": 4},
        {"window": -1},
        {"dropout": 1.0},
        {"head_hidden": ()},
        {"activations": ("gelu", "gelu", "gelu")},
        {"activations": ("bump",)},
        {"personalisation": (replace(TOWER, layers=3),)},
        {"personalisation": (replace(TOWER, pooled_tokens=8),)},
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(tiny_model(), **change)


@pytest.mark.parametrize("extraction", [(), ("hidden-2",), ("hidden-",), ("head", "colour"), ("",), "head"])
def test_unknown_activations_are_refused_with_the_names_there_are(extraction: Any) -> None:
    with pytest.raises(InputError, match="'embedding', 'hidden-0', 'hidden-1', 'head', 'score', 'joint'"):
        replace(tiny_model(), extraction=extraction)


def test_extracted_activations_go_from_shallow_to_deep() -> None:
    assert tiny_model().extracted == ("head",)
    assert replace(tiny_model(), extraction=("score", "hidden-1", "score")).extracted == ("hidden-1", "score")
    assert replace(tiny_model(), extraction=("joint", "head")).extracted == tiny_model().extractable


def test_a_configuration_from_before_the_extraction_reads_as_it_was() -> None:
    raw = tiny_model().to_json()
    del raw["extraction"], raw["aligned"]
    assert GemConfig.from_json(raw) == tiny_model()


@pytest.mark.parametrize("change", [{"types": ()}, {"dim": 6}, {"length": 0}, {"window": -1}])
def test_a_tower_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(TOWER, **change)


def test_pma_needs_no_more_seeds_than_tokens() -> None:
    assert replace(tiny_model(), pooling="pma", seeds=1).seeds == 1


def test_summaries_of_towers_add_up() -> None:
    assert tiny_model().summary_width == tiny_model().pooled_tokens
    assert replace(tiny_model(), personalisation=(TOWER, TOWER)).summary_width == 4


@pytest.mark.parametrize("aspect", [8, 64])
def test_every_depth_is_a_model_and_a_larger_one(aspect: int) -> None:
    configs = [GemConfig.from_depth(depth, aspect=aspect) for depth in range(1, 13)]
    for less, more in pairwise(configs):
        assert less.dim < more.dim
        assert less.layers < more.layers
        assert less.fm_hidden < more.fm_hidden
        assert less.seeds <= more.seeds


@pytest.mark.parametrize(("depth", "aspect"), [(0, 64), (2, 12), (2, 0)])
def test_a_dial_out_of_range_is_refused(depth: int, aspect: int) -> None:
    with pytest.raises(InputError, match="from_depth"):
        GemConfig.from_depth(depth, aspect=aspect)
