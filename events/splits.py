"""Time splits: periods that follow each other and refuse to overlap where an overlap would leak (leak guard 1).

Everything is by event time, in half-open periods of milliseconds. The teacher's periods end before the first logged
row; students train, are chosen (validation) and are tested on later and later days of the logged period.
"""

from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from contracts.errors import InputError
from contracts.schema import Task
from events.log import InteractionLog

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Period:
    """Half-open interval of event time, [start_ms, end_ms)."""

    name: str
    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise InputError(f"period {self.name!r} ends at {self.end_ms}, not after its start {self.start_ms}")

    def covers(self, event_ms: np.ndarray) -> np.ndarray:
        """Whether each time lies in the period: bool, same shape."""
        return (event_ms >= self.start_ms) & (event_ms < self.end_ms)

    def inside(self, other: "Period") -> bool:
        return other.start_ms <= self.start_ms and self.end_ms <= other.end_ms


@dataclass(frozen=True)
class Calendar:
    """The periods of one log (docs/architecture.md, "What keeps it honest").

    teacher_fit and teacher_validation lie inside teacher and serve its choices; the final teacher trains on all of
    `teacher`. `log` is what the frozen teacher represents; student, validation and test lie inside it, in this order.
    """

    teacher_fit: Period
    teacher_validation: Period
    teacher: Period
    log: Period
    student: Period
    validation: Period
    test: Period

    def __post_init__(self) -> None:
        for earlier, later in (
            (self.teacher_fit, self.teacher_validation),
            (self.teacher, self.log),
            (self.student, self.validation),
            (self.validation, self.test),
        ):
            if earlier.end_ms > later.start_ms:
                raise InputError(f"periods {earlier.name!r} and {later.name!r} overlap; end the first before the other")
        for inner, outer in (
            (self.teacher_fit, self.teacher),
            (self.teacher_validation, self.teacher),
            (self.student, self.log),
            (self.validation, self.log),
            (self.test, self.log),
        ):
            if not inner.inside(outer):
                raise InputError(f"period {inner.name!r} must lie inside {outer.name!r}; move its start or end")

    def period(self, name: str) -> Period:
        """The period of that name; InputError lists the names there are."""
        names = [field.name for field in fields(self)]
        if name not in names:
            raise InputError(f"no period {name!r} in the calendar; it has {', '.join(names)}")
        return getattr(self, name)

    def rows(self, log: InteractionLog, name: str) -> np.ndarray:
        """Row numbers of a period, int64, in order of (event_ms, event_id)."""
        rows = np.flatnonzero(self.period(name).covers(log.event_ms))
        return log.in_time_order(rows)

    def judged_ms(self, name: str, task: Task) -> int:
        """When every row of a period can be judged on a task: its end plus the task's attribution window.

        Pass it to `InteractionLog.usable` to evaluate. To train, pass the period's own end to
        `InteractionLog.trainable`: what a model could know.
        """
        return self.period(name).end_ms + task.window_ms

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Calendar":
        """Inverse of `to_json`; InputError when a period is missing, unknown or overlaps another."""
        try:
            return cls(**{name: Period(**period) for name, period in raw.items()})
        except (TypeError, AttributeError) as error:
            raise InputError(f"not a calendar ({error}); write it with Calendar.to_json") from error


def day_calendar(
    first_day_ms: int,
    *,
    teacher_days: int,
    student_days: int,
    test_days: int = 1,
) -> Calendar:
    """Whole days from `first_day_ms` on: teacher days (the last one validates its choices, the one before it and all
    earlier fit them), then student days, one validation day, test days; `log` spans the last three."""

    def days(name: str, first: int, end: int) -> Period:
        return Period(name, first_day_ms + first * DAY_MS, first_day_ms + end * DAY_MS)

    tested = teacher_days + student_days + 1
    log_end = tested + test_days
    return Calendar(
        teacher_fit=days("teacher_fit", 0, teacher_days - 1),
        teacher_validation=days("teacher_validation", teacher_days - 1, teacher_days),
        teacher=days("teacher", 0, teacher_days),
        log=days("log", teacher_days, log_end),
        student=days("student", teacher_days, tested - 1),
        validation=days("validation", tested - 1, tested),
        test=days("test", tested, log_end),
    )


def kuairand_calendar() -> Calendar:
    """KuaiRand, by day in Asia/Shanghai: the teacher fits 25-29 April, validates on 30 April and trains on 25 April -
    1 May (1 May serves only the final fit); log 2-8 May; students train 2-6, validate on 7, test on 8 May 2022."""

    def days(name: str, first: tuple[int, int], last: tuple[int, int]) -> Period:
        start, last_start = (
            int(datetime(2022, *day, tzinfo=ZoneInfo("Asia/Shanghai")).timestamp() * 1000) for day in (first, last)
        )
        return Period(name, start, last_start + DAY_MS)

    return Calendar(
        teacher_fit=days("teacher_fit", (4, 25), (4, 29)),
        teacher_validation=days("teacher_validation", (4, 30), (4, 30)),
        teacher=days("teacher", (4, 25), (5, 1)),
        log=days("log", (5, 2), (5, 8)),
        student=days("student", (5, 2), (5, 6)),
        validation=days("validation", (5, 7), (5, 7)),
        test=days("test", (5, 8), (5, 8)),
    )


def movielens_calendar() -> Calendar:
    """MovieLens-1M, whole UTC days at quantiles of its ratings, 25 April 2000 to 28 February 2003.

    The data is front-loaded: half of it lies before November 2000, 90 % before 2001, and the rest trickles for 26
    months. So periods are cut by share of ratings, not by length: the teacher fits the first 75 %, validates on the
    next 5 % and trains on the first 80 %; of the later 20 % (`log`), students train on half, validation and test take a
    quarter each. At the teacher's end half of what follows is by users who had rated nothing yet; from the student
    period's end on, 96 % is by users seen before.
    """

    def days(name: str, first: tuple[int, int, int], end: tuple[int, int, int]) -> Period:
        start_ms, end_ms = (int(datetime(*day, tzinfo=UTC).timestamp() * 1000) for day in (first, end))
        return Period(name, start_ms, end_ms)

    start, fitted, taught = (2000, 4, 25), (2000, 11, 26), (2000, 12, 3)
    studied, validated, end = (2000, 12, 30), (2001, 6, 21), (2003, 3, 1)
    return Calendar(
        teacher_fit=days("teacher_fit", start, fitted),
        teacher_validation=days("teacher_validation", fitted, taught),
        teacher=days("teacher", start, taught),
        log=days("log", taught, end),
        student=days("student", taught, studied),
        validation=days("validation", studied, validated),
        test=days("test", validated, end),
    )
