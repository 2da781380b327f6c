"""A checkpoint that was trained on aggregates gives them to its model again, scaled by what it was trained on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from events.log import InteractionLog
from events.splits import Calendar
from foundation import recipes
from foundation.checkpoint import read_info
from foundation.inputs import fitted_quantiles, source_of
from foundation.log_tensors import LogTensors
from foundation.teacher import Teacher
from foundation.train import main as train


def test_batches_carry_scaled_aggregates(tiny_log: InteractionLog, tiny_calendar: Calendar) -> None:
    tensors, rows = LogTensors(tiny_log), tiny_calendar.rows(tiny_log, "teacher")
    quantiles = fitted_quantiles(tensors, rows)
    source = source_of(tensors, rows, history_length=4, quantiles=quantiles)
    aggregates = source.batch(torch.arange(50)).aggregates_BA
    assert aggregates.shape == (50, quantiles.width)
    assert aggregates.abs().max() <= 1
    without = source_of(tensors, rows, history_length=4, quantiles=None)
    assert without.batch(torch.arange(50)).aggregates_BA.shape == (50, 0)


def test_a_checkpoint_trained_on_aggregates_reads_them_and_continues(
    tiny_log_dir: Path,
    tiny_log: InteractionLog,
    tmp_path: Path,
    later_rows: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = recipes.tiny()
    with_aggregates = replace(tiny, train=replace(tiny.train, aggregates=True))
    monkeypatch.setattr("foundation.train.recipe", lambda name: with_aggregates)
    train(tiny_log_dir, tmp_path / "gem", recipe_name="tiny")
    info = read_info(tmp_path / "gem")
    assert info.quantiles is not None
    assert info.recipe.model.aggregates > 0
    assert np.isfinite(Teacher.load(tmp_path / "gem").represent(tiny_log, later_rows[:50]).soft).all()
    train(tiny_log_dir, tmp_path / "next", period="student", parent=tmp_path / "gem")
    assert read_info(tmp_path / "next").quantiles == info.quantiles
