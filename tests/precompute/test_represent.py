from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import GemError, InputError
from contracts.keys import space_dim, space_name
from contracts.quantiser import DTYPES, INT8, fit_centres
from contracts.schema import Feature
from events.log import InteractionLog
from events.representations import RepresentationLog, locked
from foundation.teacher import Representation, Teacher
from precompute.represent import Availability, Represented, chunks_of, open_log, represent_new
from tests.events.made_rows import made_rows, new_log
from tests.events.small_logs import small_log

NOW_MS = 1_800_000_000_000


class Watched:
    """The real teacher, and which rows it was asked for."""

    def __init__(self, teacher: Teacher, broken_at: int | None = None) -> None:
        self.teacher, self.broken_at = teacher, broken_at
        self.asked: list[np.ndarray] = []
        self.run, self.schema, self.tasks = teacher.run, teacher.schema, teacher.tasks
        self.trained_until_ms = teacher.trained_until_ms

    def represent(self, log, rows, *, histories=None) -> Representation:
        made = self.teacher.represent(log, rows, histories=histories)
        if self.broken_at in rows:
            made.z[rows == self.broken_at] = np.nan
        self.asked.append(rows)
        return made


def first_rows(log: InteractionLog, rows: int) -> InteractionLog:
    return log.take(np.arange(rows))


def represent(log: RepresentationLog, events: InteractionLog, teacher, *, available: str = "now") -> Represented:
    with log.writing():
        return represent_new(
            log, events, teacher, available=Availability.parse(available), now_ms=lambda: NOW_MS, shard_rows=200
        )


@pytest.fixture(scope="module")
def events(tiny_log: InteractionLog) -> InteractionLog:
    """The first 2,200 impressions: about 700 of them follow the teacher's training."""
    return first_rows(tiny_log, 2_200)


@pytest.fixture
def log(tmp_path: Path, events: InteractionLog, teacher: Teacher) -> RepresentationLog:
    return open_log(tmp_path, teacher, events, now_ms=NOW_MS)


def test_every_row_after_the_teachers_training_is_represented_and_no_other(log, events, teacher):
    done = represent(log, events, teacher)
    later = events.event_ms >= teacher.trained_until_ms
    rows = log.read()
    assert (done.new, done.computed, done.skipped) == (len(events), later.sum(), (~later).sum())
    np.testing.assert_array_equal(rows.event_id, events.event_id[later])
    np.testing.assert_array_equal(rows.user_id, events.user_ids[events.user[later]])
    assert log.end_offset == len(events)


def test_rows_are_the_teachers_own_words(log, events, teacher):
    represent(log, events, teacher)
    rows = log.read()
    some = np.searchsorted(events.event_id[np.argsort(events.event_id)], rows.event_id[::50])
    made = teacher.represent(events, np.argsort(events.event_id)[some])
    np.testing.assert_allclose(rows.z[::50], made.z, atol=1e-3)
    np.testing.assert_allclose(rows.soft[::50], made.soft, atol=1e-5)
    np.testing.assert_array_equal(rows.codes, INT8.encode(rows.z[:, :32]))


def test_a_second_run_computes_nothing(log, events, teacher):
    represent(log, events, teacher)
    again = Watched(teacher)
    assert represent(log, events, again) == Represented()
    assert again.asked == []


def test_only_what_is_new_is_computed(log, events, teacher):
    represent(log, first_rows(events, 2_000), teacher)
    watched = Watched(teacher)
    represent(log, events, watched)
    np.testing.assert_array_equal(np.concatenate(watched.asked), np.arange(2_000, len(events)))


def test_a_late_event_is_computed_without_the_rows_it_follows(log, events, teacher):
    """It has an early time and a late offset."""
    late = events.take(np.r_[np.arange(1_900), np.arange(1_901, len(events)), 1_900])
    late = replace(late, offset=np.arange(len(late)))
    represent(log, first_rows(late, len(late) - 1), teacher)
    watched = Watched(teacher)
    represent(log, late, watched)
    assert np.concatenate(watched.asked).tolist() == [len(late) - 1]


