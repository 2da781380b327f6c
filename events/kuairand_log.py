"""KuaiRand-Pure as an interaction log: tabs are surfaces, videos ads, and every trap of the data is handled here.

Feedback counts as known at once (label_ms = event_ms) and impressions as arrived at once (ingested_ms = event_ms), as
in the reference figures; histories still need label_ms < t. Rows kept: one per (user, video, time_ms); day by time_ms
+ 8 h, the stray 24 April dropped; rows at or before the end of their user's own untimed history dropped; 8 May, the
test day, only on demand.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import InputError
from contracts.hashing import stable_hashes
from contracts.schema import Feature, FeatureSchema, Task
from events.kuairand_source import FIRST_DAY, TASK_COLUMNS, UTC_OFFSET_MS, PastRows, Rows, Source
from events.log import InteractionLog, UntimedEvents
from events.splits import kuairand_calendar
from events.tables import Checked

SURFACES = ("other", "tab0", "tab1", "tab2", "tab4", "tab6")
"""Tabs with over 1,100 rows have a surface of their own; the rest pool into the first."""
TABS = 16
"""Codes of the context column `tab`, teacher only: 1 + the tab (0 to 14), 0 for one that the data set does not name.
Rates of the pooled tabs run from 0 to 1, and the reference figures (quality anchors) saw each."""
ID_BUCKETS = 131_072
AUTHOR_BUCKETS = 4_096
DURATION_EDGES_S = (5, 8, 12, 18, 30, 60, 90, 120, 180, 300)
"""Bounds of the static video length's buckets, chosen by eye to hold similar shares of short videos."""
USER_COLUMNS = (
    "user_active_degree",
    "is_live_streamer",
    "is_video_author",
    "follow_user_num_range",
    "fans_user_num_range",
    "friend_user_num_range",
    "register_days_range",
    *(f"onehot_feat{number}" for number in range(18)),
)
"""The profile: teacher only."""
COUNT_COLUMNS = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days")
COUNT_SCALE = 0.2
"""Exact counts beside their ranges enter as log(1 + count) in about unit scale; teacher only."""
VIDEO_COLUMNS = ("video_type", "upload_type", "music_type", "tag")


def build_log(source: Source, *, final: bool = False) -> InteractionLog:
    """The log in order of time; with `final` it holds 8 May, the test day, too."""
    user_ids, ad_ids = _ids(source.users, "user_id"), _ids(source.videos, "video_id")
    last_ms = np.full(len(user_ids), np.iinfo(np.int64).min)
    past_user = _codes(source.past.user, user_ids, source.users)
    np.maximum.at(last_ms, past_user, source.past.last_ms)
    rows = _kept(source.rows, last_ms[_codes(source.rows.user, user_ids, source.users)], final=final)
    if not len(rows.user):
        raise InputError("KuaiRand's files hold no impression from 25 April 2022 on; fetch them again")
    event_id = stable_hashes(
        f"{u}|{v}|{t}" for u, v, t in zip(rows.user.tolist(), rows.video.tolist(), rows.time_ms.tolist(), strict=True)
    )
    request_id = stable_hashes(f"{u}|{t}" for u, t in zip(rows.user.tolist(), rows.time_ms.tolist(), strict=True))
    order = np.lexsort((event_id, rows.time_ms))
    rows, event_id, request_id = rows.take(order), event_id[order], request_id[order]
    user_features, user_specs = _categoricals(source.users, USER_COLUMNS, side="user")
    counts, count_specs = _counts(source.users)
    tab = Feature("tab", "context", cardinality=TABS, teacher_only=True)
    ad_features, ad_specs = _video_features(source.videos)
    schema = FeatureSchema(
        name="kuairand",
        surfaces=SURFACES,
        tasks=tuple(Task(task) for task in TASK_COLUMNS),
        features=(*user_specs, *count_specs, *ad_specs, tab),
        user_buckets=ID_BUCKETS,
        ad_buckets=ID_BUCKETS,
        utc_offset_ms=UTC_OFFSET_MS,
    )
    return InteractionLog(
        schema=schema,
        user_ids=user_ids.astype(str).astype(object),
        ad_ids=ad_ids.astype(str).astype(object),
        user_features=user_features | counts,
        ad_features=ad_features,
        campaign=source.videos.numbers("author_id", np.int64).astype(str).astype(object),
        objective=np.full(len(ad_ids), "click", dtype=object),
        default_bid=np.ones(len(ad_ids), dtype=np.float32),
        offset=np.arange(len(event_id), dtype=np.int64),
        event_id=event_id,
        request_id=request_id,
        user=_codes(rows.user, user_ids, source.users).astype(np.int32),
        ad=_codes(rows.video, ad_ids, source.videos).astype(np.int32),
        surface=_surfaces(rows.tab, schema.surface_code),
        event_ms=rows.time_ms,
        ingested_ms=rows.time_ms,
        bid=np.ones(len(event_id), dtype=np.float32),
        context={"tab": np.where((rows.tab >= 0) & (rows.tab < TABS - 1), rows.tab + 1, 0).astype(np.int32)},
        labels=rows.labels,
        label_ms=dict.fromkeys(TASK_COLUMNS, rows.time_ms),
        untimed=_untimed(source.past, past_user, _codes(source.past.video, ad_ids, source.videos)),
    )


