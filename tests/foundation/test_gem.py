"""The whole model under each of its switches: padded equals unpadded, one row, no history, gradients everywhere."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from events.log import InteractionLog
from foundation.batch import BatchSource, GemBatch
from foundation.config import GemConfig, Tower
from foundation.gem import Gem
from foundation.layout import InputLayout
from foundation.log_tensors import LogTensors
from foundation.presets import tiny_model
from foundation.rote import TimeEncoding
from tests.events.small_logs import small_log
from tests.foundation.fake_batches import fake_batch

CONFIG = tiny_model()
NO_TIME = TimeEncoding(rotary=False, age_log=False, position=False)
EVERY_TIME = TimeEncoding(rotary_values=True, age_even=True, gap_log=True)
CLICKS = Tower(types=("click", "conversion", "install"), dim=16, heads=2, layers=3, pooled_tokens=4, window=4, length=8)
IMPRESSIONS = Tower(types=("impression",), dim=8, heads=1, layers=1, pooled_tokens=2, window=2, length=6)
DEEPER = replace(CONFIG, layers=3)
SWITCHES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "full attention": {"attention": "full"},
    "block attention": {"attention": "block", "block": 4},
    "hstu": {"mixer": "hstu"},
    "hstu in blocks": {"mixer": "hstu", "attention": "block", "block": 4},
    "plain ffn": {"pffn": "plain"},
    "no ffn": {"pffn": "none"},
    "pma": {"pooling": "pma"},
    "linear compression": {"compression": "linear"},
    "compskip": {"compskip": True},
    "compskip over the input": {"compskip": True, "hsp_input": "seq_in"},
    "hsp over the input": {"hsp_input": "seq_in"},
    "x_sum": {"global_input": "x_sum"},
    "tau by the head": {"tau": "sqrt_d"},
    "tau learned": {"tau": "learned"},
    "gdpa projections": {"gdpa_projections": True},
    "no hsp values": {"hsp_values": False},
    "attentive fm": {"attentive_fm": True},
    "partition": {"expert_view": "partition"},
    "partition of x_sum": {"expert_view": "partition", "global_input": "x_sum"},
    "activation per head": {"activations": ("gelu", "silu")},
    "no time": {"time": NO_TIME},
    "every time": {"time": EVERY_TIME},
    "no shallow paths": {"pair_products": False, "first_order": False},
    "domain experts": {"domain_experts": 4},
    "aggregates": {"aggregates": 10},
    "one layer": {"layers": 1},
    "towers": {"personalisation": (replace(CLICKS, heads=1), IMPRESSIONS)},
    "towers and compskip": {"personalisation": (CLICKS, replace(IMPRESSIONS, heads=2)), "compskip": True},
    "towers in blocks": {"personalisation": (CLICKS, replace(CLICKS, types=(0,))), "attention": "block", "block": 4},
    "everything": {
        "attention": "block",
        "block": 4,
        "compskip": True,
        "personalisation": (CLICKS, replace(IMPRESSIONS, heads=2)),
        "attentive_fm": True,
        "time": EVERY_TIME,
        "activations": ("gelu", "silu"),
        "domain_experts": 4,
        "aggregates": 10,
    },
}


@pytest.fixture
def layout(tiny_log: InteractionLog) -> InputLayout:
    return InputLayout(tiny_log.schema)


@pytest.fixture
def source(tiny_log: InteractionLog, later_rows: np.ndarray) -> BatchSource:
    return BatchSource(LogTensors(tiny_log), later_rows, history_length=CONFIG.history_length)


@pytest.fixture
def model(layout: InputLayout) -> Gem:
    return Gem(layout, CONFIG).eval()


def switched(name: str) -> GemConfig:
    return replace(DEEPER, **SWITCHES[name])


def first_rows(batch: GemBatch, rows: int, tokens: int) -> GemBatch:
    """The first rows, cut to that many tokens of the sequence."""
    return GemBatch(
        **{
            name: values[:rows, :tokens] if name in ("mask_BT", "timed_BT") or "_BT" in name else values[:rows]
            for name, values in vars(batch).items()
        }
    )


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_trains_every_parameter(layout: InputLayout, name: str) -> None:
    model, batch = Gem(layout, switched(name)), fake_batch(layout, [16] * 24, aggregates=model_aggregates(name))
    target = (torch.rand(24, len(layout.schema.tasks)) < 0.5).float()
    losses, touched = [], dict.fromkeys((key for key, _ in model.named_parameters()), False)
    for _ in range(4):
        model.zero_grad()
        output = model(batch)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output.logits_BK, target)
        (loss + model.auxiliary_loss(output)).backward()
        losses.append(loss.item())
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if parameter.grad is not None:
                    grad = parameter.grad.to_dense()
                    assert torch.isfinite(grad).all(), key
                    touched[key] |= bool(grad.any())
                    parameter.sub_(0.03 * grad)
    assert [key for key, seen in touched.items() if not seen] == []
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", SWITCHES)
def test_rows_are_independent_of_their_batch_and_of_padding(layout: InputLayout, name: str) -> None:
    model = Gem(layout, switched(name)).eval()
    lengths = [0, 3, 9, 16]
    batch = fake_batch(layout, lengths, aggregates=model_aggregates(name))
    whole = model(batch)
    assert torch.isfinite(whole.logits_BK).all()
    for rows in (1, 2, 3):
        cut = model(first_rows(batch, rows, lengths[rows - 1] + 1))
        torch.testing.assert_close(cut.logits_BK, whole.logits_BK[:rows], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(cut.activations_BE, whole.activations_BE[:rows], atol=1e-5, rtol=1e-5)


def model_aggregates(name: str) -> int:
    return switched(name).aggregates


def test_rows_of_a_log_are_independent_of_their_batch(model: Gem, source: BatchSource) -> None:
    together = model(source.batch(torch.arange(64)))
    lengths = source.length_n[:64]
    assert lengths.min() < lengths.max()
    for position in (int(lengths.argmin()), int(lengths.argmax()), 7):
        alone = model(source.batch(torch.tensor([position])))
        torch.testing.assert_close(alone.logits_BK[0], together.logits_BK[position], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(alone.activations_BE[0], together.activations_BE[position], atol=1e-5, rtol=1e-5)


def test_a_user_without_a_past_gets_an_answer() -> None:
    log = small_log([(0, 1000), (0, 2000), (1, 3000)])
    model = Gem(InputLayout(log.schema), CONFIG).eval()
    source = BatchSource(LogTensors(log), np.array([0, 1, 2]), history_length=4)
    assert torch.isfinite(model(source.batch(torch.arange(3))).logits_BK).all()
    assert torch.isfinite(model(source.batch(torch.tensor([2]))).logits_BK).all()


def test_training_mode_works_on_one_row(model: Gem, source: BatchSource) -> None:
    output = model.train()(source.batch(torch.tensor([3])), user_dropout=0.5, ad_dropout=0.5)
    (output.logits_BK.sum() + model.auxiliary_loss(output)).backward()


def test_the_candidate_and_the_history_matter(model: Gem, source: BatchSource) -> None:
    batch = source.batch(source.length_n.argsort(descending=True)[:8])
    base = model(batch).logits_BK
    for name in ("set_codes_BC", "event_codes_BTC", "age_s_BT"):
        values = getattr(batch, name)
        changed = replace(batch, **{name: values.flip(0)})
        assert not torch.allclose(model(changed).logits_BK, base)


def test_an_event_of_no_tower_is_not_read(layout: InputLayout) -> None:
    model, batch = Gem(layout, replace(CONFIG, personalisation=(replace(CLICKS, layers=2),))), fake_batch(layout, [9])
    codes, types = batch.event_codes_BTC.clone(), batch.event_type_BT.clone()
    types[:, 3:6] = 0
    codes[:, 3:6] = codes[:, 6:9]
    model.eval()
    before = model(replace(batch, event_type_BT=types)).logits_BK
    torch.testing.assert_close(model(replace(batch, event_type_BT=types, event_codes_BTC=codes)).logits_BK, before)


@pytest.mark.parametrize("attention", ["window", "block"])
def test_a_history_of_2048_events(layout: InputLayout, attention: str) -> None:
    config = replace(CONFIG, history_length=2048, attention=attention, compskip=True, layers=3)  # type: ignore[arg-type]
    model, batch = Gem(layout, config), fake_batch(layout, [2048, 700])
    output = model(batch)
    output.logits_BK.square().sum().backward()
    assert torch.isfinite(output.logits_BK).all()
    assert all(torch.isfinite(p.grad.to_dense()).all() for p in model.parameters() if p.grad is not None)
