"""The command: every arm and seed once; finished runs are kept, a run of something else is refused."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import GemError, InputError
from events.log import InteractionLog
from events.representations import RepresentationLog
from events.splits import Calendar
from student_models import train as command
from student_models import trainer
from student_models.recipes import ARMS, StudentRecipe, tiny
from student_models.runs import RUN
from student_models.train import main as train
from tests.student_models.made_teacher import write_rows


def test_every_arm_and_seed_leaves_a_whole_run(runs_dir: Path) -> None:
    for arm in ARMS:
        for seed in (0, 1):
            files = {path.name for path in (runs_dir / arm.name / f"seed{seed}").iterdir()}
            assert files == {"model.safetensors", "predictions.parquet", "run.json"}


def test_arms_of_the_study_leave_whole_runs_too(
    tiny_log_dir: Path, records_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With everything switched on that the default recipe leaves out."""
    recipe = replace(
        tiny(),
        encoder="dmin",
        element_age=True,
        element_surface=True,
        element_ad=True,
        element_outcome=True,
        decoupled=True,
        drop_recent=0.3,
    )
    monkeypatch.setattr(command, "recipe_named", lambda name: recipe)
    arms = "kd_loopfm_w1,kd_ids,kd_soft,kd_count,kd_user,kd_fitnet,kd_loopfm_adapter"
    train(tiny_log_dir, records_dir, tmp_path, arms=arms, seeds=1)
    assert {path.parent.parent.name for path in tmp_path.rglob(RUN)} == set(arms.split(","))


def test_a_finished_run_is_kept(
    runs_dir: Path, tiny_log_dir: Path, records_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs_dir.rglob("*.*")}
    train(tiny_log_dir, records_dir, runs_dir, seeds=2, recipe="tiny")
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["trained"], result["kept"], result["soft_label_share"]) == (0, 10, 1.0)
    assert {path: path.stat().st_mtime_ns for path in runs_dir.rglob("*.*")} == before


def test_a_killed_command_goes_on_where_it_stopped(
    tiny_log_dir: Path,
    records_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def killed_at_kd(*arguments: object) -> object:
        if arguments[2].name == "kd":  # type: ignore[attr-defined]
            raise GemError("killed")
        return trainer.fit(*arguments)  # type: ignore[arg-type]

    options = {"arms": "base,kd", "seeds": 1, "recipe": "tiny"}
    with monkeypatch.context() as patch:
        patch.setattr(command, "fit", killed_at_kd)
        with pytest.raises(GemError, match="killed"):
            train(tiny_log_dir, records_dir, tmp_path, **options)  # type: ignore[arg-type]
    assert [path.parent.parent.name for path in tmp_path.rglob(RUN)] == ["base"]
    train(tiny_log_dir, records_dir, tmp_path, **options)  # type: ignore[arg-type]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["trained"], result["kept"]) == (1, 1)
    assert set(result["ne"]["click"]) == {"base", "kd"}


def test_a_folder_of_another_recipe_is_refused(
    runs_dir: Path, tiny_log_dir: Path, records_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "recipe_named", lambda name: StudentRecipe("tiny", batch=32))
    with pytest.raises(InputError, match="holds a run of another recipe"):
        train(tiny_log_dir, records_dir, runs_dir, arms="base", seeds=1)


def test_a_grown_representation_log_is_not_taken_for_the_old_one(
    runs_dir: Path, tiny_log_dir: Path, records_dir: Path, tmp_path: Path
) -> None:
    grown = Path(shutil.copytree(records_dir, tmp_path / records_dir.name))
    RepresentationLog(grown).begin_epoch(2)
    with pytest.raises(InputError, match=r"a run of another log: epoch 1 \(now 2\)"):
        train(tiny_log_dir, grown, runs_dir, arms="base", seeds=1, recipe="tiny")


def test_a_half_finished_backfill_trains_nothing(
    tiny_log_dir: Path, tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar, tmp_path: Path
) -> None:
    logged = records.read()
    end = int(tiny_log.offset[calendar.rows(tiny_log, "validation")].max())
    half = write_rows(tmp_path / "half", tiny_log, logged.take(logged.offset < end), end_offset=end)
    with pytest.raises(InputError, match=f"ends at offset {end}, the period 'validation' at offset {end}"):
        train(tiny_log_dir, half.folder, tmp_path / "runs", arms="base", seeds=1, recipe="tiny")
    assert not list((tmp_path / "runs").iterdir())


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "student_models.train", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)


def test_bad_input_ends_with_one_sentence_and_exit_code_2(
    tiny_log_dir: Path, records_dir: Path, tmp_path: Path
) -> None:
    here = ("--log", tiny_log_dir, "--representations", records_dir, "--out", tmp_path / "runs")
    cases = {
        "no arm 'bass'": (*here, "--arms", "bass"),
        "no representation log": ("--log", tiny_log_dir, "--representations", tmp_path, "--out", tmp_path / "runs"),
    }
    (tmp_path / "file").touch()
    cases["--out"] = (*here[:-1], tmp_path / "file", "--arms", "base", "--recipe", "tiny")
    for sentence, arguments in cases.items():
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stderr.count("error: ") == 1
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_prints_progress_and_ends_with_json(tiny_log_dir: Path, records_dir: Path, tmp_path: Path) -> None:
    arguments = ("--log", tiny_log_dir, "--representations", records_dir, "--out", tmp_path)
    done = run(*arguments, "--arms", "base", "--seeds", "1", "--recipe", "tiny")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["trained"] == 1
    assert "students: 1/1" in done.stderr
