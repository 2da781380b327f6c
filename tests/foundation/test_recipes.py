"""Recipes are complete and travel as JSON."""

import json
from dataclasses import replace

import pytest

from contracts.errors import InputError
from foundation.recipes import Recipe, base, large, recipe, small, tiny


@pytest.mark.parametrize("one", [tiny(), small(), base(), large()], ids=lambda one: one.name)
def test_survives_json(one: Recipe) -> None:
    assert Recipe.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize("one", [tiny(), small(), base(), large()], ids=lambda one: one.name)
def test_sizes_fit_each_other(one: Recipe) -> None:
    model = one.model
    assert model.dim % (2 * model.heads) == 0  # rotary pairs
    assert model.seeds > model.pooled_tokens  # over-complete


def test_unknown_names_and_fields_are_refused() -> None:
    with pytest.raises(InputError, match="small"):
        recipe("huge")
    raw = tiny().to_json()
    with pytest.raises(InputError, match="train the checkpoint again"):
        Recipe.from_json({**raw, "model": {**raw["model"], "colour": 1}})


def test_impossible_settings_are_refused() -> None:
    for wrong in ({"schedule": "stairs"}, {"batch_rows": 0}, {"mixing_temperature": 0.0}, {"table_optimizer": "sgd"}):
        with pytest.raises(InputError, match="TrainRecipe"):
            replace(tiny().train, **wrong)
