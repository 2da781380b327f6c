"""The interaction log on disk: a folder that is written whole, grows by whole files and explains what is wrong with it.

schema.json, calendar.json, users.parquet, ads.parquet, impressions/<first>-<end>.parquet (offsets, half-open),
untimed.parquet and truth.parquet where the source has them, and catalog.arrow, the ad catalogue that serving loads.
Every write goes to a temporary name beside its target and is renamed: a killed writer leaves the old state.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.errors import GemError, InputError
from contracts.schema import FeatureSchema
from events.catalogue import write_catalogue
from events.log import InteractionLog
from events.splits import Calendar
from events.tables import Checked, ads_table, impressions_table, log_from_tables, untimed_table, users_table

SHARD_NAME = re.compile(r"(\d{12})-(\d{12})\.parquet")


def write_log(
    folder: Path,
    log: InteractionLog,
    *,
    calendar: Calendar,
    truth: Mapping[str, np.ndarray] | None = None,
    replace: bool = False,
) -> None:
    """Write a whole log, offsets from 0, in one step. `truth`: true probability of each task, float64 [T] each,
    conditional on the task's parent.

    InputError for an empty log, and where the folder exists: without `replace`, or if it is something else than a log.
    GemError where the disk refuses; what stood there is kept.
    """
    folder = Path(folder)
    if not len(log):
        raise InputError(f"the log for {folder} is empty; there is nothing to write")
    if folder.exists() and not replace:
        raise InputError(f"{folder} exists; choose another folder or replace it with --replace")
    if folder.exists() and not (folder / "schema.json").exists():
        raise InputError(f"{folder} is not a log, so --replace leaves it alone; choose another folder")
    partial = folder.parent / f".{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder.parent} is no folder to write in ({error}); choose another") from None
    try:
        _write_files(partial, log, calendar, truth)
        _swap(partial, folder)
    except OSError as error:
        raise GemError(f"{folder} was not written ({error}); what stood there before is kept") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def append(folder: Path, log: InteractionLog) -> tuple[int, int]:
    """Add impressions behind the last offset as one more file; returns its offsets [first, end).

    The log's users and ads must be among the folder's. InputError for another schema, an impression that the folder
    already holds, or an empty log.
    """
    folder = Path(folder)
    schema = _read_schema(folder)
    if schema.fingerprint() != log.schema.fingerprint():
        raise InputError(f"the rows to append have another schema than {folder}; write them to a folder of their own")
    if not len(log):
        raise InputError(f"no rows to append to {folder}")
    shards = _shards(folder)
    for ids, used, name in ((log.user_ids, log.user, "user"), (log.ad_ids, log.ad, "ad")):
        known = _read_table(folder / f"{name}s.parquet").texts(f"{name}_id")
        if missing := sorted(set(ids[np.unique(used)].tolist()) - set(known.tolist())):
            raise InputError(f"{folder / f'{name}s.parquet'} lacks {name}_id {missing[0]!r}; write the log anew")
    if len(np.unique(log.event_id)) != len(log) or np.isin(log.event_id, _event_ids(folder)).any():
        raise InputError(f"{folder} already holds some of these event_ids; append each impression once")
    first = shards[-1][1]
    target = folder / "impressions" / _shard_name(first, first + len(log))
    partial = target.with_name(f".{target.name}.partial")
    pq.write_table(impressions_table(log), partial)
    _sync(partial)
    os.replace(partial, target)
    _sync(target.parent)
    return first, first + len(log)


def read_log(folder: Path) -> InteractionLog:
    """The log in memory, rows in order of their offset; InputError names the file and the mend."""
    folder = Path(folder)
    schema, shards = _read_schema(folder), _shards(folder)
    tables = []
    for first, end, path in shards:
        table = _read_table(path).table
        if table.num_rows != end - first:
            raise InputError(f"{path} holds {table.num_rows} rows, not {end - first} as its name says; write it anew")
        tables.append(table)
    columns = set(tables[0].column_names)
    for table, (_, _, path) in zip(tables, shards, strict=True):
        if different := columns ^ set(table.column_names):
            raise InputError(f"{path}: column {min(different)!r} is not in every file of the log; write it anew")
    impressions = pa.concat_tables([table.select(tables[0].column_names) for table in tables])
    if not impressions.num_rows:
        raise InputError(
            f"{folder / 'impressions'} is empty; generate the log with events.synthetic or events.kuairand"
        )
    untimed = folder / "untimed.parquet"
    return log_from_tables(
        schema,
        users=_read_table(folder / "users.parquet"),
        ads=_read_table(folder / "ads.parquet"),
        impressions=Checked(impressions, folder / "impressions"),
        untimed=_read_table(untimed) if untimed.exists() else None,
        offset=np.arange(impressions.num_rows, dtype=np.int64),
    )


def read_calendar(folder: Path) -> Calendar:
    """The log's calendar."""
    return Calendar.from_json(_read_json(Path(folder) / "calendar.json"))


