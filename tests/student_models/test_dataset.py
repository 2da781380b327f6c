"""Inputs come from the past alone and through the one assembler; targets never reach them (leak guards 1 to 4)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.embedding import HistoryRecord, decode_history, encode_history
from contracts.errors import InputError
from contracts.features import HistoryBatch, InputSpec, user_inputs
from contracts.hashing import bucket
from events.log import InteractionLog
from events.representations import RepresentationLog
from events.splits import Calendar
from student_models.dataset import StudentRows, base_rates, check_covered, student_rows
from student_models.recipes import Arm, arm_spec, tiny
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
    shuffled = rows.read_by(Arm("placebo", history=True, shuffle=True)).inputs(part, spec=rows.spec)
    assert [name for name in real if not np.array_equal(real[name], shuffled[name])] == ["history_z"]
    assert np.array_equal(np.sort(rows.logged.vectors, axis=0), np.sort(rows.logged.shuffled().vectors, axis=0))
    again = rows.logged.shuffled()
    assert np.array_equal(again.vectors, rows.logged.shuffled().vectors)


def test_an_arm_without_history_reads_none(data: TrainingData) -> None:
    spec = InputSpec(data.student.spec.schema, 0, data.student.spec.dim)
    assert not any(name.startswith("history") for name in data.student.inputs(slice(0, 5), spec=spec))


def test_labels_that_train_are_those_known_by_the_periods_end(data: TrainingData, calendar: Calendar) -> None:
    rows = data.student
    assert np.array_equal(rows.usable, rows.known_ms <= calendar.student.end_ms)


def test_the_rows_own_vector_is_that_of_its_event(data: TrainingData, records: RepresentationLog) -> None:
    logged = records.read(z=False)
    assert np.array_equal(logged.event_id[data.student.own], data.student.event_id)


@pytest.mark.parametrize("part", [slice(0, 40), slice(900, 960)])
def test_elements_are_those_of_a_record_with_the_labels_known_at_the_time(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar, part: slice
) -> None:
    rows, logged = rows_of(tiny_log, records, calendar), records.read()
    spec = replace(rows.spec, elements=("surface", "ad_hash", "outcome"))
    found = rows.inputs(part, spec=spec)
    row_of = {int(event): row for row, event in enumerate(tiny_log.event_id)}
    for b, row in enumerate(range(part.start, part.stop)):
        now_ms, index = rows.event_ms[row], rows.index[row][rows.index[row] >= 0][::-1]
        outcome = []
        for element in index:
            of_log = row_of[int(logged.event_id[element])]
            known = [
                tiny_log.labels[task.name][of_log] == 1
                and max(tiny_log.label_ms[task.name][of_log], tiny_log.ingested_ms[of_log]) < now_ms
                for task in tiny_log.schema.tasks
            ]
            outcome.append(sum(1 << k for k, yes in enumerate(known) if yes))
        record = HistoryRecord(
            vectors=rows.logged.vectors[index],
            event_ms=logged.event_ms[index],
            impressions=int(rows.impressions[row]),
            computed_ms=0,
            log_offset=0,
            surface=logged.surface[index].astype(np.uint8),
            ad_hash=logged.ad_hash[index],
            outcome=np.array(outcome, dtype=np.uint8),
        )
        stored = decode_history(encode_history(record, user_id="u"), user_id="u")
        batch = HistoryBatch.from_record(stored, spec=spec, now_ms=int(now_ms))
        expected = user_inputs(
            spec,
            user_buckets=rows.user_bucket[[row]],
            surfaces=rows.surface[[row]],
            now_ms=rows.event_ms[[row]],
            context={name: values[[row]] for name, values in rows.context.items()},
            history=batch,
        )
        assert {name: found[name][[b]].tobytes() for name in expected} == {n: v.tobytes() for n, v in expected.items()}


def test_outcomes_are_seen_once_known_and_not_before(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar
) -> None:
    rows = rows_of(tiny_log, records, calendar)
    spec = replace(rows.spec, elements=("outcome",))
    assert rows.inputs(slice(None), spec=spec)["history_outcome"].any()
    never = {task: np.full_like(ms, calendar.test.end_ms) for task, ms in tiny_log.label_ms.items()}
    unknown = rows_of(replace(tiny_log, label_ms=never), records, calendar)
    assert not unknown.inputs(slice(None), spec=spec)["history_outcome"].any()


def test_the_users_mean_is_frozen_at_the_cut_and_read_behind_it(
    tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar
) -> None:
    rows, logged, arm = rows_of(tiny_log, records, calendar), records.read(), Arm("user", history="user")
    cut_ms, spec = rows.user_means.cut_ms, arm_spec(rows.spec, tiny(), arm)
    read = rows.read_by(arm).inputs(slice(None), spec=spec)
    assert calendar.student.start_ms < cut_ms < calendar.student.end_ms
    assert not read["history_mask"][rows.event_ms <= cut_ms].any()
    user_of = tiny_log.user_ids[rows.user]
    for row in np.flatnonzero(rows.event_ms > cut_ms)[::50]:
        early = (logged.user_id == user_of[row]) & (logged.visible_ms < cut_ms)
        assert read["history_stats"][row].tolist() == [early.sum(), early.any()]
        if early.any():
            assert np.allclose(read["history_z"][row, 0], rows.logged.vectors[early].mean(axis=0), atol=1e-6)
            assert read["history_age_s"][row, 0] == np.float32((rows.event_ms[row] - cut_ms) / 1000)


def test_soft_labels_stand_in_the_vectors_place(data: TrainingData) -> None:
    rows, arm = data.student, Arm("soft", history="soft")
    read = rows.read_by(arm).inputs(slice(600, 700), spec=arm_spec(rows.spec, tiny(), arm))
    index = rows.index[600:700]
    chance = 1 / (1 + np.exp(-read["history_z"][index >= 0]))
    assert np.allclose(chance, rows.logged.soft[index[index >= 0]], atol=1e-5)


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
