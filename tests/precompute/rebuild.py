"""What the cache must hold: every record again from the log, user by user, with a plain loop."""

import time

import redis

from contracts.embedding import encode_history
from contracts.keys import history_key
from events.representations import RepresentationLog
from precompute.generations import Registry
from precompute.publication import Progress, Publisher, unseen
from tests.events.made_rows import newest_by_loop, record_by_loop

LENGTH = 4
NOW_MS = time.time_ns() // 1_000_000
"""The clock of these tests stands still; the server's own decides what has expired."""


def rebuilt(
    log: RepresentationLog, generation: str, *, length: int = LENGTH, now_ms: int = NOW_MS
) -> dict[bytes, bytes]:
    """Key -> bytes of every record of a generation that a reader just after `now_ms` must find."""
    rows = log.read()
    expected = {}
    for user in sorted(set(rows.user_id.tolist())):
        if seen := newest_by_loop(rows, user, now_ms + 1):
            record = record_by_loop(rows, seen, length=length, fence=log.epoch, quantiser=log.quantiser)
            blob = encode_history(record, user_id=user, quantiser=log.quantiser)
            expected[history_key(log.space, generation, user).encode()] = blob
    return expected


def stored(client: redis.Redis, log: RepresentationLog, generation: str) -> dict[bytes, bytes]:
    """Key -> bytes of every record that stands in a generation."""
    keys = sorted(set(client.scan_iter(match=f"emb:{log.space}:{generation}:*:h")))
    values = client.mget(keys) if keys else []
    return {key: value for key, value in zip(keys, values, strict=True) if isinstance(value, bytes)}


def registry_of(client: redis.Redis, log: RepresentationLog) -> Registry:
    return Registry(client, log.space, retired_ttl_s=3_600)


def publisher(
    client: redis.Redis,
    log: RepresentationLog,
    *,
    now_ms: int = NOW_MS,
    progress: Progress = unseen,
    part_rows: int = 50,
) -> Publisher:
    """Over a log opened anew, as another process would."""
    return Publisher(
        RepresentationLog(log.folder),
        client,
        retired_ttl_s=3_600,
        now_ms=lambda: now_ms,
        progress=progress,
        part_rows=part_rows,
    )


def expect_rebuild(client: redis.Redis, log: RepresentationLog, *, length: int = LENGTH, now_ms: int = NOW_MS) -> None:
    """The live generation holds exactly the bytes of a rebuild, and no record of it ever expires."""
    live = registry_of(client, log).pointer()
    assert live is not None
    assert stored(client, log, live) == rebuilt(log, live, length=length, now_ms=now_ms)
    assert all(client.ttl(key) == -1 for key in client.scan_iter(match=f"emb:{log.space}:{live}:*"))
