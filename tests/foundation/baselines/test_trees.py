"""The tree anchor runs on any log, repeats by seed and refuses what it cannot learn from."""

import numpy as np
import pytest

from contracts.errors import InputError
from events.aggregates import AggregateTable, aggregate_features
from events.log import InteractionLog
from foundation.baselines.trees import choose_rounds, fit_trees, refit_rounds, tree_inputs
from tests.events.test_aggregates import random_log


@pytest.fixture(scope="module")
def log() -> InteractionLog:
    return random_log(0, rows=600, untimed=90)


@pytest.fixture(scope="module")
def inputs(log: InteractionLog) -> AggregateTable:
    rows = np.arange(len(log))
    return tree_inputs(log, rows, aggregate_features(log, rows))


def part(table: AggregateTable, rows: slice) -> AggregateTable:
    return AggregateTable(table.names, table.values[rows])


def test_trees_repeat_by_seed_and_predict_probabilities(log: InteractionLog, inputs: AggregateTable) -> None:
    pytest.importorskip("lightgbm")
    y, fit, held_out = log.labels["click"], slice(0, 400), slice(400, 600)
    chosen = choose_rounds(part(inputs, fit), y[fit], part(inputs, held_out), y[held_out], seed=0)
    rounds = refit_rounds(chosen.rounds)
    assert rounds >= chosen.rounds >= 1
    one, again, other = (fit_trees(inputs, y, rounds=20, seed=seed).predict(inputs) for seed in (0, 0, 1))
    assert (one == again).all()
    assert (one != other).any()
    assert ((one > 0) & (one < 1)).all()


def test_trees_refuse_unknown_labels_and_foreign_columns(log: InteractionLog, inputs: AggregateTable) -> None:
    pytest.importorskip("lightgbm")
    with pytest.raises(InputError, match="leave out rows"):
        fit_trees(inputs, log.labels["conversion"], rounds=1, seed=0)
    model = fit_trees(inputs, log.labels["click"], rounds=1, seed=0)
    with pytest.raises(InputError, match="other columns"):
        model.predict(AggregateTable(inputs.names[1:], inputs.values[:, 1:]))


def test_tree_inputs_hold_static_columns_raw(log: InteractionLog, inputs: AggregateTable) -> None:
    category = inputs.values[:, inputs.names.index("static.category")]
    assert (category == log.ad_features["category"][log.ad]).all()
    assert "static.device" in inputs.names
