"""Where the teacher runs: impressions that the representation log lacks become rows of it, shard by shard."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from contracts.command import track
from contracts.errors import GemError, InputError
from contracts.hashing import stable_hashes
from contracts.keys import space_dim, space_name
from contracts.quantiser import DTYPES, fit_centres
from contracts.schema import FeatureSchema
from events.history import HistoryIndex
from events.log import InteractionLog
from events.representations import INDEX, RepresentationLog, Representations, locked
from events.splits import DAY_MS
from foundation.teacher import Representation

SERVED_DIM, SERVED_DTYPE = 32, "int8"
"""LoopFM's public width d = 32; its authors report int8 as near-lossless. Its codes are what students read."""
SERVED_DIMS = (8, 16, 32, 64)
"""Prefixes of z that the compressor is trained to make usable alone."""
CODEBOOK_ROWS = 20_000
"""The centres of kint4 are fitted on so many impressions of the teacher's last day, as LoopFM fits on one day."""
SHARD_ROWS = 20_000
BACKFILL_DELAY_S = 600
"""A backfilled row counts as available ten minutes after its event, as in live operation."""


class Represents(Protocol):
    """What this job needs of `foundation.teacher.Teacher`."""

    @property
    def run(self) -> str: ...
    @property
    def schema(self) -> FeatureSchema: ...
    @property
    def tasks(self) -> tuple[str, ...]: ...
    @property
    def trained_until_ms(self) -> int: ...
    def represent(
        self, log: InteractionLog, rows: np.ndarray, *, histories: HistoryIndex | None = None
    ) -> Representation: ...


@dataclass(frozen=True)
class Availability:
    """When a row counts as available: at the time its shard is written (delay_s None), or so long after its event."""

    delay_s: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Availability":
        """From `now` or `event+SECONDS`; InputError for anything else."""
        if text == "now":
            return cls()
        if match := re.fullmatch(r"event\+(\d{1,9})", text):
            return cls(int(match[1]))
        raise InputError(f"--available {text} is neither now nor event+SECONDS; write for example event+600")

    def of(self, event_ms: np.ndarray, now_ms: int) -> np.ndarray:
        """available_ms of rows: int64, the shape of event_ms."""
        if self.delay_s is None:
            return np.full(event_ms.shape, now_ms, dtype=np.int64)
        return event_ms + self.delay_s * 1000


@dataclass(frozen=True)
class Chunk:
    """One shard to be: its range of ingestion offsets, and the rows of the interaction log (row numbers) that the
    teacher may represent; the others of the range lie in its training period."""

    first_offset: int
    end_offset: int
    rows: np.ndarray
    skipped: int


