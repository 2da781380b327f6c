"""InterFormer: summaries first, both arches read them, CLS tokens once, the head reads summaries alone."""

import pytest
import torch
from torch import Tensor

from foundation.baselines.configs import InterFormerConfig
from foundation.baselines.interformer import InterFormerLayer

CONFIG = InterFormerConfig(
    dim=8, heads=2, summary_tokens=3, pma_tokens=2, recent_tokens=2, dot_rank=2, cross_rank=3, interaction_hidden=8
)
SET, CLS, EVENTS = 5, CONFIG.summary_tokens, 6


@pytest.fixture
def layer() -> InterFormerLayer:
    return InterFormerLayer(CONFIG, set_tokens=SET)


@pytest.fixture
def tokens() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, CLS + EVENTS, 8), torch.randn(2, SET, 8), torch.ones(2, CLS + EVENTS, dtype=torch.bool)


def test_summaries_come_first_and_both_arches_read_those_of_their_own_layer(
    layer: InterFormerLayer, tokens: tuple[Tensor, Tensor, Tensor]
) -> None:
    s, x, mask = tokens
    called = []
    names = ("set_summary", "sequence_summary", "interaction", "sequence")
    for name in names:
        getattr(layer, name).register_forward_hook(lambda *_, name=name: called.append(name))
    s_next, x_next = layer(s, x, mask)
    assert set(called[:2]) == {"set_summary", "sequence_summary"}
    assert set(called[2:]) == {"interaction", "sequence"}
    x_sum, s_sum = layer.set_summary(x), layer.sequence_summary(s, mask)  # of the layer's inputs, not its outputs
    torch.testing.assert_close(x_next, layer.interaction(x, s_sum))
    torch.testing.assert_close(s_next, layer.sequence(s, x_sum, mask))


def test_neither_arch_reads_the_other(layer: InterFormerLayer, tokens: tuple[Tensor, Tensor, Tensor]) -> None:
    s_next, x_next = layer(*tokens)
    with torch.no_grad():
        for parameter in layer.sequence.parameters():
            parameter.add_(1.0)
    s_changed, x_same = layer(*tokens)
    torch.testing.assert_close(x_same, x_next)
    assert not torch.allclose(s_changed, s_next)
    with torch.no_grad():
        for parameter in layer.interaction.parameters():
            parameter.add_(1.0)
    s_same, x_changed = layer(*tokens)
    torch.testing.assert_close(s_same, s_changed)
    assert not torch.allclose(x_changed, x_next)


def test_set_and_sequence_learn_from_each_other(layer: InterFormerLayer, tokens: tuple[Tensor, Tensor, Tensor]) -> None:
    s, x, mask = tokens
    s_next, x_next = layer(s, x, mask)
    assert not torch.allclose(layer(s, x + torch.randn_like(x), mask)[0], s_next)
    assert not torch.allclose(layer(s + torch.randn_like(s), x, mask)[1], x_next)
