"""HSTU attention equals its formula, stays within its reach, and never reads padding."""

import pytest
import torch
from torch.nn import functional

from foundation.attention import Reach
from foundation.hstu import HstuAttention
from foundation.rote import TimeEncoding, rotary_table, rotate

FULL, WINDOW, BLOCK = Reach("full", 3, 4), Reach("window", 3, 4), Reach("block", 3, 4)


def attention(reach: Reach, *, rotary: bool = True) -> HstuAttention:
    return HstuAttention(dim=8, heads=2, reach=reach, time=TimeEncoding(rotary=rotary), max_length=50)


def inputs(lengths: tuple[int, ...] = (11, 4)) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    tokens = max(lengths)
    mask = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), tokens, 8), mask, rotary_table(torch.rand(len(lengths), tokens), 4)


@pytest.mark.parametrize("reach", [FULL, WINDOW, BLOCK])
@pytest.mark.parametrize("rotary", [True, False])
def test_by_its_formula(reach: Reach, rotary: bool) -> None:
    module, (p, mask, table) = attention(reach, rotary=rotary), inputs()
    projected = functional.silu(module.uvqk(functional.layer_norm(p, (8,))))
    u, v, q, k = (part.unflatten(2, (2, 4)) for part in projected.chunk(4, dim=2))
    if rotary:
        q, k = rotate(q, *table), rotate(k, *table)
    weights = functional.silu(torch.einsum("bthd,bfhd->bhtf", q, k) / 2) / 50
    weights = weights * reach.visible(11) * mask[:, None, None, :]
    seen = functional.layer_norm(torch.einsum("bhtf,bfhd->bthd", weights, v).flatten(2), (8,))
    expected = p + module.out(seen * u.flatten(2))
    torch.testing.assert_close(module(p, mask, table)[mask], expected[mask])


@pytest.mark.parametrize("reach", [FULL, WINDOW, BLOCK])
def test_padding_changes_nothing(reach: Reach) -> None:
    module, (p, mask, table) = attention(reach), inputs()
    changed = torch.where(mask[..., None], p, 5.0)
    torch.testing.assert_close(module(changed, mask, table)[mask], module(p, mask, table)[mask])
    alone = module(p[1:, :4], mask[1:, :4], tuple(part[1:, :4] for part in table))
    torch.testing.assert_close(alone[0], module(p, mask, table)[1, :4])


@pytest.mark.parametrize("reach", [FULL, WINDOW, BLOCK])
def test_it_learns(reach: Reach) -> None:
    module, (p, mask, table) = attention(reach), inputs()
    target, losses = torch.randn_like(p), []
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        loss = functional.mse_loss(module(p, mask, table)[mask], target[mask])
        loss.backward()
        assert all(weight.grad is not None and weight.grad.any() for weight in module.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
