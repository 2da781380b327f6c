"""The bench runs arms over seeds, on few rows of a small world in a smoke run, and writes a page beside raw data."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import InputError
from events.splits import DAY_MS, Period
from foundation.experiments import bench as module
from foundation.experiments.bench import Arm, Bench
from foundation.experiments.data import SOURCES, Dataset, dataset, days
from foundation.experiments.jobs import Job, Outcome
from foundation.recipes import tiny

FIT, JUDGE = Period("fit", 0, 10), Period("judge", 10, 20)
ARMS = [Arm("narrow", tiny().model, tiny().train), Arm("wide", replace(tiny().model, dim=32), tiny().train)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that were asked for; each predicts its model's width and its seed."""
    wanted: list[Job] = []

    def outcomes(jobs: list[Job], work: Path, *, workers: int) -> dict[Job, Outcome]:
        wanted.extend(jobs)
        return {job: Outcome(np.array([[job.model.dim, job.seed]], dtype=np.float32), {}) for job in jobs}

    monkeypatch.setattr(module, "outcomes", outcomes)
    return wanted


def made_bench(folder: Path, *, smoke: bool = False) -> Bench:
    return Bench(work=folder, root=folder, seeds=(0, 1, 2), workers=1, smoke=smoke, command="python -m this")


def test_outcomes_stand_by_arm_and_seed(asked: list[Job], tmp_path: Path) -> None:
    found = made_bench(tmp_path).fit(ARMS, data="demo", fit=FIT, judge=JUDGE)
    assert {name: [one.soft.tolist() for one in some] for name, some in found.items()} == {
        "narrow": [[[16, 0]], [[16, 1]], [[16, 2]]],
        "wide": [[[32, 0]], [[32, 1]], [[32, 2]]],
    }
    assert all((job.data, job.fit, job.judge) == ("demo", FIT, JUDGE) for job in asked)
    assert {job.stop_rows for job in asked} == {None}


def test_tuning_may_take_other_seeds(asked: list[Job], tmp_path: Path) -> None:
    found = made_bench(tmp_path).fit(ARMS[:1], data="demo", fit=FIT, judge=JUDGE, seeds=(7,))
    assert [job.seed for job in asked] == [7]
    assert found["narrow"][0].soft[0, 1] == 7


def test_a_smoke_run_takes_few_rows_of_the_small_world(asked: list[Job], tmp_path: Path) -> None:
    smoke = made_bench(tmp_path, smoke=True)
    smoke.fit(ARMS, data="kuairand", fit=FIT, judge=JUDGE)
    job = Job("smoke", tiny().model, tiny().train, FIT, JUDGE, 0)
    smoke.fit_jobs({"own": [job], "fewer": [replace(job, stop_rows=64)]})
    assert {one.data for one in asked} == {"smoke"}
    assert [one.stop_rows for one in asked] == [512] * 7 + [64]


def test_jobs_of_the_caller_s_own_making_stand_by_name(asked: list[Job], tmp_path: Path) -> None:
    jobs = [Job("demo", tiny().model, tiny().train, FIT, JUDGE, seed) for seed in (0, 1)]
    found = made_bench(tmp_path).fit_jobs({"both": jobs, "last": jobs[1:]})
    assert [one.soft[0, 1] for one in found["both"]] == [0, 1]
    assert [one.soft[0, 1] for one in found["last"]] == [1]
    assert asked[:2] == jobs


def test_results_are_a_page_and_raw_data(tmp_path: Path) -> None:
    told = made_bench(tmp_path).write("name", {"ne": 0.9}, title="Title", intro="Intro.", body="Body.")
    raw = json.loads(Path(told["raw"]).read_text())
    assert (raw["ne"], raw["seeds"], raw["command"]) == (0.9, 3, "python -m this")
    assert raw["seconds_of_last_run"] >= 0
    assert Path(told["page"]).read_text().startswith("# Title\n")


# ---- data -------------------------------------------------------------------------------------------------------


def test_a_dataset_is_read_from_the_work_folder_and_an_unknown_one_refused(tiny_work: Path, tiny_data: Dataset) -> None:
    read = dataset("smoke", tiny_work)
    assert (read.log.event_id == tiny_data.log.event_id).all()
    assert dataset("smoke", tiny_work) is read
    with pytest.raises(InputError, match="no dataset 'criteo'; choose one of") as refused:
        dataset("criteo", tiny_work)
    assert all(name in str(refused.value) for name in SOURCES)


def test_a_log_that_cannot_be_made_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "smoke", ("contracts.no_such_module",))
    with pytest.raises(InputError, match="no_such_module could not make the log of 'smoke'"):
        dataset("smoke", tmp_path)
    assert not (tmp_path / "data" / "smoke" / "log").exists()


def test_rows_of_a_period_are_all_of_it_in_time_order(tiny_data: Dataset) -> None:
    log, period = tiny_data.log, days(tiny_data.calendar, 1, 3, "two days")
    assert period.start_ms == tiny_data.calendar.teacher.start_ms + DAY_MS
    assert period.end_ms - period.start_ms == 2 * DAY_MS
    rows = tiny_data.rows(period)
    assert set(rows) == set(np.flatnonzero((log.event_ms >= period.start_ms) & (log.event_ms < period.end_ms)))
    order = list(zip(log.event_ms[rows].tolist(), log.event_id[rows].tolist(), strict=True))
    assert order == sorted(order)


def test_aggregates_are_computed_once_for_the_same_events(
    tiny_data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tiny_data.rows(tiny_data.calendar.teacher)[:50]
    first = replace(tiny_data, folder=tmp_path, _aggregates={}).aggregates(events)
    assert first.shape == (50, len(tiny_data.aggregate_names))
    monkeypatch.setattr("foundation.experiments.data.aggregate_features", None)
    again = replace(tiny_data, folder=tmp_path, _aggregates={})
    assert np.array_equal(again.aggregates(events), first, equal_nan=True)
    with pytest.raises(TypeError):
        again.aggregates(events[::-1])
    monkeypatch.setattr("foundation.experiments.data._code", lambda: b"columns of another meaning")
    with pytest.raises(TypeError):
        replace(tiny_data, folder=tmp_path, _aggregates={}).aggregates(events)


def test_true_probabilities_stand_beside_the_log(tiny_data: Dataset) -> None:
    truth = tiny_data.truth("click")
    assert truth.shape == tiny_data.log.event_ms.shape
    assert ((truth > 0) & (truth < 1)).all()
