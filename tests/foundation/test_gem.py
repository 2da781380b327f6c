"""The whole model: padded equals unpadded, one row, no history, gradients everywhere."""

import numpy as np
import pytest
import torch

from events.log import InteractionLog
from foundation.batch import BatchSource
from foundation.gem import Gem
from foundation.layout import InputLayout
from foundation.log_tensors import LogTensors
from foundation.recipes import tiny
from tests.events.small_logs import small_log


@pytest.fixture
def source(tiny_log: InteractionLog, later_rows: np.ndarray) -> BatchSource:
    return BatchSource(LogTensors(tiny_log), later_rows, history_length=tiny().model.history_length)


@pytest.fixture
def model(tiny_log: InteractionLog) -> Gem:
    return Gem(InputLayout(tiny_log.schema), tiny().model).eval()


def test_rows_are_independent_of_their_batch_and_of_padding(model: Gem, source: BatchSource) -> None:
    together = model(source.batch(torch.arange(64)))
    lengths = source.length_n[:64]
    assert lengths.min() < lengths.max()
    for position in (int(lengths.argmin()), int(lengths.argmax()), 7):
        alone = model(source.batch(torch.tensor([position])))
        torch.testing.assert_close(alone.logits_BK[0], together.logits_BK[position], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(alone.activations_BE[0], together.activations_BE[position], atol=1e-5, rtol=1e-5)


def test_a_user_without_a_past_gets_an_answer() -> None:
    log = small_log([(0, 1000), (0, 2000), (1, 3000)])
    model = Gem(InputLayout(log.schema), tiny().model).eval()
    source = BatchSource(LogTensors(log), np.array([0, 1, 2]), history_length=4)
    assert torch.isfinite(model(source.batch(torch.arange(3))).logits_BK).all()
    assert torch.isfinite(model(source.batch(torch.tensor([2]))).logits_BK).all()


def test_training_mode_works_on_one_row(model: Gem, source: BatchSource) -> None:
    output = model.train()(source.batch(torch.tensor([3])), user_dropout=0.5, ad_dropout=0.5)
    (output.logits_BK.sum() + model.compressor.loss(output.activations_BE)).backward()


def test_every_parameter_learns(model: Gem, source: BatchSource) -> None:
    output = model(source.batch(torch.arange(32)))
    (output.logits_BK.square().sum() + model.compressor.loss(output.activations_BE)).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.to_dense().any()]
    assert without == []


def test_the_candidate_and_the_history_matter(model: Gem, source: BatchSource) -> None:
    batch = source.batch(source.length_n.argsort(descending=True)[:8])
    base = model(batch).logits_BK
    for name in ("set_codes_BC", "event_codes_BTC", "age_s_BT"):
        values = getattr(batch, name)
        changed = type(batch)(**{**vars(batch), name: values.flip(0)})
        assert not torch.allclose(model(changed).logits_BK, base)
