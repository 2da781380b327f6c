"""Histories as of a time: which rows of the representation log a reader at time t sees.

Legend: R rows, B queries, L history length, d served width. A row is visible at t when available_ms < t and
event_ms < t; ties in time are excluded, because one request shows many ads. The sequence is stored once, in the log,
and never copied into training rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from contracts.embedding import HistoryRecord
from contracts.quantiser import INT8, Quantiser
from events.representation_shards import Representations


class AsOf:
    """Histories of a block of rows as a reader at any time sees them: available_ms < t and event_ms < t, newest by
    (event_ms, event_id). Right for every order of availability; fast where it is monotone within a user."""

    def __init__(self, rows: Representations, *, fence: int = 0, quantiser: Quantiser = INT8) -> None:
        """`fence` (the log's epoch) goes into the records; `quantiser` (the log's) decodes their vectors."""
        encoded = pa.array(rows.user_id, pa.string()).dictionary_encode()
        self.users: list[str] = encoded.dictionary.to_pylist()
        self.rows, self.fence, self._quantiser = rows, fence, quantiser
        self._code_of = {user: code for code, user in enumerate(self.users)}
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self._order = np.lexsort((rows.event_id, rows.event_ms, codes))
        self._user = codes[self._order]
        self._visible = rows.visible_ms[self._order]
        self._start = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(self.users)))]).astype(np.int64)
        falls = (self._visible[1:] < self._visible[:-1]) & (self._user[1:] == self._user[:-1])
        self._monotone = np.ones(len(self.users), dtype=bool)
        self._monotone[self._user[1:][falls]] = False

    def codes(self, user_ids: Sequence[str] | np.ndarray) -> np.ndarray:
        """Numbers of users for `histories`, -1 for a user without rows: int64 [B]."""
        return np.fromiter((self._code_of.get(user, -1) for user in user_ids), dtype=np.int64, count=len(user_ids))

    def histories(
        self, users: Sequence[str] | np.ndarray, now_ms: np.ndarray, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers of the newest `length` rows visible at now_ms [B], newest first, -1 behind them: int64 [B, L];
        and how many rows were visible in all: int64 [B]. `users` are ids, or numbers from `codes` (integer array)."""
        numbers = isinstance(users, np.ndarray) and users.dtype.kind == "i"
        codes = np.asarray(users, dtype=np.int64) if numbers else self.codes(users)
        known = codes >= 0
        low = np.where(known, self._start[np.where(known, codes, 0)], 0) if self.users else np.zeros_like(codes)
        high = np.where(known, self._start[np.where(known, codes + 1, 0)], 0) if self.users else np.zeros_like(codes)
        end = _lower_bound(self._visible, low, high, np.asarray(now_ms, dtype=np.int64))
        position = end[:, None] - 1 - np.arange(length)
        mask = position >= low[:, None]
        index = np.full(position.shape, -1, dtype=np.int64)
        index[mask] = self._order[position[mask]]
        impressions = end - low
        for query in np.flatnonzero(known & ~self._monotone[np.where(known, codes, 0)]) if self.users else ():
            own = slice(int(low[query]), int(high[query]))
            seen = self._order[own][self._visible[own] < now_ms[query]]
            newest = seen[::-1][:length]
            index[query] = -1
            index[query, : len(newest)] = newest
            impressions[query] = len(seen)
        return index, impressions

    def record(self, user_id: str, length: int, as_of_ms: int | None = None) -> HistoryRecord | None:
        """The user's history record as of a time (None: all rows); None when the user has no visible row."""
        code = self._code_of.get(user_id)
        if code is None:
            return None
        own = np.arange(self._start[code], self._start[code + 1])
        for _, codes, record in self._records(own, length, as_of_ms):
            return replace(record, vectors=self._quantiser.decode(codes))
        return None

    def records(self, length: int, *, as_of_ms: int | None = None) -> Iterator[tuple[str, np.ndarray, HistoryRecord]]:
        """User id, served codes [L, d] and record of every user who has a visible row; oldest element first.

        Their `vectors` stay empty: the writer encodes the codes, and decoding them would double its time.
        """
        return self._records(np.arange(len(self._order)), length, as_of_ms)

    def _records(
        self, places: np.ndarray, length: int, as_of_ms: int | None
    ) -> Iterator[tuple[str, np.ndarray, HistoryRecord]]:
        if as_of_ms is not None:
            places = places[self._visible[places] < as_of_ms]
        if not len(places):
            return
        users, rows = self._user[places], self._order[places]
        starts = np.flatnonzero(np.concatenate([[True], users[1:] != users[:-1]]))
        ends = np.append(starts[1:], len(users))
        names = [self.users[user] for user in users[starts].tolist()]
        computed_ms = np.maximum.reduceat(self.rows.available_ms[rows], starts)
        log_offset = np.maximum.reduceat(self.rows.offset[rows], starts)
        codes, event_ms = self.rows.codes[rows], self.rows.event_ms[rows]
        undecoded = np.zeros((0, codes.shape[1]), dtype=np.float32)
        columns = (names, starts.tolist(), ends.tolist(), computed_ms.tolist(), log_offset.tolist())
        for name, start, end, computed, offset in zip(*columns, strict=True):
            kept = slice(max(start, end - length), end)
            record = HistoryRecord(
                vectors=undecoded,
                event_ms=event_ms[kept],
                impressions=end - start,
                computed_ms=computed,
                log_offset=offset,
                fence=self.fence,
            )
            yield name, codes[kept], record


def _lower_bound(values: np.ndarray, low: np.ndarray, high: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """First place in [low, high) whose value is >= limit, for each query, in sorted stretches of `values`."""
    low, high = low.copy(), high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        below = open_ & (values[np.where(open_, middle, 0)] < limit)
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low
