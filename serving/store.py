"""The embedding store as serving reads it: one MGET a request, in milliseconds or not at all, and never an exception.

redis-py's defaults (5 s timeouts, ten retries) would hold a request for many seconds; here a read has a budget, no
retries, a pool that waits instead of raising, and a breaker. The live generation and its watermark are polled in the
background. Tiers are read in the order of `source`; today Valkey is the only one, and `default` means none had it.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from contracts.bodies import EmbeddingSource
from contracts.embedding import HistoryRecord, PairRecord, decode_history, decode_pair
from contracts.errors import GemError, InputError
from contracts.keys import generation_number, history_key, live_key, meta_key, pair_key, space_dim, watermark_key
from contracts.quantiser import Quantiser
from serving.breaker import Breaker

TIMEOUT, UNREACHABLE, BUSY, ERROR = (
    "embedding_store_timeout",
    "embedding_store_unreachable",
    "embedding_store_busy",
    "embedding_store_error",
)
NO_BUDGET = "embedding_store_skipped"
OTHER_QUANTISER = "embedding_quantiser_mismatch"
NO_GENERATION, CORRUPT, MISSING = "embedding_generation_missing", "embedding_corrupt", "embedding_missing"
POLL_TIMEOUT_S = 0.5
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Live:
    """What the poll last saw of a space: the generation to read (None: there is none), its watermark, and whether the
    space is published with the centres that the model was trained on."""

    generation: str | None
    watermark_ms: int | None
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one user: records (None where there is none), why not, and where they were read.

    `fault` is None when the history record is there; MISSING, NO_GENERATION and CORRUPT mean that the store answered,
    every other code that it did not, or that its records mean other numbers than the model's (OTHER_QUANTISER).
    """

    history: HistoryRecord | None
    pairs: PairRecord | None
    fault: str | None
    source: EmbeddingSource
    live: Live

    @property
    def unavailable(self) -> bool:
        """The store gave no answer that can be read: nobody knows whether the user has a record."""
        return self.fault not in (None, MISSING, NO_GENERATION, CORRUPT)


