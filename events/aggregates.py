"""History aggregates: what the past alone says about a user, an ad and their match, as one float column each.

Legend: n queried events, A columns, K tasks. Columns follow from the schema alone. Everything is strictly past: an
event counts at a moment t when it happened and had arrived before t, an outcome when its label was known before t; an
untimed event's moment is its pseudo-time (events/moments.py). The recipe follows docs/kuairand_reference.md
in terms of the schema: user windows, everybody's rolling rates, similarity of ads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from contracts.errors import InputError
from contracts.schema import Feature, FeatureSchema
from events.item_similarity import ItemSpaces, fit_item_spaces
from events.log import InteractionLog
from events.moments import NO_VALUE, EventColumns, Moments, Pasts, ranks_from_end, timed_moments, untimed_moments
from events.rates import RollingCounts
from events.user_windows import BLOCK, UserWindows

RATE_EVENTS = 20.0
"""Weight, in events, of no difference in a value's difference from the overall rate."""
MAIN_CODES = 256
"""A column of more codes is too sparse to cross with another."""
PROFILE_COLUMNS = 5
"""User columns with rates of their own: those of most codes (docs/kuairand_reference.md, 3)."""
UNTIMED_CUTS = (16, 32)
"""Similarity for an untimed event comes from events of every user further from the end than the next of these ranks."""


@dataclass(frozen=True)
class AggregateTable:
    """names of the A columns; values float32 [n, A], NaN where a column is undefined."""

    names: tuple[str, ...]
    values: np.ndarray


@dataclass(frozen=True)
class Overall:
    """By task and moment: outcomes known by then, and the rate to which thin ones shrink (NaN while none is known)."""

    known_Kn: np.ndarray
    rate_Kn: np.ndarray

    @classmethod
    def of(cls, rolling: RollingCounts, *, events: int, moments: int) -> "Overall":
        known_Kn, positive_Kn = rolling.counts(np.zeros(events, dtype=np.int64), np.zeros(moments, dtype=np.int64))
        return cls(known_Kn, np.where(known_Kn > 0, (positive_Kn + 0.5) / (known_Kn + 1), np.nan))


def aggregate_features(log: InteractionLog, events: np.ndarray, *, frozen_ms: int | None = None) -> AggregateTable:
    """Aggregates of these events (rows of the log, then untimed events from len(log) on), in their order.

    `frozen_ms`: every history and rate as of that time, where it is earlier than the event. InputError for a number
    that is no event of the log.
    """
    events = np.asarray(events, dtype=np.int64)
    untimed = len(log.untimed.user) if log.untimed is not None else 0
    if len(events) and not (events.min() >= 0 and events.max() < len(log) + untimed):
        raise InputError(f"events are numbered 0 .. {len(log) + untimed - 1} in this log; ask for those only")
    columns, late = EventColumns.of(log), events >= len(log)
    pasts = Pasts(log, columns)
    tables: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
    if late.any():
        tables.append((late, _table(log, columns, pasts, untimed_moments(log, events[late]))))
    if not late.all() or not len(events):
        moments = timed_moments(log, events[~late], frozen_ms=frozen_ms)
        tables.append((~late, _table(log, columns, pasts, moments)))
    names = tuple(tables[0][1])
    values = np.empty((len(events), len(names)), dtype=np.float32)
    for chosen, table in tables:
        for number, name in enumerate(names):
            values[chosen, number] = table[name]
    return AggregateTable(names, values)


def _table(log: InteractionLog, columns: EventColumns, pasts: Pasts, moments: Moments) -> dict[str, np.ndarray]:
    rolling = RollingCounts(moments, columns.label_KE)
    overall = Overall.of(rolling, events=len(columns.user), moments=len(moments.at))
    table = dict(_rates(log, columns, moments, rolling, overall))
    windows = UserWindows(log, columns, pasts)
    for selected, spaces in _item_spaces(log, moments):
        own = Moments(moments.event[selected], moments.at[selected], moments.known_at_KE, moments.timed)
        for start in range(0, max(len(selected), 1), BLOCK):  # without moments, one empty block names the columns
            part = slice(start, start + BLOCK)
            rows = selected[part]
            for name, column in windows.block(own, part, overall.rate_Kn[:, rows], spaces).items():
                table.setdefault(name, np.full(len(moments.at), np.nan, dtype=np.float32))[rows] = column
    return table


