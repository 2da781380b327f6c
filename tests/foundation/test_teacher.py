"""The teacher's promises: nothing of a row's outcome or future, no batch effects, unseen ids, one schema."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import InputError
from events.history import HistoryIndex
from events.log import InteractionLog
from foundation.checkpoint import INFO
from foundation.teacher import Representation, Teacher
from tests.events.small_logs import small_log


@pytest.fixture(scope="module")
def teacher(tiny_checkpoint: Path) -> Teacher:
    return Teacher.load(tiny_checkpoint)


@pytest.fixture(scope="module")
def base(teacher: Teacher, tiny_log: InteractionLog, later_rows: np.ndarray) -> Representation:
    return teacher.represent(tiny_log, later_rows)


def equal(one: Representation, other: Representation) -> bool:
    return bool(np.array_equal(one.soft, other.soft) and np.array_equal(one.z, other.z))


def test_says_what_it_is(teacher: Teacher, tiny_log: InteractionLog) -> None:
    assert teacher.tasks == tuple(task.name for task in tiny_log.schema.tasks)
    assert teacher.dim == 64
    assert len(teacher.run) == 64
    assert teacher.schema == tiny_log.schema


def test_outputs_are_probabilities_and_bounded_vectors(base: Representation, later_rows: np.ndarray) -> None:
    assert base.soft.shape == (len(later_rows), 3)
    assert base.z.shape == (len(later_rows), 64)
    assert base.soft.dtype == base.z.dtype == np.float32
    assert ((base.soft > 0) & (base.soft < 1)).all()
    assert (np.abs(base.z) <= 1).all()
    assert base.z.std(axis=0).min() > 0


def test_is_deterministic_and_takes_a_given_index(
    teacher: Teacher, base: Representation, tiny_checkpoint: Path, tiny_log: InteractionLog, later_rows: np.ndarray
) -> None:
    assert equal(teacher.represent(tiny_log, later_rows), base)
    other = Teacher.load(tiny_checkpoint)
    assert equal(other.represent(tiny_log, later_rows, histories=HistoryIndex(tiny_log)), base)


def test_a_row_does_not_depend_on_the_rows_beside_it(
    teacher: Teacher, base: Representation, tiny_log: InteractionLog, later_rows: np.ndarray
) -> None:
    picked = np.random.default_rng(0).permutation(len(later_rows))[:40]
    part = teacher.represent(tiny_log, later_rows[picked])
    np.testing.assert_allclose(part.soft, base.soft[picked], atol=1e-5)
    np.testing.assert_allclose(part.z, base.z[picked], atol=1e-4)
    one = teacher.represent(tiny_log, later_rows[:1])
    np.testing.assert_allclose(one.z, base.z[:1], atol=1e-4)
    assert teacher.represent(tiny_log, later_rows[:0]).soft.shape == (0, 3)


def test_flipping_a_row_s_own_labels_changes_nothing(
    teacher: Teacher, tiny_log: InteractionLog, later_rows: np.ndarray
) -> None:
    rows = later_rows[[10, 200, 400]]
    for row in rows:  # one at a time: a later row of the same user may see the label, the row itself never
        labels = {name: values.copy() for name, values in tiny_log.labels.items()}
        for values in labels.values():
            values[row] = 1 - np.abs(values[row])
        known = {name: np.where(np.arange(len(tiny_log)) == row, 0, times) for name, times in tiny_log.label_ms.items()}
        flipped = replace(tiny_log, labels=labels, label_ms=known)
        alone = np.array([row])
        assert equal(teacher.represent(flipped, alone), teacher.represent(tiny_log, alone))


def test_rows_at_the_same_time_do_not_see_each_other(teacher: Teacher, tiny_log: InteractionLog) -> None:
    order = np.lexsort((tiny_log.event_ms, tiny_log.user))
    tied = (np.diff(tiny_log.event_ms[order]) == 0) & (np.diff(tiny_log.user[order]) == 0)
    row, other = order[:-1][tied][0], order[1:][tied][0]
    known = {name: np.minimum(times, tiny_log.event_ms) for name, times in tiny_log.label_ms.items()}
    labels = {name: values.copy() for name, values in tiny_log.labels.items()}
    ads, surfaces = tiny_log.ad.copy(), tiny_log.surface.copy()
    ads[other] = (ads[other] + 1) % len(tiny_log.ad_ids)
    surfaces[other] = (surfaces[other] + 1) % len(tiny_log.schema.surfaces)
    for values in labels.values():
        values[other] = 1 - np.abs(values[other])
    changed = replace(tiny_log, labels=labels, ad=ads, surface=surfaces, label_ms=known)
    plain, alone = replace(tiny_log, label_ms=known), np.array([row])
    assert equal(teacher.represent(changed, alone), teacher.represent(plain, alone))


def test_the_future_changes_nothing(teacher: Teacher, tiny_log: InteractionLog, later_rows: np.ndarray) -> None:
    rows = later_rows[: len(later_rows) // 2]
    now = tiny_log.event_ms[rows].max()
    past = np.flatnonzero(tiny_log.event_ms <= now)
    cut = tiny_log.take(past)
    same = np.searchsorted(past, rows)
    assert equal(teacher.represent(cut, same), teacher.represent(tiny_log, rows))
    ads, future = tiny_log.ad.copy(), tiny_log.event_ms > now
    ads[future] = np.random.default_rng(0).permutation(ads[future])
    assert equal(teacher.represent(replace(tiny_log, ad=ads), rows), teacher.represent(tiny_log, rows))


def test_the_past_matters(teacher: Teacher, tiny_log: InteractionLog, later_rows: np.ndarray) -> None:
    forgetful = tiny_log.take(later_rows)
    assert not equal(teacher.represent(forgetful, np.arange(len(later_rows))), teacher.represent(tiny_log, later_rows))


def test_users_and_ads_that_training_never_saw(
    teacher: Teacher, tiny_log: InteractionLog, later_rows: np.ndarray
) -> None:
    strangers = replace(
        tiny_log,
        user_ids=np.array([f"new-{user}" for user in tiny_log.user_ids], dtype=object),
        ad_ids=np.array([f"new-{ad}" for ad in tiny_log.ad_ids], dtype=object),
    )
    outputs = teacher.represent(strangers, later_rows)
    assert np.isfinite(outputs.soft).all()
    assert np.isfinite(outputs.z).all()


def test_a_log_of_another_schema_is_refused(teacher: Teacher) -> None:
    with pytest.raises(InputError, match="trained on schema"):
        teacher.represent(small_log([(0, 1000)]), np.array([0]))


def test_weights_of_another_version_of_the_model_are_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "gem"))
    info = json.loads((folder / INFO).read_text())
    info["recipe"]["model"]["dim"] *= 2
    (folder / INFO).write_text(json.dumps(info))
    with pytest.raises(InputError, match="do not fit this version of GEM"):
        Teacher.load(folder)
