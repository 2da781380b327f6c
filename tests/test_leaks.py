"""Leak guards 1-5 of docs/architecture.md, over the real code of every folder: the teacher, its records, the students.

The log, the teacher and the representation log are those of the README's demo on the smoke world.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from contracts.errors import InputError
from contracts.hashing import stable_hash
from events.history import HistoryIndex
from events.kuairand_log import build_log
from events.kuairand_source import read_source
from events.log import UNKNOWN_LABEL, InteractionLog
from events.representations import RepresentationLog, Representations
from events.splits import Calendar, Period
from events.store import read_calendar, read_log
from foundation.teacher import Representation, Teacher
from student_models.dataset import StudentRows, student_rows
from tests.conftest import DemoRun

LENGTH = 20


@pytest.fixture(scope="module")
def log(smoke_run: DemoRun) -> InteractionLog:
    return read_log(smoke_run.folder / "log")


@pytest.fixture(scope="module")
def calendar(smoke_run: DemoRun) -> Calendar:
    return read_calendar(smoke_run.folder / "log")


@pytest.fixture(scope="module")
def teacher(smoke_run: DemoRun) -> Teacher:
    return Teacher.load(smoke_run.folder / "teacher")


@pytest.fixture(scope="module")
def records(smoke_run: DemoRun) -> RepresentationLog:
    (index,) = (smoke_run.folder / "representations").glob("*/log.json")
    return RepresentationLog(index.parent)


@pytest.fixture(scope="module")
def cut_ms(calendar: Calendar) -> int:
    """Now: the middle of the students' period. What happens at or after it is the future."""
    return (calendar.student.start_ms + calendar.student.end_ms) // 2


def shuffled_future(log: InteractionLog, cut_ms: int, *, seed: int = 0) -> InteractionLog:
    """The log with everything that its future rows say exchanged among them, times and row numbers kept."""
    future = np.flatnonzero(log.event_ms >= cut_ms)
    order = np.random.default_rng(seed).permutation(future)

    def mixed(column: np.ndarray) -> np.ndarray:
        column = column.copy()
        column[future] = column[order]
        return column

    return replace(
        log,
        user=mixed(log.user),
        ad=mixed(log.ad),
        surface=mixed(log.surface),
        context={name: mixed(values) for name, values in log.context.items()},
        labels={name: mixed(values) for name, values in log.labels.items()},
    )


def other_records(records: RepresentationLog, rows: Representations, root: Path) -> RepresentationLog:
    """A representation log of the same space that holds `rows`."""
    copy = RepresentationLog.create(
        root,
        space=records.space,
        tasks=records.tasks,
        teacher=records.teacher,
        schema_fingerprint=records.schema_fingerprint,
        epoch=records.epoch,
    )
    copy.append(rows, first_offset=0, end_offset=int(rows.offset.max()) + 1)
    return copy


def same_outputs(one: Representation, other: Representation) -> bool:
    return one.z.tobytes() == other.z.tobytes() and one.soft.tobytes() == other.soft.tobytes()


def past_inputs(rows: StudentRows, cut_ms: int) -> dict[str, bytes]:
    """Bytes of every model input of the rows before the cut."""
    past = int(np.searchsorted(rows.event_ms, cut_ms))
    return {name: values.tobytes() for name, values in rows.inputs(slice(0, past), spec=rows.spec).items()}


# ---- 1: periods follow each other ---------------------------------------------------------------------------------


def test_the_periods_of_a_log_follow_each_other(calendar: Calendar) -> None:
    order = [calendar.teacher_fit, calendar.teacher_validation, calendar.student, calendar.validation, calendar.test]
    assert all(earlier.end_ms <= later.start_ms for earlier, later in pairwise(order))
    assert calendar.teacher.end_ms <= calendar.log.start_ms


@pytest.mark.parametrize(("name", "later"), [("teacher", "log"), ("student", "validation"), ("validation", "test")])
def test_a_calendar_whose_periods_overlap_is_refused(calendar: Calendar, name: str, later: str) -> None:
    period = calendar.period(name)
    longer = Period(name, period.start_ms, calendar.period(later).start_ms + 1)
    with pytest.raises(InputError, match="overlap"):
        replace(calendar, **{name: longer})


