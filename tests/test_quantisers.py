"""Whatever the quantiser, serving reads the numbers that training reads: log and cache agree bit for bit."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import redis

from contracts.quantiser import DTYPES, Quantiser, fit_centres
from events.representations import RepresentationLog
from serving.store import EmbeddingStore, Reading
from tests.events.made_rows import append, made_rows, new_log
from tests.precompute.rebuild import NOW_MS, publisher

LENGTH = 5


def read_all(url: str, log: RepresentationLog, users: list[str]) -> list[Reading]:
    """What a server of a model that was trained on this log reads."""

    async def read() -> list[Reading]:
        store = EmbeddingStore(url, {log.space: log.quantiser}, connections=1, timeout_s=5)
        try:
            assert await store.poll()
            return [await store.read(log.space, user, budget_s=5) for user in users]
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_server_reads_the_bits_that_students_train_on(
    valkey: redis.Redis, valkey_url: str, tmp_path: Path, dtype: str
) -> None:
    quantiser = Quantiser(dtype, fit_centres(made_rows(90, seed=9).z[:, :32]) if dtype == "kint4" else ())
    made = new_log(tmp_path, space=f"gem-3f9a1c-d32-{dtype}", centres=quantiser.centres)
    append(made, made_rows(120, users=12, quantiser=quantiser))
    log = RepresentationLog(made.folder)
    publisher(valkey, log).publish(length=LENGTH)
    rows = log.read(z=False)
    trained, users = log.quantiser.decode(rows.codes), sorted(set(rows.user_id))
    index, _ = log.as_of(rows).histories(users, np.full(len(users), NOW_MS), LENGTH)
    for newest_first, reading in zip(index, read_all(valkey_url, log, users), strict=True):
        assert reading.history is not None
        expected = trained[newest_first[newest_first >= 0][::-1]]
        assert reading.history.vectors.tobytes() == expected.tobytes()
        assert reading.history.vectors.dtype == trained.dtype == np.float32
