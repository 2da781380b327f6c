"""Metrics: normalised entropy, AUC, per-user AUC, calibration, and user-clustered intervals of differences.

Legend: T rows, S seeds, U users, R resamples. y holds 0 and 1, p probabilities. NE = log loss / entropy of the mean
label of exactly the rows evaluated (He et al., "Practical lessons from predicting clicks on ads at Facebook", 2014,
section 2), so H, rows and positives stand beside every NE.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from contracts.errors import InputError

SMALLEST_P = 1e-7
"""Probabilities are kept this far from 0 and 1 in a logarithm: a float32 sigmoid reaches both."""


@dataclass(frozen=True)
class Score:
    """One task's figures on one set of rows. NaN where a figure does not exist; `reason` then says why."""

    ne: float
    auc: float
    log_loss: float
    entropy: float
    rows: int
    positives: int
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class UserAuc:
    """AUC within users, weighted by their impressions, over the users that have both labels."""

    auc: float
    users: int
    rows: int


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % interval."""

    value: float
    low: float
    high: float


def log_loss(y: np.ndarray, p: np.ndarray) -> float:
    """Mean negative log likelihood in nats; NaN without rows. InputError for labels or probabilities out of range."""
    y, p = _checked(y, p)
    return float(_losses(y, p).mean()) if len(y) else float("nan")


def entropy(y: np.ndarray) -> float:
    """Entropy of the mean label in nats: 0 for one class, NaN without rows."""
    if not len(y):
        return float("nan")
    return float(_entropy(np.asarray(np.mean(y, dtype=np.float64))))


def ne(y: np.ndarray, p: np.ndarray) -> Score:
    """NE and AUC with what stands beside them. Without rows every figure is NaN; with one class NE and AUC are."""
    y, p = _checked(y, p)
    loss, spread, positives = log_loss(y, p), entropy(y), int(y.sum())
    if not len(y):
        reason = "no rows"
    elif spread == 0:
        reason = f"only one class: {positives} positives in {len(y)} rows"
    else:
        return Score(loss / spread, auc(y, p), loss, spread, len(y), positives)
    return Score(float("nan"), float("nan"), loss, spread, len(y), positives, reason)


def auc(y: np.ndarray, p: np.ndarray) -> float:
    """P(score of a positive > score of a negative) + half the ties (average ranks); NaN with one class or no rows."""
    y, p = _checked(y, p)
    positives = y.sum()
    negatives = len(y) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    rank_sum = _average_ranks(np.argsort(p), p)[y == 1].sum()
    return float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))


def per_user_auc(y: np.ndarray, p: np.ndarray, users: np.ndarray) -> UserAuc:
    """AUC within each user, weighted by impressions; NaN where no user has both labels.

    Compute it with histories frozen at the start of the window: under online updates it is biased downwards.
    """
    y, p = _checked(y, p)
    if len(users) != len(y):
        raise InputError(f"{len(users)} users for {len(y)} rows; pass one user per row")
    if not len(y):
        return UserAuc(float("nan"), 0, 0)
    _, code_T = np.unique(users, return_inverse=True)
    rows_U, positives_U = np.bincount(code_T), np.bincount(code_T, weights=y)
    negatives_U = rows_U - positives_U
    # ranks over (user, p) less the rows of the users before are the ranks within each user
    rank_T = _average_ranks(np.lexsort((p, code_T)), code_T, p) - (np.cumsum(rows_U) - rows_U)[code_T]
    rank_sum_U = np.bincount(code_T, weights=rank_T * y)
    both_U = (positives_U > 0) & (negatives_U > 0)
    if not both_U.any():
        return UserAuc(float("nan"), 0, 0)
    pairs_U = positives_U[both_U] * negatives_U[both_U]
    auc_U = (rank_sum_U[both_U] - positives_U[both_U] * (positives_U[both_U] + 1) / 2) / pairs_U
    weight_U = rows_U[both_U]
    return UserAuc(float(auc_U @ weight_U / weight_U.sum()), int(both_U.sum()), int(weight_U.sum()))


def calibration(y: np.ndarray, p: np.ndarray) -> float:
    """Mean prediction / mean label: 1 is calibrated, above 1 too high; NaN without positives."""
    y, p = _checked(y, p)
    return float(p.sum() / y.sum()) if y.sum() else float("nan")


def bootstrap_ne_difference(
    y: np.ndarray, p_a: np.ndarray, p_b: np.ndarray, users: np.ndarray, *, resamples: int = 500, seed: int = 0
) -> Interval:
    """NE(a) - NE(b), mean over seeds, with a 95 % interval from resampling users and, crossed with them, seeds.

    p_a, p_b are [T] or [S, T]; seed s of a is paired with seed s of b. Users are drawn whole because rows of one user
    are not independent. The entropy is that of each resample. NaN where y has one class.
    """
    a_ST, b_ST = np.atleast_2d(p_a), np.atleast_2d(p_b)
    if a_ST.shape != b_ST.shape or len(users) != len(y):
        raise InputError(f"predictions {a_ST.shape} and {b_ST.shape}, {len(users)} users, {len(y)} rows must match")
    score = ne(y, a_ST[0])
    if score.reason:
        return Interval(float("nan"), float("nan"), float("nan"))
    loss_ST = np.stack([_losses(*_checked(y, a)) - _losses(*_checked(y, b)) for a, b in zip(a_ST, b_ST, strict=True)])
    _, code_T = np.unique(users, return_inverse=True)
    count = int(code_T.max()) + 1
    loss_US = np.stack([np.bincount(code_T, weights=loss, minlength=count) for loss in loss_ST], axis=1)
    rows_U = np.bincount(code_T, minlength=count)
    positives_U = np.bincount(code_T, weights=y, minlength=count)
    rng = np.random.default_rng(seed)
    differences = []
    for _ in range(resamples):
        weight_U = np.bincount(rng.integers(0, count, count), minlength=count)
        loss_S = weight_U @ loss_US
        rows, positives = weight_U @ rows_U, weight_U @ positives_U
        seeds = rng.integers(0, len(loss_S), len(loss_S))
        spread = float(_entropy(positives / rows))
        if spread > 0:
            differences.append(loss_S[seeds].mean() / rows / spread)
    value = float(loss_ST.mean() / score.entropy)
    low, high = np.quantile(differences, (0.025, 0.975)) if differences else (float("nan"), float("nan"))
    return Interval(value, float(low), float(high))


def _checked(y: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y, p = np.asarray(y), np.asarray(p, dtype=np.float64)
    if y.ndim != 1 or y.shape != p.shape:
        raise InputError(f"labels {y.shape} and probabilities {p.shape} must be two arrays of one length")
    if not np.isin(y, (0, 1)).all():
        raise InputError("labels must be 0 or 1; leave out rows on which the task is not defined")
    if not ((p >= 0) & (p <= 1)).all():
        raise InputError("probabilities must lie in [0, 1] and not be NaN; look for a diverged model")
    return y.astype(np.int64), p


def _losses(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    p = np.clip(p, SMALLEST_P, 1 - SMALLEST_P)
    return -np.where(y == 1, np.log(p), np.log1p(-p))


def _entropy(mean: np.ndarray) -> np.ndarray:
    inside = (mean > 0) & (mean < 1)
    safe = np.where(inside, mean, 0.5)
    return np.where(inside, -safe * np.log(safe) - (1 - safe) * np.log1p(-safe), 0.0)


def _average_ranks(order: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """Ranks 1..n of rows sorted by `order`; rows that are equal in all columns share the mean of their ranks."""
    changes = np.zeros(len(order), dtype=bool)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[order][1:] != column[order][:-1]
    group = np.cumsum(changes) - 1
    last = np.cumsum(np.bincount(group))
    first = last - np.bincount(group) + 1
    ranks = np.empty(len(order))
    ranks[order] = ((first + last) / 2)[group]
    return ranks
