"""Wukong: factorisation machine beside linear compression, projected residual, history as pooled tokens."""

from dataclasses import replace

import pytest
import torch

from foundation.baselines.configs import WukongConfig
from foundation.baselines.wukong import PooledHistory, WukongLayer

CONFIG = WukongConfig(dim=4, fm_tokens=2, linear_tokens=3, fm_rank=2, fm_hidden=8, pma_tokens=2, recent_tokens=1)


@pytest.mark.parametrize("attentive", [True, False])
@pytest.mark.parametrize("tokens", [5, 7])
def test_a_layer_is_fm_and_linear_compression_with_a_residual(attentive: bool, tokens: int) -> None:
    layer, x = WukongLayer(replace(CONFIG, attentive=attentive), tokens=tokens), torch.randn(2, tokens, 4)
    y = layer.project.expand(2, -1, -1)
    if layer.attend is not None:
        y = y + layer.attend(x.mean(dim=2)).unflatten(1, (tokens, 2))
    products = torch.einsum("bid,bjd,bjr->bir", x, x, y)
    fm = layer.mlp(layer.norm_fm(products.flatten(1))).unflatten(1, (2, 4))
    linear = torch.einsum("lj,bjd->bld", layer.compress.weight, x)
    residual = x if layer.residual is None else torch.einsum("ij,bjd->bid", layer.residual.weight, x)
    assert (layer.residual is None) == (tokens == 5)
    torch.testing.assert_close(layer(x), layer.norm(torch.cat([fm, linear], dim=1) + residual))


def test_the_history_is_its_mean_its_newest_events_and_learned_poolings() -> None:
    history, s = PooledHistory(CONFIG), torch.randn(2, 4, 4)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    tokens = history(s, mask)
    assert tokens.shape == (2, history.tokens, 4)
    torch.testing.assert_close(tokens[0, 0], s[0, 1:3].mean(dim=0))
    torch.testing.assert_close(tokens[:, 1], s[:, 0])  # the request's own impression
    torch.testing.assert_close(tokens[0, 2], s[0, 1])
    assert not tokens[1, 0].any()
    assert not tokens[1, 2].any()
    torch.testing.assert_close(history(torch.where(mask[..., None], s, 7.0), mask), tokens)
