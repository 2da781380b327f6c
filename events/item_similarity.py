"""Which ads go together, learnt from the untimed history: truncated singular value decompositions of user x ad tables.

Legend: U users, A ads, P events, d rank. One table says who was shown what, scaled down for popular ads and busy users;
one per task says how much more a user liked an ad than its rate and the user's own explain. The decomposition is
subspace iteration (Halko, Martinsson, Tropp, SIAM Review 2011, algorithm 4.4) over sorted lists of events: numpy alone.
"""

from dataclasses import dataclass

import numpy as np

from events.log import UNKNOWN_LABEL, UntimedEvents

RANK = 24
"""Rank of each decomposition (docs/kuairand_reference.md, 4)."""
OVERSAMPLING, ITERATIONS, SEED = 8, 3, 0
AD_PRIOR, USER_PRIOR = 20.0, 5.0
"""Events with the weight of which an ad's and a user's rate shrink to the mean."""


@dataclass(frozen=True)
class ItemSpaces:
    """shown_AD float32: unit vectors, whose products say which ads meet the same users (zero for an unseen ad).
    By task that the history has labels for: liked, float32 [A, d], and expected, float32 [A], the ad's rate, with which
    an outcome is compared."""

    shown_AD: np.ndarray
    liked: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


def fit_item_spaces(untimed: UntimedEvents, chosen: np.ndarray, ads: int) -> ItemSpaces:
    """From the chosen rows of the untimed events (row numbers, int64 [P], at least one) and their labels."""
    user, ad = untimed.user[chosen].astype(np.int64), untimed.ad[chosen].astype(np.int64)
    _, user = np.unique(user, return_inverse=True)
    per_ad, per_user = np.bincount(ad, minlength=ads), np.bincount(user)
    shown = _ad_vectors(user, ad, 1 / np.sqrt(per_ad[ad] * per_user[user]), ads)
    # the scale of popularity goes out again: cosines, and nothing for ads too rare to place
    length = np.linalg.norm(shown, axis=1, keepdims=True)
    shown = np.divide(shown, length, out=np.zeros_like(shown), where=length > 0)
    liked, expected = {}, {}
    for task, label in untimed.labels.items():
        y = label[chosen]
        known = y != UNKNOWN_LABEL
        if not known.any():
            liked[task], expected[task] = np.zeros((ads, 1), dtype=np.float32), np.zeros(ads, dtype=np.float32)
            continue
        u, a, y = user[known], ad[known], y[known].astype(np.float64)
        mean = y.mean()
        rate_A = _shrunk(y, a, mean, AD_PRIOR, ads)
        surplus = y - rate_A[a]
        residual = surplus - _shrunk(surplus, u, 0.0, USER_PRIOR, int(u.max()) + 1)[u]
        liked[task] = _ad_vectors(u, a, residual, ads).astype(np.float32)
        expected[task] = rate_A.astype(np.float32)
    return ItemSpaces(shown.astype(np.float32), liked, expected)


def _shrunk(y: np.ndarray, key: np.ndarray, prior: float, weight: float, size: int) -> np.ndarray:
    total, count = np.bincount(key, weights=y, minlength=size), np.bincount(key, minlength=size)
    return (total + prior * weight) / (count + weight)


def _ad_vectors(user: np.ndarray, ad: np.ndarray, value: np.ndarray, ads: int) -> np.ndarray:
    """Right singular vectors times the square roots of their values: float32 [A, d]."""
    users = int(user.max()) + 1
    to_users, to_ads = _Product(user, ad, value, users), _Product(ad, user, value, ads)
    width = min(RANK + OVERSAMPLING, users, ads)
    basis_UW, _ = np.linalg.qr(to_users(np.random.default_rng(SEED).normal(size=(ads, width)).astype(np.float32)))
    for _ in range(ITERATIONS):
        basis_AW, _ = np.linalg.qr(to_ads(basis_UW))
        basis_UW, _ = np.linalg.qr(to_users(basis_AW))
    left_AW, scale_W, _ = np.linalg.svd(to_ads(basis_UW), full_matrices=False)
    rank = min(RANK, width)
    return left_AW[:, :rank] * np.sqrt(scale_W[:rank])


class _Product:
    """A sparse table, as events sorted by their row, times a dense one."""

    def __init__(self, row: np.ndarray, column: np.ndarray, value: np.ndarray, rows: int) -> None:
        order = np.argsort(row, kind="stable")
        self._column, self._value, self._rows = column[order], value[order, None].astype(np.float32), rows
        self._present, self._first = np.unique(row[order], return_index=True)

    def __call__(self, dense: np.ndarray) -> np.ndarray:
        product = np.zeros((self._rows, dense.shape[1]), dtype=np.float32)
        if len(self._first):
            product[self._present] = np.add.reduceat(dense[self._column] * self._value, self._first, axis=0)
        return product
