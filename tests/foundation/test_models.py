"""Every model behind one door: shapes, padding, one row, no history, gradients, learning, aggregates."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from contracts.errors import InputError
from events.log import InteractionLog
from foundation.baselines.configs import InterFormerConfig, LibraryConfig, WukongConfig
from foundation.batch import BatchSource, GemBatch
from foundation.gem import Gem
from foundation.layout import InputLayout
from foundation.log_tensors import LogTensors
from foundation.models import ModelConfig, build
from foundation.recipes import tiny
from foundation.rote import TimeEncoding
from tests.events.small_logs import small_log

LENGTH = 16
SMALL = {"dim": 8, "embedding_dim": 4, "history_length": LENGTH, "head_hidden": (16, 8)}
INTERFORMER = InterFormerConfig(
    **SMALL, cross_rank=4, dot_rank=4, interaction_hidden=16, mask_hidden=8, summary_tokens=3
)
WUKONG = WukongConfig(**SMALL, fm_tokens=5, linear_tokens=4, fm_rank=3, fm_hidden=16)
LIBRARY = LibraryConfig(**SMALL, attention_hidden=6, feed_forward=12)
CONFIGS: dict[str, ModelConfig] = {
    "InterFormer": INTERFORMER,
    "InterFormer, printed gate": replace(INTERFORMER, gating="printed"),
    "InterFormer, no gate, no mask, one layer": replace(INTERFORMER, gating="none", mask_hidden=0, layers=1),
    "InterFormer, CLS alone": replace(INTERFORMER, pma_tokens=0, recent_tokens=0),
    "Wukong": WUKONG,
    "Wukong, fixed projection": replace(WUKONG, attentive=False, layers=3),
    "Wukong, no attention on the history": replace(WUKONG, pma_tokens=0, recent_tokens=0),
    "DIN": replace(LIBRARY, name="DIN"),
    "DIEN": replace(LIBRARY, name="DIEN"),
    "BST": replace(LIBRARY, name="BST", blocks=2),
    "DCNv2": replace(LIBRARY, name="DCNv2"),
    "DIN, tower alone": replace(
        LIBRARY, name="DIN", cross_layers=0, first_order=False, time=TimeEncoding(age_log=False)
    ),
}


@pytest.fixture(scope="module")
def tensors(tiny_log: InteractionLog) -> LogTensors:
    return LogTensors(tiny_log)


@pytest.fixture(scope="module")
def source(tensors: LogTensors) -> BatchSource:
    events = np.arange(len(tensors.log))[-400:]
    return BatchSource(tensors, events, history_length=LENGTH)


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return CONFIGS[request.param]


@pytest.fixture
def model(tensors: LogTensors, config: ModelConfig) -> nn.Module:
    return build(tensors.layout, config).eval()


def widened(batch: GemBatch, by: int) -> GemBatch:
    """The batch with more padding behind its sequences, whose content must not count."""
    wide = {}
    for name, value in vars(batch).items():
        if "_BT" in name:
            rows = functional.pad(value, (0,) * (2 * (value.ndim - 2)) + (0, by))
            wide[name] = rows if value.dtype == torch.bool or name == "event_type_BT" else rows + 0 * rows
    return replace(batch, **wide)


def test_a_logit_per_row_and_task(model: nn.Module, source: BatchSource, tensors: LogTensors) -> None:
    output = model(source.batch(torch.arange(9)))
    assert output.logits_BK.shape == (9, len(tensors.layout.schema.tasks))
    assert model.auxiliary_loss(output).item() == 0


def test_rows_are_independent_of_their_batch_and_of_padding(model: nn.Module, source: BatchSource) -> None:
    together = model(source.batch(torch.arange(64))).logits_BK
    lengths = source.length_n[:64]
    assert lengths.min() < lengths.max()
    for position in (int(lengths.argmin()), int(lengths.argmax()), 7):
        alone = model(source.batch(torch.tensor([position]))).logits_BK
        torch.testing.assert_close(alone[0], together[position], atol=1e-5, rtol=1e-5)


def test_more_padding_changes_nothing_in_training_either(model: nn.Module, source: BatchSource) -> None:
    short = source.length_n.argsort()[:32]
    batch = source.batch(short)
    spare = LENGTH + 1 - batch.mask_BT.shape[1]
    assert spare > 0
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.MultiheadAttention):
            module.p = module.dropout = 0.0
    model.train()
    torch.testing.assert_close(model(widened(batch, spare)).logits_BK, model(batch).logits_BK, atol=1e-5, rtol=1e-5)


def test_a_user_without_a_past_gets_an_answer(config: ModelConfig) -> None:
    log = small_log([(0, 1000), (0, 2000), (1, 3000)])
    model = build(InputLayout(log.schema), config).eval()
    source = BatchSource(LogTensors(log), np.array([0, 1, 2]), history_length=LENGTH)
    assert torch.isfinite(model(source.batch(torch.arange(3))).logits_BK).all()
    assert torch.isfinite(model(source.batch(torch.tensor([2]))).logits_BK).all()


@pytest.mark.parametrize("longest", [True, False])
def test_training_works_on_one_row(model: nn.Module, source: BatchSource, longest: bool) -> None:
    position = source.length_n.argmax() if longest else source.length_n.argmin()
    output = model.train()(source.batch(position[None]), user_dropout=0.5, ad_dropout=0.5)
    output.logits_BK.sum().backward()
    gradients = [p.grad.to_dense() for p in model.parameters() if p.grad is not None]
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_every_parameter_learns(model: nn.Module, source: BatchSource) -> None:
    model.train()(source.batch(torch.arange(64))).logits_BK.square().sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.to_dense().any()]
    assert without == []


def test_the_candidate_and_the_history_matter(model: nn.Module, source: BatchSource) -> None:
    batch = source.batch(source.length_n.argsort(descending=True)[:8])
    base = model(batch).logits_BK
    for name in ("set_codes_BC", "event_codes_BTC"):
        changed = replace(batch, **{name: getattr(batch, name).flip(0)})
        assert not torch.allclose(model(changed).logits_BK, base)


def test_a_few_steps_lower_the_loss(model: nn.Module, source: BatchSource) -> None:
    batch = source.batch(torch.arange(64))
    length_B = batch.mask_BT.sum(dim=1)
    label_BK = (length_B > length_B.median())[:, None].float().expand(-1, model(batch).logits_BK.shape[1])
    dense = [p for name, p in model.named_parameters() if not name.endswith("table.weight")]
    optimizer, losses = torch.optim.Adam(dense, lr=3e-3), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(batch).logits_BK, label_BK)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] - 0.02


@pytest.mark.parametrize("config", [INTERFORMER, WUKONG, replace(LIBRARY, name="BST")], ids=["if", "wukong", "bst"])
def test_aggregates_reach_tokens_and_logits(tensors: LogTensors, config: ModelConfig) -> None:
    events = np.arange(len(tensors.log))[-64:]
    values = np.random.default_rng(0).uniform(-1, 1, (64, 6)).astype(np.float32)
    values[0, 2] = np.nan
    source = BatchSource(tensors, events, history_length=LENGTH, aggregates=values)
    batch = source.batch(torch.arange(64))
    model = build(tensors.layout, replace(config, aggregates=batch.aggregates_BA.shape[1]))
    model.train()(batch).logits_BK.square().sum().backward()
    paths = [p.grad for name, p in model.named_parameters() if "aggregate" in name]
    assert len(paths) > 1
    assert all(gradient is not None and gradient.any() for gradient in paths)


def test_gem_comes_through_the_same_door(tensors: LogTensors) -> None:
    assert isinstance(build(tensors.layout, tiny().model), Gem)


def test_an_unknown_configuration_is_refused(tensors: LogTensors) -> None:
    with pytest.raises(InputError, match="no model has a configuration of type str"):
        build(tensors.layout, "DIN")  # type: ignore[arg-type]


def test_dcn_without_any_history_reads_requests_alone(tensors: LogTensors) -> None:
    source = BatchSource(tensors, np.arange(len(tensors.log))[-32:], history_length=0)
    batch = source.batch(torch.arange(32))
    assert batch.mask_BT.shape == (32, 1)
    model = build(tensors.layout, replace(LIBRARY, name="DCNv2", history_length=0))
    model.train()(batch).logits_BK.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
