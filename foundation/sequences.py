"""Each user's events in one row of places, so that a history is an interval and a batch of them plain arithmetic.

Legend: E events (numbered as in `log_tensors.py`) and as many places, n queried events, B a batch of them, L history
length, T the longest history of a batch. `events.history.HistoryIndex.before` is the reference: the same histories, one
array for all rows at once, which a million rows of 2,048 events have no room for.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from events.history import HistoryIndex
from events.log import InteractionLog, UntimedEvents


@dataclass(frozen=True)
class Pasts:
    """What precedes n events: `end_n` is the place behind the newest event before each, `length_n` how many of the past
    are available, `pending_n` how many more had not arrived by then. int64 [n]."""

    end_n: Tensor
    length_n: Tensor
    pending_n: Tensor


class UserSequences:
    """Users one after the other; a user's untimed events first, then the timed ones by (event_ms, event_id)."""

    def __init__(self, log: InteractionLog, untimed: UntimedEvents, histories: HistoryIndex) -> None:
        self._log, self._untimed = log, untimed
        order_T = histories.order_T
        users = np.arange(len(log.user_ids) + 1)
        timed_first_U = np.searchsorted(log.user[order_T], users)
        untimed_first_U = np.searchsorted(untimed.user, users)
        timed_place_T = np.arange(len(log)) + untimed_first_U[log.user[order_T].astype(np.int64) + 1]
        self._untimed_place_H = np.arange(len(untimed.user)) + timed_first_U[untimed.user.astype(np.int64)]
        self._first_U = timed_first_U + untimed_first_U
        self._untimed_count_U = np.diff(untimed_first_U)
        event_E = np.zeros(len(log) + len(untimed.user), dtype=np.int64)
        event_E[timed_place_T] = order_T
        event_E[self._untimed_place_H] = len(log) + np.arange(len(untimed.user))
        self._event_E = torch.from_numpy(event_E)
        self._times = np.unique(log.event_ms)
        self._keys_T = self._key(log.user, log.event_ms)[order_T]
        self._timed_first_U = timed_first_U
        self._late = bool((log.ingested_ms > log.event_ms).any())
        if self._late:
            # an event is available to times after both its own and its arrival
            self._available_T = np.sort(self._key(log.user, np.maximum(log.event_ms, log.ingested_ms)))
            self._arrived_E = torch.from_numpy(
                np.concatenate([log.ingested_ms, np.full(len(untimed.user), np.iinfo(np.int64).min)])
            )

    def before(self, events: np.ndarray, length: int) -> Pasts:
        """The newest `length` events strictly before each of these. Before an untimed event stand those ahead of it."""
        log = self._log
        end_n, count_n = np.zeros(len(events), dtype=np.int64), np.zeros(len(events), dtype=np.int64)
        pending_n = np.zeros(len(events), dtype=np.int64)
        timed = events < len(log)
        user, now_ms = log.user[events[timed]].astype(np.int64), log.event_ms[events[timed]]
        key = self._key(user, now_ms)
        before = np.searchsorted(self._keys_T, key) - self._timed_first_U[user]
        available = before
        if self._late:
            available = np.searchsorted(self._available_T, key) - self._timed_first_U[user]
        ahead = self._untimed_count_U[user]
        end_n[timed] = self._first_U[user] + ahead + before
        count_n[timed], pending_n[timed] = ahead + available, before - available
        row = events[~timed] - len(log)
        end_n[~timed] = self._untimed_place_H[row]
        count_n[~timed] = end_n[~timed] - self._first_U[self._untimed.user[row]]
        length_n = np.minimum(count_n, length)
        return Pasts(torch.from_numpy(end_n), torch.from_numpy(length_n), torch.from_numpy(pending_n))

    def newest(self, pasts: Pasts, positions: Tensor, now_B: Tensor) -> Tensor:
        """Events of the pasts at these positions, newest first, 0 as padding: int64 [B, T]. `now_B`: the times of the
        queried events in ms."""
        end_B, length_B = pasts.end_n[positions], pasts.length_n[positions]
        rank = torch.arange(int(length_B.max()) if len(length_B) else 0)
        event_BT = self._at(end_B[:, None] - 1 - rank)
        if self._late:
            late = torch.nonzero(pasts.pending_n[positions])[:, 0]
            if len(late):
                pending_B = pasts.pending_n[positions[late]]
                event_BT[late] = self._arrived(end_B[late], pending_B, now_B[late], width=len(rank))
        return event_BT.masked_fill_(rank >= length_B[:, None], 0)

    def _at(self, place_BT: Tensor) -> Tensor:
        """Events at these places; those before the first are padding."""
        return self._event_E.index_select(0, place_BT.clamp_(min=0).flatten()).unflatten(0, place_BT.shape)

    def _arrived(self, end_B: Tensor, pending_B: Tensor, now_B: Tensor, *, width: int) -> Tensor:
        """As above for rows in whose past something had not arrived: those events are passed over."""
        reach = torch.arange(width + int(pending_B.max()))
        event_BR = self._at(end_B[:, None] - 1 - reach)
        missing_BR = self._arrived_E[event_BR] >= now_B[:, None]
        kept_BT = missing_BR.byte().argsort(dim=1, stable=True)[:, :width]
        return event_BR.gather(1, kept_BT)

    def _key(self, user: np.ndarray, time_ms: np.ndarray) -> np.ndarray:
        """One sortable number for (user, time): times become ranks, so that the product cannot overflow. A time between
        two of the log's has the rank of the earlier."""
        rank = np.searchsorted(self._times, time_ms, side="right")
        return user.astype(np.int64) * (len(self._times) + 1) + rank
