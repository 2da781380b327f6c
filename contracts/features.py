"""The one assembler: embedding record + request -> model inputs. Training and serving both call it; there is no second.

Legend: B users, N candidates, L history length, D width. In serving B = 1 and the graph broadcasts the user part over
the N candidates; in training B = N, one user row beside each ad row. Everything here is exact arithmetic (gathers,
subtraction, one correctly rounded division), so the two sides agree bit for bit; logarithms belong to the graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from contracts.elements import check_elements, element_form, element_input
from contracts.embedding import HistoryRecord
from contracts.errors import InputError
from contracts.hashing import bucket, buckets_of
from contracts.schema import HOUR_MS, HOURS, WEEKDAYS, FeatureSchema, Kind

UNKNOWN_AD = -1
"""Row number of an ad that the table lacks: it becomes the out-of-vocabulary row, all codes and numbers zero."""

CLOCK_COLUMNS = 4
"""Leading columns of `user_cat`: user bucket, surface, hour, weekday; the schema's context categoricals follow."""


@dataclass(frozen=True)
class TensorSpec:
    """One graph input or output; shape entries are numbers or the names B, N of the dynamic axes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class InputSpec:
    """What a student reads: the schema, the newest `history_length` elements (0: none) of `dim` numbers each (0: no
    vectors), and which of contracts.elements.ELEMENTS beside them."""

    schema: FeatureSchema
    history_length: int
    dim: int
    elements: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_elements(self.schema, self.elements)
        if any(not f.teacher_only for f in self.schema.features if f.side == "user"):
            raise InputError("a request carries no user features: mark the schema's user features teacher_only")

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Graph inputs in the manifest's order; inputs without columns are left out."""
        return self._tensors

    @cached_property
    def context(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the categorical and of the float context features (kept: every request asks for them)."""
        kinds: tuple[Kind, Kind] = ("categorical", "float")
        categorical, number = (self.schema.select("context", kind, teacher=False) for kind in kinds)
        return tuple(f.name for f in categorical), tuple(f.name for f in number)

    @cached_property
    def _tensors(self) -> tuple[TensorSpec, ...]:
        select = self.schema.select
        user_cat = CLOCK_COLUMNS + len(select("context", "categorical", teacher=False))
        user_num = len(select("context", "float", teacher=False))
        ad_cat = 1 + len(select("ad", "categorical", teacher=False))
        ad_num = len(select("ad", "float", teacher=False))
        length, dim = self.history_length, self.dim
        forms = {name: element_form(self.schema, name) for name in self.elements}
        specs = [
            TensorSpec("user_cat", "int64", ("B", user_cat)),
            TensorSpec("user_num", "float32", ("B", user_num)),
            TensorSpec("history_z", "float32", ("B", length, dim)),
            TensorSpec("history_age_s", "float32", ("B", length)),
            TensorSpec("history_mask", "float32", ("B", length)),
            TensorSpec("history_stats", "float32", ("B", 2)),
            *(TensorSpec(f"history_{name}", dtype, ("B", length, *more)) for name, (dtype, more) in forms.items()),
            TensorSpec("ad_cat", "int64", ("N", ad_cat)),
            TensorSpec("ad_num", "float32", ("N", ad_num)),
        ]
        return tuple(s for s in specs if 0 not in s.shape and (length or not s.name.startswith("history")))

    def user_cat_sizes(self) -> tuple[int, ...]:
        """Embedding rows of each column of `user_cat`."""
        schema = self.schema
        context = schema.select("context", "categorical", teacher=False)
        return (schema.user_buckets, len(schema.surfaces), HOURS, WEEKDAYS, *(f.cardinality for f in context))

    def ad_cat_sizes(self) -> tuple[int, ...]:
        """Embedding rows of each column of `ad_cat`."""
        ads = self.schema.select("ad", "categorical", teacher=False)
        return (self.schema.ad_buckets, *(f.cardinality for f in ads))


@dataclass(frozen=True)
class HistoryBatch:
    """Histories of B users, newest first, zero behind `mask`: vectors [B, L, D], event_ms [B, L], mask [B, L] bool,
    impressions [B] so far; surface uint8, ad_hash uint64, outcome uint8 [B, L], None where the source has none."""

    vectors: np.ndarray
    event_ms: np.ndarray
    mask: np.ndarray
    impressions: np.ndarray
    surface: np.ndarray | None = None
    ad_hash: np.ndarray | None = None
    outcome: np.ndarray | None = None

    @classmethod
    def from_record(cls, record: HistoryRecord | None, *, spec: InputSpec, now_ms: int) -> "HistoryBatch":
        """One user's record as of `now_ms` (B = 1): elements at or after now are not history. None: no history."""
        vectors = np.zeros((1, spec.history_length, spec.dim), dtype=np.float32)
        event_ms = np.zeros((1, spec.history_length), dtype=np.int64)
        if record is None:
            return cls(vectors, event_ms, np.zeros(event_ms.shape, dtype=bool), np.zeros(1, dtype=np.int64))
        past = int(np.searchsorted(record.event_ms, now_ms, side="left"))
        kept = min(past, spec.history_length)
        newest_first = slice(past - 1, past - 1 - kept if past > kept else None, -1)
        if kept:
            vectors[0, :kept] = record.vectors[newest_first] if spec.dim else ()
            event_ms[0, :kept] = record.event_ms[newest_first]
        mask = np.arange(spec.history_length)[None] < kept
        impressions = record.impressions - (len(record.event_ms) - past)
        elements = {}
        for name in spec.elements:
            if (values := getattr(record, name)) is not None:
                elements[name] = np.zeros(event_ms.shape, values.dtype)
                elements[name][0, :kept] = values[newest_first][:kept]
        return cls(vectors, event_ms, mask, np.array([impressions], dtype=np.int64), **elements)

    @classmethod
    def from_index(
        cls,
        vectors: np.ndarray,
        event_ms: np.ndarray,
        index: np.ndarray,
        impressions: np.ndarray,
        *,
        surface: np.ndarray | None = None,
        ad_hash: np.ndarray | None = None,
        outcome: np.ndarray | None = None,
    ) -> "HistoryBatch":
        """Histories by row number: vectors [R, D], event_ms, surface and ad_hash [R] of a log, index [B, L] newest
        first, -1 for none. outcome [B, L] is gathered already: it depends on the reader's time."""
        mask = index >= 0
        # assigned, not multiplied by the mask: -z * 0 is -0.0, and an empty log has no row 0 to gather
        z = np.zeros((*index.shape, vectors.shape[1]), dtype=np.float32)
        times = np.zeros(index.shape, dtype=np.int64)
        z[mask], times[mask] = vectors[index[mask]], event_ms[index[mask]]
        elements: dict[str, np.ndarray | None] = {"outcome": outcome}
        for name, values in (("surface", surface), ("ad_hash", ad_hash)):
            if values is not None:
                column = np.zeros(index.shape, values.dtype)
                column[mask] = values[index[mask]]
                elements[name] = column
        return cls(z, times, mask, impressions.astype(np.int64), **elements)


def user_inputs(
    spec: InputSpec,
    *,
    user_buckets: np.ndarray,
    surfaces: np.ndarray,
    now_ms: np.ndarray,
    context: Mapping[str, np.ndarray],
    history: HistoryBatch | None,
) -> dict[str, np.ndarray]:
    """Inputs of the user side, one row each: user_buckets, surfaces, now_ms are int64 [B]; a context column that is
    absent reads as unknown (0). `history` may be None only where the spec reads none."""
    local = now_ms + spec.schema.utc_offset_ms
    hours = local // HOUR_MS
    weekday = (hours // 24 + 3) % 7  # 1 January 1970 was a Thursday; Monday is 0
    columns = [user_buckets, surfaces, hours % 24, weekday]
    zeros = np.zeros(len(now_ms))
    categoricals, numbers = spec.context
    columns += [context.get(name, zeros) for name in categoricals]
    inputs = {"user_cat": np.stack(columns, axis=1).astype(np.int64)}
    if numbers:
        inputs["user_num"] = np.stack([context.get(name, zeros) for name in numbers], axis=1).astype(np.float32)
    if spec.history_length:
        assert history is not None, "a spec with a history needs a HistoryBatch"
        age_ms = np.maximum(now_ms[:, None] - history.event_ms, 0) * history.mask
        present = history.mask.any(axis=1)
        inputs["history_z"] = history.vectors
        inputs["history_age_s"] = (age_ms / 1000).astype(np.float32)
        inputs["history_mask"] = history.mask.astype(np.float32)
        inputs["history_stats"] = np.stack([history.impressions, present], axis=1).astype(np.float32)
        for name in spec.elements:
            inputs[f"history_{name}"] = element_input(spec.schema, name, getattr(history, name), history.mask)
    return inputs


@dataclass(frozen=True)
class AdTable:
    """Student-visible inputs of all ads: cat int64 [A, Ca] (column 0 is the ad's bucket), num float32 [A, Fa]."""

    cat: np.ndarray
    num: np.ndarray

    @classmethod
    def build(cls, schema: FeatureSchema, ad_ids: Sequence[str], columns: Mapping[str, np.ndarray]) -> "AdTable":
        """From one column per ad feature of the schema; InputError names a column that is missing or out of range."""
        cats, nums = [buckets_of(ad_ids, schema.ad_buckets)], []
        for feature in schema.select("ad", "categorical", teacher=False):
            codes = np.asarray(_column(columns, feature.name, len(ad_ids)))
            if len(codes) and (codes.min() < 0 or codes.max() >= feature.cardinality):
                raise InputError(f"ad feature {feature.name!r} has codes outside 0..{feature.cardinality - 1}")
            cats.append(codes)
        for feature in schema.select("ad", "float", teacher=False):
            values = np.asarray(_column(columns, feature.name, len(ad_ids)), dtype=np.float32)
            if not np.isfinite(values).all():
                raise InputError(f"ad feature {feature.name!r} has values that are not finite; write 0 for missing")
            nums.append(values)
        num = np.stack(nums, axis=1) if nums else np.zeros((len(ad_ids), 0), dtype=np.float32)
        return cls(np.stack(cats, axis=1).astype(np.int64), num)

    def rows(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Inputs of the candidate side for row numbers [N]; UNKNOWN_AD gives the out-of-vocabulary row of zeros."""
        known = rows >= 0
        if not len(self.cat):
            cat, num = (
                np.zeros((len(rows), self.cat.shape[1]), np.int64),
                np.zeros((len(rows), self.num.shape[1]), np.float32),
            )
        else:
            safe = np.where(known, rows, 0)
            cat, num = self.cat[safe] * known[:, None], self.num[safe] * known[:, None].astype(np.float32)
        return {"ad_cat": cat, "ad_num": num} if num.shape[1] else {"ad_cat": cat}


def user_bucket(schema: FeatureSchema, user_id: str) -> int:
    """Embedding row of one user."""
    return bucket(user_id, schema.user_buckets)


def in_order(spec: InputSpec, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs in the manifest's order, contiguous."""
    return {tensor.name: np.ascontiguousarray(inputs[tensor.name]) for tensor in spec.tensors()}


def _column(columns: Mapping[str, np.ndarray], name: str, length: int) -> np.ndarray:
    if name not in columns:
        raise InputError(f"the ads lack the column {name!r}; write every ad feature of the schema")
    if len(columns[name]) != length:
        raise InputError(f"the ad column {name!r} has {len(columns[name])} values for {length} ads")
    return columns[name]
