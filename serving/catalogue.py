"""The ad catalogue in memory: one Arrow file, checked whole, replaced off the request path when it changes."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.errors import InputError
from contracts.features import UNKNOWN_AD, AdTable
from contracts.hashing import stable_hashes
from contracts.schema import FeatureSchema
from contracts.seal import check_seal

FINGERPRINT_KEY = b"gem_schema_fingerprint"
COLUMNS = {
    "ad_id": pa.string(),
    "campaign": pa.string(),
    "objective": pa.string(),
    "default_bid": pa.float64(),
    "updated_ms": pa.int64(),
}
FEATURE_TYPES = {"categorical": pa.int64(), "float": pa.float32()}
_DAMAGE = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, SystemError, MemoryError)
"""What pyarrow and numpy raise on a file that is not what it seems."""
_MEND = "write it again from the log that the student was trained on (events/catalogue.py says how)"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Catalogue:
    """All ads [A]: row of each id, model inputs, objective [A] (index into the schema's tasks), default_bid [A]
    float64, ad_hash [A] uint64. `version` is the start of the file's sha256, `updated_ms` its newest row's time."""

    version: str
    rows: dict[str, int]
    table: AdTable
    objective: np.ndarray
    default_bid: np.ndarray
    ad_hash: np.ndarray
    updated_ms: int

    @property
    def objectives(self) -> list[int]:
        """The objectives that any ad has."""
        return np.unique(self.objective).tolist()

    def rows_of(self, ad_ids: Sequence[str]) -> np.ndarray:
        """Row number of each ad, UNKNOWN_AD where the catalogue lacks it: int64 [N]."""
        get = self.rows.get
        return np.array([get(ad_id, UNKNOWN_AD) for ad_id in ad_ids], dtype=np.int64)

    def hashes_of(self, ad_ids: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Stable hash of each ad: uint64 [N]; only those that the catalogue lacks are computed."""
        unknown = rows == UNKNOWN_AD
        hashes = np.zeros(len(rows), dtype=np.uint64)
        hashes[~unknown] = self.ad_hash[rows[~unknown]]
        hashes[unknown] = stable_hashes(ad_id for ad_id, new in zip(ad_ids, unknown, strict=True) if new)
        return hashes


def load_catalogue(path: Path, schema: FeatureSchema) -> Catalogue:
    """The catalogue at `path`; InputError names what is wrong: no file, other bytes than were written, not Arrow,
    another schema, a bad column."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"GEM_CATALOG: {path} cannot be read ({error.strerror}); {_MEND}") from error
    try:
        check_seal(content)
        table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
        table.validate(full=True)
        return _read(table, schema, version=sha256(content).hexdigest()[:12])
    except InputError as error:
        raise InputError(f"GEM_CATALOG: {path}: {error}; {_MEND}") from error
    except _DAMAGE as error:
        raise InputError(f"GEM_CATALOG: {path} is no whole Arrow file ({_one_line(error)}); {_MEND}") from error


def _read(table: pa.Table, schema: FeatureSchema, *, version: str) -> Catalogue:
    """The catalogue in a table whose bytes are sound; InputError without file and mend."""
    fingerprint = (table.schema.metadata or {}).get(FINGERPRINT_KEY, b"").decode()
    if fingerprint != schema.fingerprint():
        raise InputError(f"it is of schema {fingerprint or 'unknown'}, the model reads {schema.fingerprint()}")
    columns = {name: _column(table, name, kind) for name, kind in COLUMNS.items()}
    ad_ids = columns["ad_id"].to_pylist()
    rows = {ad_id: row for row, ad_id in enumerate(ad_ids)}
    if len(rows) != len(ad_ids):
        raise InputError("it lists an ad twice")
    codes = {task.name: code for code, task in enumerate(schema.tasks)}
    objectives = columns["objective"].to_pylist()
    if strange := set(objectives) - set(codes):
        raise InputError(f"it has objectives {sorted(strange)}, the schema's tasks are {list(codes)}")
    bids = columns["default_bid"].to_numpy(zero_copy_only=False)
    if not (bids >= 0).all() or np.isinf(bids).any():
        raise InputError("it has a default_bid that is negative or not finite")
    features = [f for f in schema.features if f.side == "ad" and not f.teacher_only]
    values = {f.name: _column(table, f.name, FEATURE_TYPES[f.kind]).to_numpy(zero_copy_only=False) for f in features}
    return Catalogue(
        version=version,
        rows=rows,
        table=AdTable.build(schema, ad_ids, values),
        objective=np.array([codes[name] for name in objectives], dtype=np.int64),
        default_bid=bids,
        ad_hash=stable_hashes(ad_ids),
        updated_ms=int(columns["updated_ms"].to_numpy().max(initial=0)),
    )


class LiveCatalogue:
    """The catalogue that requests read. `poll` loads the file again when it has changed; a bad one changes nothing."""

    def __init__(self, path: Path, load: Callable[[Path], Catalogue]) -> None:
        self._path, self._load = path, load
        self._seen = _stamp(path)
        self.current = load(path)

    async def poll(self) -> bool | None:
        """True: replaced; False: the new file is bad and the old catalogue stays; None: nothing has changed."""
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            loaded = await asyncio.to_thread(self._load, self._path)
        except InputError as error:
            log.error("catalogue %s stays: %s", self.current.version, error)
            return False
        log.info("catalogue %s replaces %s", loaded.version, self.current.version)
        self.current = loaded
        return True


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    if name not in table.column_names:
        raise InputError(f"it lacks the column {name!r}")
    try:
        column = table[name].combine_chunks().cast(kind)
    except pa.ArrowException as error:
        raise InputError(f"it has a wrong type in {name!r} ({_one_line(error)})") from error
    if column.null_count:
        raise InputError(f"it has empty values in {name!r}")
    return column


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
