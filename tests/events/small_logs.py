"""Logs small enough to write down: one line per impression."""

from collections.abc import Sequence

import numpy as np

from contracts.schema import Feature, FeatureSchema, Task
from events.log import InteractionLog, UntimedEvents

SCHEMA = FeatureSchema(
    name="small",
    surfaces=("other", "feed"),
    tasks=(Task("click"), Task("conversion", parent="click", window_ms=100)),
    features=(
        Feature("profile", "user", "float", teacher_only=True),
        Feature("category", "ad", cardinality=4),
        Feature("quality", "ad", "float", teacher_only=True),
        Feature("device", "context", cardinality=3),
    ),
    user_buckets=64,
    ad_buckets=64,
)


def small_log(
    events: Sequence[tuple[int, int]],
    *,
    users: int = 3,
    ads: int = 4,
    late_ms: Sequence[int] | None = None,
    clicks: Sequence[int] | None = None,
    label_delay_ms: int = 0,
    untimed: Sequence[int] = (),
) -> InteractionLog:
    """A log with one impression per (user, event_ms) in the order given; untimed events by user, sorted."""
    rows = len(events)
    user = np.array([user for user, _ in events], dtype=np.int32)
    event_ms = np.array([time for _, time in events], dtype=np.int64)
    click = np.array(clicks if clicks is not None else np.arange(rows) % 2, dtype=np.int8)
    past = np.array(sorted(untimed), dtype=np.int32)
    return InteractionLog(
        schema=SCHEMA,
        user_ids=np.array([f"u{number}" for number in range(users)], dtype=object),
        ad_ids=np.array([f"a{number}" for number in range(ads)], dtype=object),
        user_features={"profile": np.linspace(-1, 1, users).astype(np.float32)},
        ad_features={
            "category": (np.arange(ads) % 4).astype(np.int32),
            "quality": np.linspace(0, 1, ads).astype(np.float32),
        },
        campaign=np.array([f"c{number // 2}" for number in range(ads)], dtype=object),
        objective=np.array(["click", "conversion"] * ads, dtype=object)[:ads],
        default_bid=np.ones(ads, dtype=np.float32),
        offset=np.arange(rows, dtype=np.int64),
        # ids that are not in the order of the rows, so that ties are broken by them
        event_id=(np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)),
        request_id=np.arange(rows, dtype=np.uint64),
        user=user,
        ad=(np.arange(rows) % ads).astype(np.int32),
        surface=(np.arange(rows) % 2).astype(np.int16),
        event_ms=event_ms,
        ingested_ms=event_ms + np.array(late_ms if late_ms is not None else np.zeros(rows), dtype=np.int64),
        bid=np.ones(rows, dtype=np.float32),
        context={"device": (np.arange(rows) % 3).astype(np.int32)},
        labels={"click": click, "conversion": np.where(click == 1, 0, -1).astype(np.int8)},
        label_ms={"click": event_ms + label_delay_ms, "conversion": event_ms + 100},
        untimed=UntimedEvents(
            user=past,
            ad=np.zeros(len(past), dtype=np.int32),
            labels={"click": (np.arange(len(past)) % 2).astype(np.int8)},
            before_ms=np.zeros(len(past), dtype=np.int64),
        )
        if untimed
        else None,
    )
