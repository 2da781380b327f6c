"""The tree anchor as a job: it learns from aggregates, repeats by seed and copes with a task of one class."""

from dataclasses import replace

import numpy as np
import pytest

from events.log import UNKNOWN_LABEL
from events.metrics import auc
from events.splits import DAY_MS, Period
from foundation.baselines import trees
from foundation.experiments import tree_job
from foundation.experiments.compare import judged
from foundation.experiments.data import Dataset
from foundation.experiments.jobs import Job, run_job
from foundation.experiments.tree_job import TreesArm, run_trees

pytest.importorskip("lightgbm")


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_ROUNDS", 60)


@pytest.fixture(scope="module")
def periods(tiny_data: Dataset) -> tuple[Period, Period]:
    return tiny_data.calendar.teacher, tiny_data.calendar.log


def test_trees_learn_clicks_from_aggregates(tiny_data: Dataset, periods: tuple[Period, Period]) -> None:
    fit, judge = periods
    done = run_job(Job("smoke", TreesArm(), None, fit, judge, seed=0), tiny_data)
    assert done.soft.shape == (len(tiny_data.rows(judge)), len(tiny_data.log.schema.tasks))
    assert done.soft.dtype == np.float32
    assert done.cost["seconds"] > 0
    rows = judged(tiny_data, judge)["click"]
    assert auc(rows.y, rows.of([done])[0]) > 0.55
    assert rows.of([done])[0].mean() == pytest.approx(rows.y.mean(), rel=0.3)
    again = run_trees(TreesArm(), tiny_data, fit, judge, seed=0)
    assert (again == done.soft).all()
    assert (run_trees(TreesArm(), tiny_data, fit, judge, seed=1) != done.soft).any()


def test_a_task_without_labels_or_of_one_class_gets_its_rate(
    tiny_data: Dataset, periods: tuple[Period, Period]
) -> None:
    labels = dict(tiny_data.log.labels)
    labels["conversion"] = np.full_like(labels["conversion"], UNKNOWN_LABEL)
    labels["install"] = np.where(labels["install"] == UNKNOWN_LABEL, labels["install"], 0)
    one_class = replace(tiny_data, log=replace(tiny_data.log, labels=labels))
    soft = run_trees(TreesArm(), one_class, *periods, seed=0)
    column = {task.name: soft[:, k] for k, task in enumerate(one_class.log.schema.tasks)}
    assert (column["conversion"] == 0.5).all()
    assert ((column["install"] >= 0) & (column["install"] < 1e-3)).all()
    assert len(np.unique(column["click"])) > 10


@pytest.mark.parametrize("held_out", ["day", "rows"])
def test_rounds_are_chosen_on_the_last_rows(tiny_data: Dataset, monkeypatch: pytest.MonkeyPatch, held_out: str) -> None:
    """On the last day, or where that holds most of the rows on their last fifth; the final fit has all of them."""
    calendar, log = tiny_data.calendar, tiny_data.log
    rows = tiny_data.rows(calendar.teacher)
    last = log.event_ms[rows] >= calendar.teacher.end_ms - DAY_MS
    kept = np.concatenate([rows[~last][: 300 if held_out == "day" else 20], rows[last][:100]])
    few = replace(tiny_data)
    monkeypatch.setattr(few, "rows", lambda period: kept if period == calendar.teacher else rows[:10], raising=False)
    seen: list[tuple[int, int]] = []

    class Chosen:
        rounds = 1

    def choose(*parts: object, seed: int) -> Chosen:
        seen.append((len(parts[1]), len(parts[3])))  # type: ignore[arg-type]
        return Chosen()

    monkeypatch.setattr(tree_job, "choose_rounds", choose)
    run_trees(TreesArm(), few, calendar.teacher, calendar.log, seed=0)
    fitted, judged_rows = seen[0]
    counts = log.trainable("click", as_of_ms=calendar.teacher.end_ms)[kept]
    expected = counts & last_of(kept, log.event_ms, calendar.teacher.end_ms, held_out)
    assert judged_rows == expected.sum() > 0
    assert fitted == counts.sum() - expected.sum()


def last_of(rows: np.ndarray, event_ms: np.ndarray, end_ms: int, held_out: str) -> np.ndarray:
    if held_out == "day":
        return event_ms[rows] >= end_ms - DAY_MS
    return np.arange(len(rows)) >= 0.8 * len(rows)