def has_truth(folder: Path) -> bool:
    """Whether the source kept the true probabilities."""
    return (Path(folder) / "truth.parquet").exists()


def read_truth(folder: Path) -> dict[str, np.ndarray]:
    """True probability of each task given its parent, aligned with the rows of `read_log`: task -> float64 [T]."""
    folder = Path(folder)
    schema, path = _read_schema(folder), folder / "truth.parquet"
    table, event_id = _read_table(path), _event_ids(folder)
    ids = table.numbers("event_id", np.uint64)
    order = np.argsort(ids)
    at = np.searchsorted(ids, event_id, sorter=order)
    rows = order[np.minimum(at, len(ids) - 1)]
    if (ids[rows] != event_id).any():
        raise InputError(f"{path} lacks some impressions of the log; generate the log anew")
    return {task.name: table.numbers(f"p_{task.name}", np.float64)[rows] for task in schema.tasks}


def _event_ids(folder: Path) -> np.ndarray:
    return np.concatenate([_read_table(path).numbers("event_id", np.uint64) for _, _, path in _shards(folder)])


def _shards(folder: Path) -> list[tuple[int, int, Path]]:
    """Files of impressions as (first, end, path) in order of their offsets, which must leave no gap."""
    shards = []
    for path in sorted((folder / "impressions").glob("*.parquet")):
        match = SHARD_NAME.fullmatch(path.name)
        if match is None:
            raise InputError(f"{path}: the name of an impressions file is <first>-<end>.parquet; move it away")
        shards.append((int(match[1]), int(match[2]), path))
    if not shards:
        raise InputError(f"{folder / 'impressions'} holds no impressions; generate the log anew")
    end = 0
    for first, next_end, path in shards:
        if first != end:
            raise InputError(f"{path} starts at offset {first} where {end} is next; restore the missing file")
        end = next_end
    return shards


def _read_schema(folder: Path) -> FeatureSchema:
    if not folder.is_dir():
        raise InputError(f"no log at {folder}; generate one with events.synthetic or events.kuairand")
    return FeatureSchema.from_json(_read_json(folder / "schema.json"))


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; {path.parent} is not a log, or was not written whole") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not readable JSON ({error}); generate the log anew") from None


def _read_table(path: Path) -> Checked:
    try:
        return Checked(pq.read_table(path), path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; {path.parent} is not a log, or was not written whole") from None
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path} is not a readable Parquet file ({reason}); restore it or write the log anew"
        ) from None


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def _shard_name(first: int, end: int) -> str:
    return f"{first:012d}-{end:012d}.parquet"


def _write_files(folder: Path, log: InteractionLog, calendar: Calendar, truth: Mapping[str, np.ndarray] | None) -> None:
    (folder / "impressions").mkdir(parents=True)
    _write_json(folder / "schema.json", log.schema.to_json())
    _write_json(folder / "calendar.json", calendar.to_json())
    pq.write_table(users_table(log), folder / "users.parquet")
    pq.write_table(ads_table(log), folder / "ads.parquet")
    pq.write_table(impressions_table(log), folder / "impressions" / _shard_name(0, len(log)))
    if log.untimed is not None:
        pq.write_table(untimed_table(log), folder / "untimed.parquet")
    if truth is not None:
        columns = {f"p_{task}": np.asarray(values, dtype=np.float64) for task, values in truth.items()}
        pq.write_table(pa.table({"event_id": log.event_id, **columns}), folder / "truth.parquet")
    write_catalogue(folder / "catalog.arrow", log, updated_ms=int(log.ingested_ms.max()))
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _swap(partial: Path, folder: Path) -> None:
    """Move a finished folder into place; one that stands there is moved aside first and put back on failure."""
    aside = folder.parent / f".{folder.name}.replaced"
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        os.rename(folder, aside)
    try:
        os.rename(partial, folder)
    except OSError:
        if aside.exists():
            os.rename(aside, folder)
        raise
    _sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
