"""`python -m student_models.evaluate`: NE, AUC and transfer ratio of every arm on the validation period.

TR(arm) = [NE(base) - NE(arm)] / [NE(base) - NE(refreshed teacher)] per task, all on the same rows. Legend: S seeds,
T rows of the period, K tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from contracts.command import report, run
from contracts.errors import InputError
from events.log import InteractionLog
from events.metrics import Interval, Score, bootstrap_ne_difference, ne
from events.splits import Calendar
from events.store import has_truth, read_calendar, read_log, read_truth
from student_models.recipes import ARMS, STUDY_ARMS
from student_models.runs import PREDICTIONS, RUN, read_predictions, read_run

app = typer.Typer(add_completion=False)

PERIOD = "validation"
"""The only period evaluated here: the test period stays closed until a choice is final."""

REFRESHED = "teacher_refreshed"
COMPARISONS = (
    ("base", "kd"),
    ("base", "loopfm"),
    ("base", "kd_loopfm"),
    ("placebo", "kd_loopfm"),
    ("base", "teacher_frozen"),
    ("base", REFRESHED),
)
"""Pairs (a, b) whose NE(a) - NE(b) is reported with an interval: gains over base, and knowledge over capacity."""


@dataclass(frozen=True)
class Judged:
    """The rows on which one task is judged: mask over the period, labels and users of the masked rows."""

    mask: np.ndarray
    labels: np.ndarray
    users: np.ndarray


@app.command()
def main(
    log: Annotated[Path, typer.Option(help="Folder of the interaction log.")],
    runs: Annotated[Path, typer.Option(help="Folder that student_models.train wrote.")],
    teacher: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE.parquet of foundation.evaluate --predictions; NAME is frozen or refreshed."),
    ] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Bootstrap resamples of the users.")] = 500,
) -> None:
    """Print the table and, as the last line, the JSON of all figures."""
    events, calendar = read_log(log), read_calendar(log)
    rows = calendar.rows(events, PERIOD)
    tasks = [task.name for task in events.schema.tasks]
    predictions = read_arms(runs, events.event_id[rows], tasks, fingerprint=events.schema.fingerprint())
    for name, path in map(_named_file, teacher or []):
        predictions[f"teacher_{name}"] = read_predictions(path, events.event_id[rows], tasks)[None]
    truth = None
    if has_truth(log):
        of_task = read_truth(log)
        truth = np.stack([of_task[task][rows] for task in tasks], axis=1)
    result = evaluate(judged_rows(events, calendar, rows), predictions, truth=truth, resamples=resamples)
    _print(result)
    report(result)


def judged_rows(log: InteractionLog, calendar: Calendar, rows: np.ndarray) -> dict[str, Judged]:
    """For each task the rows of the period on which it is defined and whose attribution window has passed."""
    judged = {}
    for task in log.schema.tasks:
        mask = log.usable(task.name, as_of_ms=calendar.judged_ms(PERIOD, task))[rows]
        judged[task.name] = Judged(mask, log.labels[task.name][rows][mask], log.user[rows][mask])
    return judged


def read_arms(runs: Path, event_id: np.ndarray, tasks: list[str], *, fingerprint: str) -> dict[str, np.ndarray]:
    """Predictions of every arm with a finished run: arm -> float32 [S, T, K], in the order of the arms.

    InputError when there is none, when a run is damaged or was trained on another schema, or when arms differ in their
    seeds.
    """
    predictions: dict[str, np.ndarray] = {}
    for arm in (*ARMS, *STUDY_ARMS):
        folders = sorted(path.parent for path in (runs / arm.name).glob(f"seed*/{RUN}"))
        of_seeds = []
        for folder in folders:
            trained = read_run(folder)
            if trained.schema_fingerprint != fingerprint:
                raise InputError(f"{folder} was trained on another schema than this log; train it again")
            of_seeds.append(read_predictions(trained.verified(folder, PREDICTIONS), event_id, tasks))
        if folders:
            predictions[arm.name] = np.stack(of_seeds)
    if not predictions:
        raise InputError(f"{runs} holds no finished student; train them with python -m student_models.train")
    if len({len(of_arm) for of_arm in predictions.values()}) > 1:
        raise InputError(f"the arms in {runs} have different numbers of seeds; run student_models.train again")
    return predictions


def evaluate(
    judged: Mapping[str, Judged],
    predictions: Mapping[str, np.ndarray],
    *,
    truth: np.ndarray | None = None,
    resamples: int = 500,
    seed: int = 0,
) -> dict[str, Any]:
    """All figures as JSON: ne, auc, spread (standard deviation of NE over seeds), transfer_ratio, gain (differences
    with 95 % intervals, users resampled and crossed with seeds), rows (H, rows and positives beside every NE) and,
    given the truth [T, K], best_ne. predictions: name -> [S, T, K]; teachers have S = 1."""
    result: dict[str, Any] = {"split": PERIOD}
    for key in ("ne", "auc", "spread", "transfer_ratio", "gain", "rows"):
        result[key] = {}
    for column, (task, rows) in enumerate(judged.items()):
        of_task = {name: values[:, rows.mask, column] for name, values in predictions.items()}
        scores = {name: [ne(rows.labels, p_T) for p_T in p_ST] for name, p_ST in of_task.items()}
        means = {name: float(np.mean([score.ne for score in of_name])) for name, of_name in scores.items()}
        result["ne"][task] = means
        result["auc"][task] = {name: float(np.mean([score.auc for score in of])) for name, of in scores.items()}
        result["spread"][task] = {name: float(np.std([score.ne for score in of])) for name, of in scores.items()}
        gains = {
            (a, b): bootstrap_ne_difference(
                rows.labels, *_paired(of_task[a], of_task[b]), rows.users, resamples=resamples, seed=seed
            )
            for a, b in COMPARISONS
            if a in of_task and b in of_task
        }
        result["gain"][task] = {f"{b} over {a}": _interval_json(gain) for (a, b), gain in gains.items()}
        result["transfer_ratio"][task] = _transfer_ratios(means, gains.get(("base", REFRESHED)))
        result["rows"][task] = _rows_json(next(iter(scores.values()))[0])
        if truth is not None:
            result.setdefault("best_ne", {})[task] = ne(rows.labels, truth[rows.mask, column]).ne
    return result


def _paired(a_ST: np.ndarray, b_ST: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with the seeds of the one that has more: a teacher's only run stands beside every seed of an arm."""
    seeds = max(len(a_ST), len(b_ST))
    return np.broadcast_to(a_ST, (seeds, a_ST.shape[1])), np.broadcast_to(b_ST, (seeds, b_ST.shape[1]))


