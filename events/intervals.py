"""User-clustered 95 % intervals of figures that are no mean over rows: AUC, and differences of AUC.

Legend: T rows, S seeds, U users, R resamples. Users are drawn whole, because rows of one user are not independent, and
seeds are drawn crossed with them, as in `events.metrics.bootstrap_ne_difference`.
"""

import numpy as np

from contracts.errors import InputError
from events.metrics import Interval, auc


def bootstrap_auc(y: np.ndarray, p: np.ndarray, users: np.ndarray, *, resamples: int = 200, seed: int = 0) -> Interval:
    """AUC, mean over the seeds of p [T] or [S, T], with its 95 % interval; NaN where y has one class."""
    return _interval(y, np.atleast_2d(p), None, users, resamples=resamples, seed=seed)


def bootstrap_auc_difference(
    y: np.ndarray, p_a: np.ndarray, p_b: np.ndarray, users: np.ndarray, *, resamples: int = 200, seed: int = 0
) -> Interval:
    """AUC(a) - AUC(b), mean over seeds, with a 95 % interval; p_a, p_b are [T] or [S, T], paired by seed."""
    a_ST, b_ST = np.atleast_2d(p_a), np.atleast_2d(p_b)
    if a_ST.shape != b_ST.shape:
        raise InputError(f"predictions {a_ST.shape} and {b_ST.shape} must have one shape; pair the seeds")
    return _interval(y, a_ST, b_ST, users, resamples=resamples, seed=seed)


def _interval(
    y: np.ndarray, a_ST: np.ndarray, b_ST: np.ndarray | None, users: np.ndarray, *, resamples: int, seed: int
) -> Interval:
    if a_ST.shape[1:] != y.shape or len(users) != len(y):
        raise InputError(f"{a_ST.shape[1]} predictions, {len(users)} users and {len(y)} rows must match")
    seeds = len(a_ST)
    value = float(np.mean([auc(y, a) for a in a_ST]))
    if b_ST is not None:
        value -= float(np.mean([auc(y, b) for b in b_ST]))
    if np.isnan(value):
        return Interval(value, value, value)
    sorted_a = [_Sorted(y, a) for a in a_ST]
    sorted_b = None if b_ST is None else [_Sorted(y, b) for b in b_ST]
    _, code_T = np.unique(users, return_inverse=True)
    count = int(code_T.max()) + 1
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        weight_T = np.bincount(rng.integers(0, count, count), minlength=count)[code_T].astype(np.float64)
        chosen = rng.integers(0, seeds, seeds)
        one = np.mean([sorted_a[s].auc(weight_T) for s in chosen])
        drawn.append(one if sorted_b is None else one - np.mean([sorted_b[s].auc(weight_T) for s in chosen]))
    kept = [figure for figure in drawn if np.isfinite(figure)]
    low, high = np.quantile(kept, (0.025, 0.975)) if kept else (np.nan, np.nan)
    return Interval(value, float(low), float(high))


class _Sorted:
    """Rows sorted by prediction once, so that each resample costs a few passes over them."""

    def __init__(self, y: np.ndarray, p: np.ndarray) -> None:
        self._order_T = np.argsort(p, kind="stable")
        p_sorted = p[self._order_T]
        self._tie_T = np.cumsum(np.concatenate([[False], p_sorted[1:] != p_sorted[:-1]]))
        self._positive_T = y[self._order_T] == 1
        self._distinct = len(p) and self._tie_T[-1] == len(p) - 1

    def auc(self, weight_T: np.ndarray) -> float:
        """AUC with a weight per row, half of each tie; NaN where a class has no weight."""
        weight_T = weight_T[self._order_T]
        positive_T, negative_T = weight_T * self._positive_T, weight_T * ~self._positive_T
        if not self._distinct:
            positive_T = np.bincount(self._tie_T, weights=positive_T)
            negative_T = np.bincount(self._tie_T, weights=negative_T)
        below_T = np.cumsum(negative_T) - negative_T / 2
        pairs = positive_T.sum() * negative_T.sum()
        return float(positive_T @ below_T / pairs) if pairs else float("nan")
