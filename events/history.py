"""Histories for the teacher: what each user did strictly before each row, as index arrays.

Legend: T timed rows of the log, H untimed rows, B queried rows, L history length. An event belongs to the history of a
row at time t when event_ms < t (a tie is never history: one request shows many ads) and ingested_ms < t (it had
arrived). So a history is a function of the past alone: whatever arrives later, it stays bit-identical (leak guards 2
and 3), whenever it is computed.
"""

from dataclasses import dataclass

import numpy as np

from events.log import UNKNOWN_LABEL, InteractionLog

ABSENT = -1
_SPARE = 16
"""Elements read beyond L to make up for late ones; rows with more late events than that are read again, wider."""


@dataclass(frozen=True)
class HistoryRows:
    """Histories of B rows, oldest first, left-aligned: element k < length[b] is either a timed event, index[b, k] >= 0
    (a row number of the log), or an untimed one, untimed[b, k] >= 0 (a row number of `log.untimed`); the other array
    holds -1 there, and both do from length[b] on. index, untimed int64 [B, L]; length int64 [B]."""

    index: np.ndarray
    untimed: np.ndarray
    length: np.ndarray


class HistoryIndex:
    """The log's events sorted once by (user, event_ms, event_id); answers history queries by array arithmetic.

    order_T: row numbers in that order, int64 [T].
    """

    def __init__(self, log: InteractionLog) -> None:
        self._log = log
        self.order_T = np.lexsort((log.event_id, log.event_ms, log.user))
        self._times = np.unique(log.event_ms)
        user = log.user.astype(np.int64)
        # one sortable key for (user, time): times become ranks, so that the product cannot overflow
        self._keys_T = self._key(user, log.event_ms)[self.order_T]
        users = np.arange(len(log.user_ids), dtype=np.int64)
        self._first_U = np.searchsorted(self._keys_T, users * (len(self._times) + 1))
        self._arrived_T = log.ingested_ms[self.order_T]
        self._any_late = bool((log.ingested_ms > log.event_ms).any())
        untimed_user = log.untimed.user if log.untimed is not None else np.zeros(0, dtype=np.int32)
        self._untimed_first_U = np.searchsorted(untimed_user, users)
        self._untimed_count_U = np.bincount(untimed_user, minlength=len(users))

    def before(self, rows: np.ndarray, length: int, *, now_ms: np.ndarray | None = None) -> HistoryRows:
        """For each row of the log (row numbers [B]) the newest `length` events of its user before it, or before
        `now_ms` (int64 [B], no later than the row) to read it with a history frozen at that time.

        Newest by (event_ms, event_id); untimed events precede every timed one, in their own order.
        """
        user = self._log.user[rows].astype(np.int64)
        now_ms = self._log.event_ms[rows] if now_ms is None else now_ms
        end = np.searchsorted(self._keys_T, self._key(user, now_ms))
        timed, timed_count = self._timed(self._first_U[user], end, now_ms, length)
        fill = np.minimum(length - timed_count, self._untimed_count_U[user])
        total = timed_count + fill
        column = np.arange(length)
        from_untimed = column < fill[:, None]
        untimed_start = self._untimed_first_U[user] + self._untimed_count_U[user] - fill
        untimed = np.where(from_untimed, untimed_start[:, None] + column, ABSENT)
        # `timed` is left-aligned too: move it behind the untimed elements
        shift = np.clip(column - fill[:, None], 0, None)
        present = ~from_untimed & (column < total[:, None])
        index = np.where(present, np.take_along_axis(timed, shift, axis=1), ABSENT)
        return HistoryRows(index, untimed, total)

    def labels(self, task: str, histories: HistoryRows, rows: np.ndarray) -> np.ndarray:
        """The task's label of every history element as known at the rows' times (label_ms < t): int8 [B, L].

        UNKNOWN_LABEL where the element is absent, its label undefined, not yet known or not in the source.
        """
        log = self._log
        timed = np.maximum(histories.index, 0)
        known = (histories.index >= 0) & (log.label_ms[task][timed] < log.event_ms[rows][:, None])
        labels = np.where(known, log.labels[task][timed], UNKNOWN_LABEL).astype(np.int8)
        if log.untimed is not None and task in log.untimed.labels and len(log.untimed.user):
            values = log.untimed.labels[task][np.maximum(histories.untimed, 0)]
            labels = np.where(histories.untimed >= 0, values, labels)
        return labels

    def _key(self, user: np.ndarray, event_ms: np.ndarray) -> np.ndarray:
        return user * (len(self._times) + 1) + np.searchsorted(self._times, event_ms)

    def _timed(
        self, first: np.ndarray, end: np.ndarray, now_ms: np.ndarray, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers of the newest `length` arrived events in sorted positions [first, end), oldest first and
        left-aligned: [B, L], and how many there are: [B]."""
        spare = _SPARE if self._any_late else 0
        timed = np.full((len(end), length), ABSENT, dtype=np.int64)
        count = np.zeros(len(end), dtype=np.int64)
        open_rows = np.arange(len(end))
        while len(open_rows):
            width = length + spare
            position = end[open_rows, None] - 1 - np.arange(width)  # newest first
            inside = position >= first[open_rows, None]
            position = np.where(inside, position, 0)
            arrived = inside & (self._arrived_at(position) < now_ms[open_rows, None]) if spare else inside
            rank = np.cumsum(arrived, axis=1)
            kept = arrived & (rank <= length)
            count[open_rows] = kept.sum(axis=1)
            b, k = np.nonzero(kept)
            slot = count[open_rows][b] - rank[b, k]
            timed[open_rows[b], slot] = self.order_T[position[b, k]]
            short = (count[open_rows] < length) & (end[open_rows] - first[open_rows] > width)
            open_rows = open_rows[short]
            spare = spare * 8
        return timed, count

    def _arrived_at(self, position: np.ndarray) -> np.ndarray:
        return self._arrived_T[position] if len(self._arrived_T) else np.zeros(position.shape, dtype=np.int64)
