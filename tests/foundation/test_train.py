"""The command: a killed run resumes to the weights of an uninterrupted one; each refusal names its mend."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contracts.errors import GemError, InputError
from foundation.checkpoint import INFO, OPTIMIZER, PROGRESS, read_info, read_model, read_moments
from foundation.recipes import tiny
from foundation.train import main as train
from foundation.trainer import Trainer


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "foundation.train", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)


def test_prints_progress_and_ends_with_json(tiny_log_dir: Path, tmp_path: Path) -> None:
    done = run("--log", tiny_log_dir, "--out", tmp_path / "gem", "--recipe", "tiny")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] > 0
    assert result["run"] == read_info(tmp_path / "gem").run
    assert "training: " in done.stderr


def test_reports_the_padding_that_bucketing_saves(
    tiny_log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucketed = replace(tiny(), train=replace(tiny().train, bucketing_batches=8))
    monkeypatch.setattr("foundation.train.recipe", lambda name: bucketed)
    train(tiny_log_dir, tmp_path / "gem")
    padding = json.loads(capsys.readouterr().out.splitlines()[-1])["padding"]
    assert padding["bucketed"] < padding["in_time_order"]


def test_a_killed_run_resumes_to_the_same_checkpoint(
    tiny_log_dir: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, step = tmp_path / "gem", Trainer.step

    def killed_at_15(self: Trainer, number: int) -> float:
        if number == 15:
            raise GemError("killed")
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", killed_at_15)
        with pytest.raises(GemError, match="killed"):
            train(tiny_log_dir, out, recipe_name="tiny")
    assert [path.name for path in out.iterdir()] == [PROGRESS]
    with pytest.raises(InputError, match="unfinished run; go on with --resume"):
        train(tiny_log_dir, out, recipe_name="tiny")
    train(tiny_log_dir, out, recipe_name="tiny", resume=True)
    expected, resumed = read_model(tiny_checkpoint), read_model(out)
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
    assert read_info(out) == read_info(tiny_checkpoint)
    assert not (out / PROGRESS).exists()


def test_resume_of_a_finished_run_does_nothing(
    tiny_log_dir: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (tiny_checkpoint / INFO).stat().st_mtime_ns
    train(tiny_log_dir, tiny_checkpoint, recipe_name="tiny", resume=True)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["already_finished"]
    assert (tiny_checkpoint / INFO).stat().st_mtime_ns == before


def test_a_finished_checkpoint_is_never_overwritten(tiny_log_dir: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(InputError, match="choose another --out"):
        train(tiny_log_dir, tiny_checkpoint, recipe_name="tiny")


def test_a_file_in_the_way_is_named(tiny_log_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "gem").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        train(tiny_log_dir, tmp_path / "gem", recipe_name="tiny")


def test_a_checkpoint_continues_in_time_order(tiny_log_dir: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    train(tiny_log_dir, tmp_path / "refreshed", period="student", parent=tiny_checkpoint)
    base, refreshed = read_info(tiny_checkpoint), read_info(tmp_path / "refreshed")
    assert refreshed.parent == base.run
    assert refreshed.recipe == base.recipe
    assert refreshed.trained_from_ms == base.trained_from_ms
    assert refreshed.trained_until_ms > base.trained_until_ms
    step = "step:pair_logits.weight"
    before, after = (
        read_moments(folder, read_info(folder))[step] for folder in (tiny_checkpoint, tmp_path / "refreshed")
    )
    assert after == before + refreshed.steps


def test_going_back_in_time_is_refused(tiny_log_dir: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="later period"):
        train(tiny_log_dir, tmp_path / "gem", period="teacher_validation", parent=tiny_checkpoint)


def test_another_recipe_than_the_parent_s_is_refused(tiny_log_dir: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave --recipe out"):
        train(tiny_log_dir, tmp_path / "gem", recipe_name="small", period="student", parent=tiny_checkpoint)


def test_unknown_period_and_recipe_are_refused(tiny_log_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no period 'summer'"):
        train(tiny_log_dir, tmp_path / "gem", recipe_name="tiny", period="summer")
    with pytest.raises(InputError, match="no recipe 'huge'"):
        train(tiny_log_dir, tmp_path / "gem", recipe_name="huge")
    assert not (tmp_path / "gem").exists()


def test_a_damaged_optimizer_of_the_parent_is_refused(
    tiny_log_dir: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    parent = Path(shutil.copytree(tiny_checkpoint, tmp_path / "parent"))
    whole = (parent / OPTIMIZER).read_bytes()
    for damaged in (b"half", whole[:-9] + bytes([whole[-9] ^ 64]) + whole[-8:]):
        (parent / OPTIMIZER).write_bytes(damaged)
        with pytest.raises(InputError, match=f"{OPTIMIZER} is missing or differs from its sha256"):
            train(tiny_log_dir, tmp_path / "gem", period="student", parent=parent)


def test_exit_codes(tiny_log_dir: Path, tmp_path: Path) -> None:
    missing = run("--log", tmp_path / "nothing", "--out", tmp_path / "gem", "--recipe", "tiny")
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: ")
    assert "nothing" in missing.stderr
    (tmp_path / "file").touch()
    unwritable = run("--log", tiny_log_dir, "--out", tmp_path / "file" / "gem", "--recipe", "tiny")
    assert unwritable.returncode == 2
    assert "Traceback" not in unwritable.stderr
    assert run("--log", tiny_log_dir).returncode == 2
