"""Recipes are complete and travel as JSON."""

import json

import pytest

from contracts.errors import InputError
from foundation.recipes import Recipe, recipe, small, tiny


@pytest.mark.parametrize("one", [tiny(), small()])
def test_survives_json(one: Recipe) -> None:
    assert Recipe.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize("one", [tiny(), small()])
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
