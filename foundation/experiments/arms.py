"""The models that the quality experiment compares, with one or two sets of inputs, and the grid that tunes them.

`rows`: labelled rows and their histories alone. `all`: beside them earlier untimed events as first training rows, and
strictly past aggregates, read by an expert of their own (`foundation/aggregate_expert.py`).
"""

from dataclasses import replace
from typing import Any, Literal, get_args

from foundation.baselines.configs import InterFormerConfig, LibraryConfig, WukongConfig
from foundation.experiments.bench import Arm
from foundation.experiments.tree_job import TreesArm
from foundation.recipes import quality

GRID = ((64, 1e-3), (64, 2e-3))
"""(rows a step, rate) tried on the validation day for every neural model: the settings among which the tuned models of
an independent harness on this split lie."""
Model = Literal["GEM", "InterFormer", "Wukong", "DIN", "DIEN", "BST", "DCNv2"]
NEURAL: tuple[Model, ...] = get_args(Model)
LARGE_BATCH = (256, 3e-3)
"""The setting of MovieLens-1M for every model, untuned."""


def neural_arm(model: Model, inputs: str, *, aggregates: int, batch_rows: int, rate: float) -> Arm:
    """One model with one set of inputs at one point of the grid. `aggregates` is the number of their columns."""
    chosen = quality()
    train = replace(
        chosen.train,
        batch_rows=batch_rows,
        dense_rate=rate,
        table_rate=rate,
        untimed_per_user=chosen.train.untimed_per_user if inputs == "all" else 0,
    )
    config = _config(model)
    if inputs == "all":
        config = replace(config, aggregates=aggregates, aggregate_path="expert")
    return Arm(f"{model} {inputs}", config, train)


def tree_arm(*, history_scores: bool = False) -> Arm:
    """LightGBM on aggregates; with the scores of a history GRU beside them it is the strongest single model that the
    reference figures have (docs/kuairand_reference.md)."""
    name = "LightGBM aggregates + history GRU" if history_scores else "LightGBM aggregates"
    return Arm(name, TreesArm(history_scores=history_scores), None)


def _config(model: Model) -> Any:
    if model == "GEM":
        return quality().model
    if model == "InterFormer":
        return InterFormerConfig()
    if model == "Wukong":
        return WukongConfig()
    return LibraryConfig(name=model)
