"""The logs that experiments run on, made once in the work folder and read once per process.

Aggregates are computed once for each set of events and kept beside the log.
"""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from contracts.errors import InputError
from events import aggregates
from events.aggregates import aggregate_features
from events.log import InteractionLog
from events.splits import DAY_MS, Calendar, Period
from events.store import read_calendar, read_log, read_truth
from foundation.log_tensors import LogTensors

AGGREGATES_CODE = ("aggregates", "user_windows", "rates", "moments", "item_similarity")
SOURCES = {
    "kuairand": ("events.kuairand",),
    "movielens": ("events.movielens",),
    "demo": ("events.synthetic", "--world", "demo"),
    "long_range": ("events.synthetic", "--world", "long_range"),
    "scaling": ("events.synthetic", "--world", "scaling"),
    "smoke": ("events.synthetic", "--world", "smoke"),
}
"""Command that makes each log; KuaiRand and MovieLens take their source from the environment (README)."""


@dataclass
class Dataset:
    """One log with its calendar, as tensors; `folder` keeps what is derived from it."""

    name: str
    folder: Path
    log: InteractionLog
    calendar: Calendar
    tensors: LogTensors
    _aggregates: dict[str, np.ndarray] = field(default_factory=dict)

    def rows(self, period: Period) -> np.ndarray:
        """Row numbers of a period, int64, in order of (event_ms, event_id)."""
        rows = np.flatnonzero(period.covers(self.log.event_ms))
        return self.log.in_time_order(rows)

    def truth(self, task: str) -> np.ndarray:
        """The true probability of a task for every row of a synthetic log, float64 [T]."""
        return read_truth(self.folder / "log")[task]

    @property
    def aggregate_names(self) -> tuple[str, ...]:
        """Names of the aggregates' columns."""
        return aggregate_features(self.log, np.zeros(0, dtype=np.int64)).names

    def aggregates(self, events: np.ndarray) -> np.ndarray:
        """Aggregates of these events, float32 [n, A], from the work folder where they stand already."""
        key = hashlib.sha256(_code() + events.astype(np.int64).tobytes()).hexdigest()[:16]
        if key not in self._aggregates:
            path = self.folder / f"aggregates-{key}.npy"
            if not path.exists():
                partial = path.with_name(f".{path.name}.{os.getpid()}.npy")
                np.save(partial, aggregate_features(self.log, events).values)
                os.replace(partial, path)
            self._aggregates[key] = np.load(path)
        return self._aggregates[key]


@lru_cache(maxsize=1)
def _code() -> bytes:
    """What computes the aggregates: a change of it must not meet columns that the code before it left."""
    return b"".join((Path(aggregates.__file__).with_name(f"{name}.py")).read_bytes() for name in AGGREGATES_CODE)


@lru_cache(maxsize=2)
def dataset(name: str, work: Path) -> Dataset:
    """The dataset of that name, its log made first where the work folder lacks it; InputError lists the names."""
    if name not in SOURCES:
        raise InputError(f"no dataset {name!r}; choose one of {sorted(SOURCES)}")
    folder = work / "data" / name
    if not (folder / "log").exists():
        folder.mkdir(parents=True, exist_ok=True)
        module, *options = SOURCES[name]
        made = subprocess.run([sys.executable, "-m", module, "--out", str(folder / "log"), *options], check=False)
        if made.returncode:
            raise InputError(f"python -m {module} could not make the log of {name!r}; see its message above")
    log = read_log(folder / "log")
    return Dataset(name, folder, log, read_calendar(folder / "log"), LogTensors(log))


def days(calendar: Calendar, first: int, end: int, name: str) -> Period:
    """Days [first, end) of a log, counted from the start of its teacher's period."""
    start = calendar.teacher.start_ms
    return Period(name, start + first * DAY_MS, start + end * DAY_MS)
