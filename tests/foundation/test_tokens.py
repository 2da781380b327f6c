"""Tokens: one per column and one for the floats; time and rank in the sequence; ids that are forgotten in training."""

import numpy as np
import pytest
import torch

from events.log import InteractionLog
from foundation.batch import BatchSource, GemBatch
from foundation.layout import InputLayout
from foundation.log_tensors import LogTensors
from foundation.recipes import tiny
from foundation.tokens import AGE_BUCKETS, Tokens, age_bucket


@pytest.fixture
def batch(tiny_log: InteractionLog, later_rows: np.ndarray) -> GemBatch:
    return BatchSource(LogTensors(tiny_log), later_rows, history_length=8).batch(torch.arange(400))


@pytest.fixture
def layout(tiny_log: InteractionLog) -> InputLayout:
    return InputLayout(tiny_log.schema)


def test_shapes(batch: GemBatch, layout: InputLayout) -> None:
    config = tiny().model
    tokens = Tokens(layout, config)
    s, x = tokens(batch)
    assert s.shape == (*batch.mask_BT.shape, config.dim)
    assert x.shape == (400, len(layout.columns) + 1, config.dim)
    assert tokens.tokens == x.shape[1]


def test_age_buckets() -> None:
    ages = torch.tensor([0.0, 0.1, 1.0, 60.0, 3600.0, 86_400.0, 1e12, 5.0])
    timed = torch.tensor([True] * 7 + [False])
    assert age_bucket(ages, timed).tolist() == [1, 1, 2, 9, 17, 23, AGE_BUCKETS - 1, 0]


def test_the_table_gets_sparse_gradients(batch: GemBatch, layout: InputLayout) -> None:
    tokens = Tokens(layout, tiny().model)
    s, x = tokens(batch)
    (s.sum() + x.sum()).backward()
    assert tokens.table.weight.grad is not None
    assert tokens.table.weight.grad.is_sparse


def test_forgotten_ids_read_as_unknown(batch: GemBatch, layout: InputLayout) -> None:
    tokens, ad_column = Tokens(layout, tiny().model), layout.user_columns
    forgotten = tokens.forget_ids(batch, user_share=1.0, ad_share=1.0)
    assert (forgotten.set_codes_BC[:, 0] == layout.column("user_id").offset).all()
    assert (forgotten.set_codes_BC[:, ad_column] == layout.column("ad_id").offset).all()
    assert (forgotten.event_codes_BTC[:, 0, 0] == layout.column("ad_id").offset).all()
    assert torch.equal(forgotten.event_codes_BTC[:, 1:], batch.event_codes_BTC[:, 1:])
    kept = [c for c in range(len(layout.columns)) if c not in (0, ad_column)]
    assert torch.equal(forgotten.set_codes_BC[:, kept], batch.set_codes_BC[:, kept])


def test_shares_are_shares_and_the_batch_is_not_touched(batch: GemBatch, layout: InputLayout) -> None:
    before = batch.set_codes_BC.clone()
    forgotten = Tokens(layout, tiny().model).forget_ids(batch, user_share=0.3, ad_share=0.0)
    share = (forgotten.set_codes_BC[:, 0] == layout.column("user_id").offset).float().mean()
    assert 0.2 < share < 0.4
    assert torch.equal(forgotten.set_codes_BC[:, 1:], before[:, 1:])
    assert torch.equal(batch.set_codes_BC, before)
