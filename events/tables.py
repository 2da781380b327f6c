"""The log's columns on disk: Arrow tables <-> the arrays of InteractionLog, with every check of a stranger's file.

Ids and surfaces stand as text, so that a file explains itself: users.parquet has user_id and the user features;
ads.parquet has ad_id, campaign, objective, default_bid and the ad features; impressions have event_id, request_id,
user_id, ad_id, surface, event_ms, ingested_ms, bid, one column per context feature, and per task label_<task> (int8,
-1 where undefined) and label_ms_<task>; untimed.parquet has user_id, ad_id, before_ms and label_<task>.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import InputError
from contracts.hashing import MAX_ID_BYTES
from contracts.schema import Feature, FeatureSchema
from events.log import UNKNOWN_LABEL, InteractionLog, UntimedEvents

ROW_COLUMNS: Mapping[str, type] = {
    "event_id": np.uint64,
    "request_id": np.uint64,
    "event_ms": np.int64,
    "ingested_ms": np.int64,
    "bid": np.float32,
}
"""Row columns that are plain numbers, with their types in memory and on disk."""

RESERVED = {*ROW_COLUMNS, "user_id", "ad_id", "surface", "campaign", "objective", "default_bid", "updated_ms"}
"""Column names that a feature may not take."""


def users_table(log: InteractionLog) -> pa.Table:
    return pa.table({"user_id": _texts(log.user_ids), **_features(log.schema, "user", log.user_features)})


def ads_table(log: InteractionLog) -> pa.Table:
    columns = {
        "ad_id": _texts(log.ad_ids),
        "campaign": _texts(log.campaign),
        "objective": _texts(log.objective),
        "default_bid": np.asarray(log.default_bid, dtype=np.float32),
    }
    return pa.table({**columns, **_features(log.schema, "ad", log.ad_features)})


def impressions_table(log: InteractionLog) -> pa.Table:
    columns: dict[str, Any] = {name: getattr(log, name).astype(kind) for name, kind in ROW_COLUMNS.items()}
    columns["user_id"] = pa.DictionaryArray.from_arrays(log.user.astype(np.int32), _texts(log.user_ids))
    columns["ad_id"] = pa.DictionaryArray.from_arrays(log.ad.astype(np.int32), _texts(log.ad_ids))
    columns["surface"] = pa.DictionaryArray.from_arrays(log.surface.astype(np.int32), _texts(log.schema.surfaces))
    columns |= _features(log.schema, "context", log.context)
    for task in log.schema.tasks:
        columns[f"label_{task.name}"] = log.labels[task.name].astype(np.int8)
        columns[f"label_ms_{task.name}"] = log.label_ms[task.name].astype(np.int64)
    return pa.table(columns)


def untimed_table(log: InteractionLog) -> pa.Table:
    assert log.untimed is not None
    events = log.untimed
    columns: dict[str, Any] = {
        "user_id": pa.DictionaryArray.from_arrays(events.user.astype(np.int32), _texts(log.user_ids)),
        "ad_id": pa.DictionaryArray.from_arrays(events.ad.astype(np.int32), _texts(log.ad_ids)),
        "before_ms": events.before_ms.astype(np.int64),
    }
    return pa.table(columns | {f"label_{task}": values.astype(np.int8) for task, values in events.labels.items()})


def log_from_tables(
    schema: FeatureSchema,
    *,
    users: "Checked",
    ads: "Checked",
    impressions: "Checked",
    untimed: "Checked | None",
    offset: np.ndarray,
) -> InteractionLog:
    """The log in memory; InputError names the file and the column of whatever does not fit the schema."""
    user_ids, ad_ids = users.ids("user_id"), ads.ids("ad_id")
    rows = {name: impressions.numbers(name, kind) for name, kind in ROW_COLUMNS.items()}
    if len(np.unique(rows["event_id"])) != len(offset):
        raise InputError(f"{impressions.path}: column 'event_id' repeats a value; write each impression once")
    objective = ads.texts("objective")
    tasks = {task.name for task in schema.tasks}
    if unknown := sorted(set(objective.tolist()) - tasks):
        raise InputError(f"{ads.path}: column 'objective' holds {unknown[0]!r}; use one of {sorted(tasks)}")
    return InteractionLog(
        schema=schema,
        user_ids=user_ids,
        ad_ids=ad_ids,
        user_features=users.features(schema, "user"),
        ad_features=ads.features(schema, "ad"),
        campaign=ads.texts("campaign"),
        objective=objective,
        default_bid=ads.numbers("default_bid", np.float32),
        offset=offset,
        user=impressions.codes("user_id", user_ids, users.path).astype(np.int32),
        ad=impressions.codes("ad_id", ad_ids, ads.path).astype(np.int32),
        surface=_surface_codes(schema, impressions),
        context=impressions.features(schema, "context"),
        labels={task.name: impressions.labels(f"label_{task.name}") for task in schema.tasks},
        label_ms={task.name: impressions.numbers(f"label_ms_{task.name}", np.int64) for task in schema.tasks},
        untimed=_untimed(schema, untimed, user_ids, ad_ids, users.path, ads.path) if untimed is not None else None,
        **rows,
    )


class Checked:
    """A table as read from `path`; each getter checks one column and names file and column when it does not fit."""

    def __init__(self, table: pa.Table, path: Path) -> None:
        self.table, self.path = table, path

    def column(self, name: str) -> pa.ChunkedArray:
        if name not in self.table.column_names:
            names = ", ".join(self.table.column_names)
            raise InputError(f"{self.path}: column {name!r} is missing; add it or write the log again (it has {names})")
        column = self.table[name]
        if column.null_count:
            raise InputError(f"{self.path}: column {name!r} has {column.null_count} nulls; fill every row")
        return column

    def numbers(self, name: str, kind: Any) -> np.ndarray:
        """The column as finite numbers of a numpy type; a cast that would change a value is refused."""
        column = self.column(name)
        target = pa.from_numpy_dtype(np.dtype(kind))
        # float64 -> float32 rounds, which is wanted; every other lossy cast is an error
        rounding = pa.types.is_floating(target)
        try:
            values = column.cast(target, safe=not rounding).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise InputError(f"{self.path}: column {name!r} is {column.type}, not {target}; write it so") from None
        if rounding and not np.isfinite(values).all():
            raise InputError(f"{self.path}: column {name!r} has values that are not finite; write 0 for missing")
        return values

    def texts(self, name: str) -> np.ndarray:
        """The column as text: object [n]."""
        column = self.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise InputError(f"{self.path}: column {name!r} is {column.type}, not text; write ids as text")
        return column.to_numpy(zero_copy_only=False)

    def ids(self, name: str) -> np.ndarray:
        """The column as distinct ids of 1 to MAX_ID_BYTES bytes: object [n]."""
        texts = self.texts(name)
        sizes = pc.binary_length(_texts(texts)).to_numpy()
        if len(texts) and not 1 <= sizes.min() <= sizes.max() <= MAX_ID_BYTES:
            raise InputError(f"{self.path}: column {name!r} has an id that is not 1 to {MAX_ID_BYTES} bytes; rename it")
        if len(set(texts.tolist())) != len(texts):
            raise InputError(f"{self.path}: column {name!r} repeats an id; keep one row for each")
        return texts

    def codes(self, name: str, ids: np.ndarray, ids_path: Path) -> np.ndarray:
        """Row numbers of the column's ids in `ids`: int64 [n]; InputError for an id that it lacks."""
        column = self.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        column = column.unify_dictionaries().combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0)
        found = pc.index_in(column.dictionary.cast(pa.string()), value_set=_texts(ids))
        of_value = pc.fill_null(found, UNKNOWN_LABEL).to_numpy().astype(np.int64)
        codes = of_value[column.indices.to_numpy()] if len(of_value) else np.zeros(len(column), dtype=np.int64)
        if len(codes) and codes.min() < 0:
            missing = column.dictionary[int(column.indices[int(codes.argmin())].as_py())].as_py()
            raise InputError(f"{self.path}: {name} {missing!r} is not in {ids_path}; add it there")
        return codes

    def labels(self, name: str) -> np.ndarray:
        values = self.numbers(name, np.int8)
        if not np.isin(values, (UNKNOWN_LABEL, 0, 1)).all():
            raise InputError(f"{self.path}: column {name!r} holds labels other than 0, 1 and {UNKNOWN_LABEL} (unknown)")
        return values

    def features(self, schema: FeatureSchema, side: str) -> dict[str, np.ndarray]:
        """The schema's features of one side: int32 codes in range, float32 numbers."""
        return {f.name: self._feature(f) for f in schema.features if f.side == side}

    def _feature(self, feature: Feature) -> np.ndarray:
        if feature.kind == "float":
            return self.numbers(feature.name, np.float32)
        codes = self.numbers(feature.name, np.int32)
        if len(codes) and (codes.min() < 0 or codes.max() >= feature.cardinality):
            raise InputError(f"{self.path}: column {feature.name!r} has codes outside 0..{feature.cardinality - 1}")
        return codes


