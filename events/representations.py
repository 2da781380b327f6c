"""The representation log: what the teacher said about each impression, on disk.

A log is the folder `<root>/<space>` with log.json and shards `<first>-<end>.parquet`, one for each range of ingestion
offsets. A range may hold more offsets than its shard holds rows: impressions of the teacher's own training period are
never represented. Readers take no lock; what they see of it as of a time is `AsOf`.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.errors import GemError, InputError
from contracts.keys import check_space, space_dim, space_dtype
from contracts.quantiser import Quantiser
from events.as_of import AsOf
from events.representation_shards import PARTIAL, Z_DIM, Representations, ShardFormat

__all__ = ["INDEX", "AsOf", "RepresentationLog", "Representations", "Shard", "locked"]

FORMAT = 1
INDEX, LOCK = "log.json", ".lock"
_SHARD = re.compile(r"(\d{12,})-(\d{12,})\.parquet")


@dataclass(frozen=True)
class Shard:
    """One file of the log: the half-open range of ingestion offsets that it covers."""

    first: int
    end: int
    path: Path


@dataclass(frozen=True)
class LogIndex:
    """log.json. `covered_offset` is where the log ended after its last append, so a deleted last shard is noticed;
    `epoch` grows whenever rows below that end are written again and becomes the fence of every record. `centres` are
    those of a kint4 space, fitted once, when the log was made."""

    format: int
    space: str
    tasks: tuple[str, ...]
    teacher: str
    schema_fingerprint: str
    epoch: int
    covered_offset: int = 0
    centres: tuple[float, ...] = ()

    def quantiser(self) -> Quantiser:
        return Quantiser(space_dtype(self.space), self.centres)


class RepresentationLog:
    """The log of one embedding space. Readers need no lock; one writer at a time holds `writing()`."""

    def __init__(self, folder: Path) -> None:
        """Open `<root>/<space>`; InputError when the folder is no representation log of this format."""
        self.folder = Path(folder)
        self._index = _read_index(self.folder)
        index = self._index
        self._format = ShardFormat(index.space, index.tasks, index.teacher, index.quantiser())

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        space: str,
        tasks: Sequence[str],
        teacher: str,
        schema_fingerprint: str,
        epoch: int,
        centres: tuple[float, ...] = (),
    ) -> "RepresentationLog":
        """A new empty log under `root`; InputError if the space has one already, or is kint4 and has no 16 centres.
        Where another process may do the same, hold `locked(root / space)`."""
        folder = Path(root) / check_space(space)
        if (folder / INDEX).exists():
            raise InputError(f"{folder} is a representation log already; open it, or delete the folder to start anew")
        index = LogIndex(FORMAT, space, tuple(tasks), teacher, schema_fingerprint, epoch, centres=centres)
        index.quantiser()  # refused before anything is written
        folder.mkdir(parents=True, exist_ok=True)
        _write_index(folder, index)
        return cls(folder)

    @property
    def space(self) -> str:
        return self._index.space

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the columns of `soft`."""
        return self._index.tasks

    @property
    def teacher(self) -> str:
        """sha256 of the teacher's weights: rows of two teachers never stand in one log."""
        return self._index.teacher

    @property
    def schema_fingerprint(self) -> str:
        return self._index.schema_fingerprint

    @property
    def quantiser(self) -> Quantiser:
        """What the codes of the rows mean."""
        return self._format.quantiser

    @property
    def epoch(self) -> int:
        """Fencing token of the records that are derived from this log."""
        return self._index.epoch

    @property
    def end_offset(self) -> int:
        """Where new rows go on: the end of the last shard that was ever appended."""
        return self._end(self.shards())

    def shards(self) -> list[Shard]:
        """The shards that stand in the folder now, by offset; InputError when two of them overlap."""
        found = self._listed()
        # a listing is no snapshot: beside a writer it may hold a shard and lack the one before it, which a second
        # listing then shows; a gap that stays is a deleted shard
        while self._gaps(found) and (again := self._listed()) != found:
            found = again
        for before, after in pairwise(found):
            if after.first < before.end:
                raise InputError(f"{after.path} overlaps {before.path.name}; delete both and run the refresh again")
        return found

    def missing(self) -> list[tuple[int, int]]:
        """Ranges of offsets below `end_offset` that no shard covers: a shard was deleted there."""
        return self._gaps(self.shards())

    def whole(self) -> list[Shard]:
        """All shards; InputError when one was deleted, so that nobody takes a part of the log for the log."""
        shards = self.shards()
        if gaps := self._gaps(shards):
            first, end = gaps[0]
            raise InputError(f"{self.folder} lacks the offsets {first}-{end}; run the refresh or the backfill again")
        return shards

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder for one writer (released by the system when the process dies); GemError if it is held."""
        with locked(self.folder):
            self._index = _read_index(self.folder)
            for partial in self.folder.glob(f".*{PARTIAL}"):
                partial.unlink()
            yield

    def begin_epoch(self, epoch: int) -> None:
        """Start a new epoch before rows below the end are written again, so that no older record outlives them."""
        self._index = replace(self._index, epoch=max(epoch, self._index.epoch + 1))
        _write_index(self.folder, self._index)

    def append(self, rows: Representations, *, first_offset: int, end_offset: int) -> Path:
        """Write the rows of one range of offsets as a shard: temporary name, fsync, atomic rename.

        InputError when a row lies outside the range, is not finite or has another width, or a shard covers the range.
        """
        self._check(rows, first_offset, end_offset)
        path = self.folder / f"{first_offset:012d}-{end_offset:012d}.parquet"
        self._format.write(path, rows)
        self._index = replace(self._index, covered_offset=max(end_offset, self._index.covered_offset))
        _write_index(self.folder, self._index)
        return path

    def read(self, *, z: bool = True, users: Sequence[str] | None = None) -> Representations:
        """All rows, or those of some users; without `z` the full vectors stay on disk. InputError: a corrupt shard."""
        chosen = None if users is None else pa.array(users, pa.string())
        parts = [self._format.rows(shard.path, z=z, users=chosen) for shard in self.whole()]
        parts = [part for part in parts if len(part)]
        return Representations.concatenate(parts) if parts else self._format.empty(z=z)

    def columns(self, shard: Shard, names: Sequence[str]) -> pa.Table:
        """Some columns of one shard; InputError when it is corrupt."""
        return self._format.columns(shard.path, list(names))

    def as_of(self, rows: Representations) -> AsOf:
        """Histories over rows of this log, with its epoch and quantiser in their records."""
        return AsOf(rows, fence=self.epoch, quantiser=self.quantiser)

    def _listed(self) -> list[Shard]:
        found = [
            Shard(int(match[1]), int(match[2]), entry)
            for entry in self.folder.iterdir()
            if (match := _SHARD.fullmatch(entry.name))
        ]
        return sorted(found, key=lambda shard: shard.first)

    def _end(self, shards: list[Shard]) -> int:
        return max(self._index.covered_offset, shards[-1].end if shards else 0)

    def _gaps(self, shards: list[Shard]) -> list[tuple[int, int]]:
        gaps, at = [], 0
        for shard in shards:
            if shard.first > at:
                gaps.append((at, shard.first))
            at = max(at, shard.end)
        end = self._end(shards)
        return gaps + ([(at, end)] if at < end else [])

    def _check(self, rows: Representations, first: int, end: int) -> None:
        name = f"shard {first}-{end} of {self.space}"
        if not 0 <= first < end:
            raise InputError(f"{name} is no range of offsets; pass first_offset < end_offset")
        if any(shard.first < end and first < shard.end for shard in self.shards()):
            raise InputError(f"{name} overlaps a shard of {self.folder}; append only what `missing` or the end lacks")
        if len(rows) and (rows.offset.min() < first or rows.offset.max() >= end or (np.diff(rows.offset) <= 0).any()):
            raise InputError(f"{name} has rows outside its offsets or out of order; sort them by offset")
        widths = (rows.z.shape[1:], rows.codes.shape[1:], rows.soft.shape[1:])
        if widths != ((Z_DIM,), (space_dim(self.space),), (len(self.tasks),)):
            raise InputError(
                f"{name} has widths {widths}; z is {Z_DIM} wide and codes are {space_dim(self.space)} wide"
            )
        if not (np.isfinite(rows.z).all() and np.isfinite(rows.soft).all()):
            raise InputError(f"{name} has numbers that are not finite; the teacher that made them is broken")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder of a log, or of one to be; GemError if another process does."""
    with (folder / LOCK).open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GemError(f"another process is writing {folder}; wait for it to end, then run this again") from error
        yield


def _read_index(folder: Path) -> LogIndex:
    path = folder / INDEX
    if not path.is_file():
        raise InputError(f"{folder} is no representation log: it has no {INDEX}; write one with precompute.refresh")
    try:
        raw = json.loads(path.read_text())
        index = LogIndex(**{**raw, "tasks": tuple(raw["tasks"]), "centres": tuple(map(float, raw.get("centres", ())))})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it, or delete the folder and refresh") from error
    if index.format != FORMAT:
        raise InputError(f"{path} has format {index.format}, this version reads {FORMAT}; refresh into another folder")
    check_space(index.space)
    try:
        index.quantiser()
    except InputError as error:
        raise InputError(f"{path} is damaged ({error}); restore it, or delete the folder and refresh") from error
    return index


def _write_index(folder: Path, index: LogIndex) -> None:
    partial = folder / f".{INDEX}.tmp"
    with partial.open("w") as file:
        json.dump(asdict(index), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, folder / INDEX)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
