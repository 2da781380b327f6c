"""Wukong experts: factorisation machine beside linear compression, disjoint slots, Add & Norm."""

import pytest
import torch

from foundation.wukong import GlobalInteraction, WukongExpert


def test_expert_is_fm_and_linear_compression() -> None:
    expert, x = WukongExpert(tokens=5, slots=4, dim=6, rank=3, hidden=8), torch.randn(2, 5, 6)
    dots = torch.einsum("bjd,bkd->bjk", x, x)  # all pairwise products, then their projection: X X^T Y
    interactions = torch.einsum("bjk,rk->bjr", dots, expert.project.weight)
    fm = expert.mlp(expert.norm_fm(interactions.flatten(1))).unflatten(1, (2, 6))
    linear = torch.einsum("lj,bjd->bld", expert.compress.weight, x)
    torch.testing.assert_close(expert(x), torch.cat([fm, linear], dim=1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("experts", [1, 2, 3])
def test_number_of_set_tokens_stays(experts: int) -> None:
    module = GlobalInteraction(tokens=7, pooled=2, dim=6, experts=experts, rank=3, hidden=8)
    assert module(torch.randn(2, 7, 6), torch.randn(2, 2, 6)).shape == (2, 7, 6)


def test_every_expert_sees_all_tokens_and_fills_its_own_slots() -> None:
    module = GlobalInteraction(tokens=6, pooled=2, dim=4, experts=2, rank=3, hidden=8)
    x, h = torch.randn(1, 6, 4), torch.randn(1, 2, 4)
    outputs = [expert(torch.cat([x, h], dim=1)) for expert in module.experts]
    torch.testing.assert_close(module(x, h), module.norm(x + torch.cat(outputs, dim=1)))
    assert [output.shape[1] for output in outputs] == [3, 3]


def test_examples_do_not_see_each_other() -> None:
    module = GlobalInteraction(tokens=6, pooled=2, dim=4, experts=2, rank=3, hidden=8)
    x, h = torch.randn(3, 6, 4), torch.randn(3, 2, 4)
    torch.testing.assert_close(module(x[1:2], h[1:2])[0], module(x, h)[1], atol=1e-6, rtol=1e-5)
