"""What is gathered from the log: outcomes as of a time, soft labels as logits, one frozen mean a user."""

import numpy as np
import pytest

from events.log import InteractionLog
from events.representations import RepresentationLog
from student_models.logged import LEAST_SOFT, LoggedVectors, Outcomes, UserMeans


def logged(rows: int = 3) -> LoggedVectors:
    return LoggedVectors(
        vectors=np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
        event_ms=np.arange(rows),
        surface=np.zeros(rows, np.uint8),
        ad_hash=np.zeros(rows, np.uint64),
        soft=np.linspace(0, 1, rows * 2, dtype=np.float32).reshape(rows, 2),
        positive=np.tile([True, False], (rows, 1)),
        known_ms=np.tile([10, 20], (rows, 1)),
    )


def test_an_outcome_is_known_strictly_after_its_time_and_absent_elements_have_none() -> None:
    index = np.array([[0, 2, -1]] * 3)
    outcomes = logged().outcomes(index, np.array([9, 10, 11]))
    assert outcomes.dtype == np.uint8
    assert outcomes.tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert not logged(0).outcomes(np.full((2, 4), -1), np.array([5, 6])).any()


def test_certain_soft_labels_have_finite_logits() -> None:
    logits = logged().of_soft_labels().vectors
    assert logits.dtype == np.float32
    assert logits[0, 0] == pytest.approx(np.log(LEAST_SOFT / (1 - LEAST_SOFT)))
    assert logits[2, 1] == pytest.approx(-logits[0, 0], rel=1e-3)


def test_an_impression_that_the_log_lacks_has_no_outcome(tiny_log: InteractionLog) -> None:
    task = tiny_log.schema.tasks[0].name
    row = int(np.flatnonzero(tiny_log.labels[task] == 1)[0])
    outcomes = Outcomes.of(tiny_log, np.array([row, -1]))
    assert outcomes.positive[:, 0].tolist() == [True, False]
    assert outcomes.known_ms[0, 0] == max(tiny_log.label_ms[task][row], tiny_log.ingested_ms[row])


def test_means_are_of_what_was_visible_before_the_cut(tiny_log: InteractionLog, records: RepresentationLog) -> None:
    rows = records.read()
    vectors = np.random.default_rng(0).normal(size=(len(rows), 4)).astype(np.float32)
    cut_ms = int(np.quantile(rows.visible_ms, 0.2))
    means = UserMeans.of(tiny_log, rows, vectors, cut_ms=cut_ms)
    user = int(means.counts.argmax())
    seen = (rows.user_id == tiny_log.user_ids[user]) & (rows.visible_ms < cut_ms)
    assert means.counts[user] == seen.sum() > 1
    assert np.allclose(means.vectors[user], vectors[seen].mean(axis=0), atol=1e-6)
    absent = int(means.counts.argmin())
    assert means.counts[absent] == 0
    users, times = np.array([user, user, absent]), np.array([cut_ms, cut_ms + 1, cut_ms + 1])
    assert means.index(users, times).tolist() == [[-1], [user], [-1]]
