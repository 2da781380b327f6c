"""Whether GEM met what was asked of it, by the intervals of its differences."""

from dataclasses import replace

import numpy as np
import pytest

from foundation.experiments.arms import GRID, NEURAL, neural_arm, tree_arm
from foundation.experiments.compare import Judged
from foundation.experiments.jobs import Outcome
from foundation.experiments.quality import GEM, NON_INFERIOR, _differences, _target
from tests.foundation.experiments.made_judged import made_judged, noisy

ROWS, LOGIT_T = made_judged()


def target(found: dict[str, list[Outcome]], task: str = "click", rows: Judged = ROWS) -> dict[str, object]:
    return _target(task, rows, found)


def found_with(gem: float, **others: float) -> dict[str, list[Outcome]]:
    """GEM and other models by the noise of each; underscores stand for spaces."""
    return {GEM: noisy(LOGIT_T, gem)} | {name.replace("_", " "): noisy(LOGIT_T, sd) for name, sd in others.items()}


def test_beating_every_model_meets_the_target() -> None:
    told = target(found_with(0.1, DIN_rows=1.5, DIN_all=1.5, LightGBM_aggregates=1.5))
    assert told == {"asked": "AUC above every model, interval without zero", "met": True, "missed_against": []}


def test_an_interval_with_zero_misses_it_and_names_the_model() -> None:
    told = target(found_with(0.5, DIN_rows=1.5, LightGBM_aggregates=0.5))
    assert told["met"] is False
    assert told["missed_against"] == ["LightGBM aggregates"]
    worse = target(found_with(1.5, DIN_rows=0.1, LightGBM_aggregates=0.1))
    assert worse["missed_against"] == ["DIN rows", "LightGBM aggregates"]


def test_gem_s_own_arms_are_no_baselines_and_all_others_are() -> None:
    found = found_with(0.5, GEM_rows=0.1, DIN_rows=1.5)
    assert target(found)["met"] is True
    assert target({**found, "DIN all": noisy(LOGIT_T, 0.0)})["missed_against"] == ["DIN all"]


def test_a_rare_task_asks_for_non_inferiority_alone() -> None:
    found = found_with(0.5, DIN_rows=0.5)
    assert NON_INFERIOR["like"] == 0.005
    told = target(found, "like")
    assert told["met"] is True
    assert "lower bound above -0.005" in str(told["asked"])
    assert target(found)["met"] is False  # equal models: no difference where one is asked
    assert target(found_with(1.5, DIN_rows=0.1), "like")["met"] is False


def test_a_task_of_one_class_is_not_met() -> None:
    one_class = replace(ROWS, y=np.zeros_like(ROWS.y))
    assert target(found_with(0.1, DIN_rows=1.5), rows=one_class)["met"] is False


def test_gem_stands_against_all_models_and_gem_from_rows_against_models_from_rows() -> None:
    found = found_with(0.1, GEM_rows=0.2, DIN_rows=0.3, DIN_all=0.3)
    assert set(_differences(ROWS, found)) == {
        f"{GEM} - GEM rows",
        f"{GEM} - DIN rows",
        f"{GEM} - DIN all",
        "GEM rows - DIN rows",
    }


@pytest.mark.parametrize("model", NEURAL)
def test_arms_with_the_same_inputs_read_the_same_information(model: str) -> None:
    batch_rows, rate = GRID[0]
    rows, everything = (
        neural_arm(model, inputs, aggregates=40, batch_rows=batch_rows, rate=rate)  # type: ignore[arg-type]
        for inputs in ("rows", "all")
    )
    assert (rows.name, everything.name) == (f"{model} rows", f"{model} all")
    assert (rows.model.aggregates, everything.model.aggregates) == (0, 40)
    assert rows.train is not None
    assert everything.train is not None
    assert rows.train.untimed_per_user == 0 < everything.train.untimed_per_user
    assert (rows.train.batch_rows, rows.train.dense_rate, rows.train.table_rate) == (batch_rows, rate, rate)
    assert replace(everything.train, untimed_per_user=0) == rows.train


def test_the_tree_arm_may_read_the_history_gru() -> None:
    assert not tree_arm().model.history_scores
    assert tree_arm(history_scores=True).model.history_scores
