"""Alignment: an affine relation is found, the figures say what they say, and the copy is a space of its own."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from events.log import InteractionLog
from foundation.align import Alignment, aligned, closeness, common_rows, fit_alignment
from foundation.extract import period_rows, refit_compressor
from foundation.teacher import Teacher
from tests.command_runner import run_commands


@pytest.fixture(scope="module")
def old(tiny_checkpoint: Path) -> Teacher:
    return Teacher.load(tiny_checkpoint)


@pytest.fixture(scope="module")
def new(old: Teacher, tiny_log: InteractionLog) -> Teacher:
    return refit_compressor(old, tiny_log, period_rows(old, tiny_log), extraction=("head",), seed=9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), width=st.integers(1, 6), rows=st.integers(30, 60))
def test_finds_an_affine_relation(seed: int, width: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    new_nZ = random.uniform(-1, 1, (rows, width))
    truth = Alignment(random.uniform(-0.5, 0.5, (width, width)) / width, random.uniform(-0.4, 0.4, width))
    found = fit_alignment(new_nZ.astype(np.float32), truth(new_nZ).astype(np.float32), ridge=1e-10)
    np.testing.assert_allclose(found(new_nZ), truth(new_nZ), atol=1e-5)
    assert closeness(found(new_nZ), truth(new_nZ)).r2 == pytest.approx(1, abs=1e-4)


def test_a_dead_dimension_and_a_single_row_stay_finite() -> None:
    new_nZ = np.random.default_rng(0).uniform(-1, 1, (50, 3))
    new_nZ[:, 1] = 0.5
    for rows in (50, 1):
        found = fit_alignment(new_nZ[:rows], new_nZ[:rows])
        assert np.isfinite(found.map_ZZ).all()
        np.testing.assert_allclose(found(new_nZ[:rows]), new_nZ[:rows], atol=1e-2)


def test_the_map_ends_in_a_clip() -> None:
    wide = Alignment(np.eye(2) * 3, np.array([0.0, 1.0]))
    np.testing.assert_array_equal(wide(np.array([[1.0, 0.5], [-1.0, -1.0]])), [[1, 1], [-1, -1]])


def test_the_figures_of_known_vectors() -> None:
    old_nZ = np.array([[1.0, 0.0], [0.0, 1.0]])
    same = closeness(old_nZ, old_nZ)
    assert (same.r2, same.cosine, same.centroid_drift) == (1, 1, 0)
    swapped = closeness(old_nZ[::-1], old_nZ)
    assert (swapped.r2, swapped.cosine, swapped.centroid_drift) == (pytest.approx(-3), 0, 0)
    assert closeness(old_nZ + np.array([0.5, 0.5]), old_nZ).centroid_drift == pytest.approx(1)
    assert np.isnan(closeness(np.zeros((2, 2)), old_nZ).cosine)


def test_brings_a_new_space_closer_and_names_it_anew(old: Teacher, new: Teacher, tiny_log: InteractionLog) -> None:
    rows = common_rows(old, new, tiny_log)
    assert (np.diff(tiny_log.event_ms[rows]) >= 0).all()
    assert tiny_log.event_ms[rows].max() < old.trained_until_ms
    old_nZ, before = old.represent(tiny_log, rows).z, new.represent(tiny_log, rows)
    alignment = fit_alignment(before.z, old_nZ)
    copy = aligned(new, alignment)
    assert len({old.run, new.run, copy.run}) == 3
    assert copy.info.parent == new.run
    after = copy.represent(tiny_log, rows)
    np.testing.assert_array_equal(after.soft, before.soft)
    np.testing.assert_allclose(after.z, alignment(before.z), atol=1e-4)
    assert np.abs(after.z).max() <= 1
    near, far = closeness(after.z, old_nZ), closeness(before.z, old_nZ)
    assert near.r2 > 0.5 > far.r2
    assert near.cosine > 0.8 > far.cosine
    assert near.centroid_drift < far.centroid_drift


def test_too_few_common_rows_are_refused(old: Teacher, new: Teacher, tiny_log: InteractionLog) -> None:
    later = Teacher(new.model, replace(new.info, trained_from_ms=old.trained_until_ms))
    with pytest.raises(InputError, match="0 rows in the training periods"):
        common_rows(old, later, tiny_log)


def test_the_command(
    old: Teacher, new: Teacher, tiny_checkpoint: Path, tiny_log_dir: Path, tiny_log: InteractionLog, tmp_path: Path
) -> None:
    new.write(tmp_path / "new", {})
    out = tmp_path / "out"
    start = ["foundation.align", "--old", str(tiny_checkpoint), "--log", str(tiny_log_dir)]
    done = run_commands(
        [
            [*start, "--new", str(tmp_path / "new"), "--out", str(out)],
            [*start, "--new", str(tmp_path / "new"), "--out", str(out)],
            [*start, "--new", str(out)],
            [*start, "--new", str(tiny_checkpoint)],
        ]
    )
    assert [one.code for one in done] == [0, 2, 2, 0], [one.stderr for one in done]
    assert "choose another --out" in done[1].stderr
    assert "aligned already" in done[2].stderr
    result, same = (json.loads(done[number].stdout.splitlines()[-1]) for number in (0, 3))
    assert (result["old"], result["new"]) == (old.run, new.run)
    assert result["after"]["r2"] > result["before"]["r2"]
    assert same["before"] == {"r2": 1, "cosine": pytest.approx(1), "centroid_drift": 0}
    assert "run" not in same
    copy = Teacher.load(out)
    assert copy.run == result["run"]
    rows = common_rows(old, copy, tiny_log)[-200:]
    judged = closeness(copy.represent(tiny_log, rows).z, old.represent(tiny_log, rows).z)
    assert judged.r2 == pytest.approx(result["after"]["r2"], abs=0.2)
