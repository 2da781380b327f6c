"""Metrics against their definitions, and what they say where they do not exist."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from events.metrics import auc, bootstrap_ne_difference, calibration, entropy, log_loss, ne, per_user_auc

labelled = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])), max_size=40)


def arrays(rows: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([y for y, _ in rows], dtype=np.int8), np.array([p for _, p in rows], dtype=np.float32)


def auc_by_pairs(y: np.ndarray, p: np.ndarray) -> float:
    """The definition: every positive against every negative, ties count half. O(n^2)."""
    pairs = [(a > b) + (a == b) / 2 for a in p[y == 1] for b in p[y == 0]]
    return sum(pairs) / len(pairs) if pairs else float("nan")


@given(labelled)
def test_auc_is_the_share_of_ordered_pairs(rows: list[tuple[int, float]]) -> None:
    y, p = arrays(rows)
    assert auc(y, p) == pytest.approx(auc_by_pairs(y, p), abs=1e-12, nan_ok=True)


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.1, 0.5, 0.9]), st.integers(0, 4)), max_size=40))
def test_per_user_auc_weights_users_by_their_impressions(rows: list[tuple[int, float, int]]) -> None:
    y, p = arrays([(label, score) for label, score, _ in rows])
    users = np.array([f"user{user}" for _, _, user in rows], dtype=object)
    by_user = [(auc_by_pairs(y[users == u], p[users == u]), (users == u).sum()) for u in set(users)]
    both = [(value, weight) for value, weight in by_user if not math.isnan(value)]
    result = per_user_auc(y, p, users)
    assert (result.users, result.rows) == (len(both), sum(weight for _, weight in both))
    if both:
        assert result.auc == pytest.approx(sum(value * weight for value, weight in both) / result.rows)
    else:
        assert math.isnan(result.auc)


def test_the_mean_label_as_a_prediction_has_ne_one() -> None:
    y = np.array([1, 0, 0, 0])
    score = ne(y, np.full(4, 0.25))
    assert score.ne == pytest.approx(1)
    assert score.auc == 0.5
    assert (score.rows, score.positives) == (4, 1)
    assert score.entropy == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))


def test_ne_is_log_loss_over_the_entropy_of_these_rows() -> None:
    y, p = np.array([1, 0, 1, 0]), np.array([0.8, 0.3, 0.6, 0.1])
    expected = -np.mean([math.log(0.8), math.log(0.7), math.log(0.6), math.log(0.9)])
    assert log_loss(y, p) == pytest.approx(expected)
    assert ne(y, p).ne == pytest.approx(expected / math.log(2))


def test_certain_and_wrong_is_expensive_but_finite() -> None:
    assert 10 < log_loss(np.array([1]), np.array([0.0])) < 20


def test_without_rows_every_figure_is_nan() -> None:
    score = ne(np.array([], dtype=int), np.array([]))
    assert score.reason == "no rows"
    assert all(math.isnan(value) for value in (score.ne, score.auc, score.log_loss, score.entropy))
    assert math.isnan(entropy(np.array([])))
    assert math.isnan(calibration(np.array([], dtype=int), np.array([])))


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_a_log_loss_but_no_ne(label: int) -> None:
    score = ne(np.full(3, label), np.full(3, 0.5))
    assert "only one class" in score.reason
    assert score.log_loss == pytest.approx(math.log(2))
    assert math.isnan(score.ne)
    assert math.isnan(score.auc)
    assert score.entropy == 0


@pytest.mark.parametrize(
    ("y", "p", "problem"),
    [
        ([0, 1], [0.5, float("nan")], "not be NaN"),
        ([0, 1], [0.5, 1.5], "must lie in"),
        ([0, -1], [0.5, 0.5], "labels must be 0 or 1"),
        ([0, 1], [0.5], "of one length"),
    ],
)
def test_bad_input_is_refused(y: list[int], p: list[float], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ne(np.array(y), np.array(p))


def test_calibration_is_predicted_over_observed() -> None:
    assert calibration(np.array([1, 0, 0, 1]), np.array([0.5, 0.5, 0.25, 0.25])) == pytest.approx(0.75)


@pytest.fixture
def clicks() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, their true probabilities and users: 40 rows for each of 100 users."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.05, 0.6, 4_000)
    return (rng.random(4_000) < p).astype(int), p, np.repeat(np.arange(100), 40)


def test_the_interval_of_a_difference_holds_it(clicks: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    y, p, users = clicks
    mean = np.full(len(y), y.mean())
    result = bootstrap_ne_difference(y, p, mean, users, resamples=200)
    assert result.value == pytest.approx(ne(y, p).ne - ne(y, mean).ne)
    assert result.low < result.value < result.high < 0


def test_equal_predictions_differ_by_nothing(clicks: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    y, p, users = clicks
    result = bootstrap_ne_difference(y, p, p, users, resamples=20)
    assert (result.value, result.low, result.high) == (0, 0, 0)


def test_seeds_that_disagree_widen_the_interval(clicks: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    y, p, users = clicks
    mean = np.full(len(y), y.mean())
    rng = np.random.default_rng(2)
    same = np.stack([p] * 3)
    noisy = np.stack([np.clip(p + rng.normal(0, sd, len(p)), 0.01, 0.99) for sd in (0, 0.1, 0.3)])
    narrow = bootstrap_ne_difference(y, same, np.stack([mean] * 3), users, resamples=200)
    wide = bootstrap_ne_difference(y, noisy, np.stack([mean] * 3), users, resamples=200)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
    assert wide.value == pytest.approx(np.mean([ne(y, p_seed).ne for p_seed in noisy]) - ne(y, mean).ne)


def test_the_interval_is_the_same_for_the_same_seed(clicks: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    y, p, users = clicks
    first, second = (bootstrap_ne_difference(y, p, p**2, users, resamples=20, seed=5) for _ in range(2))
    assert first == second


def test_rows_of_one_user_are_drawn_together() -> None:
    """With one user there is nothing to resample: the interval has no width."""
    y, p = np.array([1, 0, 1, 0]), np.array([0.8, 0.3, 0.6, 0.1])
    result = bootstrap_ne_difference(y, p, np.full(4, 0.5), np.zeros(4), resamples=50)
    assert result.low == pytest.approx(result.high)


def test_no_interval_without_both_classes() -> None:
    result = bootstrap_ne_difference(np.zeros(3), np.full(3, 0.1), np.full(3, 0.2), np.arange(3))
    assert math.isnan(result.value)


def test_mismatched_predictions_are_refused() -> None:
    with pytest.raises(InputError, match="must match"):
        bootstrap_ne_difference(np.array([0, 1]), np.zeros(2), np.zeros((2, 2)), np.arange(2))
