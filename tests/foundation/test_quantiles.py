"""Ranks among the training rows: bounded, in order, the same after JSON, and missing where the value was."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from contracts.errors import InputError
from foundation.quantiles import KNOTS, Quantiles

COLUMNS = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=40), elements=st.floats(width=32))


def one(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


@given(values=COLUMNS)
def test_bounded_in_order_and_missing_where_missing(values: np.ndarray) -> None:
    ranks = Quantiles.fit(values).transform(values)
    assert ranks.dtype == np.float32
    assert np.array_equal(np.isnan(ranks), np.isnan(values))
    assert (np.abs(ranks[~np.isnan(ranks)]) <= 1).all()
    for column, rank in zip(values.T, ranks.T, strict=True):
        order = np.argsort(column[~np.isnan(column)], kind="stable")
        assert (np.diff(rank[~np.isnan(column)][order]) >= 0).all()


@given(values=COLUMNS)
def test_survive_json_exactly(values: np.ndarray) -> None:
    quantiles = Quantiles.fit(values)
    again = Quantiles.from_json(json.loads(json.dumps(quantiles.to_json())))
    assert np.array_equal(again.transform(values), quantiles.transform(values), equal_nan=True)
    assert again.columns == values.shape[1]
    assert again.width == 2 * values.shape[1]


@given(values=COLUMNS)
def test_monotone_functions_change_nothing(values: np.ndarray) -> None:
    values = np.clip(np.nan_to_num(values, nan=0.0), -1e6, 1e6).round()
    ranks = Quantiles.fit(values).transform(values)
    assert np.allclose(Quantiles.fit(3 * values.astype(np.float64) + 1).transform(3 * values + 1), ranks, atol=1e-5)


def test_ranks_are_even_and_ties_share_the_middle() -> None:
    assert Quantiles.fit(one(10, 20, 30, 40)).transform(one(10, 20, 30, 40)).ravel().tolist() == [
        -0.75,
        -0.25,
        0.25,
        0.75,
    ]
    assert Quantiles.fit(one(0, 0, 0, 5)).transform(one(0, 5)).ravel().tolist() == [-0.25, 0.75]


def test_values_between_and_beyond() -> None:
    quantiles = Quantiles.fit(one(0, 1))
    assert quantiles.transform(one(-9, 0.5, 9, np.inf, -np.inf)).ravel().tolist() == [-0.5, 0.0, 0.5, 0.5, -0.5]


def test_constant_columns_one_row_and_infinities() -> None:
    assert Quantiles.fit(one(7, 7, 7)).transform(one(7, 8, -1)).ravel().tolist() == [0, 0, 0]
    assert Quantiles.fit(one(7)).transform(one(7, np.nan)).ravel().tolist()[0] == 0
    assert Quantiles.fit(one(1, 2, np.inf)).transform(one(2, np.inf)).ravel() == pytest.approx([0, 2 / 3])


def test_a_column_that_training_never_saw_reads_as_missing() -> None:
    assert np.isnan(Quantiles.fit(one(np.nan, np.nan)).transform(one(3.0))).all()


def test_many_values_keep_few_knots_and_true_ranks() -> None:
    values = np.random.default_rng(0).lognormal(size=(20_000, 1)).astype(np.float32)
    quantiles = Quantiles.fit(values)
    assert len(quantiles.knots[0][0]) <= KNOTS
    true = 2 * (np.argsort(np.argsort(values[:, 0])) + 0.5) / len(values) - 1
    assert np.abs(quantiles.transform(values)[:, 0] - true).max() < 2 / KNOTS


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="training rows"):
        Quantiles.fit(np.zeros((0, 3)))
    with pytest.raises(InputError, match="2 columns"):
        Quantiles.fit(np.zeros((4, 2))).transform(np.zeros((4, 3)))
    for damaged in ({}, {"knots": [[[1.0, 0.0], [0.0, 1.0]]]}, {"knots": [[[1.0], [0.0, 1.0]]]}, {"knots": [1]}):
        with pytest.raises(InputError, match="train the checkpoint again"):
            Quantiles.from_json(damaged)
