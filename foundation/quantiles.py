"""Dense columns as ranks among the training rows: bounded, even, and blind to a column's scale and outliers.

Legend: n rows, A columns, Q knots of a column.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from contracts.errors import InputError

KNOTS = 256
"""Most knots of a column: between two of them lies under .5 % of the rows, unless they share one value."""
_FINITE = float(np.finfo(np.float64).max) / 4
"""What an infinite value reads as: beyond all others, and still a number that can be interpolated."""


@dataclass(frozen=True)
class Quantiles:
    """Knots (values_Q ascending, ranks_Q in [-1, 1]) of each column, fitted on the rows that train."""

    knots: tuple[tuple[np.ndarray, np.ndarray], ...]

    @property
    def columns(self) -> int:
        """A."""
        return len(self.knots)

    @property
    def width(self) -> int:
        """Width of `GemBatch.aggregates_BA` for these columns: the values, then their missing flags."""
        return 2 * self.columns

    @classmethod
    def fit(cls, values_nA: np.ndarray) -> "Quantiles":
        """Knots of float [n, A]. NaN is missing and takes no part; equal values share the middle of their ranks.

        InputError when there is no row to fit on.
        """
        if values_nA.ndim != 2 or not len(values_nA):
            raise InputError(
                f"quantiles need rows to be fitted on, got shape {values_nA.shape}; pass the training rows"
            )
        return cls(tuple(_knots(column) for column in values_nA.T))

    def transform(self, values_nA: np.ndarray) -> np.ndarray:
        """float32 [n, A]: the interpolated rank of each value in [-1, 1], NaN where it is missing.

        A column that was constant in training reads 0, one that was never seen there reads as missing. `BatchSource`
        takes the result and gives each batch the flags of what is missing. InputError for another number of columns.
        """
        if values_nA.ndim != 2 or values_nA.shape[1] != self.columns:
            raise InputError(
                f"the quantiles were fitted on {self.columns} columns, got shape {values_nA.shape}; "
                "compute the aggregates with the code that trained the checkpoint"
            )
        ranks_nA = np.full(values_nA.shape, np.nan, dtype=np.float32)
        for number, (values_Q, ranks_Q) in enumerate(self.knots):
            if len(values_Q):
                seen = ~np.isnan(values_nA[:, number])  # left to np.interp, NaN would get the rank of a single knot
                ranks_nA[seen, number] = np.interp(_finite(values_nA[seen, number]), values_Q, ranks_Q)
        return ranks_nA

    def to_json(self) -> dict[str, Any]:
        """Exact: Python prints a float so that it reads back the same."""
        return {"knots": [[values.tolist(), ranks.tolist()] for values, ranks in self.knots]}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Quantiles":
        """Inverse of `to_json`; InputError when it is none."""
        try:
            knots = tuple((np.array(v, dtype=np.float64), np.array(r, dtype=np.float64)) for v, r in raw["knots"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not quantiles of this version ({error}); train the checkpoint again") from error
        if any(v.shape != r.shape or v.ndim != 1 or any(b <= a for a, b in pairwise(v)) for v, r in knots):
            raise InputError("not quantiles: the knots of a column must ascend; train the checkpoint again")
        return cls(knots)


def _knots(column_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    seen = _finite(column_n[~np.isnan(column_n)])
    values, counts = np.unique(seen, return_counts=True)
    if not len(values):
        return values, values.copy()
    middle = np.cumsum(counts) - counts / 2
    ranks = 2 * middle / len(seen) - 1
    if len(values) > KNOTS:
        even = np.searchsorted(ranks, np.linspace(ranks[0], ranks[-1], KNOTS))
        kept = np.unique(np.clip(even, 0, len(values) - 1))
        values, ranks = values[kept], ranks[kept]
    return values, ranks


def _finite(values: np.ndarray) -> np.ndarray:
    return np.clip(values.astype(np.float64), -_FINITE, _FINITE)
