"""Delayed tasks: what may train a task at a cut-off is unbiased at every cut-off, positives having waited too.

A model that fits its training rows predicts their mean; so true over observed rate of the rows that may train is what
it would be off by. Without the rule it is off by far, each day anew.
"""

from dataclasses import replace

import numpy as np
import pytest

from contracts.schema import HOUR_MS
from events import recipes
from events.log import UNKNOWN_LABEL, InteractionLog
from events.splits import DAY_MS
from events.world import make_world

CONFIG = replace(recipes.tiny(), users=4_000, impressions=600_000)
CUT_OFFS = [CONFIG.start_ms + 8 * DAY_MS + hours * HOUR_MS for hours in range(0, 5 * 24, 7)]
"""Every seventh hour from the ninth day on: all hours of the day come up."""


@pytest.fixture(scope="module")
def world() -> tuple[InteractionLog, dict[str, np.ndarray]]:
    return make_world(CONFIG)


@pytest.mark.parametrize("task", ["click", "conversion", "install"])
def test_rows_that_may_train_are_unbiased_at_every_cut_off(
    world: tuple[InteractionLog, dict[str, np.ndarray]], task: str
) -> None:
    log, truth = world
    for cut in CUT_OFFS:
        rows = log.trainable(task, as_of_ms=cut)
        assert truth[task][rows].mean() / log.labels[task][rows].mean() == pytest.approx(1, abs=0.02)


def test_rows_whose_label_is_known_are_not(world: tuple[InteractionLog, dict[str, np.ndarray]]) -> None:
    """Conversions are known when they happen, their absence a day later: among the rows of the last day known by a
    cut-off, conversions are far too many."""
    log, truth = world
    for cut in CUT_OFFS:
        known = (log.labels["conversion"] != UNKNOWN_LABEL) & (log.label_ms["conversion"] <= cut)
        known &= (log.event_ms > cut - DAY_MS) & (log.ingested_ms <= cut)
        assert truth["conversion"][known].mean() / log.labels["conversion"][known].mean() < 0.6
