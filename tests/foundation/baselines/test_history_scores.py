"""The history GRU repeats by seed, learns from the untimed history alone and reads the past alone."""

from dataclasses import replace

import numpy as np
import pytest

from contracts.errors import InputError
from events.log import InteractionLog
from foundation.baselines.history_scores import fit_history_gru, history_scores
from tests.events.test_aggregates import random_log, same


@pytest.fixture(scope="module")
def log() -> InteractionLog:
    return random_log(0, rows=600, untimed=90)


def test_history_scores_repeat_by_seed_and_learn_from_the_untimed_history_alone(log: InteractionLog) -> None:
    rows = np.arange(len(log))
    scores = history_scores(fit_history_gru(log, seed=1), log, rows)
    assert scores.names == ("history_gru.click",)
    assert np.isfinite(scores.values).all()
    flipped = replace(log, labels={**log.labels, "click": (1 - log.labels["click"]).astype(np.int8)})
    model = fit_history_gru(flipped, seed=1)
    assert same(scores, history_scores(model, log, rows))
    assert not same(scores, history_scores(model, flipped, rows))
    assert not same(scores, history_scores(fit_history_gru(log, seed=2), log, rows))


def test_history_scores_read_only_what_was_known(log: InteractionLog) -> None:
    model, now = fit_history_gru(log, seed=1), int(np.median(log.event_ms))
    rows = np.flatnonzero(log.event_ms == now)
    hidden = log.label_ms["click"] >= now
    click = np.where(hidden, 1 - log.labels["click"], log.labels["click"]).astype(np.int8)
    changed = replace(log, labels={**log.labels, "click": click})
    assert same(history_scores(model, log, rows), history_scores(model, changed, rows))
    frozen = history_scores(model, log, rows, frozen_ms=0)
    assert not same(frozen, history_scores(model, log, rows))


def test_untimed_events_have_no_history_score(log: InteractionLog) -> None:
    scores = history_scores(fit_history_gru(log, seed=0, epochs=1), log, np.array([len(log), 5]))
    assert np.isnan(scores.values[0]).all()
    assert np.isfinite(scores.values[1]).all()


def test_a_log_without_an_untimed_history_is_refused(log: InteractionLog) -> None:
    with pytest.raises(InputError, match="no labelled untimed history"):
        fit_history_gru(replace(log, untimed=None), seed=0)