def test_availability_is_now_or_a_while_after_the_event(tmp_path, events, teacher):
    for text, expected in (("now", lambda rows: NOW_MS), ("event+600", lambda rows: rows.event_ms + 600_000)):
        log = open_log(tmp_path / text, teacher, events, now_ms=NOW_MS)
        represent(log, events, teacher, available=text)
        rows = log.read()
        assert (rows.available_ms == expected(rows)).all()


@pytest.mark.parametrize("text", ["later", "event", "event+", "event+-5", "event+1h", ""])
def test_another_availability_is_bad_input(text):
    with pytest.raises(InputError, match="--available"):
        Availability.parse(text)


def test_a_deleted_shard_alone_is_computed_again_in_a_new_epoch(log, events, teacher):
    represent(log, events, teacher)
    before = log.read()
    lost = log.shards()[1]
    lost.path.unlink()
    watched = Watched(teacher)
    represent(log, events, watched)
    assert len(np.concatenate(watched.asked)) == 200
    assert log.epoch > NOW_MS
    np.testing.assert_array_equal(log.read().event_id, before.event_id)


def test_a_broken_teacher_writes_nothing_of_its_shard(log, events, teacher):
    row = len(events) - 1
    with pytest.raises(GemError, match=f"event_id {events.event_id[row]} is not finite"):
        represent(log, events, Watched(teacher, broken_at=row))
    assert log.end_offset < len(events)
    represent(log, events, teacher)
    assert log.end_offset == len(events)


def test_another_interaction_log_is_refused(log, events, teacher):
    represent(log, events, teacher)
    shorter = first_rows(events, 2_150)
    other = replace(events, event_id=events.event_id + np.uint64(1))
    for events in (shorter, other):
        with pytest.raises(InputError, match="made from another interaction log"):
            represent(log, events, teacher)


def test_a_teacher_of_another_schema_is_refused_before_anything_is_written(tmp_path, events, teacher):
    schema = replace(events.schema, features=(*events.schema.features, Feature("more", "context", cardinality=3)))
    with pytest.raises(InputError, match="train a teacher on this log"):
        open_log(tmp_path, teacher, replace(events, schema=schema), now_ms=NOW_MS)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_killed_first_run_left_is_taken(tmp_path, events, teacher):
    folder = tmp_path / space_name("gem", teacher.run, 32, "int8")
    folder.mkdir()
    assert open_log(tmp_path, teacher, events, now_ms=NOW_MS).folder == folder


@pytest.mark.parametrize("dtype", DTYPES)
def test_width_and_quantiser_are_those_that_were_asked_for(tmp_path, events, teacher, dtype):
    log = open_log(tmp_path, teacher, events, now_ms=NOW_MS, dim=16, dtype=dtype)
    assert (space_dim(log.space), log.quantiser.dtype) == (16, dtype)
    represent(log, events, teacher)
    rows = log.read()
    assert rows.codes.shape == (len(rows), 16)
    np.testing.assert_array_equal(rows.codes, log.quantiser.encode(rows.z[:, :16]))


@pytest.mark.parametrize(("options", "message"), [({"dim": 12}, "--dim 12"), ({"dtype": "int2"}, "--dtype int2")])
def test_another_width_or_quantiser_is_bad_input(tmp_path, events, teacher, options, message):
    with pytest.raises(InputError, match=f"{message} is no .*use one of"):
        open_log(tmp_path, teacher, events, now_ms=NOW_MS, **options)
    assert list(tmp_path.iterdir()) == []


def test_centres_are_fitted_once_on_the_teachers_last_day_alone(monkeypatch, tmp_path, events, teacher):
    monkeypatch.setattr("precompute.represent.CODEBOOK_ROWS", 50)
    watched = Watched(teacher)
    log = open_log(tmp_path, watched, events, now_ms=NOW_MS, dtype="kint4")
    (rows,) = watched.asked
    assert len(rows) == 50
    assert (np.diff(rows) > 0).all()
    times = events.event_ms[rows]
    last = events.event_ms[events.event_ms < teacher.trained_until_ms].max()
    assert times.max() <= last
    assert times.min() > last - 86_400_000
    expected = fit_centres(teacher.represent(events, rows).z.astype(np.float16)[:, :32])
    np.testing.assert_allclose(log.quantiser.centres, expected, atol=1e-3)
    again = Watched(teacher)
    assert open_log(tmp_path, again, events, now_ms=NOW_MS + 1, dtype="kint4").quantiser == log.quantiser
    assert again.asked == []
    represent(log, events, teacher)
    assert not np.isin(events.event_id[rows], log.read().event_id).any(), "none of them is logged"


