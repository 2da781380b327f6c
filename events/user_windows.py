"""A user's own record as of a moment: counts and rates over windows of their newest events, all strictly earlier.

Legend: n moments, L history length, W windows, K tasks, O = 1 + 2 K outcomes (event, known and positive by task).
A window is a weight for each past event (0 or 1, or a kernel); all windows are one batched product weight x outcome.
"""

from collections.abc import Iterator

import numpy as np

from contracts.schema import HOUR_MS, Feature
from events.item_similarity import ItemSpaces
from events.log import InteractionLog
from events.moments import NO_VALUE, EventColumns, Moments, Pasts

LENGTH = 100
"""Newest events of a user that count (docs/kuairand_reference.md, 2)."""
NEWEST = (5, 15)
HOURS_BACK = (1, 6, 24, 72)
OUTCOMES = 4
"""Events whose outcomes are columns of their own."""
PRIOR_EVENTS = 3.0
"""Weight, in events, of no difference in a user's difference from everybody's rate."""
SIMILAR_EVENTS = 50
"""Events over which similarity to the ad is taken (same source, list 4)."""
ORDERED = "duration"
"""An ad column of this name has codes in order, 0 unknown: nearby codes count as similar lengths."""
KERNEL_CODES = 1.5
BLOCK = 4_096


