"""Tokens: one per column and one for the floats; time and rank in the sequence; ids that are forgotten in training."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from events.log import InteractionLog
from foundation.batch import BatchSource, GemBatch
from foundation.layout import InputLayout
from foundation.log_tensors import LogTensors
from foundation.recipes import tiny
from foundation.rote import TimeEncoding
from foundation.tokens import AGE_BUCKETS, EVEN_BUCKETS, Tokens, age_bucket, even_bucket


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


NO_TIME = TimeEncoding(rotary=False, age_log=False, position=False)
TABLES = {"age_log": "age", "position": "rank", "age_even": "age_even", "gap_log": "gap"}


def test_even_buckets() -> None:
    ages = torch.tensor([0.0, 21_599.0, 21_600.0, 86_400.0, 1e12, 5.0])
    timed = torch.tensor([True] * 5 + [False])
    assert even_bucket(ages, timed).tolist() == [1, 1, 2, 5, EVEN_BUCKETS - 1, 0]


def test_the_default_has_the_parameters_it_had(layout: InputLayout) -> None:
    """Seeds of recorded runs stand for the same start: these names in this order, drawn in this order."""
    names = [name for name, _ in Tokens(layout, tiny().model).named_parameters()]
    assert names == [
        "column_weight",
        "column_bias",
        "table.weight",
        "floats.weight",
        "floats.bias",
        "event.weight",
        "event.bias",
        "age.weight",
        "rank.weight",
    ]


@pytest.mark.parametrize("switch", TABLES)
def test_each_time_table_is_a_switch(batch: GemBatch, layout: InputLayout, switch: str) -> None:
    config = replace(tiny().model, time=replace(NO_TIME, **{switch: True}))
    on = Tokens(layout, config)
    off = Tokens(layout, replace(config, time=NO_TIME))
    off.load_state_dict(
        {name: value for name, value in on.state_dict().items() if TABLES[switch] not in name.split(".")}
    )
    added = on(batch)[0] - off(batch)[0]
    assert (added != 0).any()
    table = dict(on.named_parameters())[f"{TABLES[switch]}.weight"]
    torch.testing.assert_close(added[0, 0], table[0 if switch == "position" else 1], atol=1e-5, rtol=1e-5)
    added.pow(2).sum().backward()
    assert table.grad is not None
    assert (table.grad != 0).any()


@pytest.mark.parametrize(
    "time",
    [NO_TIME, TimeEncoding(), TimeEncoding(True, True, True, True, True, True)],
    ids=["off", "default", "all"],
)
@pytest.mark.parametrize("aggregates", [0, 6])
def test_every_parameter_trains(
    tiny_log: InteractionLog, layout: InputLayout, time: TimeEncoding, aggregates: int
) -> None:
    rows = np.arange(len(tiny_log) - 256, len(tiny_log))
    values = np.random.default_rng(0).uniform(-1, 1, (256, aggregates // 2)).astype(np.float32)
    values[::5] = np.nan
    source = BatchSource(LogTensors(tiny_log), rows, history_length=8, aggregates=values)
    config = replace(tiny().model, history_length=8, time=time, aggregates=aggregates, aggregate_path="tokens")
    tokens = Tokens(layout, config)
    sparse = torch.optim.SparseAdam([tokens.table.weight], lr=1e-2)
    dense = torch.optim.Adam([p for name, p in tokens.named_parameters() if name != "table.weight"], lr=1e-2)
    losses = []
    for _ in range(4):
        s, x = tokens(source.batch(torch.arange(256)))
        assert x.shape[1] == tokens.tokens == len(layout.columns) + 1 + min(3, aggregates)
        loss = (s - 1).pow(2).mean() + (x + 1).pow(2).mean()
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        for name, parameter in tokens.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.to_dense().any(), name
        with torch.sparse.check_sparse_tensor_invariants(False):
            sparse.step()
        dense.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
