"""Judged rows and predictions of a known quality, without a model.

Legend: T rows, S seeds.
"""

import numpy as np

from foundation.experiments.compare import Judged
from foundation.experiments.jobs import Outcome

USERS, ROWS_PER_USER = 300, 4


def made_judged(*, seed: int = 0, surfaces: int = 2) -> tuple[Judged, np.ndarray]:
    """(rows of one task, all of which are judged, the true logit of each)."""
    rng = np.random.default_rng(seed)
    rows = USERS * ROWS_PER_USER
    logit_T = rng.normal(size=rows)
    y = (rng.random(rows) < _sigmoid(logit_T)).astype(np.int8)
    users, surface = np.repeat(np.arange(USERS), ROWS_PER_USER), np.arange(rows) % surfaces
    return Judged("click", 0, np.ones(rows, dtype=bool), y, users, surface), logit_T


def noisy(logit_T: np.ndarray, noise: float, *, seeds: int = 3) -> list[Outcome]:
    """Outcomes of a model that errs by so much on the logit scale, by seed."""
    drawn = [np.random.default_rng(1000 + seed).normal(size=len(logit_T)) for seed in range(seeds)]
    return [outcome(_sigmoid(logit_T + noise * one)) for one in drawn]


def outcome(p_T: np.ndarray) -> Outcome:
    """One task's predictions as an outcome."""
    return Outcome(p_T[:, None].astype(np.float32), {})


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))