class UserWindows:
    """The windows' columns, block by block."""

    def __init__(self, log: InteractionLog, columns: EventColumns, pasts: Pasts) -> None:
        self._log, self._columns, self._pasts = log, columns, pasts
        self._tasks = [task.name for task in log.schema.tasks]
        untimed = log.untimed
        self._liked = sorted(untimed.labels) if untimed is not None and len(untimed.user) else None
        self._ad_columns = {f.name: log.ad_features[f.name] for f in _categoricals(log)}

    def block(
        self, moments: Moments, part: slice, prior_Kn: np.ndarray, spaces: ItemSpaces | None
    ) -> dict[str, np.ndarray]:
        """Columns by name, float [n] each, of the moments in `part`. `prior_Kn` is everybody's rate of each task as of
        the moment, NaN where unknown; without `spaces` the similarity scores are NaN."""
        past, present, known = self._pasts.before(moments, part, LENGTH)
        event, at = moments.event[part], moments.at[part]
        positive = known & (self._columns.label_KE[:, past] == 1)
        age_ms = self._ages(moments, at, past, present)
        windows = dict(self._windows(event, past, age_ms))
        columns: dict[str, np.ndarray] = {}
        if self._liked is not None:
            windows["similar"] = np.zeros(past.shape, dtype=np.float32)
            columns.update(
                dict.fromkeys(["similar.shown", *(f"similar.liked.{t}" for t in self._liked)], np.full(len(at), np.nan))
            )
        if spaces is not None:
            ads = (self._columns.ad[event], self._columns.ad[past])
            windows["similar"], scores = _similarity(*ads, present, known, positive, spaces, self._tasks)
            columns.update(scores)
        weight_nWL = np.stack(list(windows.values()), axis=1).astype(np.float32) * present[:, None, :]
        outcome_nLO = np.concatenate([present[None], known, positive]).transpose(1, 2, 0).astype(np.float32)
        total_nWO = weight_nWL @ np.ascontiguousarray(outcome_nLO)
        count = len(self._tasks)
        for w, name in enumerate(windows):
            if name != "similar":
                columns[f"user.{name}.events"] = total_nWO[:, w, 0]
            for k, task in enumerate(self._tasks):
                seen, good = total_nWO[:, w, 1 + k], total_nWO[:, w, 1 + count + k]
                # above everybody's, not with it: where few events count, their own rate would tell the day
                columns[f"user.{name}.{task}"] = (good - seen * prior_Kn[k]) / (seen + PRIOR_EVENTS)
                if name == "all":
                    columns[f"user.known.{task}"] = seen
        columns["user.idle_s"] = age_ms[:, 0] / 1000
        for back in range(OUTCOMES):
            for k, task in enumerate(self._tasks):
                columns[f"user.event{back + 1}.{task}"] = np.where(known[k, :, back], positive[k, :, back], np.nan)
        if ORDERED in self._ad_columns:
            columns.update(self._against_liked(event, past, positive))
        return columns

    def _windows(self, event: np.ndarray, past: np.ndarray, age_ms: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Each window's weight of each past event, [n, L]; padding is left to the caller."""
        place = np.arange(LENGTH)
        yield "all", np.ones(past.shape, dtype=np.float32)
        for newest in NEWEST:
            yield f"last{newest}", np.broadcast_to(place < newest, past.shape)
        for hours in HOURS_BACK:
            yield f"{hours}h", age_ms <= hours * HOUR_MS  # NaN, an event without a time, is in none
        own, then = self._columns.ad[event][:, None], self._columns.ad[past]
        yield "same_ad", own == then
        for name, values in self._ad_columns.items():
            yield f"same_{name}", (values[own] == values[then]) & (values[own] != 0)
        for name in _row_columns(self._log):
            values = self._columns.row[name]
            own_value = values[event][:, None]
            yield f"same_{name}", (own_value == values[past]) & (own_value != NO_VALUE)
        if ORDERED in self._ad_columns:
            codes = self._ad_columns[ORDERED]
            apart = (codes[own] - codes[then]) / KERNEL_CODES
            yield f"near_{ORDERED}", np.exp(-(apart**2) / 2) * ((codes[own] != 0) & (codes[then] != 0))

    def _ages(self, moments: Moments, at: np.ndarray, past: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Milliseconds since each past event, NaN where it has no time or is absent: float64 [n, L]."""
        first = len(self._log)
        if not moments.timed or not first:
            return np.full(past.shape, np.nan)
        age = at[:, None] - self._log.event_ms[np.minimum(past, first - 1)]
        return np.where(present & (past < first), age, np.nan)

    def _against_liked(self, event: np.ndarray, past: np.ndarray, positive: np.ndarray) -> dict[str, np.ndarray]:
        """The ad's ordered code less the mean code of the user's positive events, NaN without one, by task."""
        codes = self._ad_columns[ORDERED].astype(np.float64)
        own, then = codes[self._columns.ad[event]], codes[self._columns.ad[past]]
        columns = {}
        for k, task in enumerate(self._tasks):
            liked = positive[k] & (then != 0)
            count = liked.sum(axis=1)
            mean = np.divide((then * liked).sum(axis=1), count, out=np.full(len(own), np.nan), where=count > 0)
            columns[f"user.{ORDERED}_against.{task}"] = np.where(own != 0, own - mean, np.nan)
        return columns


def _similarity(
    ad_n: np.ndarray,
    past_ad: np.ndarray,
    present: np.ndarray,
    known: np.ndarray,
    positive: np.ndarray,
    spaces: ItemSpaces,
    tasks: list[str],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Weights of similar past ads, float32 [n, L], and scores of the ad for the user, [n] each."""
    recent = present & (np.arange(LENGTH) < SIMILAR_EVENTS)
    cosine = _products(spaces.shown_AD, past_ad, ad_n) * recent
    events = np.maximum(recent.sum(axis=1), 1)
    scores = {"similar.shown": cosine.sum(axis=1) / events}
    for task, vectors in sorted(spaces.liked.items()):
        k = tasks.index(task)
        surplus = (positive[k] - spaces.expected[task][past_ad]) * (known[k] & recent)
        scores[f"similar.liked.{task}"] = (_products(vectors, past_ad, ad_n) * surplus).sum(axis=1)
    return np.maximum(cosine, 0) ** 2, scores


def _products(vectors: np.ndarray, past_ad: np.ndarray, ad_n: np.ndarray) -> np.ndarray:
    """Vector of each past ad times that of the moment's ad: float32 [n, L]."""
    return (vectors[past_ad] @ vectors[ad_n][:, :, None])[:, :, 0]


def _categoricals(log: InteractionLog) -> tuple[Feature, ...]:
    return log.schema.select("ad", "categorical", teacher=True)


def _row_columns(log: InteractionLog) -> list[str]:
    return ["surface", *(f.name for f in log.schema.select("context", "categorical", teacher=True))]