def _untimed(
    schema: FeatureSchema, untimed: Checked, user_ids: np.ndarray, ad_ids: np.ndarray, users_path: Path, ads_path: Path
) -> UntimedEvents:
    user = untimed.codes("user_id", user_ids, users_path).astype(np.int32)
    if len(user) and (np.diff(user) < 0).any():
        raise InputError(f"{untimed.path}: rows must be grouped by user in the order of {users_path}, oldest first")
    tasks = [t.name for t in schema.tasks if f"label_{t.name}" in untimed.table.column_names]
    return UntimedEvents(
        user=user,
        ad=untimed.codes("ad_id", ad_ids, ads_path).astype(np.int32),
        labels={task: untimed.labels(f"label_{task}") for task in tasks},
        before_ms=untimed.numbers("before_ms", np.int64),
    )


def _surface_codes(schema: FeatureSchema, impressions: Checked) -> np.ndarray:
    """Surfaces that the schema does not name fall into the pooled one (code 0)."""
    texts, inverse = np.unique(impressions.texts("surface").astype(str), return_inverse=True)
    codes = np.array([schema.surface_code(str(text)) for text in texts], dtype=np.int16)
    return codes[inverse] if len(texts) else np.zeros(0, dtype=np.int16)


def _features(schema: FeatureSchema, side: str, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    columns = {}
    for feature in schema.features:
        if feature.side != side:
            continue
        if feature.name in RESERVED or feature.name.startswith("label_"):
            raise InputError(f"feature {feature.name!r} has the name of one of the log's own columns; rename it")
        kind = np.float32 if feature.kind == "float" else np.int32
        columns[feature.name] = np.asarray(values[feature.name], dtype=kind)
    return columns


def _texts(values: Sequence[str] | np.ndarray) -> pa.Array:
    return pa.array([str(value) for value in values], type=pa.string())