def _item_spaces(log: InteractionLog, moments: Moments) -> Iterator[tuple[np.ndarray, ItemSpaces | None]]:
    """Places of the moments that share item spaces, and the spaces: fitted on events that precede all of them, None
    where there are none."""
    places, untimed = np.arange(len(moments.at)), log.untimed
    if untimed is None or not len(untimed.user):
        yield places, None
        return
    ads = len(log.ad_ids)
    if moments.timed:
        earlier = np.flatnonzero(untimed.before_ms <= (log.event_ms.min() if len(log) else 0))
        yield places, fit_item_spaces(untimed, earlier, ads) if len(earlier) else None
        return
    rank = ranks_from_end(log)
    own_rank = rank[moments.event - len(log)]
    nearest = 0
    for cut in UNTIMED_CUTS:
        own, earlier = places[(own_rank >= nearest) & (own_rank < cut)], np.flatnonzero(rank >= cut)
        if len(own):
            yield own, fit_item_spaces(untimed, earlier, ads) if len(earlier) else None
        nearest = cut
    yield places[own_rank >= nearest], None


def _rates(
    log: InteractionLog, columns: EventColumns, moments: Moments, rolling: RollingCounts, overall: Overall
) -> Iterator[tuple[str, np.ndarray]]:
    # no count and no overall rate is a column, nor stands the overall rate in for a key's own where nothing is known:
    # they grow or drift, and a tree would read the day off them. So rates are differences from it, 0 without events
    all_n = overall.known_Kn.max(axis=0)
    for name, key_E in _keys(log, columns):
        key_n = key_E[moments.event]
        known_Kn, positive_Kn = rolling.counts(key_E, key_n)
        undefined_n, seen_n = key_n == NO_VALUE, all_n
        if (key_E == NO_VALUE).any():
            # of the events that have the key: a share of all grows with the calendar where earlier events lack it
            defined_E = np.where(key_E == NO_VALUE, NO_VALUE, 0)
            seen_n = rolling.counts(defined_E, np.zeros(len(key_n), dtype=np.int64))[0].max(axis=0)
        yield f"{name}.share", np.where(undefined_n, np.nan, known_Kn.max(axis=0) / np.maximum(seen_n, 1))
        for k, task in enumerate(log.schema.tasks):
            excess_n = (positive_Kn[k] - known_Kn[k] * overall.rate_Kn[k]) / (known_Kn[k] + RATE_EVENTS)
            yield f"{name}.{task.name}", np.where(undefined_n, np.nan, excess_n)


def _keys(log: InteractionLog, columns: EventColumns) -> Iterator[tuple[str, np.ndarray]]:
    """Key columns of the rolling rates by event: int64 [E], NO_VALUE where an event has none."""
    schema = log.schema
    ad_features = schema.select("ad", "categorical", teacher=True)
    ad_codes = {f.name: log.ad_features[f.name].astype(np.int64)[columns.ad] for f in ad_features}
    main = [f for f in ad_features if f.cardinality <= MAIN_CODES]
    row = columns.row
    yield "ad", columns.ad
    yield from ad_codes.items()
    yield "surface_x_ad", _crossed(row["surface"], columns.ad, len(log.ad_ids))
    for feature in main:
        yield f"surface_x_{feature.name}", _crossed(row["surface"], ad_codes[feature.name], feature.cardinality)
    yield "surface", row["surface"]
    yield "surface_x_hour", _crossed(row["surface"], row["hour"], 24)
    for feature in schema.select("context", "categorical", teacher=True):
        yield feature.name, row[feature.name]
        yield f"surface_x_{feature.name}", _crossed(row["surface"], row[feature.name], feature.cardinality)
    widest = max(main, key=lambda feature: feature.cardinality, default=None)
    for feature in _profile(schema):
        codes = log.user_features[feature.name].astype(np.int64)[columns.user]
        yield feature.name, codes
        if widest is not None:
            yield f"{feature.name}_x_{widest.name}", _crossed(codes, ad_codes[widest.name], widest.cardinality)


def _profile(schema: FeatureSchema) -> list[Feature]:
    dense = [f for f in schema.select("user", "categorical", teacher=True) if f.cardinality <= MAIN_CODES]
    return sorted(dense, key=lambda feature: -feature.cardinality)[:PROFILE_COLUMNS]


def _crossed(left: np.ndarray, right: np.ndarray, right_size: int) -> np.ndarray:
    return np.where((left < 0) | (right < 0), NO_VALUE, left * right_size + right)
