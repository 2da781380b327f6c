"""The tree anchor as a job: LightGBM per task, its rounds chosen on the last part of the period that fits it.

Legend: n judged rows, K tasks.
"""

from dataclasses import dataclass

import numpy as np

from events.aggregates import AggregateTable
from events.splits import DAY_MS, Period
from foundation.baselines.history_scores import fit_history_gru, history_scores
from foundation.baselines.trees import choose_rounds, fit_trees, refit_rounds, tree_inputs
from foundation.experiments.data import Dataset

HELD_OUT_SHARE = 0.2
"""Where the last day holds more than this share of the rows, or the period has a single day, the last rows by time."""


@dataclass(frozen=True)
class TreesArm:
    """LightGBM on aggregates and static columns; with `history_scores` on the logits of a history GRU beside them."""

    history_scores: bool = False


def run_trees(arm: TreesArm, data: Dataset, fit: Period, judge: Period, *, seed: int) -> np.ndarray:
    """Probability of each task given its parent's positive label, float32 [n, K], for the rows of `judge`."""
    log, fit_rows, judge_rows = data.log, data.rows(fit), data.rows(judge)
    rows = np.concatenate([fit_rows, judge_rows])
    tables = [AggregateTable(data.aggregate_names, data.aggregates(part)) for part in (fit_rows, judge_rows)]
    table = AggregateTable(data.aggregate_names, np.concatenate([one.values for one in tables]))
    extra = [history_scores(fit_history_gru(log, seed=seed), log, rows)] if arm.history_scores else []
    inputs = tree_inputs(log, rows, table, *extra)
    held_out = log.event_ms[fit_rows] >= fit.end_ms - DAY_MS
    if not 0 < held_out.mean() <= 2 * HELD_OUT_SHARE:
        held_out = np.arange(len(fit_rows)) >= (1 - HELD_OUT_SHARE) * len(fit_rows)
    soft = np.zeros((len(judge_rows), len(log.schema.tasks)), dtype=np.float32)
    for column, task in enumerate(log.schema.tasks):
        counts = log.trainable(task.name, as_of_ms=fit.end_ms)[fit_rows]
        y = log.labels[task.name][fit_rows]

        def part(chosen: np.ndarray) -> AggregateTable:
            return AggregateTable(inputs.names, inputs.values[: len(chosen)][chosen])

        first, last = counts & ~held_out, counts & held_out
        if not (first.any() and last.any()):  # nothing to choose rounds by: the rate is all that is known
            soft[:, column] = y[counts].mean() if counts.any() else 0.5
            continue
        chosen = choose_rounds(part(first), y[first], part(last), y[last], seed=seed)
        trees = fit_trees(part(counts), y[counts], rounds=refit_rounds(chosen.rounds), seed=seed)
        soft[:, column] = trees.predict(AggregateTable(inputs.names, inputs.values[len(fit_rows) :]))
    return soft
