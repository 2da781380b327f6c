"""Rows of a representation log made up at random, and what a plain loop over them says."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from contracts.embedding import HistoryRecord
from contracts.quantiser import INT8, Quantiser
from events.representations import RepresentationLog, Representations

SPACE = "gem-3f9a1c-d32-int8"
TASKS = ("click", "install")


def made_rows(
    rows: int,
    *,
    first: int = 0,
    users: int = 5,
    seed: int = 0,
    start_ms: int = 0,
    delay_ms: int = 0,
    quantiser: Quantiser = INT8,
) -> Representations:
    """Rows with offsets from `first`; event times rise by a few ms, with ties, and each is available a while later."""
    random = np.random.default_rng(seed)
    event_ms = start_ms + np.cumsum(random.integers(0, 4, rows)).astype(np.int64)
    z = np.tanh(random.normal(size=(rows, 64))).astype(np.float16)
    return Representations(
        offset=first + np.arange(rows, dtype=np.int64),
        event_id=random.integers(0, 2**64, rows, dtype=np.uint64),
        event_ms=event_ms,
        available_ms=event_ms + delay_ms,
        user_id=np.array([f"user {number}/ü" for number in random.integers(0, users, rows)], dtype=object),
        ad_hash=random.integers(0, 2**64, rows, dtype=np.uint64),
        surface=random.integers(0, 3, rows).astype(np.int16),
        z=z,
        codes=quantiser.encode(z[:, :32]),
        soft=random.random((rows, len(TASKS))).astype(np.float32),
    )


def new_log(root: Path, *, epoch: int = 1, space: str = SPACE, centres: tuple[float, ...] = ()) -> RepresentationLog:
    return RepresentationLog.create(
        root,
        space=space,
        tasks=TASKS,
        teacher="3f9a1c" + "0" * 58,
        schema_fingerprint="f" * 16,
        epoch=epoch,
        centres=centres,
    )


def append(log: RepresentationLog, rows: Representations) -> None:
    log.append(rows, first_offset=log.end_offset, end_offset=int(rows.offset[-1]) + 1)


def newest_by_loop(rows: Representations, user: str, now_ms: int) -> list[int]:
    """Row numbers of the user's rows that a reader at `now_ms` sees, newest first, by the rule as it is written."""
    seen = [
        row
        for row in range(len(rows))
        if rows.user_id[row] == user and rows.available_ms[row] < now_ms and rows.event_ms[row] < now_ms
    ]
    return sorted(seen, key=lambda row: (rows.event_ms[row], rows.event_id[row]), reverse=True)


def record_by_loop(
    rows: Representations, seen: Sequence[int], *, length: int, fence: int, quantiser: Quantiser = INT8
) -> HistoryRecord:
    """The record of rows given newest first."""
    kept = list(reversed(seen[:length]))
    return HistoryRecord(
        vectors=quantiser.decode(rows.codes[kept]),
        event_ms=rows.event_ms[kept],
        impressions=len(seen),
        computed_ms=max(int(rows.available_ms[row]) for row in seen),
        log_offset=max(int(rows.offset[row]) for row in seen),
        fence=fence,
    )