@dataclass(frozen=True)
class Represented:
    """What a run added: `new` impressions = `computed` + `skipped` (of the teacher's own training period)."""

    new: int = 0
    computed: int = 0
    skipped: int = 0
    shards: int = 0
    teacher_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For the last line of a command."""
        return {
            "new": self.new,
            "computed": self.computed,
            "skipped": self.skipped,
            "shards": self.shards,
            "teacher_s": round(self.teacher_s, 3),
        }


def open_log(
    root: Path,
    teacher: Represents,
    log: InteractionLog,
    *,
    now_ms: int,
    dim: int = SERVED_DIM,
    dtype: str = SERVED_DTYPE,
) -> RepresentationLog:
    """The representation log of this teacher, width and quantiser under `root`, created if need be.

    InputError when the width or quantiser is none, or the teacher or the log that stands there is of another schema, or
    another teacher's; GemError while another process creates or writes it; OSError when the folder cannot be written.
    """
    if dim not in SERVED_DIMS:
        raise InputError(f"--dim {dim} is no width that z can be cut to; use one of {', '.join(map(str, SERVED_DIMS))}")
    if dtype not in DTYPES:
        raise InputError(f"--dtype {dtype} is no quantiser; use one of {', '.join(DTYPES)}")
    if teacher.schema.fingerprint() != log.schema.fingerprint():
        raise InputError(
            f"the checkpoint reads schema {teacher.schema.name} {teacher.schema.fingerprint()}, the log has "
            f"{log.schema.name} {log.schema.fingerprint()}; train a teacher on this log"
        )
    space = space_name("gem", teacher.run, dim, dtype)
    folder = Path(root) / space
    if not (folder / INDEX).exists():  # a folder without it is what a killed first run may leave
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if not (folder / INDEX).exists():  # else another first run made it meanwhile
                RepresentationLog.create(
                    root,
                    space=space,
                    tasks=teacher.tasks,
                    teacher=teacher.run,
                    schema_fingerprint=log.schema.fingerprint(),
                    epoch=now_ms,
                    centres=fitted_centres(teacher, log, dim=dim) if dtype == "kint4" else (),
                )
    existing = RepresentationLog(folder)
    if existing.teacher != teacher.run or existing.schema_fingerprint != log.schema.fingerprint():
        raise InputError(f"{folder} was written by another teacher or for another schema; choose another folder")
    return existing


def fitted_centres(teacher: Represents, log: InteractionLog, *, dim: int) -> tuple[float, ...]:
    """The 16 centres of kint4, fitted on z of impressions that trained the teacher.

    Up to CODEBOOK_ROWS of the day that ends with the teacher's training, evenly spaced in the log's order. They serve
    the codebook alone: z does not depend on the row's own labels, and none of these rows is ever logged. The same
    teacher and log give the same centres. InputError when the log has no impression of the teacher's period.
    """
    past = np.flatnonzero(log.event_ms < teacher.trained_until_ms)
    if not len(past):
        raise InputError(
            "--dtype kint4 fits its centres on impressions of the teacher's training period, and the log has none; "
            "give the log that the teacher was trained on, or use another --dtype"
        )
    rows = past[log.event_ms[past] > log.event_ms[past].max() - DAY_MS]
    rows = rows[np.arange(min(len(rows), CODEBOOK_ROWS)) * len(rows) // min(len(rows), CODEBOOK_ROWS)]
    made = teacher.represent(log, rows)
    _check_finite(made, log, rows)
    return fit_centres(made.z.astype(np.float16)[:, :dim])


def represent_new(
    representations: RepresentationLog,
    log: InteractionLog,
    teacher: Represents,
    *,
    available: Availability,
    now_ms: Callable[[], int],
    shard_rows: int = SHARD_ROWS,
) -> Represented:
    """Represent what the representation log lacks; one finished shard after the other, so that a killed run loses at
    most one. The caller holds `representations.writing()`."""
    _check_same_log(representations, log)
    if representations.missing():
        representations.begin_epoch(now_ms())
    chunks = list(chunks_of(representations, log, trained_until_ms=teacher.trained_until_ms, shard_rows=shard_rows))
    if not chunks:
        return Represented()
    histories, ad_hash = HistoryIndex(log), stable_hashes(log.ad_ids)
    teacher_s = 0.0
    for chunk in track(chunks, title="represent"):
        started = time.monotonic()
        made = teacher.represent(log, chunk.rows, histories=histories)
        teacher_s += time.monotonic() - started
        _check_finite(made, log, chunk.rows)
        representations.append(
            _rows(representations, log, chunk.rows, made, available, ad_hash, now_ms()),
            first_offset=chunk.first_offset,
            end_offset=chunk.end_offset,
        )
    computed = sum(len(chunk.rows) for chunk in chunks)
    skipped = sum(chunk.skipped for chunk in chunks)
    return Represented(computed + skipped, computed, skipped, len(chunks), teacher_s)


def chunks_of(
    representations: RepresentationLog, log: InteractionLog, *, trained_until_ms: int, shard_rows: int
) -> Iterator[Chunk]:
    """Shards to be: gaps first, then what lies behind the end. Impressions before `trained_until_ms` may have trained
    the teacher and are never represented (leak guard 1)."""
    log_end = int(log.offset[-1]) + 1 if len(log) else 0
    for first, end in [*representations.missing(), (representations.end_offset, log_end)]:
        if first >= end:
            continue
        low, high = np.searchsorted(log.offset, [first, end]).tolist()
        rows = low + np.flatnonzero(log.event_ms[low:high] >= trained_until_ms)
        skipped = high - low - len(rows)
        parts = [rows[at : at + shard_rows] for at in range(0, len(rows), shard_rows)] or [rows]
        starts = [first, *(int(log.offset[part[0]]) for part in parts[1:])]
        for number, (part, start, stop) in enumerate(zip(parts, starts, [*starts[1:], end], strict=True)):
            yield Chunk(start, stop, part, skipped if number == 0 else 0)


def _rows(
    representations: RepresentationLog,
    log: InteractionLog,
    rows: np.ndarray,
    made: Representation,
    available: Availability,
    ad_hash: np.ndarray,
    now_ms: int,
) -> Representations:
    """Rows of the log; the codes are those of the stored fp16 numbers, so they follow from the file alone."""
    z = made.z.astype(np.float16)
    return Representations(
        offset=log.offset[rows],
        event_id=log.event_id[rows],
        event_ms=log.event_ms[rows],
        available_ms=available.of(log.event_ms[rows], now_ms),
        user_id=log.user_ids[log.user[rows]],
        ad_hash=ad_hash[log.ad[rows]],
        surface=log.surface[rows],
        z=z,
        codes=representations.quantiser.encode(z[:, : space_dim(representations.space)]),
        soft=made.soft.astype(np.float32),
    )


def _check_finite(made: Representation, log: InteractionLog, rows: np.ndarray) -> None:
    broken = ~(np.isfinite(made.z).all(axis=1) & np.isfinite(made.soft).all(axis=1))
    if broken.any():
        event = log.event_id[rows[int(np.argmax(broken))]]
        raise GemError(f"the teacher's output for event_id {event} is not finite; nothing of its shard was written")


def _check_same_log(representations: RepresentationLog, log: InteractionLog) -> None:
    """Every shard must hold events of this interaction log, at their offsets; a corrupt shard shows before the work."""
    message = f"{representations.folder} was made from another interaction log; choose another --representations"
    if len(log) and representations.end_offset > int(log.offset[-1]) + 1:
        raise InputError(message)
    for shard in representations.shards():
        table = representations.columns(shard, ["offset", "event_id"])
        offset = table["offset"].to_numpy()
        at = np.searchsorted(log.offset, offset)
        if (at >= len(log)).any() or (log.event_id[at] != table["event_id"].to_numpy()).any():
            raise InputError(message)
