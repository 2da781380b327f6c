"""Inputs come from the past alone and through the one assembler; targets never reach them (leak guards 1 to 4)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import InputError
from contracts.features import HistoryBatch, InputSpec, user_inputs
from contracts.hashing import bucket
from events.log import InteractionLog
from events.representations import RepresentationLog
from events.splits import Calendar
from student_models.dataset import StudentRows, base_rates, check_covered, student_rows
from student_models.trainer import TrainingData
from tests.student_models.made_teacher import write_rows

LENGTH = 8


def rows_of(log: InteractionLog, records: RepresentationLog, calendar: Calendar) -> StudentRows:
    return student_rows(log, records, calendar, "student", history_length=LENGTH)


def input_bytes(rows: StudentRows, part: slice = slice(None)) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in rows.inputs(part, spec=rows.spec).items()}


def flipped(log: InteractionLog) -> InteractionLog:
    return replace(log, labels={task: np.where(y < 0, y, 1 - y) for task, y in log.labels.items()})


def test_rows_stand_in_time_order_after_all_that_the_teacher_saw(data: TrainingData, calendar: Calendar) -> None:
    for rows in (data.student, data.validation):
        assert (np.diff(rows.event_ms) >= 0).all()
    assert calendar.teacher.end_ms <= data.student.event_ms[0]
    assert data.student.event_ms[-1] < data.validation.event_ms[0]


def test_histories_are_the_newest_visible_impressions_of_the_user(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar
) -> None:
    rows, logged = rows_of(tiny_log, records, calendar), records.read()
    user_of = tiny_log.user_ids[rows.user]
    for row in np.random.default_rng(0).integers(0, len(rows), 50):
        now_ms = rows.event_ms[row]
        own = (logged.user_id == user_of[row]) & (logged.available_ms < now_ms) & (logged.event_ms < now_ms)
        newest = np.flatnonzero(own)[np.lexsort((logged.event_id[own], logged.event_ms[own]))][::-1]
        assert rows.impressions[row] == len(newest)
        found = rows.index[row]
        assert found[found >= 0].tolist() == newest[:LENGTH].tolist()


def test_inputs_are_those_of_the_assembler(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar
) -> None:
    rows = rows_of(tiny_log, records, calendar)
    row = int(np.argmax(rows.impressions))
    user_id = tiny_log.user_ids[rows.user[row]]
    record = records.as_of(records.read()).record(user_id, LENGTH, int(rows.event_ms[row]))
    expected = user_inputs(
        rows.spec,
        user_buckets=np.array([bucket(user_id, tiny_log.schema.user_buckets)]),
        surfaces=rows.surface[[row]],
        now_ms=rows.event_ms[[row]],
        context={name: values[[row]] for name, values in rows.context.items()},
        history=HistoryBatch.from_record(record, spec=rows.spec, now_ms=int(rows.event_ms[row])),
    )
    found = rows.inputs(slice(row, row + 1), spec=rows.spec)
    assert {name: found[name].tobytes() for name in expected} == {name: v.tobytes() for name, v in expected.items()}


def test_flipping_all_labels_changes_no_input(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar
) -> None:
    one, other = (rows_of(log, records, calendar) for log in (tiny_log, flipped(tiny_log)))
    assert (one.labels != other.labels).any()
    assert input_bytes(one) == input_bytes(other)


def test_changing_all_soft_labels_changes_no_input(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar, tmp_path: Path
) -> None:
    logged = records.read()
    changed = write_rows(tmp_path, tiny_log, replace(logged, soft=1 - logged.soft))
    one, other = (rows_of(tiny_log, log, calendar) for log in (records, changed))
    assert not np.array_equal(one.soft, other.soft)
    assert input_bytes(one) == input_bytes(other)


def test_own_and_future_vectors_change_no_input(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar, tmp_path: Path
) -> None:
    logged, rows = records.read(), rows_of(tiny_log, records, calendar)
    half = len(rows) // 2
    later = logged.event_ms >= rows.event_ms[half]
    changed = write_rows(tmp_path, tiny_log, replace(logged, codes=np.where(later[:, None], 0, logged.codes)))
    other = rows_of(tiny_log, changed, calendar)
    assert input_bytes(rows, slice(0, half + 1)) == input_bytes(other, slice(0, half + 1))
    assert input_bytes(rows) != input_bytes(other)


def test_a_row_that_the_teacher_did_not_see_has_no_soft_label(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar, tmp_path: Path
) -> None:
    logged = records.read()
    half = write_rows(tmp_path / "half", tiny_log, logged.take(np.arange(0, len(logged), 2)))
    rows = rows_of(tiny_log, half, calendar)
    assert np.array_equal(rows.has_soft, np.isin(rows.event_id, logged.event_id[::2]))
    of_event = dict(zip(logged.event_id.tolist(), logged.soft, strict=True))
    for row in np.flatnonzero(rows.has_soft)[:20]:
        assert np.array_equal(rows.soft[row], of_event[int(rows.event_id[row])])
    empty = write_rows(tmp_path / "empty", tiny_log, records.read().take(np.zeros(len(logged), dtype=bool)))
    assert not rows_of(tiny_log, empty, calendar).has_soft.any()


def test_the_placebo_moves_vectors_and_nothing_else(data: TrainingData) -> None:
    rows, part = data.student, slice(0, 500)
    real = rows.inputs(part, spec=rows.spec)
    shuffled = rows.inputs(part, spec=rows.spec, logged=rows.logged.shuffled())
    assert [name for name in real if not np.array_equal(real[name], shuffled[name])] == ["history_z"]
    assert np.array_equal(np.sort(rows.logged.vectors, axis=0), np.sort(rows.logged.shuffled().vectors, axis=0))
    again = rows.logged.shuffled()
    assert np.array_equal(again.vectors, rows.logged.shuffled().vectors)


def test_an_arm_without_history_reads_none(data: TrainingData) -> None:
    spec = InputSpec(data.student.spec.schema, 0, data.student.spec.dim)
    assert not any(name.startswith("history") for name in data.student.inputs(slice(0, 5), spec=spec))


def test_a_delayed_label_counts_only_when_its_window_has_passed(data: TrainingData, calendar: Calendar) -> None:
    rows = data.student
    tasks = rows.spec.schema.tasks
    late = np.stack([rows.event_ms + task.window_ms > calendar.student.end_ms for task in tasks], axis=1)
    assert late.any()
    assert not rows.usable[late].any()
    assert data.validation.usable.any(axis=0).all()


def test_base_rates_look_back_only(tiny_log: InteractionLog, calendar: Calendar) -> None:
    cut = calendar.student.start_ms
    future = tiny_log.event_ms >= cut
    changed = replace(tiny_log, labels={task: np.where(future & (y >= 0), 1, y) for task, y in tiny_log.labels.items()})
    assert np.array_equal(base_rates(tiny_log, before_ms=cut), base_rates(changed, before_ms=cut))
    assert base_rates(tiny_log, before_ms=0).tolist() == [0.5] * len(tiny_log.schema.tasks)


def test_records_of_another_schema_are_refused(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar
) -> None:
    other = replace(tiny_log, schema=replace(tiny_log.schema, name="other"))
    with pytest.raises(InputError, match=r"made on schema .*; run python -m precompute.backfill"):
        rows_of(other, records, calendar)


def test_records_of_other_events_are_refused(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar, tmp_path: Path
) -> None:
    logged = records.read()
    others = write_rows(tmp_path / "ids", tiny_log, replace(logged, event_id=logged.event_id ^ np.uint64(1)))
    with pytest.raises(InputError, match=rf"{len(logged):,} of {len(logged):,} rows .* are not events of the log"):
        rows_of(tiny_log, others, calendar)
    shifted = replace(logged, event_id=np.roll(logged.event_id, 1))  # its ids are all in the log, but not there
    with pytest.raises(InputError, match="are not events of the log"):
        rows_of(tiny_log, write_rows(tmp_path / "places", tiny_log, shifted), calendar)


def test_events_that_came_in_after_the_log_was_read_are_no_foreign_ones(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar
) -> None:
    past = tiny_log.take(np.arange(len(tiny_log) - 10))
    assert records.read(z=False).offset[-1] > past.offset[-1]
    check_covered(past, records, rows_of(past, records, calendar), "student")


def test_records_that_end_before_the_period_does_are_refused(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar, tmp_path: Path
) -> None:
    rows, logged = rows_of(tiny_log, records, calendar), records.read()
    check_covered(tiny_log, records, rows, "student")
    last = int(tiny_log.offset[np.isin(tiny_log.event_id, rows.event_id)].max())
    stopped = write_rows(tmp_path / "stopped", tiny_log, logged.take(logged.offset < last), end_offset=last)
    sentence = rf"ends at offset {last}, the period 'student' at offset {last}; .*precompute.backfill .*end first"
    with pytest.raises(InputError, match=sentence):
        check_covered(tiny_log, stopped, rows_of(tiny_log, stopped, calendar), "student")
    whole = write_rows(tmp_path / "whole", tiny_log, logged.take(logged.offset <= last), end_offset=last + 1)
    check_covered(tiny_log, whole, rows_of(tiny_log, whole, calendar), "student")


def test_records_with_too_few_soft_labels_are_refused(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar, tmp_path: Path
) -> None:
    logged = records.read()
    some = {"half": np.arange(len(logged)) % 2 == 0, "none": np.zeros(len(logged), dtype=bool)}
    for name, kept in some.items():
        sparse = write_rows(tmp_path / name, tiny_log, logged.take(kept), end_offset=len(tiny_log))
        rows = rows_of(tiny_log, sparse, calendar)
        assert rows.soft_label_share == rows.has_soft.mean() < 0.9
        with pytest.raises(
            InputError, match=rf"a soft label for {rows.soft_label_share:.1%} .*run python -m precompute"
        ):
            check_covered(tiny_log, sparse, rows, "student")


def test_records_of_the_teachers_own_period_are_refused(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar, tmp_path: Path
) -> None:
    logged = records.read()
    early = replace(logged, event_ms=logged.event_ms - (logged.event_ms[0] - calendar.teacher.start_ms))
    with pytest.raises(InputError, match="teacher's own training period"):
        rows_of(tiny_log, write_rows(tmp_path, tiny_log, early), calendar)


def test_a_period_without_rows_is_refused(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar
) -> None:
    before = tiny_log.take(tiny_log.event_ms < calendar.validation.start_ms)
    with pytest.raises(InputError, match="no rows in period 'validation'"):
        student_rows(before, records, calendar, "validation", history_length=LENGTH)
