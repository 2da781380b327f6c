"""The store's reader against a real Valkey that is empty, slow, dead or wrong: a stated fault, never an exception."""

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import numpy as np
import pytest
import redis
import uvloop

from contracts.embedding import encode_history
from contracts.keys import history_key, live_key, meta_key, pair_key, watermark_key
from contracts.quantiser import DTYPES, INT8, Quantiser, fit_centres
from serving.store import (
    BUSY,
    CORRUPT,
    ERROR,
    MISSING,
    NO_BUDGET,
    NO_GENERATION,
    OTHER_QUANTISER,
    TIMEOUT,
    UNREACHABLE,
    EmbeddingStore,
    Live,
    Reading,
)
from tests.serving.conftest import Cache, make_history
from tests.serving.small_student import GENERATION, NOW_MS, SPACE

T = TypeVar("T")
Open = Callable[..., "Reader"]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class Reader:
    """A store and the loop that it lives on."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 0.5,
        connections: int = 4,
        loop: LoopFactory = uvloop.new_event_loop,
        space: str = SPACE,
        quantiser: Quantiser = INT8,
    ) -> None:
        self.runner = asyncio.Runner(loop_factory=loop)
        self.space = space
        self.store = EmbeddingStore(url, {space: quantiser}, connections=connections, timeout_s=timeout_s)

    def run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())

    def poll(self) -> bool:
        return self.run(self.store.poll())

    def read(self, user_id: str = "u1", *, budget_s: float = 5.0) -> Reading:
        return self.run(self.store.read(self.space, user_id, budget_s=budget_s))


@pytest.fixture
def open_reader() -> Iterator[Open]:
    readers: list[Reader] = []

    def open_one(url: str, **options) -> Reader:
        readers.append(Reader(url, **options))
        return readers[-1]

    yield open_one
    for reader in readers:
        reader.run(reader.store.close())
        reader.runner.close()


@pytest.fixture
def reader(open_reader: Open, valkey_url: str, cache: Cache) -> Reader:
    cache.go_live(watermark_ms=NOW_MS)
    found = open_reader(valkey_url)
    assert found.poll()
    return found


def test_a_user_is_read_with_one_mget_and_nothing_else(reader: Reader, cache: Cache):
    record = cache.publish("u1", computed_ms=NOW_MS)
    cache.publish_pairs("u1", ["a1"], computed_ms=[NOW_MS])
    reader.read()
    cache.client.config_resetstat()
    for _ in range(7):
        reading = reader.read()
    calls = {name: stats["calls"] for name, stats in cache.client.info("commandstats").items()}
    assert calls.pop("cmdstat_mget") == 7
    assert not {name for name in calls if not name.startswith(("cmdstat_info", "cmdstat_config"))}
    assert (reading.fault, reading.source, reading.live) == (None, "valkey", Live(GENERATION, NOW_MS))
    assert reading.history.event_ms.tolist() == record.event_ms.tolist()
    assert reading.pairs is not None


@pytest.mark.parametrize("user_id", ["Ünïcode/{}:%", "a b", "x" * 256])
def test_any_user_id_finds_its_key(reader: Reader, cache: Cache, user_id: str):
    cache.publish(user_id, computed_ms=NOW_MS)
    assert reader.read(user_id).fault is None


def test_an_unknown_user_is_missing(reader: Reader):
    assert reader.read("nobody").fault == MISSING


def test_without_a_live_generation_nothing_is_read(open_reader: Open, valkey_url: str, cache: Cache):
    empty = open_reader(valkey_url)
    assert empty.poll()
    assert empty.read().fault == NO_GENERATION
    cache.client.set(live_key(SPACE), b"\xff\xfe")
    assert empty.poll()
    assert empty.read().fault == NO_GENERATION


def test_a_flip_is_seen_by_the_next_poll(reader: Reader, cache: Cache):
    cache.publish("u1", computed_ms=NOW_MS, generation="g000002", elements=2)
    cache.go_live(generation="g000002", watermark_ms=NOW_MS + 5)
    assert reader.read().fault == MISSING
    reader.poll()
    assert reader.read().live == Live("g000002", NOW_MS + 5)
    assert reader.read().fault is None


def test_a_watermark_that_is_no_number_counts_as_none(reader: Reader, cache: Cache):
    cache.client.set(watermark_key(SPACE, GENERATION), "soon")
    assert reader.poll()
    assert reader.store.live(SPACE) == Live(GENERATION, None)


def blob(user_id: str = "u1", dim: int = 4) -> bytes:
    return encode_history(make_history(computed_ms=NOW_MS, dim=dim), user_id=user_id)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"nonsense",
        blob()[:-1],
        blob() + b"x",
        bytes([*blob()[:-1], blob()[-1] ^ 1]),
        blob(user_id="somebody else"),
        blob(dim=8),
    ],
    ids=["empty", "nonsense", "short", "long", "flipped", "another user's", "another width"],
)
def test_a_record_that_fails_a_check_is_a_miss(reader: Reader, cache: Cache, stored: bytes):
    cache.client.set(history_key(SPACE, GENERATION, "u1"), stored)
    cache.client.set(pair_key(SPACE, GENERATION, "u1"), stored)
    reading = reader.read()
    assert (reading.fault, reading.history, reading.pairs) == (CORRUPT, None, None)
    assert not reading.unavailable


ONE, OTHER = (Quantiser("kint4", fit_centres(np.linspace(low, 1, 99))) for low in (-1, -0.5))
KINT4_SPACE = "gem-3f9a1c-d4-kint4"


def publish_kint4(client: redis.Redis, quantiser: Quantiser, *, said: object = None) -> None:
    """A record with these centres, and what the space says of them (default: the truth)."""
    client.set(live_key(KINT4_SPACE), GENERATION)
    client.set(meta_key(KINT4_SPACE), json.dumps({**quantiser.to_json(), "dim": 4, "version": quantiser.version}))
    if said is not None:
        client.set(meta_key(KINT4_SPACE), said)
    record = make_history(computed_ms=NOW_MS)
    client.set(history_key(KINT4_SPACE, GENERATION, "u1"), encode_history(record, user_id="u1", quantiser=quantiser))


@pytest.mark.parametrize("dtype", DTYPES)
def test_records_of_every_quantiser_are_decoded(open_reader: Open, valkey_url: str, cache: Cache, dtype: str):
    quantiser, space = ONE if dtype == "kint4" else Quantiser(dtype), f"gem-3f9a1c-d4-{dtype}"
    record = make_history(computed_ms=NOW_MS)
    cache.client.set(live_key(space), GENERATION)
    blob = encode_history(record, user_id="u1", quantiser=quantiser)
    cache.client.set(history_key(space, GENERATION, "u1"), blob)
    reader = open_reader(valkey_url, space=space, quantiser=quantiser)
    assert reader.poll()
    expected = quantiser.decode(quantiser.encode(record.vectors))
    assert reader.read().history.vectors.tobytes() == expected.tobytes()


def test_a_space_with_other_centres_is_unavailable_until_it_has_the_models_again(
    open_reader: Open, valkey_url: str, cache: Cache, caplog: pytest.LogCaptureFixture
):
    reader = open_reader(valkey_url, space=KINT4_SPACE, quantiser=ONE)
    publish_kint4(cache.client, ONE)
    reader.poll()
    assert reader.read().fault is None
    publish_kint4(cache.client, OTHER)
    cache.client.config_resetstat()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            reader.poll()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, "once, not every second"
    assert OTHER.version in said[0]
    assert ONE.version in said[0]
    reading = reader.read()
    assert (reading.fault, reading.history, reading.unavailable) == (OTHER_QUANTISER, None, True)
    assert "cmdstat_mget" not in cache.client.info("commandstats")
    publish_kint4(cache.client, ONE)
    reader.poll()
    assert reader.read().fault is None


@pytest.mark.parametrize("said", [b"", b"\xff", b"[]", b"{}", b'{"version": null}', b"3"])
def test_a_space_that_says_nothing_that_can_be_read_is_unavailable(
    open_reader: Open, valkey_url: str, cache: Cache, said: bytes
):
    publish_kint4(cache.client, ONE, said=said)
    reader = open_reader(valkey_url, space=KINT4_SPACE, quantiser=ONE)
    assert reader.poll()
    assert reader.read().fault == OTHER_QUANTISER


@pytest.mark.parametrize("told", ["the model's", "nothing"])
def test_a_record_with_other_centres_is_a_miss_whatever_the_space_says(
    open_reader: Open, valkey_url: str, cache: Cache, told: str
):
    """Between the meta key and the flip, or after a rollback: the record itself says what it needs."""
    publish_kint4(cache.client, OTHER, said=json.dumps({"version": ONE.version}))
    if told == "nothing":
        cache.client.delete(meta_key(KINT4_SPACE))
    reader = open_reader(valkey_url, space=KINT4_SPACE, quantiser=ONE)
    reader.poll()
    assert (reader.read().fault, reader.read().history) == (CORRUPT, None)


def test_a_key_of_another_type_reads_as_missing(reader: Reader, cache: Cache):
    cache.client.hset(history_key(SPACE, GENERATION, "u1"), "field", "value")
    assert reader.read().fault == MISSING


def test_nobody_listening_is_unreachable(open_reader: Open):
    nowhere = open_reader("redis://127.0.0.1:1/0")
    assert not nowhere.poll()
    assert nowhere.read().fault == UNREACHABLE


def test_a_hung_server_costs_the_budget_and_then_nothing(open_reader: Open, spawn_valkey):
    server = spawn_valkey()
    Cache(redis.Redis.from_url(server.url)).go_live()
    reader = open_reader(server.url, timeout_s=0.02)
    reader.poll()
    assert reader.read().fault == MISSING
    os.kill(server.process.pid, signal.SIGSTOP)
    for _ in range(5):
        assert reader.read().fault == TIMEOUT
    assert reader.store.breaker.is_open
    assert reader.read(budget_s=0).fault == TIMEOUT, "with the breaker open the store is not even asked"
    assert not reader.poll()
    os.kill(server.process.pid, signal.SIGCONT)
    assert reader.poll()
    assert reader.read(budget_s=5).fault == MISSING


def test_a_dead_server_is_unreachable_and_a_restarted_one_is_found(open_reader: Open, spawn_valkey):
    server = spawn_valkey()
    with redis.Redis.from_url(server.url) as client:
        Cache(client).go_live()
    reader = open_reader(server.url)
    reader.poll()
    assert reader.read().fault == MISSING
    server.stop()
    assert reader.read().fault == UNREACHABLE
    server.start()
    assert reader.poll()
    assert reader.read().fault == NO_GENERATION


def test_an_empty_store_that_dies_is_unavailable_and_not_missing(open_reader: Open, spawn_valkey):
    server = spawn_valkey()
    reader = open_reader(server.url)
    assert reader.poll()
    assert reader.read().fault == NO_GENERATION
    server.stop()
    assert not reader.poll()
    assert (reader.read().fault, reader.read().unavailable) == (UNREACHABLE, True)
    server.start()
    assert reader.poll()
    assert reader.read().fault == NO_GENERATION


def test_an_error_of_the_server_is_stated(open_reader: Open, spawn_valkey):
    server = spawn_valkey()
    with redis.Redis.from_url(server.url) as client:
        Cache(client).go_live()
        reader = open_reader(server.url)
        reader.poll()
        client.acl_setuser("default", enabled=True, nopass=True, commands=["+@all", "-mget"], keys=["*"])
        assert reader.read().fault == ERROR


def test_a_pool_at_its_limit_waits_and_never_raises(open_reader: Open, valkey_url: str, cache: Cache):
    cache.go_live()
    cache.publish("u1", computed_ms=NOW_MS)
    reader = open_reader(valkey_url, connections=2)
    reader.poll()

    async def crowd() -> list[Reading]:
        return await asyncio.gather(*(reader.store.read(SPACE, "u1", budget_s=5) for _ in range(100)))

    assert {reading.fault for reading in reader.run(crowd())} <= {None, BUSY}


def test_without_time_left_the_store_is_not_asked(reader: Reader, cache: Cache):
    cache.client.config_resetstat()
    assert reader.read(budget_s=0).fault == NO_BUDGET
    assert "cmdstat_mget" not in cache.client.info("commandstats")


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_reply_that_has_arrived_counts_even_when_the_loop_was_late(
    open_reader: Open, valkey_url: str, cache: Cache, loop: LoopFactory
):
    cache.go_live()
    cache.publish("u1", computed_ms=NOW_MS)
    reader = open_reader(valkey_url, loop=loop)
    reader.poll()
    assert reader.read().fault is None

    async def late() -> Reading:
        cache.client.client_pause(30)
        reading = asyncio.create_task(reader.store.read(SPACE, "u1", budget_s=0.06))
        await asyncio.sleep(0.01)  # the command is sent, the server holds its reply back
        time.sleep(0.2)  # an inference, say: meanwhile the reply arrives, and then the budget ends
        return await reading

    assert reader.run(late()).fault is None


def test_a_cancelled_read_gives_nobody_the_wrong_reply(reader: Reader, cache: Cache):
    for number in range(20):
        cache.publish(f"u{number}", computed_ms=NOW_MS + number)

    async def impatient() -> list[Reading]:
        for _ in range(30):
            task = asyncio.create_task(reader.store.read(SPACE, "u0", budget_s=5))
            await asyncio.sleep(0)
            task.cancel()
        return await asyncio.gather(*(reader.store.read(SPACE, f"u{n}", budget_s=5) for n in range(20)))

    readings = reader.run(impatient())
    assert [reading.history.computed_ms - NOW_MS for reading in readings] == list(range(20))
