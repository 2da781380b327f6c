"""Calendars: periods are half-open, follow each other and refuse to overlap where that would leak."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.schema import Task
from events.log import InteractionLog
from events.splits import DAY_MS, Calendar, Period, day_calendar, kuairand_calendar


@pytest.fixture
def calendar() -> Calendar:
    return day_calendar(0, teacher_days=7, student_days=5)


def test_a_period_holds_its_start_and_not_its_end() -> None:
    period = Period("day", 10, 20)
    assert period.covers(np.array([9, 10, 19, 20])).tolist() == [False, True, True, False]


def test_a_period_must_end_after_its_start() -> None:
    with pytest.raises(InputError, match="'day' ends at 10"):
        Period("day", 10, 10)


def test_the_periods_of_a_calendar_by_days(calendar: Calendar) -> None:
    days = {name: (p["start_ms"] // DAY_MS, p["end_ms"] // DAY_MS) for name, p in calendar.to_json().items()}
    assert days == {
        "teacher_fit": (0, 6),
        "teacher_validation": (6, 7),
        "teacher": (0, 7),
        "log": (7, 14),
        "student": (7, 12),
        "validation": (12, 13),
        "test": (13, 14),
    }


@pytest.mark.parametrize(
    ("name", "start", "end", "problem"),
    [
        ("teacher", 0, 8, "'teacher' and 'log' overlap"),
        ("teacher_validation", 5, 7, "'teacher_fit' and 'teacher_validation' overlap"),
        ("student", 7, 13, "'student' and 'validation' overlap"),
        ("validation", 12, 14, "'validation' and 'test' overlap"),
        ("test", 13, 15, "'test' must lie inside 'log'"),
        ("teacher_fit", -1, 6, "'teacher_fit' must lie inside 'teacher'"),
    ],
)
def test_overlaps_are_refused(calendar: Calendar, name: str, start: int, end: int, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        replace(calendar, **{name: Period(name, start * DAY_MS, end * DAY_MS)})


def test_a_calendar_survives_json(calendar: Calendar) -> None:
    assert Calendar.from_json(json.loads(json.dumps(calendar.to_json()))) == calendar


def test_broken_json_is_refused(calendar: Calendar) -> None:
    raw = calendar.to_json()
    del raw["test"]
    with pytest.raises(InputError, match="not a calendar"):
        Calendar.from_json(raw)
    with pytest.raises(InputError, match="not a calendar"):
        Calendar.from_json({**calendar.to_json(), "test": {"name": "test"}})


def test_an_unknown_period_lists_the_known_ones(calendar: Calendar) -> None:
    with pytest.raises(InputError, match=r"no period 'holdout'.*teacher_fit"):
        calendar.period("holdout")


def test_a_delayed_task_is_judged_after_its_window(calendar: Calendar) -> None:
    assert calendar.judged_ms("validation", Task("conversion", window_ms=DAY_MS)) == 14 * DAY_MS
    assert calendar.judged_ms("validation", Task("click")) == 13 * DAY_MS


def test_kuairand_days_are_those_of_shanghai() -> None:
    calendar = kuairand_calendar()
    first = datetime.fromtimestamp(calendar.teacher.start_ms / 1000, tz=UTC)
    assert first == datetime(2022, 4, 24, 16, tzinfo=UTC)
    assert calendar.teacher.end_ms == calendar.log.start_ms
    lengths = {name: (p["end_ms"] - p["start_ms"]) // DAY_MS for name, p in calendar.to_json().items()}
    assert lengths == {
        "teacher_fit": 5,
        "teacher_validation": 1,
        "teacher": 7,
        "log": 7,
        "student": 5,
        "validation": 1,
        "test": 1,
    }


@given(st.integers(2, 30), st.integers(1, 30), st.integers(-(10**12), 10**12))
def test_any_calendar_of_days_separates_training_from_judgement(teacher: int, student: int, first: int) -> None:
    calendar = day_calendar(first, teacher_days=teacher, student_days=student)
    assert calendar.teacher.end_ms <= calendar.student.start_ms
    assert calendar.student.end_ms <= calendar.validation.start_ms <= calendar.test.start_ms


def test_rows_come_in_order_of_time_and_id(tiny_log: InteractionLog) -> None:
    start, end = int(tiny_log.event_ms.min()), int(tiny_log.event_ms.max()) + 1
    calendar = day_calendar(start, teacher_days=7, student_days=5)
    names = ("teacher", "student", "validation", "test")
    rows = [calendar.rows(tiny_log, name) for name in names]
    together = np.concatenate(rows)
    expected = sorted(range(len(tiny_log)), key=lambda row: (tiny_log.event_ms[row], tiny_log.event_id[row]))
    assert together.tolist() == expected[: len(together)]
    assert len(np.unique(together)) == len(together)
    assert (tiny_log.event_ms[together] < end).all()
