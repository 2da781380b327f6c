"""The interaction log: one row per impression, on disk (Parquet) and in memory (numpy columns).

Legend: U users, A ads, T impressions in order of their ingestion offset (never of their event time: late events get a
later offset). A folder holds schema.json, users.parquet, ads.parquet, impressions/<first>-<end>.parquet and, where a
source has them, untimed.parquet (events before the log that carry no time) and truth.parquet (synthetic only).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from contracts.features import AdTable
from contracts.hashing import buckets_of
from contracts.schema import FeatureSchema

UNKNOWN_LABEL = -1
"""Label value of a row on which a task is not defined (parent label 0) or not observable (surface)."""


@dataclass(frozen=True)
class UntimedEvents:
    """Events that precede the log, in order for each user but without a time ("no time" flag): user int32 [H],
    ad int32 [H], labels int8 [H] by task (UNKNOWN_LABEL where the source has none), before_ms int64 [H]: an upper
    bound of the event's time. Rows are grouped by user and, within a user, oldest first."""

    user: np.ndarray
    ad: np.ndarray
    labels: Mapping[str, np.ndarray]
    before_ms: np.ndarray


@dataclass(frozen=True)
class InteractionLog:
    """The log in memory. `user` and `ad` index `user_ids` and `ad_ids`; feature columns hold the schema's codes.

    user_features / ad_features: one array per schema feature of that side, [U] / [A]. objective [A] is a task name,
    campaign [A] and default_bid [A] come from the ads table. Row columns, all [T]: offset, event_id (uint64),
    request_id (uint64), user, ad (int32), surface (int16 code), event_ms, ingested_ms (int64), bid (float32),
    context (name -> array), labels (task -> int8, UNKNOWN_LABEL where undefined), label_ms (task -> int64, known at).
    """

    schema: FeatureSchema
    user_ids: np.ndarray
    ad_ids: np.ndarray
    user_features: Mapping[str, np.ndarray]
    ad_features: Mapping[str, np.ndarray]
    campaign: np.ndarray
    objective: np.ndarray
    default_bid: np.ndarray
    offset: np.ndarray
    event_id: np.ndarray
    request_id: np.ndarray
    user: np.ndarray
    ad: np.ndarray
    surface: np.ndarray
    event_ms: np.ndarray
    ingested_ms: np.ndarray
    bid: np.ndarray
    context: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]
    label_ms: Mapping[str, np.ndarray]
    untimed: UntimedEvents | None = None

    def __len__(self) -> int:
        return len(self.event_id)

    def in_time_order(self, rows: np.ndarray) -> np.ndarray:
        """These row numbers in order of (event_ms, event_id)."""
        return rows[np.lexsort((self.event_id[rows], self.event_ms[rows]))]

    def take(self, rows: np.ndarray) -> "InteractionLog":
        """The log with only these rows (row numbers or a mask), in their order; tables and untimed events stay."""
        columns = ("offset", "event_id", "request_id", "user", "ad", "surface", "event_ms", "ingested_ms", "bid")
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in columns},
            context={name: values[rows] for name, values in self.context.items()},
            labels={name: values[rows] for name, values in self.labels.items()},
            label_ms={name: values[rows] for name, values in self.label_ms.items()},
        )

    def user_bucket_table(self) -> np.ndarray:
        """Embedding row of every user: int64 [U]."""
        return buckets_of(self.user_ids, self.schema.user_buckets)

    def ad_table(self) -> AdTable:
        """Student-visible inputs of every ad, by the same code that serving uses on its catalogue."""
        return AdTable.build(self.schema, list(self.ad_ids), self.ad_features)

    def usable(self, task: str, *, as_of_ms: int) -> np.ndarray:
        """Rows that may judge a task at `as_of_ms`, however late they arrive: label defined and known, whole window
        passed: bool [T]. To train, ask `trainable`."""
        window = self.schema.task(task).window_ms
        defined = self.labels[task] != UNKNOWN_LABEL
        if window:
            return defined & (self.event_ms + window <= as_of_ms)
        return defined & (self.label_ms[task] <= as_of_ms)

    def trainable(self, task: str, *, as_of_ms: int) -> np.ndarray:
        """Rows that may train a task at `as_of_ms`: usable, and arrived by then: bool [T]."""
        return self.usable(task, as_of_ms=as_of_ms) & (self.ingested_ms <= as_of_ms)
