"""`python -m foundation.evaluate`: a checkpoint's NE, AUC and calibration per task and surface, and its predictions."""

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.table import Table

from contracts.command import report, run
from contracts.errors import InputError
from events.log import InteractionLog
from events.metrics import Score, UserAuc, calibration, ne, per_user_auc
from events.splits import Calendar
from events.store import read_calendar, read_log
from foundation.checkpoint import check_schema
from foundation.teacher import Teacher

ALL, TEST = "all", "test"
NEVER_MS = 1 << 62
"""A time after every row's."""


@dataclass(frozen=True)
class Figures:
    """Of one task on one set of rows. `calibration`: mean prediction / mean label. `user_auc`: within users, with
    histories frozen at the start of the period, for under online updates it is biased downwards."""

    score: Score
    calibration: float
    user_auc: UserAuc

    def to_json(self) -> dict[str, Any]:
        return {**self.score.to_json(), "calibration": self.calibration, "user_auc": asdict(self.user_auc)}


app = typer.Typer(add_completion=False)


@app.command()
def main(
    log: Annotated[Path, typer.Option(help="folder of the interaction log")],
    checkpoint: Annotated[Path, typer.Option(help="folder of the checkpoint")],
    period: Annotated[str, typer.Option(help="period of the log's calendar to evaluate on")] = "validation",
    predictions: Annotated[Path | None, typer.Option(help="Parquet file for event_id and p_<task> of each row")] = None,
) -> None:
    """Evaluate a checkpoint on one period: a table per task and surface, then the same as JSON on the last line."""
    if period == TEST:
        raise InputError("the test period stays closed until a choice is final; evaluate --period validation")
    if predictions is not None:
        predictions.parent.mkdir(parents=True, exist_ok=True)
    events, calendar, teacher = read_log(log), read_calendar(log), Teacher.load(checkpoint)
    check_schema(teacher.info, events.schema, source=str(checkpoint))
    rows = calendar.rows(events, period)
    if not len(rows):
        raise InputError(f"{log} has no impressions in its period {period!r}; choose another --period")
    soft = teacher.represent(events, rows).soft
    if predictions is not None:
        write_predictions(predictions, events, rows, soft)
    frozen_soft = teacher.represent(frozen(events, calendar.period(period).start_ms), rows).soft
    scores = score(events, calendar, period, rows, soft, frozen_soft)
    Console(width=120).print(_table(scores, title=f"GEM {teacher.run[:6]} on {period}: {len(rows):,} rows"))
    seen = bool(events.event_ms[rows].min() < teacher.trained_until_ms)
    report(
        {
            "checkpoint": str(checkpoint),
            "run": teacher.run,
            "split": period,
            "trained_on_rows": seen,
            "scores": {task: {name: one.to_json() for name, one in by.items()} for task, by in scores.items()},
        }
    )


def score(
    log: InteractionLog,
    calendar: Calendar,
    period: str,
    rows: np.ndarray,
    soft: np.ndarray,
    frozen_soft: np.ndarray,
) -> dict[str, dict[str, Figures]]:
    """task -> surface (and "all") -> figures of the conditional probabilities soft [n, K] on the rows that count;
    `frozen_soft` [n, K] are those with frozen histories."""
    scores: dict[str, dict[str, Figures]] = {}
    surface_n, user_n = log.surface[rows], log.user[rows]
    for column, task in enumerate(log.schema.tasks):
        counts = log.usable(task.name, as_of_ms=calendar.judged_ms(period, task))[rows]
        named = {ALL: counts}
        named |= {surface: counts & (surface_n == code) for code, surface in enumerate(log.schema.surfaces)}
        label_n = log.labels[task.name][rows]
        scores[task.name] = {
            name: Figures(
                ne(label_n[here], soft[here, column]),
                calibration(label_n[here], soft[here, column]),
                per_user_auc(label_n[here], frozen_soft[here, column], user_n[here]),
            )
            for name, here in named.items()
            if name == ALL or here.any()
        }
    return scores


def frozen(log: InteractionLog, at_ms: int) -> InteractionLog:
    """The log as far as it was known at a time: what arrived or became known from then on is never seen in a history.
    All rows stay, to be predicted."""
    known = {name: np.where(times < at_ms, times, NEVER_MS) for name, times in log.label_ms.items()}
    return replace(log, ingested_ms=np.where(log.ingested_ms < at_ms, log.ingested_ms, NEVER_MS), label_ms=known)


def write_predictions(path: Path, log: InteractionLog, rows: np.ndarray, soft: np.ndarray) -> None:
    """event_id and p_<task> (given the parent's positive label) of each row, written in one step."""
    columns: dict[str, Any] = {"event_id": log.event_id[rows]}
    for column, task in enumerate(log.schema.tasks):
        columns[f"p_{task.name}"] = soft[:, column].astype(np.float32)
    temporary = path.with_name(path.name + ".tmp")
    pq.write_table(pa.table(columns), temporary)
    os.replace(temporary, path)


def _table(scores: dict[str, dict[str, Figures]], *, title: str) -> Table:
    table = Table(title=title)
    table.add_column("task", no_wrap=True)
    table.add_column("surface", no_wrap=True)
    for heading in ("rows", "positives", "entropy", "log loss", "NE", "AUC", "pred/obs", "user AUC", "users"):
        table.add_column(heading, justify="right", no_wrap=True)
    for task, by_surface in scores.items():
        for surface, one in by_surface.items():
            score, users = one.score, one.user_auc
            values = (score.entropy, score.log_loss, score.ne, score.auc, one.calibration, users.auc)
            figures = [f"{value:.4f}" for value in values]
            table.add_row(task, surface, f"{score.rows:,}", f"{score.positives:,}", *figures, f"{users.users:,}")
    return table


if __name__ == "__main__":
    run(app)
