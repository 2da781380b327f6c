"""The tree anchor: gradient boosting (LightGBM), one model per task, on history aggregates and static columns.

Legend: n events, A columns. LightGBM is an optional extra that only experiments need. Settings and the rule for the
number of rounds are those of docs/kuairand_reference.md, 6.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts.errors import InputError
from contracts.schema import HOUR_MS
from events.aggregates import AggregateTable
from events.log import InteractionLog

ID_CODES = 2_000
"""A column of more codes is an id in disguise: it reaches the trees through its rates alone."""
PATIENCE = 300
"""Rounds without a better validation loss before a fit ends. Bagging makes that loss uneven: with 60, two seeds of one
fit stopped at 265 and at 1,017 rounds (KuaiRand, click, 30 April)."""
MORE_ROUNDS = 1.15
"""Rounds of the refit on all days over those chosen on the validation day."""
RARE = 0.05
"""Positive rate under which a task counts as rare."""
MAX_ROUNDS = 3_000


@dataclass(frozen=True)
class TreeConfig:
    """Settings of one task's model."""

    leaves: int = 15
    feature_fraction: float = 0.15
    l2: float = 20.0
    learning_rate: float = 0.03
    rows_per_leaf: int = 100
    bagging: float = 0.8
    bins: int = 127


DENSE_TASK, RARE_TASK = TreeConfig(), TreeConfig(leaves=11, feature_fraction=0.3, l2=5.0)


@dataclass(frozen=True)
class Trees:
    """A fitted model of one task: LightGBM's booster, the names of its columns and its number of rounds."""

    booster: Any
    names: tuple[str, ...]
    rounds: int

    def predict(self, table: AggregateTable) -> np.ndarray:
        """Probabilities float64 [n] of rows with the columns of the fit. InputError for other columns."""
        if table.names != self.names:
            raise InputError("the trees were fitted on other columns; build the table as for the fit")
        return self.booster.predict(table.values, num_iteration=self.rounds)


def tree_inputs(log: InteractionLog, rows: np.ndarray, *tables: AggregateTable) -> AggregateTable:
    """Aggregates (and further tables) of these rows of the log beside their static columns: profile, ad, context,
    surface and clock, raw. Ids are left out."""
    hours = (log.event_ms[rows] + log.schema.utc_offset_ms) // HOUR_MS
    static = {"surface": log.surface[rows], "hour": hours % 24, "weekday": (hours // 24 + 3) % 7}
    for feature in log.schema.features:
        if feature.cardinality <= ID_CODES:
            static[feature.name] = {
                "user": lambda name: log.user_features[name][log.user[rows]],
                "ad": lambda name: log.ad_features[name][log.ad[rows]],
                "context": lambda name: log.context[name][rows],
            }[feature.side](feature.name)
    columns = np.stack(list(static.values()), axis=1).astype(np.float32)
    names = [name for table in tables for name in table.names]
    return AggregateTable(
        (*names, *(f"static.{name}" for name in static)), np.concatenate([*(t.values for t in tables), columns], axis=1)
    )


def choose_rounds(
    fit: AggregateTable, fit_y: np.ndarray, held_out: AggregateTable, held_out_y: np.ndarray, *, seed: int
) -> Trees:
    """Fit one task with early stopping on held-out rows; refit on all days with `refit_rounds` of its rounds."""
    lightgbm = _library()
    data = lightgbm.Dataset(fit.values, fit_y)
    judge = lightgbm.Dataset(held_out.values, held_out_y, reference=data)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    booster = lightgbm.train(_parameters(fit_y, seed), data, MAX_ROUNDS, valid_sets=[judge], callbacks=[stop])
    return Trees(booster, fit.names, booster.best_iteration)


def fit_trees(table: AggregateTable, y: np.ndarray, *, rounds: int, seed: int) -> Trees:
    """Fit one task for a given number of rounds. y holds 0 and 1 only: leave out rows without a label."""
    lightgbm = _library()
    booster = lightgbm.train(_parameters(y, seed), lightgbm.Dataset(table.values, y), rounds)
    return Trees(booster, table.names, rounds)


def refit_rounds(chosen: int) -> int:
    """Rounds for a fit that has the validation day too."""
    return math.ceil(chosen * MORE_ROUNDS)


def _parameters(y: np.ndarray, seed: int) -> dict[str, Any]:
    if not len(y) or not np.isin(y, (0, 1)).all():
        raise InputError("trees learn from labels 0 and 1; leave out rows on which the task is not defined")
    config = RARE_TASK if np.mean(y) < RARE else DENSE_TASK
    return {
        "objective": "binary",
        "learning_rate": config.learning_rate,
        "num_leaves": config.leaves,
        "min_data_in_leaf": config.rows_per_leaf,
        "feature_fraction": config.feature_fraction,
        "bagging_fraction": config.bagging,
        "bagging_freq": 1,
        "lambda_l2": config.l2,
        "max_bin": config.bins,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": seed,
        "verbose": -1,
    }


def _library() -> Any:
    try:
        import lightgbm
    except ImportError:
        raise InputError("LightGBM is not installed; pip install 'gem-ads[experiments]'") from None
    return lightgbm
