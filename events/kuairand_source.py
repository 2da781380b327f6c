"""KuaiRand-Pure's files (Gao et al., CIKM 2022), in either layout, read into the few columns that a log needs.

Layouts: the official CSVs (log_standard_4_08_to_4_21_pure.csv, log_standard_4_22_to_5_08_pure.csv) hold every
impression with its time; the partial Parquet copy holds the labelled impressions from 25 April on (impressions.parquet)
and, for the days before, each user's last 50 impressions without a time (history.parquet). Both have
user_features_pure.csv and video_features_basic_pure.csv. Never read: `date` and `hourmin`, which contradict `time_ms`,
and `duration_ms` (0 in some rows), play and stay times and the remaining feedbacks: outcomes of the row.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from contracts.errors import InputError
from events.splits import DAY_MS
from events.tables import Checked

LOG_CSVS = ("log_standard_4_08_to_4_21_pure.csv", "log_standard_4_22_to_5_08_pure.csv")
IMPRESSIONS, HISTORY = "impressions.parquet", "history.parquet"
USERS_CSV, VIDEOS_CSV = "user_features_pure.csv", "video_features_basic_pure.csv"
TASK_COLUMNS = {"click": "is_click", "long_view": "long_view", "like": "is_like", "profile_enter": "is_profile_enter"}
HISTORY_TASKS = ("long_view", "like")
"""Feedback that the partial copy's history has; the official files' history is cut to it, so that both give one log."""
HISTORY_LENGTH = 50
UTC_OFFSET_MS = 8 * 3_600_000
FIRST_DAY = 19_107
"""25 April 2022 in days since 1970, in Asia/Shanghai: the first labelled day."""


@dataclass(frozen=True)
class Rows:
    """Timed impressions [T]: user, video (ids), time_ms, tab, and one int8 label per task."""

    user: np.ndarray
    video: np.ndarray
    time_ms: np.ndarray
    tab: np.ndarray
    labels: dict[str, np.ndarray]

    def take(self, rows: np.ndarray) -> "Rows":
        labels = {task: values[rows] for task, values in self.labels.items()}
        return Rows(self.user[rows], self.video[rows], self.time_ms[rows], self.tab[rows], labels)

    @property
    def day(self) -> np.ndarray:
        """Days since 1970 in Asia/Shanghai, from time_ms alone."""
        return (self.time_ms + UTC_OFFSET_MS) // DAY_MS


@dataclass(frozen=True)
class PastRows:
    """Impressions before the log [H], grouped by user (ascending), oldest first; last_ms is the user's last time."""

    user: np.ndarray
    video: np.ndarray
    last_ms: np.ndarray
    labels: dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """Everything that is read: impressions (deduplicated, in order of time), earlier history, users and videos."""

    rows: Rows
    past: PastRows
    users: Checked
    videos: Checked


def read_source(folder: Path) -> Source:
    """Read a KuaiRand-Pure folder of either layout; InputError names the file or column that is missing."""
    if not folder.is_dir():
        raise InputError(f"no KuaiRand folder at {folder}; pass --dir or set GEM_KUAIRAND_DIR")
    if (folder / IMPRESSIONS).exists():
        rows = _rows([_parquet(folder / IMPRESSIONS)])
        past = _past_of_copy(_parquet(folder / HISTORY))
    elif any((folder / name).exists() for name in LOG_CSVS):
        everything = _rows([_csv(folder / name) for name in LOG_CSVS])
        labelled = everything.day >= FIRST_DAY
        rows, past = everything.take(labelled), _past_of_rows(everything.take(~labelled))
    else:
        raise InputError(
            f"{folder} holds neither {IMPRESSIONS} nor {LOG_CSVS[0]}; point at KuaiRand-Pure's data folder"
        )
    return Source(rows, past, _csv(folder / USERS_CSV), _csv(folder / VIDEOS_CSV))


def _rows(files: list[Checked]) -> Rows:
    """All files' rows in order of time, one per (user, video, time). Copies that disagree (1 of 5,874 repeated rows
    does) count as positive where any copy is, so the order of the files does not matter."""

    def column(name: str, kind: type) -> np.ndarray:
        return np.concatenate([file.numbers(name, kind) for file in files])

    rows = Rows(
        user=column("user_id", np.int64),
        video=column("video_id", np.int64),
        time_ms=column("time_ms", np.int64),
        tab=column("tab", np.int64),
        labels={task: np.concatenate([file.labels(name) for file in files]) for task, name in TASK_COLUMNS.items()},
    )
    order = np.lexsort((rows.video, rows.user, rows.time_ms))
    rows = rows.take(order)
    same = (np.diff(rows.user) == 0) & (np.diff(rows.video) == 0) & (np.diff(rows.time_ms) == 0)
    first = np.flatnonzero(np.concatenate([[True], ~same])[: len(rows.user)])
    labels = {
        task: np.maximum.reduceat(values, first) if len(first) else values for task, values in rows.labels.items()
    }
    return replace(rows.take(first), labels=labels)


def _past_of_copy(history: Checked) -> PastRows:
    user, seq = history.numbers("user_id", np.int64), history.numbers("seq", np.int64)
    order = np.lexsort((seq, user))
    return PastRows(
        user=user[order],
        video=history.numbers("video_id", np.int64)[order],
        last_ms=history.numbers("user_last_time_ms", np.int64)[order],
        labels={task: history.labels(TASK_COLUMNS[task])[order] for task in HISTORY_TASKS},
    )


def _past_of_rows(rows: Rows) -> PastRows:
    """The newest HISTORY_LENGTH rows of each user, as the partial copy has them."""
    order = np.lexsort((rows.time_ms, rows.user))
    rows = rows.take(order)
    users, first, count = np.unique(rows.user, return_index=True, return_counts=True)
    of_row = np.searchsorted(users, rows.user)
    newest = np.arange(len(rows.user)) >= (first + count - HISTORY_LENGTH)[of_row]
    last_ms = rows.time_ms[(first + count - 1)[of_row]]
    kept = rows.take(np.flatnonzero(newest))
    return PastRows(kept.user, kept.video, last_ms[newest], {task: kept.labels[task] for task in HISTORY_TASKS})


def _parquet(path: Path) -> Checked:
    try:
        return Checked(pq.read_table(path), path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; restore it beside {IMPRESSIONS}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}); fetch it again"
        ) from None


def _csv(path: Path) -> Checked:
    try:
        table = pc.read_csv(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; it belongs to KuaiRand-Pure's data folder") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is not a readable CSV ({str(error).splitlines()[0]}); fetch it again") from None
    if not table.num_rows:
        raise InputError(f"{path} holds no rows; fetch it again")
    return Checked(table, path)
