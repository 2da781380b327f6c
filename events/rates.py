"""Everybody's rates as of a moment: how often events with the same value had each outcome, strictly earlier.

Legend: E events, K tasks, n queries. Counts are exact integers, so that they do not depend on what comes later.
"""

import numpy as np

from events.log import UNKNOWN_LABEL
from events.moments import Moments


class RollingCounts:
    """Answers, for any key column, how many outcomes of events with the query's key were known before its moment."""

    def __init__(self, moments: Moments, label_KE: np.ndarray) -> None:
        self._tasks, self._n = len(label_KE), len(moments.at)
        self._groups: list[tuple[list[int], _Timeline]] = []
        for task, known_at_E in enumerate(moments.known_at_KE):
            for tasks, _ in self._groups:
                # tasks that become known together share one timeline, and so one sort per key column
                if np.array_equal(moments.known_at_KE[tasks[0]], known_at_E):
                    tasks.append(task)
                    break
            else:
                self._groups.append(([task], _Timeline(known_at_E, moments.at)))
        for tasks, timeline in self._groups:
            timeline.load(label_KE[tasks])

    def counts(self, key_E: np.ndarray, key_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Known outcomes and positive ones by task: int64 [K, n] each. Keys are whole numbers; an event or a query of
        a negative key matches nothing."""
        known_Kn, positive_Kn = (np.zeros((self._tasks, self._n), dtype=np.int64) for _ in range(2))
        for tasks, timeline in self._groups:
            known_Kn[tasks], positive_Kn[tasks] = timeline.counts(key_E, key_n)
        return known_Kn, positive_Kn


class _Timeline:
    """Events in the order in which they become known. Those known before every query are counted without a sort."""

    def __init__(self, known_at_E: np.ndarray, at_n: np.ndarray) -> None:
        end = int(np.count_nonzero(known_at_E < at_n.max())) if len(at_n) else 0
        self._order = np.argsort(known_at_E, kind="stable")[:end]
        self._place_n = np.searchsorted(known_at_E[self._order], at_n)
        self._base = int(self._place_n.min()) if len(at_n) else 0

    def load(self, label_KE: np.ndarray) -> None:
        label_Ke = label_KE[:, self._order]
        # known and positive of each task, side by side: one gather each for all of them
        outcome_Ce = np.concatenate([label_Ke != UNKNOWN_LABEL, label_Ke == 1])
        self._old_C = [np.flatnonzero(column[: self._base]) for column in outcome_Ce]
        self._outcome_rC = outcome_Ce[:, self._base :].T.astype(np.int64)

    def counts(self, key_E: np.ndarray, key_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        key_e, key_r = key_E[self._order], key_E[self._order[self._base :]]
        size = max(int(key_E.max(initial=0)), int(key_n.max(initial=0))) + 1
        before_SC = np.stack([_tally(key_e[old], size) for old in self._old_C], axis=1)
        present = np.flatnonzero(key_r >= 0)
        width = len(key_r) + 1
        # one sortable number for (key, place in time): sorting values is far cheaper than sorting places
        sorted_r = np.sort(key_r[present] * width + present)
        total_rC = np.zeros((len(sorted_r) + 1, len(self._old_C)), dtype=np.int64)
        np.cumsum(self._outcome_rC[sorted_r % width], axis=0, out=total_rC[1:])
        asked_n = np.maximum(key_n, 0)
        first_n = np.searchsorted(sorted_r, asked_n * width)
        end_n = np.searchsorted(sorted_r, asked_n * width + self._place_n - self._base)
        counts_nC = before_SC[asked_n] + total_rC[end_n] - total_rC[first_n]
        counts_nC[key_n < 0] = 0
        known_nK, positive_nK = np.split(counts_nC, 2, axis=1)
        return known_nK.T, positive_nK.T


def _tally(key: np.ndarray, size: int) -> np.ndarray:
    """How often each key from 0 on occurs: int64 [size]."""
    return np.bincount(key[key >= 0], minlength=size)
