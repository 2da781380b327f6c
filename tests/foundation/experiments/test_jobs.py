"""A job is known by all that determines its numbers, done once, and never read half-written."""

import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import GemError
from events.splits import Period
from foundation.baselines.configs import LibraryConfig
from foundation.experiments import jobs
from foundation.experiments.data import Dataset
from foundation.experiments.jobs import Job, Outcome, outcomes, run_job
from foundation.experiments.tree_job import TreesArm
from foundation.recipes import tiny
from foundation.trainer import Trainer

JOB = Job("smoke", tiny().model, tiny().train, Period("fit", 0, 10), Period("judge", 10, 20), 0)

CHANGED: dict[str, list[Any]] = {
    "data": ["demo"],
    "model": [replace(tiny().model, dim=32), TreesArm(), TreesArm(history_scores=True), LibraryConfig("DIN")],
    "train": [None, replace(tiny().train, dense_rate=1e-4), replace(tiny().train, mixing_temperature=2.0)],
    "fit": [Period("fit", 0, 9), Period("fit", 1, 10)],
    "judge": [Period("judge", 10, 21), Period("judge", 11, 20)],
    "seed": [1],
    "tasks": [("click",), ("click", "conversion")],
    "surface": ["feed"],
    "stop_rows": [64],
}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the jobs computed, which cost nothing here: all in this process, without a dataset."""
    seeds: list[int] = []

    def run(job: Job, data: None) -> Outcome:
        seeds.append(job.seed)
        return Outcome(np.full((3, 2), job.seed, dtype=np.float32), {"seed": job.seed})

    def in_process(workers: int, *options: object, **more: object) -> Executor:
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(jobs, "run_job", run)
    monkeypatch.setattr(jobs, "dataset", lambda name, work: None)
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", in_process)
    return seeds


@pytest.fixture(scope="module")
def job(tiny_data: Dataset) -> Job:
    """A small model on a fifth of the tiny world."""
    calendar = tiny_data.calendar
    return replace(JOB, fit=calendar.teacher, judge=calendar.log, stop_rows=320)


# ---- the key ----------------------------------------------------------------------------------------------------


def test_every_field_of_a_job_is_part_of_its_key() -> None:
    assert set(CHANGED) == {field.name for field in fields(Job)}
    changed = [replace(JOB, **{name: value}) for name, values in CHANGED.items() for value in values]
    assert len({one.key for one in [JOB, *changed]}) == 1 + len(changed)
    assert replace(JOB, seed=0).key == JOB.key


def test_models_with_the_same_fields_differ_by_their_kind() -> None:
    class OtherTrees(TreesArm):
        pass

    assert replace(JOB, model=OtherTrees()).key != replace(JOB, model=TreesArm()).key


# ---- done once --------------------------------------------------------------------------------------------------


def test_a_finished_job_is_read_and_not_run_again(computed: list[int], tmp_path: Path) -> None:
    wanted = [JOB, replace(JOB, seed=1), JOB]
    first = outcomes(wanted, tmp_path, workers=1)
    assert sorted(computed) == [0, 1]
    again = outcomes([*wanted, replace(JOB, seed=2)], tmp_path, workers=1)
    assert sorted(computed) == [0, 1, 2]
    for one in wanted:
        assert (again[one].soft == one.seed).all()
        assert first[one].soft.dtype == again[one].soft.dtype == np.float32
        assert again[one].cost["seed"] == one.seed


def test_a_killed_experiment_goes_on_with_what_is_missing(
    computed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, wanted = jobs.run_job, [replace(JOB, seed=seed) for seed in range(3)]

    def killed_at_1(job: Job, data: Any) -> Outcome:
        if job.seed == 1:
            raise GemError("killed")
        return run(job, data)

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "run_job", killed_at_1)
        with pytest.raises(GemError, match="killed"):
            outcomes(wanted, tmp_path, workers=1)
    kept = computed.copy()
    done = outcomes(wanted, tmp_path, workers=1)
    assert 0 in kept
    assert sorted(computed) == [0, 1, 2]
    assert [done[one].cost["seed"] for one in wanted] == [0, 1, 2]


def test_a_half_written_file_is_never_read_as_finished(
    computed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, **arrays: object) -> None:
        Path(path).write_bytes(b"PK\x03\x04 half of it")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", half)
        with pytest.raises(OSError, match="disk full"):
            outcomes([JOB], tmp_path, workers=1)
    assert any(path.read_bytes().endswith(b"half of it") for path in (tmp_path / "jobs").iterdir())
    assert outcomes([JOB], tmp_path, workers=1)[JOB].cost["seed"] == 0
    assert computed == [0, 0]


def test_a_worker_ends_when_the_command_that_started_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr("os._exit", lambda code: ended.set())
    jobs._end_with(-1)
    assert ended.wait(10)


# ---- what a job does --------------------------------------------------------------------------------------------


def test_a_worker_process_gives_what_this_process_gives(job: Job, tiny_data: Dataset, tiny_work: Path) -> None:
    here = run_job(job, tiny_data)
    there = outcomes([job], tiny_work, workers=1)[job]
    judged = len(tiny_data.rows(job.judge))
    assert there.soft.shape == (judged, len(tiny_data.log.schema.tasks))
    assert there.soft == pytest.approx(here.soft, abs=1e-6)
    assert ((there.soft > 0) & (there.soft < 1)).all()
    assert there.cost["steps"] == here.cost["steps"] > 1
    assert there.cost["loss"] == pytest.approx(here.cost["loss"], abs=1e-6)
    assert there.cost["mixing"] is None


def test_seeds_differ_and_stop_rows_limits_training(job: Job, tiny_data: Dataset) -> None:
    one, other = run_job(job, tiny_data), run_job(replace(job, seed=1, stop_rows=64), tiny_data)
    assert (one.soft != other.soft).mean() > 0.9
    assert one.cost["examples"] == 320
    assert other.cost["examples"] == 64


def test_a_task_that_is_left_out_does_not_teach(job: Job, tiny_data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [task.name for task in tiny_data.log.schema.tasks]
    counted = []

    class Watched(Trainer):
        def __init__(self, model: Any, recipe: Any, source: Any, targets: Any, *, seed: int) -> None:
            counted.append({name: int(targets.counts_nK[:, k].sum()) for k, name in enumerate(names)})
            super().__init__(model, recipe, source, targets, seed=seed)

    monkeypatch.setattr(jobs, "Trainer", Watched)
    run_job(replace(job, stop_rows=128), tiny_data)
    run_job(replace(job, stop_rows=128, tasks=("conversion",)), tiny_data)
    joint, alone = counted
    assert alone["conversion"] == joint["conversion"] > 0
    assert joint["click"] == 128
    assert all(count == 0 for name, count in alone.items() if name != "conversion")


def test_a_surface_is_fitted_and_judged_on_its_own_rows(job: Job, tiny_data: Dataset) -> None:
    log, name = tiny_data.log, tiny_data.log.schema.surfaces[1]
    here = int((log.surface[tiny_data.rows(job.fit)] == 1).sum())
    alone = run_job(replace(job, surface=name, stop_rows=None), tiny_data)
    assert alone.cost["examples"] == here < len(tiny_data.rows(job.fit))
    judged = log.surface[tiny_data.rows(job.judge)] == 1
    assert np.isfinite(alone.soft[judged]).all()
    assert np.isnan(alone.soft[~judged]).all()


def test_mixing_weights_stand_in_the_cost(job: Job, tiny_data: Dataset) -> None:
    mixed = replace(job, train=replace(tiny().train, mixing_temperature=2.0), stop_rows=128)
    assert run_job(mixed, tiny_data).cost["mixing"]["cells"]


def test_aggregates_are_scaled_by_the_training_rows_alone(job: Job, tiny_data: Dataset) -> None:
    events, judge = tiny_data.rows(job.fit)[:200], tiny_data.rows(job.judge)
    width = 2 * len(tiny_data.aggregate_names)
    aware = replace(job, model=replace(tiny().model, aggregates=width))
    fitted, judged = jobs._sources(aware, tiny_data, events, judge)
    everything, _ = jobs._sources(aware, tiny_data, np.concatenate([events, judge]), judge)
    _, fewer = jobs._sources(aware, tiny_data, events, judge[:100])
    fitted_BA, everything_BA, judged_BA, fewer_BA = (
        source.batch(torch.arange(64)).aggregates_BA for source in (fitted, everything, judged, fewer)
    )
    assert fitted_BA.shape == judged_BA.shape == (64, width)
    assert not torch.equal(fitted_BA, everything_BA)
    assert torch.equal(judged_BA, fewer_BA)