def test_the_same_teacher_and_log_give_the_same_centres_as_the_log_grows(tmp_path, events, teacher):
    short = first_rows(events, 1_900)
    one, other = (
        open_log(tmp_path / str(len(part)), teacher, part, now_ms=NOW_MS, dtype="kint4") for part in (short, events)
    )
    np.testing.assert_allclose(one.quantiser.centres, other.quantiser.centres, atol=1e-6)


def test_without_the_teachers_period_there_are_no_centres_and_no_log(tmp_path, events, teacher):
    later = events.take(np.flatnonzero(events.event_ms >= teacher.trained_until_ms))
    with pytest.raises(InputError, match=r"--dtype kint4 .*give the log that the teacher was trained on"):
        open_log(tmp_path, teacher, later, now_ms=NOW_MS, dtype="kint4")
    assert not list(tmp_path.glob("*/log.json"))


def test_two_first_runs_at_once_make_one_log_and_the_second_is_sent_away(monkeypatch, tmp_path, events, teacher):
    create = RepresentationLog.create

    def while_another_tries(*arguments, **options):
        with pytest.raises(GemError, match="another process is writing") as second:
            open_log(tmp_path, teacher, events, now_ms=NOW_MS + 1)
        assert second.value.exit_code == 1
        return create(*arguments, **options)

    monkeypatch.setattr(RepresentationLog, "create", while_another_tries)
    assert open_log(tmp_path, teacher, events, now_ms=NOW_MS).epoch == NOW_MS


def test_a_log_that_another_first_run_made_meanwhile_is_taken_as_it_is(monkeypatch, tmp_path, events, teacher):
    """The other one ends between the look for the log and the lock."""

    @contextmanager
    def after_the_other(folder: Path):
        with monkeypatch.context() as undone:
            undone.setattr("precompute.represent.locked", locked)
            open_log(tmp_path, teacher, events, now_ms=NOW_MS)
        with locked(folder):
            yield

    monkeypatch.setattr("precompute.represent.locked", after_the_other)
    assert open_log(tmp_path, teacher, events, now_ms=NOW_MS + 1).epoch == NOW_MS


def test_another_teacher_with_the_same_short_name_is_refused(log, events, teacher):
    impostor = Watched(teacher)
    impostor.run = teacher.run[:6] + "0" * 58
    with pytest.raises(InputError, match="another teacher"):
        open_log(log.folder.parent, impostor, events, now_ms=NOW_MS)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 1), max_size=30),
    st.integers(1, 7),
    st.lists(st.integers(0, 29), max_size=3),
    st.integers(0, 30),
)
def test_chunks_cover_each_missing_offset_once(tmp_path_factory, later, shard_rows, deleted, represented):
    """Whatever lies in the teacher's period, whichever shards are gone: old and new shards cover the log."""
    events = small_log([(0, 1_000 * flag + row) for row, flag in enumerate(later)])
    log = new_log(tmp_path_factory.mktemp("log"))
    for offset in range(min(represented, len(later))):
        log.append(made_rows(1, first=offset), first_offset=offset, end_offset=offset + 1)
    for shard in log.shards():
        if shard.first in deleted:
            shard.path.unlink()
    covered = [offset for shard in log.shards() for offset in range(shard.first, shard.end)]
    chunks = list(chunks_of(log, events, trained_until_ms=1_000, shard_rows=shard_rows))
    added = [offset for chunk in chunks for offset in range(chunk.first_offset, chunk.end_offset)]
    assert sorted(covered + added) == list(range(len(later)))
    for chunk in chunks:
        assert len(chunk.rows) <= shard_rows
        assert (
            (events.offset[chunk.rows] >= chunk.first_offset) & (events.offset[chunk.rows] < chunk.end_offset)
        ).all()
        assert (events.event_ms[chunk.rows] >= 1_000).all()
    computed = sum(len(chunk.rows) for chunk in chunks)
    assert computed == sum(later[offset] for offset in added)
    assert computed + sum(chunk.skipped for chunk in chunks) == len(added)
