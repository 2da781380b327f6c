"""Training: it learns, in time order, reproducibly, and stops when the loss is not finite."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from contracts.errors import GemError
from events.log import InteractionLog
from events.splits import Calendar
from foundation.batch import BatchSource
from foundation.gem import Gem
from foundation.log_tensors import LogTensors
from foundation.recipes import tiny
from foundation.targets import Targets
from foundation.trainer import Trainer, compiled


@pytest.fixture
def rows(tiny_log: InteractionLog, tiny_calendar: Calendar) -> np.ndarray:
    return tiny_calendar.rows(tiny_log, "teacher")


def trainer(
    log: InteractionLog, rows: np.ndarray, *, seed: int = 0, continued: bool = False, **switches: Any
) -> Trainer:
    recipe = tiny()
    recipe = replace(recipe, train=replace(recipe.train, **switches))
    tensors = LogTensors(log)
    source = BatchSource(tensors, rows, history_length=recipe.model.history_length)
    targets = Targets.of(tensors, rows, as_of_ms=int(log.event_ms[rows].max()) + 1)
    torch.manual_seed(seed)
    return Trainer(Gem(tensors.layout, recipe.model), recipe.train, source, targets, seed=seed, continued=continued)


def weights(run: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.state()[0].items()}


def test_the_loss_falls(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    run = trainer(tiny_log, rows)
    losses = [run.step(step) for step in range(run.steps)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_batches_cover_all_rows_once(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    run, size = trainer(tiny_log, rows), tiny().train.batch_rows
    assert (run.steps - 1) * size < len(rows) <= run.steps * size
    assert (np.diff(tiny_log.event_ms[rows]) >= 0).all()


def test_the_same_seed_gives_the_same_weights(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    runs = [trainer(tiny_log, rows, seed=seed) for seed in (1, 1, 2)]
    for run in runs:
        for step in range(3):
            run.step(step)
    one, same, other = (weights(run) for run in runs)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"mixing_temperature": 2.0, "mixing_window": 512, "bucketing_batches": 4},
        {"table_optimizer": "rowwise_adagrad", "schedule": "cosine", "precision": "bf16", "gradient_norm": 0.0},
    ],
    ids=["default", "mixing and bucketing", "all other switches"],
)
def test_a_restored_run_takes_the_steps_of_an_uninterrupted_one(
    tiny_log: InteractionLog, rows: np.ndarray, switches: dict[str, Any]
) -> None:
    whole = trainer(tiny_log, rows, **switches)
    for step in range(3):
        whole.step(step)
    weights_now, moments = whole.state()
    kept = {name: value.clone() for name, value in weights_now.items()}, {n: v.clone() for n, v in moments.items()}
    resumed = trainer(tiny_log, rows, **switches)
    torch.rand(10)  # whatever the process did in between
    resumed.load(*kept)
    for step in (3, 4):
        assert whole.step(step) == resumed.step(step)
    one, other = weights(whole), weights(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "switches",
    [
        {"schedule": "cosine"},
        {"table_optimizer": "rowwise_adagrad", "table_rate": 0.05},
        {"precision": "bf16"},
        {"mixing_temperature": 3.0},
        {"mixing_temperature": 3.0, "mixing_cells": "positives"},
        {"bucketing_batches": 8},
        {"gradient_norm": 0.1},
        {"gradient_norm": 0.0},
    ],
    ids=str,
)
def test_every_switch_trains(tiny_log: InteractionLog, rows: np.ndarray, switches: dict[str, Any]) -> None:
    run = trainer(tiny_log, rows, **switches)
    before = weights(run)
    losses = [run.step(step) for step in range(12)]
    assert np.isfinite(losses).all()
    after = weights(run)
    for name, parameter in run.model.named_parameters():
        assert parameter.isfinite().all(), name
        assert torch.ne(before[name], after[name]).any(), name


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's compiler, of itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # and at a break
def test_a_compiled_model_has_the_same_gradients_those_of_sparse_tables_too() -> None:
    # "aot_eager" has all graphs captured, backward ones too, and no code generated: GEM itself would take minutes
    plain = nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
    fast = copy.deepcopy(plain)
    forward = compiled(fast, backend="aot_eager")
    for rows in (6, 7):
        codes = torch.randint(0, 50, (rows, 2))
        torch.testing.assert_close(forward(codes), plain(codes))
        plain(codes).square().sum().backward()
        forward(codes).square().sum().backward()
    for mine, other in zip(fast.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert mine.grad.is_sparse == other.grad.is_sparse
        torch.testing.assert_close(mine.grad.to_dense(), other.grad.to_dense())


def test_mixing_and_bucketing_keep_steps_examples_and_time_order(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    plain = trainer(tiny_log, rows)
    run = trainer(tiny_log, rows, mixing_temperature=3.0, mixing_window=256, bucketing_batches=4)
    assert run.mixing is not None
    assert run.steps == plain.steps
    for step in range(run.steps):
        assert len(run.positions(step)) == len(plain.positions(step))
        moved = run.positions(step) - plain.positions(step)
        assert moved.abs().max() < 256 + 4 * tiny().train.batch_rows


def test_bucketing_says_what_it_saves(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    assert trainer(tiny_log, rows).padding is None
    padding = trainer(tiny_log, rows, bucketing_batches=8).padding
    assert padding is not None
    assert 0 <= padding.bucketed < padding.in_time_order < 1


def test_a_continued_run_takes_smaller_steps(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    moved = []
    for continued in (False, True):
        run = trainer(tiny_log, rows, continued=continued)
        before = weights(run)
        run.step(0)
        moved.append((weights(run)["pair_logits.weight"] - before["pair_logits.weight"]).norm().item())
    assert moved[1] == pytest.approx(tiny().train.continued_rate * moved[0], rel=1e-3)


def test_the_running_figures_are_those_of_the_newest_steps(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    run = trainer(tiny_log, rows)
    losses = [run.step(step) for step in range(6)]
    assert run.running.loss() == pytest.approx(np.mean(losses), rel=1e-5)
    assert len(run.running.ne()) == 3
    assert 0.5 < run.running.ne()[0] < 2


def test_the_flops_of_an_example_are_counted(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    run = trainer(tiny_log, rows)
    assert 1e4 < run.forward_flops() < 1e7
    alone = trainer(tiny_log, rows)
    assert run.step(0) == alone.step(0)  # counting leaves no trace


def test_a_loss_that_is_not_finite_stops_before_the_step(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    broken = {name: values.astype(np.float32) for name, values in tiny_log.user_features.items()}
    floats = tiny_log.schema.select("user", "float", teacher=True)
    broken[floats[0].name] = np.full(len(tiny_log.user_ids), np.nan, dtype=np.float32)
    run = trainer(replace(tiny_log, user_features={**tiny_log.user_features, **broken}), rows)
    before = weights(run)
    with pytest.raises(GemError, match="loss of step 1 is not finite") as caught:
        run.step(0)
    assert caught.value.exit_code == 1
    assert all(torch.equal(before[name], run.state()[0][name]) for name in before)