def test_the_teacher_never_represents_what_it_trained_on(
    teacher: Teacher, calendar: Calendar, records: RepresentationLog
) -> None:
    assert teacher.trained_until_ms == calendar.teacher.end_ms
    rows = records.read()
    assert len(rows)
    assert rows.event_ms.min() >= teacher.trained_until_ms


def test_students_refuse_records_from_the_teachers_own_period(
    log: InteractionLog, calendar: Calendar, records: RepresentationLog, tmp_path: Path
) -> None:
    rows = records.read()
    early = replace(rows, event_ms=np.where(np.arange(len(rows)) == 0, calendar.teacher.end_ms - 1, rows.event_ms))
    with pytest.raises(InputError, match="teacher's own training period"):
        student_rows(log, other_records(records, early, tmp_path), calendar, "student", history_length=LENGTH)


def test_only_the_validation_day_is_predicted(smoke_run: DemoRun, log: InteractionLog, calendar: Calendar) -> None:
    validation = log.event_id[calendar.rows(log, "validation")]
    files = [*smoke_run.folder.glob("students/*/*/predictions.parquet"), *smoke_run.folder.glob("*.parquet")]
    assert len(files) >= 7
    for file in files:
        assert np.isin(pq.read_table(file)["event_id"].to_numpy(), validation).all(), file


# ---- 2: strictly earlier, ties excluded ---------------------------------------------------------------------------


def test_the_log_has_requests_that_show_several_ads_at_one_time(log: InteractionLog) -> None:
    pairs = np.stack([log.user.astype(np.int64), log.event_ms], axis=1)
    assert len(np.unique(pairs, axis=0)) < len(log) * 0.95


def test_the_teachers_histories_hold_what_had_happened_and_arrived(log: InteractionLog) -> None:
    index, rows = HistoryIndex(log), np.arange(len(log))
    history = index.before(rows, LENGTH)
    b, k = np.nonzero(history.index >= 0)
    event = history.index[b, k]
    assert len(event) > len(log)
    assert (log.event_ms[event] < log.event_ms[b]).all()
    assert (log.ingested_ms[event] < log.event_ms[b]).all()
    assert (log.user[event] == log.user[b]).all()
    for task in log.labels:
        known = index.labels(task, history, rows)[b, k] != UNKNOWN_LABEL
        assert (log.label_ms[task][event][known] < log.event_ms[b][known]).all()


@pytest.mark.parametrize("period", ["student", "validation"])
def test_the_students_sequences_hold_what_was_available(
    log: InteractionLog, calendar: Calendar, records: RepresentationLog, period: str
) -> None:
    rows, logged = student_rows(log, records, calendar, period, history_length=LENGTH), records.read()
    b, k = np.nonzero(rows.index >= 0)
    element, now_ms = rows.index[b, k], rows.event_ms[b]
    assert len(element) > len(rows)
    assert (logged.event_ms[element] < now_ms).all()
    assert (logged.available_ms[element] < now_ms).all()
    assert (logged.user_id[element] == log.user_ids[rows.user[b]]).all()


# ---- 3: the future changes nothing --------------------------------------------------------------------------------


def test_deleting_the_future_changes_no_representation_of_the_past(
    log: InteractionLog, calendar: Calendar, teacher: Teacher, cut_ms: int
) -> None:
    past = log.event_ms < cut_ms
    rows = np.flatnonzero(past & (log.event_ms >= calendar.log.start_ms))
    among_the_past = np.cumsum(past)[rows] - 1
    assert same_outputs(teacher.represent(log, rows), teacher.represent(log.take(past), among_the_past))


def test_shuffling_the_future_changes_no_representation_of_the_past(
    log: InteractionLog, calendar: Calendar, teacher: Teacher, cut_ms: int
) -> None:
    rows = np.flatnonzero((log.event_ms < cut_ms) & (log.event_ms >= calendar.log.start_ms))
    assert same_outputs(teacher.represent(log, rows), teacher.represent(shuffled_future(log, cut_ms), rows))


def test_deleting_the_future_changes_no_student_input_of_the_past(
    log: InteractionLog, calendar: Calendar, records: RepresentationLog, cut_ms: int, tmp_path: Path
) -> None:
    rows = records.read()
    cut = other_records(records, rows.take(rows.visible_ms < cut_ms), tmp_path)
    with_future = student_rows(log, records, calendar, "student", history_length=LENGTH)
    without = student_rows(log.take(log.event_ms < cut_ms), cut, calendar, "student", history_length=LENGTH)
    assert len(without) == int(np.searchsorted(with_future.event_ms, cut_ms)) > 0
    assert past_inputs(with_future, cut_ms) == past_inputs(without, cut_ms)


