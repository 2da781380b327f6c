"""The evaluation: the figures of events/metrics.py on the validation rows, and what each comparison means."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import InputError
from events.log import InteractionLog
from events.metrics import ne
from events.splits import Calendar
from events.store import read_truth
from student_models.evaluate import Judged, evaluate, judged_rows, read_arms
from student_models.evaluate import main as evaluate_command

ARMS = ["base", "kd", "loopfm", "kd_loopfm", "placebo"]
TEACHERS = ["teacher_frozen", "teacher_refreshed"]


@pytest.fixture(scope="module")
def teacher_file(tiny_log_dir: Path, tiny_log: InteractionLog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions of a teacher that knows the truth."""
    path = tmp_path_factory.mktemp("teacher") / "predictions.parquet"
    columns = {f"p_{task}": p.astype(np.float32) for task, p in read_truth(tiny_log_dir).items()}
    pq.write_table(pa.table({"event_id": tiny_log.event_id, **columns}), path)
    return path


@pytest.fixture(scope="module")
def result(
    tiny_log_dir: Path, runs_dir: Path, teacher_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the command prints last."""
    with pytest.MonkeyPatch.context() as patch:
        printed: list[dict[str, Any]] = []
        patch.setattr("student_models.evaluate.report", printed.append)
        teachers = [f"frozen={teacher_file}", f"refreshed={teacher_file}"]
        evaluate_command(tiny_log_dir, runs_dir, teachers, resamples=20)
    return printed[0]


def test_all_arms_and_teachers_stand_side_by_side(result: Mapping[str, Any], tiny_log: InteractionLog) -> None:
    tasks = [task.name for task in tiny_log.schema.tasks]
    assert result["split"] == "validation"
    for figure in ("ne", "auc", "spread"):
        assert {task: list(of) for task, of in result[figure].items()} == dict.fromkeys(tasks, ARMS + TEACHERS)
    assert {task: list(of) for task, of in result["transfer_ratio"].items()} == dict.fromkeys(tasks, ARMS)
    assert set(result["best_ne"]) == set(tasks)
    assert all(rows["rows"] and rows["positives"] and rows["entropy"] for rows in result["rows"].values())


def test_a_teacher_that_knows_the_truth_reaches_the_best_ne(result: Mapping[str, Any]) -> None:
    for task, best in result["best_ne"].items():
        assert result["ne"][task]["teacher_refreshed"] == pytest.approx(best, abs=1e-6)


def test_the_transfer_ratio_follows_from_the_table(result: Mapping[str, Any]) -> None:
    for task, means in result["ne"].items():
        gap = means["base"] - means["teacher_refreshed"]
        assert result["gain"][task]["teacher_refreshed over base"]["value"] == pytest.approx(gap, abs=1e-6)
        resolved = result["gain"][task]["teacher_refreshed over base"]["low"] > 0
        for arm, ratio in result["transfer_ratio"][task].items():
            assert ratio == pytest.approx((means["base"] - means[arm]) / gap) if resolved else np.isnan(ratio)
        assert result["gain"][task]["kd over base"]["value"] == pytest.approx(means["base"] - means["kd"], abs=1e-6)
        gain = result["gain"][task]["kd_loopfm over placebo"]
        assert gain["value"] == pytest.approx(means["placebo"] - means["kd_loopfm"], abs=1e-6)
        assert gain["low"] <= gain["value"] <= gain["high"]


def test_figures_are_those_of_the_rows_that_can_be_judged(
    result: Mapping[str, Any], runs_dir: Path, tiny_log: InteractionLog, calendar: Calendar
) -> None:
    rows = calendar.rows(tiny_log, "validation")
    tasks = [task.name for task in tiny_log.schema.tasks]
    judged = judged_rows(tiny_log, calendar, rows)
    arms = read_arms(runs_dir, tiny_log.event_id[rows], tasks, fingerprint=tiny_log.schema.fingerprint())
    assert arms["kd"].shape == (2, len(rows), len(tasks))
    clicked = tiny_log.labels["click"][rows] == 1
    assert np.array_equal(judged["install"].mask, clicked)
    column = tasks.index("install")
    scores = [ne(tiny_log.labels["install"][rows][clicked], p[clicked, column]) for p in arms["kd"]]
    assert result["ne"]["install"]["kd"] == pytest.approx(np.mean([score.ne for score in scores]))
    assert result["auc"]["install"]["kd"] == pytest.approx(np.mean([score.auc for score in scores]))


def made(**columns: list[float]) -> tuple[dict[str, Judged], dict[str, np.ndarray]]:
    """One task, four rows of four users, one seed."""
    labels = np.array([1, 0, 1, 0])
    judged = {"click": Judged(np.ones(4, dtype=bool), labels, np.arange(4))}
    return judged, {name: np.array(p, np.float32)[None, :, None] for name, p in columns.items()}


GOOD, FAIR, MEAN = [0.9, 0.1, 0.9, 0.1], [0.7, 0.3, 0.7, 0.3], [0.5, 0.5, 0.5, 0.5]


def test_the_transfer_ratio_is_one_at_the_teacher_and_zero_at_base() -> None:
    result = evaluate(*made(base=MEAN, kd=FAIR, kd_loopfm=GOOD, teacher_refreshed=GOOD), resamples=5)
    ratio = result["transfer_ratio"]["click"]
    assert ratio["base"] == 0
    assert ratio["kd_loopfm"] == pytest.approx(1)
    assert 0 < ratio["kd"] < 1


def test_there_is_no_transfer_ratio_without_something_to_transfer() -> None:
    worse = evaluate(*made(base=GOOD, kd=GOOD, teacher_refreshed=FAIR), resamples=5)
    assert np.isnan(worse["transfer_ratio"]["click"]["kd"])
    # right for three users and wrong for one: better in the mean, but not for every draw of the users
    mixed = evaluate(*made(base=MEAN, kd=FAIR, teacher_refreshed=[0.9, 0.1, 0.9, 0.8]), resamples=200)
    assert mixed["gain"]["click"]["teacher_refreshed over base"]["value"] > 0
    assert np.isnan(mixed["transfer_ratio"]["click"]["kd"])
    frozen = evaluate(*made(base=MEAN, kd=FAIR, teacher_frozen=GOOD), resamples=5)
    assert frozen["transfer_ratio"]["click"] == {}


def test_one_class_is_said_instead_of_scored() -> None:
    judged, predictions = made(base=FAIR, kd=FAIR)
    judged = {"click": Judged(judged["click"].mask, np.ones(4, dtype=int), judged["click"].users)}
    result = evaluate(judged, predictions, resamples=5)
    assert np.isnan(result["ne"]["click"]["base"])
    assert "one class" in result["rows"]["click"]["reason"]


@pytest.mark.parametrize("option", ["frozen", "best=p.parquet", "=p.parquet"])
def test_a_teacher_needs_a_name_and_a_file(tiny_log_dir: Path, runs_dir: Path, option: str) -> None:
    with pytest.raises(InputError, match=r"is not frozen=FILE.parquet or refreshed=FILE.parquet"):
        evaluate_command(tiny_log_dir, runs_dir, [option])


def test_a_folder_without_students_is_refused(tiny_log_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no finished student; train them"):
        evaluate_command(tiny_log_dir, tmp_path)


def test_arms_with_different_seeds_are_not_compared(tiny_log_dir: Path, runs_dir: Path, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(runs_dir, tmp_path / "runs"))
    shutil.rmtree(runs / "kd" / "seed1")
    with pytest.raises(InputError, match="different numbers of seeds"):
        evaluate_command(tiny_log_dir, runs)


def test_students_of_another_schema_are_refused(tiny_log_dir: Path, runs_dir: Path, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(runs_dir, tmp_path / "runs"))
    path = runs / "base" / "seed0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_fingerprint": "0" * 16}))
    with pytest.raises(InputError, match="trained on another schema"):
        evaluate_command(tiny_log_dir, runs)


def test_damaged_predictions_of_a_student_are_refused(tiny_log_dir: Path, runs_dir: Path, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(runs_dir, tmp_path / "runs"))
    path = runs / "kd" / "seed1" / "predictions.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, table.column_names[1], pa.array(np.full(len(table), 0.5, np.float32))), path)
    with pytest.raises(InputError, match=r"kd/seed1/predictions.parquet is damaged"):
        evaluate_command(tiny_log_dir, runs)


def test_a_teachers_file_without_event_ids_ends_with_one_sentence(
    tiny_log_dir: Path, runs_dir: Path, teacher_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pq.read_table(teacher_file).drop_columns(["event_id"]), path)
    with pytest.raises(InputError, match=r"p.parquet is no file of predictions with event_id") as caught:
        evaluate_command(tiny_log_dir, runs_dir, [f"frozen={path}"])
    assert len(str(caught.value).splitlines()) == 1


def test_prints_a_table_and_ends_with_json(
    tiny_log_dir: Path, runs_dir: Path, teacher_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_command(tiny_log_dir, runs_dir, [f"refreshed={teacher_file}"], resamples=5)
    lines = capsys.readouterr().out.splitlines()
    assert {"split", "ne", "auc", "transfer_ratio", "best_ne"} <= set(json.loads(lines[-1]))
    table = "\n".join(lines[:-1])
    assert all(name in table for name in [*ARMS, "teacher_refreshed", "best attainable", "transfer ratio"])