def _transfer_ratios(means: Mapping[str, float], gap: Interval | None) -> dict[str, float]:
    """TR of every arm; empty without a base and a refreshed teacher. NaN where the interval of the teacher's gain over
    base holds zero: nothing to transfer is resolved, and a ratio over noise says nothing."""
    if gap is None:
        return {}
    return {
        arm.name: (means["base"] - means[arm.name]) / gap.value if gap.low > 0 else float("nan")
        for arm in (*ARMS, *STUDY_ARMS)
        if arm.name in means
    }


def _named_file(option: str) -> tuple[str, Path]:
    name, separator, path = option.partition("=")
    if not separator or name not in ("frozen", "refreshed"):
        raise InputError(f"--teacher {option!r} is not frozen=FILE.parquet or refreshed=FILE.parquet")
    return name, Path(path)


def _interval_json(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _rows_json(score: Score) -> dict[str, Any]:
    return {
        "rows": score.rows,
        "positives": score.positives,
        "entropy": score.entropy,
        **({"reason": score.reason} if score.reason else {}),
    }


def _print(result: dict[str, Any]) -> None:
    console = Console()
    for task, means in result["ne"].items():
        rows = result["rows"][task]
        title = f"{task}, {PERIOD}: {rows['rows']:,} rows, {rows['positives']:,} positives, H {rows['entropy']:.4f}"
        table = Table("arm", "NE", "± seeds", "AUC", "transfer ratio", title=title)
        for name, value in means.items():
            ratio = result["transfer_ratio"][task].get(name)
            table.add_row(
                name,
                f"{value:.4f}",
                f"{result['spread'][task][name]:.4f}",
                f"{result['auc'][task][name]:.4f}",
                "" if ratio is None else "n/a" if ratio != ratio else f"{ratio:.2f}",
            )
        if "best_ne" in result:
            table.add_row("best attainable", f"{result['best_ne'][task]:.4f}", "", "", "")
        console.print(table)
        for pair, gain in result["gain"][task].items():
            console.print(f"  NE gain of {pair}: {gain['value']:.4f} [{gain['low']:.4f}, {gain['high']:.4f}]")


if __name__ == "__main__":
    run(app)
