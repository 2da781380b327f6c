"""Predictions come in the source's order, whatever the batches, and leave the model as it was."""

import numpy as np
import pytest
import torch

from events.log import InteractionLog
from foundation.batch import BatchSource
from foundation.gem import Gem
from foundation.log_tensors import LogTensors
from foundation.predict import outputs, predict
from foundation.recipes import tiny


@pytest.fixture
def source(tiny_log: InteractionLog, later_rows: np.ndarray) -> BatchSource:
    return BatchSource(LogTensors(tiny_log), later_rows[:300], history_length=tiny().model.history_length)


@pytest.fixture
def model(tiny_log: InteractionLog) -> Gem:
    return Gem(LogTensors(tiny_log).layout, tiny().model)


def test_order_does_not_depend_on_batches(model: Gem, source: BatchSource) -> None:
    p = predict(model, source)
    assert p.shape == (300, 3)
    assert p.dtype == np.float32
    np.testing.assert_allclose(predict(model, source, rows_per_batch=7), p, atol=1e-5)
    with torch.no_grad():
        one = torch.sigmoid(model.eval()(source.batch(torch.tensor([123]))).logits_BK)
    np.testing.assert_allclose(one[0].numpy(), p[123], atol=1e-5)


def test_every_row_comes_once(model: Gem, source: BatchSource) -> None:
    positions = torch.cat([positions for positions, _ in outputs(model, source, rows_per_batch=64)])
    assert sorted(positions.tolist()) == list(range(300))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_s_mode_is_kept(model: Gem, source: BatchSource, training: bool) -> None:
    model.train(training)
    predict(model, source)
    assert model.training == training


def test_no_rows_give_no_predictions(model: Gem, tiny_log: InteractionLog) -> None:
    nothing = BatchSource(LogTensors(tiny_log), np.zeros(0, dtype=np.int64), history_length=4)
    assert predict(model, nothing).shape == (0, 3)