def _kept(rows: Rows, last_ms_T: np.ndarray, *, final: bool) -> Rows:
    """Rows of the calendar's days that lie after the end of their user's own history."""
    calendar = kuairand_calendar()
    end_ms = calendar.test.end_ms if final else calendar.test.start_ms
    kept = (rows.day >= FIRST_DAY) & (rows.time_ms < end_ms) & (rows.time_ms > last_ms_T)
    return rows.take(np.flatnonzero(kept))


def _untimed(past: PastRows, user: np.ndarray, ad: np.ndarray) -> UntimedEvents:
    order = np.argsort(user, kind="stable")
    return UntimedEvents(
        user=user[order].astype(np.int32),
        ad=ad[order].astype(np.int32),
        labels={task: values[order] for task, values in past.labels.items()},
        before_ms=past.last_ms[order] + 1,
    )


def _surfaces(tab: np.ndarray, code: Callable[[str], int]) -> np.ndarray:
    values, inverse = np.unique(tab, return_inverse=True)
    return np.array([code(f"tab{value}") for value in values], dtype=np.int16)[inverse]


def _video_features(videos: Checked) -> tuple[dict[str, np.ndarray], tuple[Feature, ...]]:
    """What is fixed when a video is uploaded (all before the log's first day): author, kind, tag, length."""
    values, specs = _categoricals(videos, VIDEO_COLUMNS, side="ad")
    authors = videos.numbers("author_id", np.int64).astype(str)
    values["author"] = (1 + stable_hashes(authors.tolist()) % np.uint64(AUTHOR_BUCKETS - 1)).astype(np.int32)
    seconds = pc.fill_null(videos.table["video_duration"].cast(pa.float64()), -1.0).to_numpy() / 1000
    bucket = 1 + np.digitize(seconds, DURATION_EDGES_S)
    values["duration"] = np.where(seconds > 0, bucket, 0).astype(np.int32)
    lengths = Feature("duration", "ad", cardinality=len(DURATION_EDGES_S) + 2)
    return values, (*specs, Feature("author", "ad", cardinality=AUTHOR_BUCKETS), lengths)


def _counts(users: Checked) -> tuple[dict[str, np.ndarray], tuple[Feature, ...]]:
    """log(1 + count) of each count; a missing or negative one reads as 0."""
    values = {}
    for name in COUNT_COLUMNS:
        if name not in users.table.column_names:
            raise InputError(f"{users.path}: column {name!r} is missing; fetch the file again")
        raw = pc.fill_null(users.table[name].cast(pa.float64()), 0.0).to_numpy()
        values[name] = (np.log1p(np.clip(raw, 0, None)) * COUNT_SCALE).astype(np.float32)
    return values, tuple(Feature(name, "user", "float", teacher_only=True) for name in COUNT_COLUMNS)


def _categoricals(
    table: Checked, names: tuple[str, ...], *, side: str
) -> tuple[dict[str, np.ndarray], tuple[Feature, ...]]:
    """Each column's values in the order of their text become codes 1, 2, ...; nulls become 0, unknown."""
    values, specs = {}, []
    for name in names:
        if name not in table.table.column_names:
            raise InputError(f"{table.path}: column {name!r} is missing; fetch the file again")
        column = table.table[name].cast(pa.string())
        kinds = np.array(sorted(v for v in pc.unique(column).to_pylist() if v is not None), dtype=object)
        found = pc.index_in(column, value_set=pa.array(kinds, type=pa.string()))
        values[name] = (1 + pc.fill_null(found, -1).to_numpy()).astype(np.int32)
        specs.append(
            Feature(name, "user" if side == "user" else "ad", cardinality=len(kinds) + 1, teacher_only=side == "user")
        )
    return values, tuple(specs)


def _ids(table: Checked, name: str) -> np.ndarray:
    ids = table.numbers(name, np.int64)
    if len(np.unique(ids)) != len(ids):
        raise InputError(f"{table.path}: column {name!r} repeats an id; fetch the file again")
    return ids


def _codes(values: np.ndarray, ids: np.ndarray, table: Checked) -> np.ndarray:
    """Row numbers of `values` in the table of `ids`."""
    order = np.argsort(ids)
    at = order[np.minimum(np.searchsorted(ids, values, sorter=order), len(ids) - 1)]
    if len(values) and (ids[at] != values).any():
        missing = values[ids[at] != values][0]
        raise InputError(f"{table.path} lacks id {missing}, which the impressions name; fetch the files again")
    return at
