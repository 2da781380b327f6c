"""AUC and its differences with user-clustered intervals."""

import numpy as np
import pytest

from contracts.errors import InputError
from events.intervals import _Sorted, bootstrap_auc, bootstrap_auc_difference
from events.metrics import auc


def test_auc_with_unit_weights_is_the_metric_with_and_without_ties():
    rng = np.random.default_rng(0)
    for p in (rng.random(500), np.round(rng.random(500), 1)):
        y = rng.integers(0, 2, 500)
        assert _Sorted(y, p).auc(np.ones(500)) == pytest.approx(auc(y, p))


def test_weights_count_a_row_as_often_as_it_is_drawn():
    rng = np.random.default_rng(1)
    y, p, weight = rng.integers(0, 2, 80), np.round(rng.random(80), 1), rng.integers(0, 4, 80)
    again = np.repeat(np.arange(80), weight)
    assert _Sorted(y, p).auc(weight.astype(float)) == pytest.approx(auc(y[again], p[again]))


def test_interval_covers_the_value_and_a_better_model_is_resolved():
    rng = np.random.default_rng(2)
    logit = rng.normal(size=4_000)
    y = (rng.random(4_000) < 1 / (1 + np.exp(-logit))).astype(int)
    users = np.arange(4_000) // 4
    good, poor = np.stack([logit, logit + 0.01]), np.stack([rng.normal(size=4_000) for _ in range(2)])
    good, poor = 1 / (1 + np.exp(-good)), 1 / (1 + np.exp(-poor))
    alone = bootstrap_auc(y, good, users)
    assert alone.low < alone.value < alone.high
    assert bootstrap_auc_difference(y, good, poor, users).low > 0.1
    same = bootstrap_auc_difference(y, good, good, users)
    assert same.low <= 0 <= same.high


def test_one_class_has_no_interval_and_shapes_must_match():
    assert np.isnan(bootstrap_auc(np.zeros(5), np.full(5, 0.5), np.arange(5)).value)
    with pytest.raises(InputError, match="pair the seeds"):
        bootstrap_auc_difference(np.array([0, 1]), np.zeros((2, 2)), np.zeros(2), np.arange(2))
