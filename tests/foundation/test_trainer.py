"""Training: it learns, in time order, reproducibly, and stops when the loss is not finite."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from contracts.errors import GemError
from events.log import InteractionLog
from events.splits import Calendar
from foundation.batch import BatchSource
from foundation.gem import Gem
from foundation.log_tensors import LogTensors
from foundation.recipes import tiny
from foundation.targets import Targets
from foundation.trainer import Trainer


@pytest.fixture
def rows(tiny_log: InteractionLog, tiny_calendar: Calendar) -> np.ndarray:
    return tiny_calendar.rows(tiny_log, "teacher")


def trainer(log: InteractionLog, rows: np.ndarray, *, seed: int = 0, continued: bool = False) -> Trainer:
    recipe = tiny()
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


def test_a_restored_run_takes_the_steps_of_an_uninterrupted_one(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    whole = trainer(tiny_log, rows)
    for step in range(3):
        whole.step(step)
    weights_now, moments = whole.state()
    kept = {name: value.clone() for name, value in weights_now.items()}, {n: v.clone() for n, v in moments.items()}
    resumed = trainer(tiny_log, rows)
    torch.rand(10)  # whatever the process did in between
    resumed.load(*kept)
    for step in (3, 4):
        assert whole.step(step) == resumed.step(step)
    one, other = weights(whole), weights(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_continued_run_takes_smaller_steps(tiny_log: InteractionLog, rows: np.ndarray) -> None:
    moved = []
    for continued in (False, True):
        run = trainer(tiny_log, rows, continued=continued)
        before = weights(run)
        run.step(0)
        moved.append((weights(run)["pair_logits.weight"] - before["pair_logits.weight"]).norm().item())
    assert moved[1] == pytest.approx(tiny().train.continued_rate * moved[0], rel=1e-3)


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
