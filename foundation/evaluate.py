"""`python -m foundation.evaluate`: NE and AUC of a checkpoint per task and surface, and its predictions."""

import os
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
from events.metrics import Score, ne
from events.splits import Calendar
from events.store import read_calendar, read_log
from foundation.checkpoint import check_schema
from foundation.teacher import Teacher

ALL, TEST = "all", "test"

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
    scores = score(events, calendar, period, rows, soft)
    Console(width=100).print(_table(scores, title=f"GEM {teacher.run[:6]} on {period}: {len(rows):,} rows"))
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
    log: InteractionLog, calendar: Calendar, period: str, rows: np.ndarray, soft: np.ndarray
) -> dict[str, dict[str, Score]]:
    """task -> surface (and "all") -> figures of the conditional probabilities soft [n, K] on the rows that count."""
    scores: dict[str, dict[str, Score]] = {}
    for column, task in enumerate(log.schema.tasks):
        counts = log.usable(task.name, as_of_ms=calendar.judged_ms(period, task))[rows]
        labels, surfaces = log.labels[task.name][rows], log.surface[rows]
        scores[task.name] = {ALL: ne(labels[counts], soft[counts, column])}
        for code, surface in enumerate(log.schema.surfaces):
            here = counts & (surfaces == code)
            if here.any():
                scores[task.name][surface] = ne(labels[here], soft[here, column])
    return scores


def write_predictions(path: Path, log: InteractionLog, rows: np.ndarray, soft: np.ndarray) -> None:
    """event_id and p_<task> (given the parent's positive label) of each row, written in one step."""
    columns: dict[str, Any] = {"event_id": log.event_id[rows]}
    for column, task in enumerate(log.schema.tasks):
        columns[f"p_{task.name}"] = soft[:, column].astype(np.float32)
    temporary = path.with_name(path.name + ".tmp")
    pq.write_table(pa.table(columns), temporary)
    os.replace(temporary, path)


def _table(scores: dict[str, dict[str, Score]], *, title: str) -> Table:
    table = Table(title=title)
    table.add_column("task", no_wrap=True)
    table.add_column("surface", no_wrap=True)
    for heading in ("rows", "positives", "entropy", "log loss", "NE", "AUC"):
        table.add_column(heading, justify="right", no_wrap=True)
    for task, by_surface in scores.items():
        for surface, one in by_surface.items():
            figures = (f"{value:.4f}" for value in (one.entropy, one.log_loss, one.ne, one.auc))
            table.add_row(task, surface, f"{one.rows:,}", f"{one.positives:,}", *figures)
    return table


if __name__ == "__main__":
    run(app)
