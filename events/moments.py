"""Moments at which aggregates are asked for, and what was known by then: one numbering and one clock for all events.

Legend: T timed rows, H untimed events, E = T + H: event e < T is row e of the log, event T + j is row j of its untimed
events. K tasks, n queried events, L history length.
An untimed event has a pseudo-time: events stand by rank from the end of their user's history, furthest first, ties in a
random order. So an untimed event's aggregates come from what stands earlier in that order.
"""

from dataclasses import dataclass

import numpy as np

from contracts.schema import HOUR_MS, HOURS
from events.history import HistoryIndex
from events.log import UNKNOWN_LABEL, InteractionLog

NO_VALUE = -1
"""Surface, hour and context of an untimed event: no source says them."""
NEVER = np.iinfo(np.int64).max
TIE_SEED = 0


@dataclass(frozen=True)
class EventColumns:
    """What each event is, by event number: user, ad int64 [E]; row: surface, hour and the context columns, int64 [E],
    NO_VALUE where untimed; label_KE int8, UNKNOWN_LABEL where undefined."""

    user: np.ndarray
    ad: np.ndarray
    row: dict[str, np.ndarray]
    label_KE: np.ndarray

    @classmethod
    def of(cls, log: InteractionLog) -> "EventColumns":
        schema, untimed = log.schema, log.untimed
        late = len(untimed.user) if untimed is not None else 0
        unknown = np.full(late, UNKNOWN_LABEL, dtype=np.int8)
        context = {
            feature.name: log.context[feature.name] for feature in schema.select("context", "categorical", teacher=True)
        }
        hour = (log.event_ms + schema.utc_offset_ms) // HOUR_MS % HOURS
        past = untimed.labels if untimed is not None else {}
        labels = [np.concatenate([log.labels[task.name], past.get(task.name, unknown)]) for task in schema.tasks]
        return cls(
            user=_joined(log.user, untimed.user if untimed is not None else unknown),
            ad=_joined(log.ad, untimed.ad if untimed is not None else unknown),
            row={
                name: _joined(values, np.full(late, NO_VALUE))
                for name, values in {"surface": log.surface, "hour": hour, **context}.items()
            },
            label_KE=np.stack(labels).astype(np.int8),
        )


@dataclass(frozen=True)
class Moments:
    """Queried events with the clock by which they are asked: event int64 [n], at int64 [n]; known_at_KE int64: an
    outcome counts for everybody's rates at a moment when known_at < at. `timed` says which clock it is."""

    event: np.ndarray
    at: np.ndarray
    known_at_KE: np.ndarray
    timed: bool


def timed_moments(log: InteractionLog, rows: np.ndarray, *, frozen_ms: int | None = None) -> Moments:
    """Rows of the log at their event time, or at `frozen_ms` where that is earlier. An outcome counts once its event
    has happened, has arrived and its label is known; an untimed one once its upper bound in time has passed."""
    arrived = np.maximum(log.event_ms, log.ingested_ms)
    before = log.untimed.before_ms - 1 if log.untimed is not None else np.zeros(0, dtype=np.int64)
    known = [np.concatenate([np.maximum(arrived, log.label_ms[task.name]), before]) for task in log.schema.tasks]
    at = log.event_ms[rows]
    return Moments(rows, at if frozen_ms is None else np.minimum(at, frozen_ms), np.stack(known), timed=True)


def untimed_moments(log: InteractionLog, events: np.ndarray) -> Moments:
    """Untimed events (event numbers) at their pseudo-time; no timed row lies before any of them."""
    first = len(log)
    pseudo = np.concatenate([np.full(first, NEVER), pseudo_times(log)])
    return Moments(events, pseudo[events], np.tile(pseudo, (len(log.schema.tasks), 1)), timed=False)


def ranks_from_end(log: InteractionLog) -> np.ndarray:
    """Of each untimed event, how many of its user's untimed events come after it: int64 [H]."""
    assert log.untimed is not None
    user = log.untimed.user
    end = np.searchsorted(user, user, side="right")
    return end - 1 - np.arange(len(user))


def pseudo_times(log: InteractionLog) -> np.ndarray:
    """Place of each untimed event in their common order, 0 .. H-1: int64 [H]."""
    rank = ranks_from_end(log)
    tie = np.random.default_rng(TIE_SEED).permutation(len(rank))
    pseudo = np.empty(len(rank), dtype=np.int64)
    pseudo[np.lexsort((tie, -rank))] = np.arange(len(rank))
    return pseudo


class Pasts:
    """Histories of moments of either clock, newest first."""

    def __init__(self, log: InteractionLog, columns: EventColumns) -> None:
        self._log, self._columns = log, columns
        self._index = HistoryIndex(log)

    def before(self, moments: Moments, part: slice, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The newest `length` events of each user before the moments in `part`: event int64 [n, L], 0 as padding;
        present bool [n, L]; known bool [K, n, L]: whether the outcome is defined and was known by then."""
        event, at = moments.event[part], moments.at[part]
        first = len(self._log)
        if moments.timed:
            history = self._index.before(event, length, now_ms=at)
            oldest_first = np.where(history.index >= 0, history.index, history.untimed + first)
            rank = np.arange(length)
            back = np.maximum(history.length[:, None] - 1 - rank, 0)
            past, present = np.take_along_axis(oldest_first, back, axis=1), rank < history.length[:, None]
        else:
            assert self._log.untimed is not None
            row, rank = event - first, np.arange(length)
            ahead = row - np.searchsorted(self._log.untimed.user, self._log.untimed.user[row])
            past, present = event[:, None] - 1 - rank, rank < ahead[:, None]
        past = np.where(present, past, 0)
        known = present & (self._columns.label_KE[:, past] != UNKNOWN_LABEL)
        if moments.timed:
            # a user's own untimed events precede all of their timed ones, whatever the bound of their time
            known &= (past >= first) | (moments.known_at_KE[:, past] < at[:, None])
        return past, present, known


def _joined(timed: np.ndarray, untimed: np.ndarray) -> np.ndarray:
    return np.concatenate([timed.astype(np.int64), untimed.astype(np.int64)])
