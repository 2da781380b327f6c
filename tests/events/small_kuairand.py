"""A made-up KuaiRand folder of a few rows, in either layout, with every trap of the real files."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from events.kuairand_source import HISTORY, IMPRESSIONS, LOG_CSVS, USERS_CSV, VIDEOS_CSV

COLUMNS = (
    *("user_id", "video_id", "date", "hourmin", "time_ms", "is_click", "is_like", "is_follow", "is_comment"),
    *("is_forward", "is_hate", "long_view", "play_time_ms", "duration_ms", "profile_stay_time", "comment_stay_time"),
    *("is_profile_enter", "is_rand", "tab"),
)
INT8 = {"is_click", "is_like", "long_view", "is_profile_enter", "tab"}


def ms(month: int, day: int, hour: int = 12, minute: int = 0, milli: int = 0) -> int:
    """A time of 2022 in Shanghai."""
    moment = datetime(2022, month, day, hour, minute, tzinfo=ZoneInfo("Asia/Shanghai"))
    return int(moment.timestamp() * 1000) + milli


@dataclass(frozen=True)
class Row:
    """One impression; what is not named is 0 or, for `date` and `hourmin`, wrong on purpose."""

    user: int
    video: int
    time_ms: int
    tab: int = 1
    click: int = 0
    long_view: int = 0
    like: int = 0
    profile_enter: int = 0
    play_time_ms: int = 0
    duration_ms: int = 9_000
    date: int = 20220425
    hourmin: int = 0

    def values(self) -> dict[str, int]:
        named = {
            "user_id": self.user,
            "video_id": self.video,
            "is_click": self.click,
            "is_like": self.like,
            "is_profile_enter": self.profile_enter,
        }
        return {name: named.get(name, getattr(self, name, 0)) for name in COLUMNS}


ROWS = (
    Row(3, 10, ms(5, 2, 9), click=1, long_view=1, tab=0),
    Row(1, 10, ms(4, 25, 0, 1), click=1, like=1, date=20220424, hourmin=2355),
    Row(1, 11, ms(4, 25, 0, 1), date=20220424),  # one request shows two videos
    Row(2, 11, ms(4, 30, 23, 59), tab=2, duration_ms=0),
    Row(2, 12, ms(5, 1, 0, 0), tab=4, profile_enter=1, date=20220430),
    Row(2, 12, ms(5, 7, 8), tab=6, click=1, date=20220506),
    Row(2, 12, ms(5, 7, 8), tab=6, click=1, date=20220507),  # written twice, under another date
    Row(1, 12, ms(5, 7, 23, 59), tab=11),
    Row(3, 11, ms(5, 8, 0, 0), click=1, date=20220507),  # the test day
)
"""Impressions from 25 April on: eight of them, of which one is of 8 May."""

PAST = (
    Row(2, 10, ms(4, 20, 1), long_view=1),
    Row(1, 12, ms(4, 10), like=1),
    Row(2, 11, ms(4, 12)),
    Row(4, 12, ms(4, 24, 23, 58), long_view=1, like=1),
)
"""Impressions before it; user 4 has no others."""


def write_official(folder: Path, rows: Sequence[Row] = ROWS, past: Sequence[Row] = PAST) -> Path:
    """The official layout: two CSVs of impressions."""
    split = ms(4, 22, 0)
    everything = [*past, *rows]
    _write_tables(folder)
    for name, kept in zip(LOG_CSVS, ([r for r in everything if r.time_ms < split], everything), strict=True):
        listed = kept if name == LOG_CSVS[0] else [r for r in kept if r.time_ms >= split]
        pc.write_csv(_table(listed), folder / name)
    return folder


def write_copy(folder: Path, rows: Sequence[Row] = ROWS, past: Sequence[Row] = PAST) -> Path:
    """The layout of the partial Parquet copy: timed impressions, untimed history."""
    _write_tables(folder)
    table = _table(list(rows))
    narrow = [c.cast(pa.int8()) if n in INT8 else c for n, c in zip(table.column_names, table.columns, strict=True)]
    pq.write_table(pa.table(dict(zip(table.column_names, narrow, strict=True))), folder / IMPRESSIONS)
    history: list[dict[str, Any]] = []
    for user in sorted({row.user for row in past}):
        own = sorted((row for row in past if row.user == user), key=lambda row: row.time_ms)
        for seq, row in enumerate(own):
            known = {"user_id": user, "seq": seq, "video_id": row.video, "long_view": row.long_view}
            known |= {"is_like": row.like, "user_last_time_ms": own[-1].time_ms, "user_history_len": len(own)}
            history.append(known)
    pq.write_table(pa.Table.from_pylist(history), folder / HISTORY)
    return folder


def _write_tables(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    profile: dict[str, list[Any]] = {
        "user_id": [1, 2, 3, 4],
        "user_active_degree": ["full_active", "high_active", "full_active", "UNKNOWN"],
        "is_live_streamer": [0, 1, -124, 0],
        "is_video_author": [0, 1, 0, 1],
    }
    for name in ("follow_user_num_range", "fans_user_num_range", "friend_user_num_range", "register_days_range"):
        profile[name] = ["0", "(0,10]", "500+", "0"]
        profile[name.removesuffix("_range")] = [0, 5, None, -1]
    profile |= {f"onehot_feat{number}": [0, 1, 0, 1] for number in range(18)}
    profile["onehot_feat4"] = [1.0, None, 2.0, 1.0]
    pc.write_csv(pa.table(profile), folder / USERS_CSV)
    videos = {
        "video_id": [10, 11, 12],
        "author_id": [7, 7, 8],
        "video_type": ["NORMAL", "AD", "NORMAL"],
        "upload_dt": ["2022-04-10"] * 3,
        "upload_type": ["Web", "Kmovie", "Web"],
        "visible_status": [0.0] * 3,
        "video_duration": [9_000.0, None, 250_000.0],
        "music_id": [1, 2, 3],
        "music_type": [9.0, None, 4.0],
        "tag": ["1", "2", "1,2"],
    }
    pc.write_csv(pa.table(videos), folder / VIDEOS_CSV)


def _table(rows: list[Row]) -> pa.Table:
    return pa.table({name: [row.values()[name] for row in rows] for name in COLUMNS})