class EmbeddingStore:
    """Reads records of the given spaces, each with the quantiser that its models were trained on. `poll` and `close`
    belong to the event loop that serves."""

    def __init__(self, url: str, spaces: Mapping[str, Quantiser], *, connections: int, timeout_s: float) -> None:
        # no socket timeout: the budget of each read bounds it, and a cancelled read drops its connection
        pool = _pool(url, connections=connections, wait_s=timeout_s / 2, connect_s=timeout_s, socket_s=None)
        self._requests = Redis(connection_pool=pool)
        probe = _pool(url, connections=1, wait_s=POLL_TIMEOUT_S, connect_s=POLL_TIMEOUT_S, socket_s=POLL_TIMEOUT_S)
        self._probe = Redis(connection_pool=probe)
        self._live: dict[str, Live | None] = dict.fromkeys(spaces)
        self._quantisers = dict(spaces)
        self._dims = {space: space_dim(space) for space in self._live}
        self._timeout_s = timeout_s
        self._poll_fault: str | None = UNREACHABLE
        self.breaker = Breaker()

    async def close(self) -> None:
        """Close the connections."""
        await self._requests.aclose(close_connection_pool=True)
        await self._probe.aclose(close_connection_pool=True)

    def live(self, space: str) -> Live:
        """The generation that requests read, as of the last poll that came through."""
        return self._live[space] or Live(None, None)

    async def poll(self) -> bool:
        """Ask for the live generation, watermark and quantiser of every space; False when the store does not answer."""
        try:
            for space in self._live:
                self._live[space] = await self._look(space)
        except (TimeoutError, RedisError, OSError) as error:
            self._poll_fault = _code(error)
            return False
        self._poll_fault = None
        self.breaker.succeeded()
        return True

    async def read(self, space: str, user_id: str, *, budget_s: float) -> Reading:
        """The user's records, within `budget_s` seconds (and the store timeout)."""
        live = self.live(space)
        if live.generation is None:  # while polls fail, nobody knows whether one has been published since
            return _without(self._poll_fault or NO_GENERATION, live)
        if not live.readable:
            return _without(OTHER_QUANTISER, live)
        if self.breaker.is_open:
            return _without(self.breaker.reason or UNREACHABLE, live)
        budget_s = min(budget_s, self._timeout_s)
        if budget_s <= 0:
            return _without(NO_BUDGET, live)
        keys = history_key(space, live.generation, user_id), pair_key(space, live.generation, user_id)
        try:
            async with _budget(budget_s):
                blobs = await self._requests.mget(keys)
        except (TimeoutError, RedisError, OSError) as error:
            fault = _code(error)
            if fault != BUSY:
                self.breaker.failed(fault)
            return _without(fault, live)
        self.breaker.succeeded()
        return self._decode(space, user_id, blobs, live)

    def _decode(self, space: str, user_id: str, blobs: Sequence[Any], live: Live) -> Reading:
        """A record that fails its checks (CRC, key hash, width, centres) is a miss: never somebody else's data."""
        history, pairs, fault = None, None, None
        dim, quantiser = self._dims[space], self._quantisers[space]
        try:
            if blobs[0] is not None:
                history = decode_history(blobs[0], user_id=user_id, dim=dim, quantiser=quantiser)
            fault = None if history is not None else MISSING
        except GemError as error:
            fault = CORRUPT
            log.warning("history record of space %s refused: %s", space, error)
        try:
            if blobs[1] is not None:
                pairs = decode_pair(blobs[1], user_id=user_id, dim=dim, quantiser=quantiser)
        except GemError as error:
            log.warning("pair record of space %s refused: %s", space, error)
        return Reading(history, pairs, fault, "valkey" if history is not None else "default", live)

    async def _look(self, space: str) -> Live:
        pointer: Any = await self._probe.get(live_key(space))
        if pointer is None:
            return Live(None, None)
        try:
            generation = pointer.decode()
            generation_number(generation)
        except (InputError, UnicodeDecodeError):
            log.error("the live pointer of space %s is no generation; publish or roll back", space)
            return Live(None, None)
        watermark: Any = await self._probe.get(watermark_key(space, generation))
        watermark_ms = int(watermark) if watermark is not None and watermark.isdigit() else None
        # after the pointer: whoever flips it has written the meta key before
        meta: Any = await self._probe.get(meta_key(space))
        return Live(generation, watermark_ms, self._readable(space, meta))

    def _readable(self, space: str, meta: bytes | None) -> bool:
        """Whether the space's records mean what the model learned. A space that says nothing was published before there
        was this key, and its records are judged one by one."""
        if meta is None:
            return True
        expected, before = self._quantisers[space].version, self._live[space]
        try:
            found = json.loads(meta)["version"]
        except (ValueError, TypeError, KeyError):
            found = "none that can be read"
        if found != expected and (before is None or before.readable):
            log.error(
                "space %s is published with quantiser version %s, the model reads %s: its records are unavailable; "
                "publish from the log that the model was trained on, or serve a model of the published one",
                *(space, found, expected),
            )
        return bool(found == expected)


def _pool(
    url: str, *, connections: int, wait_s: float, connect_s: float, socket_s: float | None
) -> BlockingConnectionPool:
    return BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=wait_s,
        socket_connect_timeout=connect_s,
        socket_timeout=socket_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,  # no HELLO, so that a new connection costs one round trip less
        decode_responses=False,
    )


def _without(fault: str, live: Live) -> Reading:
    return Reading(None, None, fault, "default", live)


def _code(error: BaseException) -> str:
    if isinstance(error, RedisTimeoutError | asyncio.TimeoutError):
        return TIMEOUT
    if isinstance(error, RedisConnectionError | OSError):
        # the pool's own "no connection available" is a timeout inside
        return BUSY if isinstance(error.__cause__, asyncio.TimeoutError) else UNREACHABLE
    return ERROR


@asynccontextmanager
async def _budget(seconds: float) -> AsyncIterator[None]:
    """asyncio.timeout, fair to replies that have arrived.

    When the loop was held up (an inference, say), reply and timer are both due, and asyncio.timeout would cancel the
    read before it sees its reply. Here the timer asks for the cancellation, which comes one turn of the loop later.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as timeout:
        due = loop.time() + seconds
        timer = loop.call_at(due, timeout.reschedule, due)
        try:
            yield
        finally:
            timer.cancel()