def test_shuffling_the_future_changes_no_student_input_of_the_past(
    log: InteractionLog, calendar: Calendar, records: RepresentationLog, cut_ms: int, tmp_path: Path
) -> None:
    rows = records.read()
    future = np.flatnonzero(rows.visible_ms >= cut_ms)
    order = np.random.default_rng(0).permutation(future)
    codes, users = rows.codes.copy(), rows.user_id.copy()
    codes[future], users[future] = codes[order], users[order]
    mixed = other_records(records, replace(rows, codes=codes, user_id=users), tmp_path)
    as_it_was = student_rows(log, records, calendar, "student", history_length=LENGTH)
    otherwise = student_rows(shuffled_future(log, cut_ms), mixed, calendar, "student", history_length=LENGTH)
    assert past_inputs(as_it_was, cut_ms) == past_inputs(otherwise, cut_ms)


# ---- 4: no outcome of the row, no statistic of the whole period ---------------------------------------------------


def test_no_label_of_the_log_reaches_a_students_inputs(
    log: InteractionLog, calendar: Calendar, records: RepresentationLog
) -> None:
    flipped = replace(log, labels={task: np.where(y >= 0, 1 - y, y) for task, y in log.labels.items()})
    one, other = (student_rows(rows, records, calendar, "student", history_length=LENGTH) for rows in (log, flipped))
    assert past_inputs(one, calendar.student.end_ms) == past_inputs(other, calendar.student.end_ms)


def test_no_kuairand_feature_is_an_outcome_or_a_statistic_of_the_period(kuairand_dir: Path) -> None:
    source = read_source(kuairand_dir)
    whole = build_log(source)
    outcomes = {"play_time_ms", "duration_ms", "profile_stay_time", "comment_stay_time", "is_click", "is_like"}
    outcomes |= {"is_follow", "is_comment", "is_forward", "is_hate", "long_view", "is_profile_enter", "is_rand"}
    assert not outcomes & {feature.name for feature in whole.schema.features}
    early = build_log(
        replace(source, rows=source.rows.take(np.flatnonzero(source.rows.day <= source.rows.day.min() + 2)))
    )
    assert len(early) < len(whole) / 2
    assert early.schema == whole.schema
    for features in ("user_features", "ad_features"):
        for name, values in getattr(whole, features).items():
            assert np.array_equal(values, getattr(early, features)[name]), name


# ---- 5: a row's own label -----------------------------------------------------------------------------------------


def test_a_rows_own_label_changes_neither_its_soft_label_nor_z(
    log: InteractionLog, calendar: Calendar, teacher: Teacher
) -> None:
    rows = calendar.rows(log, "log")
    # one row of each user: flipping all rows at once would rightly change the histories of later ones
    own = rows[np.unique(log.user[rows], return_index=True)[1]]
    labels, label_ms = (
        {task: values.copy() for task, values in columns.items()} for columns in (log.labels, log.label_ms)
    )
    for task in labels:
        labels[task][own] = 1 - np.maximum(labels[task][own], 0)
        label_ms[task][own] = 0  # and it was known long ago, as a careless source might say
    flipped = replace(log, labels=labels, label_ms=label_ms)
    assert same_outputs(teacher.represent(log, own), teacher.represent(flipped, own))


def test_an_earlier_rows_label_does_reach_the_teacher(
    log: InteractionLog, calendar: Calendar, teacher: Teacher
) -> None:
    """Otherwise the test above would hold for a teacher that reads nothing."""
    rows = calendar.rows(log, "validation")
    clicked = replace(log, labels={**log.labels, "click": np.ones_like(log.labels["click"])})
    assert not same_outputs(teacher.represent(log, rows), teacher.represent(clicked, rows))


def test_ids_are_hashed_the_same_in_log_and_records(log: InteractionLog, records: RepresentationLog) -> None:
    rows = records.read()
    of_event = dict(zip(log.event_id.tolist(), log.ad.tolist(), strict=True))
    for row in range(0, len(rows), 500):
        assert rows.ad_hash[row] == stable_hash(str(log.ad_ids[of_event[int(rows.event_id[row])]]))
