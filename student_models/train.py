"""`python -m student_models.train`: every arm and seed, one pass in time order over the calendar's student period.

Each run is a folder <out>/<arm>/seed<n> with model.safetensors, predictions.parquet (validation period) and, written
last, run.json; a run whose run.json stands is finished and is not repeated.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from contracts.command import report, run, track
from events.log import InteractionLog
from events.metrics import ne
from events.representations import RepresentationLog
from events.splits import Calendar
from events.store import read_calendar, read_log
from student_models.dataset import StudentRows, base_rates, check_covered, student_rows
from student_models.recipes import ARMS, Arm, StudentRecipe, arm_named, arm_spec, recipe_named
from student_models.runs import Run, Sources, finished, read_run, recipe_json, run_folder, writable_folder, write_run
from student_models.trainer import TrainingData, fit, probabilities

app = typer.Typer(add_completion=False)


@app.command()
def main(
    log: Annotated[Path, typer.Option(help="Folder of the interaction log.")],
    representations: Annotated[Path, typer.Option(help="Representation log: <root>/<space>.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs; finished ones in it are kept.")],
    arms: Annotated[str, typer.Option(help="Arms to train, by commas.")] = ",".join(arm.name for arm in ARMS),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per arm: 0, 1, ...")] = 3,
    recipe: Annotated[str, typer.Option(help="Recipe name: light or tiny.")] = "light",
    threads: Annotated[int, typer.Option(min=1, help="Threads of one training step.")] = 1,
) -> None:
    """Train the students; finished runs are not repeated."""
    torch.set_num_threads(threads)
    chosen = recipe_named(recipe)
    wanted = [(arm_named(name), seed) for name in arms.split(",") for seed in range(seeds)]
    events, calendar = read_log(log), read_calendar(log)
    records = RepresentationLog(representations)
    sources = Sources.of(events, records)
    open_runs = [
        (arm, seed)
        for arm, seed in wanted
        if not finished(run_folder(out, arm.name, seed), recipe=chosen, arm=arm, sources=sources)
    ]
    if open_runs:
        writable_folder(out, "--out")
        data = training_data(events, records, calendar, history_length=chosen.history_length)
        for arm, seed in track(open_runs, title="students"):
            train_run(run_folder(out, arm.name, seed), data, chosen, arm, seed, sources=sources)
    folders = [run_folder(out, arm.name, seed) for arm, seed in wanted]
    report(
        {
            "out": str(out),
            "trained": len(open_runs),
            "kept": len(wanted) - len(open_runs),
            "soft_label_share": read_run(folders[0]).soft_label_share,
            **_mean_ne(folders),
        }
    )


def training_data(
    log: InteractionLog, records: RepresentationLog, calendar: Calendar, *, history_length: int
) -> TrainingData:
    """Rows of the student and the validation period; the test period stays closed. InputError when the representation
    log does not cover both."""

    def covered(period: str) -> StudentRows:
        rows = student_rows(log, records, calendar, period, history_length=history_length)
        check_covered(log, records, rows, period)
        return rows

    return TrainingData(covered("student"), covered("validation"), base_rates(log, before_ms=calendar.student.start_ms))


def train_run(folder: Path, data: TrainingData, recipe: StudentRecipe, arm: Arm, seed: int, *, sources: Sources) -> Run:
    """Train one arm with one seed, score the validation rows, and leave the run in its folder."""
    student = fit(data, recipe, arm, seed)
    rows, schema = data.validation, data.validation.spec.schema
    predicted = probabilities(student, rows.read_by(arm), spec=arm_spec(rows.spec, recipe, arm))
    tasks = [task.name for task in schema.tasks]
    scores = {
        task: ne(rows.labels[rows.usable[:, k], k], predicted[rows.usable[:, k], k]) for k, task in enumerate(tasks)
    }
    trained = Run(
        **asdict(sources),
        arm=arm.name,
        seed=seed,
        recipe=recipe_json(recipe, arm),
        schema=schema.to_json(),
        rows=len(data.student),
        validation_rows=len(rows),
        soft_label_share=data.student.soft_label_share,
        metrics={
            figure: {task: getattr(score, figure) for task, score in scores.items() if not score.reason}
            for figure in ("ne", "auc")
        },
        sha256={},  # write_run fills it in
    )
    write_run(folder, run=trained, student=student, event_id=rows.event_id, probabilities=predicted, tasks=tasks)
    return trained


def _mean_ne(folders: list[Path]) -> dict[str, Any]:
    """Validation NE of each task and arm, mean over seeds."""
    values: dict[str, dict[str, list[float]]] = {}
    for trained in map(read_run, folders):
        for task, value in trained.metrics["ne"].items():
            values.setdefault(task, {}).setdefault(trained.arm, []).append(value)
    return {"ne": {task: {arm: float(np.mean(of)) for arm, of in arms.items()} for task, arms in values.items()}}


if __name__ == "__main__":
    run(app)
