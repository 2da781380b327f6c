"""Figures of models on the same rows, and differences between them with intervals.

Legend: T judged rows, K tasks, S seeds.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from events.intervals import bootstrap_auc, bootstrap_auc_difference
from events.metrics import bootstrap_ne_difference, calibration, ne
from events.splits import Period
from foundation.experiments.data import Dataset
from foundation.experiments.jobs import Outcome


@dataclass(frozen=True)
class Judged:
    """The rows on which one task is judged: which of the period's rows, their labels and users."""

    task: str
    column: int
    counts: np.ndarray
    y: np.ndarray
    users: np.ndarray
    surface: np.ndarray

    def of(self, outcomes: list[Outcome]) -> np.ndarray:
        """Predictions of each seed on these rows, float64 [S, T]."""
        return np.stack([one.soft[self.counts, self.column].astype(np.float64) for one in outcomes])

    def on_surface(self, code: int) -> "Judged":
        """The same for the rows of one surface."""
        here = self.surface == code
        counts = np.zeros_like(self.counts)
        counts[np.flatnonzero(self.counts)[here]] = True
        return Judged(self.task, self.column, counts, self.y[here], self.users[here], self.surface[here])


def judged(data: Dataset, period: Period) -> dict[str, Judged]:
    """Task -> rows of the period whose label is defined and, its whole window passed, known."""
    log, rows = data.log, data.rows(period)
    found = {}
    for column, task in enumerate(log.schema.tasks):
        counts = log.usable(task.name, as_of_ms=period.end_ms + task.window_ms)[rows]
        kept = rows[counts]
        found[task.name] = Judged(
            task.name, column, counts, log.labels[task.name][kept], log.user[kept], log.surface[kept]
        )
    return found


def figures(rows: Judged, outcomes: list[Outcome]) -> dict[str, Any]:
    """NE, AUC, calibration: mean and standard deviation over seeds, each seed's own, and the AUC's interval."""
    p_ST = rows.of(outcomes)
    scores = [ne(rows.y, p) for p in p_ST]
    return {
        "ne": spread([one.ne for one in scores]),
        "auc": {**spread([one.auc for one in scores]), **_bounds(asdict(bootstrap_auc(rows.y, p_ST, rows.users)))},
        "calibration": spread([calibration(rows.y, p) for p in p_ST]),
        "entropy": scores[0].entropy,
        "rows": scores[0].rows,
        "positives": scores[0].positives,
    }


def difference(rows: Judged, a: list[Outcome], b: list[Outcome]) -> dict[str, Any]:
    """NE(a) - NE(b) and AUC(a) - AUC(b) with 95 % intervals over users and, crossed with them, seeds."""
    a_ST, b_ST = rows.of(a), rows.of(b)
    return {
        "ne": asdict(bootstrap_ne_difference(rows.y, a_ST, b_ST, rows.users)),
        "auc": asdict(bootstrap_auc_difference(rows.y, a_ST, b_ST, rows.users)),
    }


def spread(values: list[float]) -> dict[str, Any]:
    """Mean and standard deviation (n - 1) over seeds, and the values themselves."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "sd": deviation, "seeds": [round(float(v), 6) for v in values]}


def verdict(interval: dict[str, float], *, margin: float | None = None) -> str:
    """What an NE difference (with - without a part) says: better, worse, neutral within the margin, or not resolved."""
    low, high = interval["low"], interval["high"]
    if margin is not None and -margin < low and high < margin:
        return "neutral"
    if high < 0:
        return "better"
    if low > 0:
        return "worse"
    return "not resolved"


def _bounds(interval: dict[str, float]) -> dict[str, float]:
    return {"low": interval["low"], "high": interval["high"]}
