"""What the teacher has logged of each impression, as histories are gathered from it.

Legend: R logged representations, D served width, K tasks in the schema's order, B readers, L history length, U users of
the interaction log.
"""

from dataclasses import dataclass, replace

import numpy as np

from contracts.elements import outcome_bits
from events.log import InteractionLog
from events.representation_shards import Representations

PLACEBO_SEED = 20260529
"""One fixed permutation for all seeds of the placebo arm."""

LEAST_SOFT = 1e-4
"""Soft labels are clipped to it and its complement before their logit is taken."""


@dataclass(frozen=True)
class LoggedVectors:
    """All logged impressions: decoded served codes float32 [R, D], event_ms int64 [R], surface uint8, ad_hash uint64
    [R], soft float32 [R, K] = what the teacher said, and positive bool, known_ms int64 [R, K] = whether the label is 1,
    and when that had become known."""

    vectors: np.ndarray
    event_ms: np.ndarray
    surface: np.ndarray
    ad_hash: np.ndarray
    soft: np.ndarray
    positive: np.ndarray
    known_ms: np.ndarray

    def shuffled(self, seed: int = PLACEBO_SEED) -> "LoggedVectors":
        """The same vectors in another order: each impression keeps its time and gets some other impression's z."""
        return replace(self, vectors=self.vectors[np.random.default_rng(seed).permutation(len(self.vectors))])

    def of_soft_labels(self) -> "LoggedVectors":
        """The logits of the soft labels [R, K] in place of z."""
        chance = self.soft.clip(LEAST_SOFT, 1 - LEAST_SOFT)
        return replace(self, vectors=np.log(chance / (1 - chance)).astype(np.float32))

    def outcomes(self, index: np.ndarray, now_ms: np.ndarray) -> np.ndarray:
        """Outcome bytes of elements (rows [B, L], -1 for none) as known strictly before now_ms [B]: uint8 [B, L]."""
        if not len(self.event_ms):
            return np.zeros(index.shape, dtype=np.uint8)
        known = (index >= 0)[:, :, None] & (self.known_ms[index] < now_ms[:, None, None])
        return outcome_bits(self.positive[index] & known)


@dataclass(frozen=True)
class Outcomes:
    """The labels of logged impressions: positive bool [R, K], known_ms int64 [R, K]."""

    positive: np.ndarray
    known_ms: np.ndarray

    @classmethod
    def of(cls, log: InteractionLog, place: np.ndarray) -> "Outcomes":
        """By row number of the log, -1 for an impression that the log, as it was read, does not hold. A label is known
        once its event has happened and arrived and the label itself is there (HistoryIndex.labels)."""
        shape = (len(place), len(log.schema.tasks))
        positive, known_ms = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64)
        held, rows = place >= 0, place[place >= 0]
        arrived = np.maximum(log.event_ms[rows], log.ingested_ms[rows])
        for k, task in enumerate(log.schema.tasks):
            positive[held, k] = log.labels[task.name][rows] == 1
            known_ms[held, k] = np.maximum(arrived, log.label_ms[task.name][rows])
        return cls(positive, known_ms)


@dataclass(frozen=True)
class UserMeans:
    """One vector a user, frozen: the mean of their z that was visible before cut_ms, float32 [U, D], and of how many,
    int64 [U] (0: none, and the vector is zero)."""

    vectors: np.ndarray
    counts: np.ndarray
    cut_ms: int

    @classmethod
    def of(cls, log: InteractionLog, logged: Representations, vectors: np.ndarray, *, cut_ms: int) -> "UserMeans":
        """`vectors` are the decoded codes of `logged`."""
        number = {user: row for row, user in enumerate(log.user_ids)}
        seen = np.flatnonzero(logged.visible_ms < cut_ms)
        users = np.array([number.get(user, -1) for user in logged.user_id[seen]], dtype=np.int64)
        seen, users = seen[users >= 0], users[users >= 0]
        counts = np.bincount(users, minlength=len(number))
        sums = np.zeros((len(number), vectors.shape[1]), dtype=np.float64)
        np.add.at(sums, users, vectors[seen])
        return cls((sums / np.maximum(counts, 1)[:, None]).astype(np.float32), counts, cut_ms)

    def index(self, user: np.ndarray, now_ms: np.ndarray) -> np.ndarray:
        """Row of `vectors` that users (table rows [B]) read at now_ms: int64 [B, 1], -1 before the cut and for a user
        without one."""
        return np.where((now_ms > self.cut_ms) & (self.counts[user] > 0), user, -1)[:, None]
