"""What students train on is what serving reads: features from the log and from the cache are equal, bit for bit.

For random impressions, the cache is published as it stood just before each, from the representation log, into a real
Valkey; the server's own ranker assembles the inputs of a request at that time, and they are compared with those that
training assembles for the impression's row.
"""

import asyncio
import io
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from contracts.bodies import Candidate, RankRequest
from contracts.embedding import decode_history, encode_history
from contracts.features import HistoryBatch
from events.log import InteractionLog
from events.representations import RepresentationLog
from events.store import read_calendar, read_log
from precompute.publication import Publisher
from serving.ranker import Ranked
from serving.service import Service, build
from serving.settings import Settings
from student_models.dataset import StudentRows, student_rows
from student_models.runs import read_predictions, read_run
from tests.conftest import DemoRun

TIMES = 24
RECORD_LENGTH = 50
"""Longer than what the student reads, as in production: one record serves students of several lengths."""


@pytest.fixture(scope="module")
def log(smoke_run: DemoRun) -> InteractionLog:
    return read_log(smoke_run.folder / "log")


@pytest.fixture(scope="module")
def records(smoke_run: DemoRun) -> RepresentationLog:
    (index,) = (smoke_run.folder / "representations").glob("*/log.json")
    return RepresentationLog(index.parent)


@pytest.fixture(scope="module")
def run_folder(smoke_run: DemoRun) -> Path:
    return smoke_run.folder / "students" / "kd_loopfm" / "seed0"


@pytest.fixture(scope="module")
def rows(smoke_run: DemoRun, log: InteractionLog, records: RepresentationLog, run_folder: Path) -> StudentRows:
    """The validation day as the trained student read it."""
    length = read_run(run_folder).input_spec().history_length
    return student_rows(log, records, read_calendar(smoke_run.folder / "log"), "validation", history_length=length)


def random_rows(rows: StudentRows, count: int, *, seed: int) -> np.ndarray:
    """Rows with and without a history."""
    rng = np.random.default_rng(seed)
    empty = rows.impressions == 0
    return np.concatenate(
        [
            rng.choice(np.flatnonzero(~empty), count - count // 4, replace=False),
            rng.choice(np.flatnonzero(empty), count // 4, replace=False),
        ]
    )


def request_of(log: InteractionLog, rows: StudentRows, row: int) -> RankRequest:
    """The request that would have led to this impression."""
    context: dict[str, int | float] = {name: values[row].item() for name, values in rows.context.items()}
    return RankRequest(
        surface=log.schema.surfaces[rows.surface[row]],
        user_id=log.user_ids[rows.user[row]],
        candidates=[Candidate(log.ad_ids[rows.ad[row]])],
        context=context | {"timestamp_ms": int(rows.event_ms[row])},
        deadline_ms=10_000,
    )


def with_service(settings: Settings, work: Callable[[Service], Coroutine[Any, Any, list[Ranked]]]) -> list[Ranked]:
    """Run the work on a started service, on an event loop of its own."""

    async def main() -> list[Ranked]:
        service = build(settings, stream=io.StringIO())
        await service.start()
        try:
            return await work(service)
        finally:
            await service.close()

    return asyncio.run(main())


def serve_as_of(
    settings: Settings,
    requests: list[RankRequest],
    *,
    before_each: Callable[[RankRequest], None],
) -> list[Ranked]:
    """Answers of the server's ranker; the cache is prepared, and looked at, before each request."""

    async def work(service: Service) -> list[Ranked]:
        answers = []
        for request in requests:
            before_each(request)
            await service.ranker.store.poll()
            answers.append(await service.ranker.rank(request, request_id="r", started=time.perf_counter()))
        return answers

    return with_service(settings, work)


@pytest.fixture
def settings(smoke_run: DemoRun, valkey_url: str) -> Settings:
    fields: dict[str, Any] = {
        "_env_file": None,
        "models": smoke_run.folder / "artifacts",
        "catalog": smoke_run.folder / "log" / "catalog.arrow",
        "redis_url": valkey_url,
        "clock": "request",
        "store_timeout_ms": 2_000,
        "metrics_port": 0,
    }
    return Settings(**fields)


def test_training_and_serving_assemble_the_same_bits(
    log: InteractionLog,
    records: RepresentationLog,
    rows: StudentRows,
    run_folder: Path,
    settings: Settings,
    valkey: redis.Redis,
) -> None:
    chosen = random_rows(rows, TIMES, seed=1)

    def publish_just_before(request: RankRequest) -> None:
        assert request.context is not None
        before_ms = int(request.context["timestamp_ms"]) - 1
        valkey.flushall()
        publisher = Publisher(records, valkey, retired_ttl_s=7_200, now_ms=lambda: before_ms)
        publisher.publish(full=True, length=RECORD_LENGTH)

    requests = [request_of(log, rows, row) for row in chosen]
    answers = serve_as_of(settings, requests, before_each=publish_just_before)
    tasks = [task.name for task in log.schema.tasks]
    predicted = read_predictions(run_folder / "predictions.parquet", rows.event_id[chosen], tasks)
    for row, answer, probabilities in zip(chosen, answers, predicted, strict=True):
        status = answer.response.embedding.status
        assert status == ("fresh" if rows.impressions[row] else "missing"), answer.response
        offline = rows.inputs(slice(row, row + 1), spec=rows.spec)
        assert list(answer.inputs) == list(offline)
        for name, served in answer.inputs.items():
            assert served.dtype == offline[name].dtype, name
            assert served.shape == offline[name].shape, name
            assert served.tobytes() == offline[name].tobytes(), name
        assert np.abs(answer.probabilities[0] - probabilities).max() < 1e-5


def test_every_record_gives_the_history_that_the_log_gives(
    records: RepresentationLog, rows: StudentRows, log: InteractionLog
) -> None:
    """As above without a server, for many more rows: from_record equals from_index."""
    logged = records.read()
    history = records.as_of(logged)
    for row in random_rows(rows, 200, seed=2):
        user, now_ms = str(log.user_ids[rows.user[row]]), int(rows.event_ms[row])
        record = history.record(user, RECORD_LENGTH, as_of_ms=now_ms)
        if record is not None:
            stored = encode_history(record, user_id=user, quantiser=records.quantiser)
            record = decode_history(stored, user_id=user, dim=rows.spec.dim, quantiser=records.quantiser)
        served = HistoryBatch.from_record(record, spec=rows.spec, now_ms=now_ms)
        trained = HistoryBatch.from_index(
            rows.logged.vectors,
            rows.logged.event_ms,
            rows.index[[row], : rows.spec.history_length],
            rows.impressions[[row]],
        )
        for name in ("vectors", "event_ms", "mask", "impressions"):
            assert getattr(served, name).tobytes() == getattr(trained, name).tobytes(), name
