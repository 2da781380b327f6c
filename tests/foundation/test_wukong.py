"""Wukong experts: factorisation machine beside linear compression, disjoint slots, Add & Norm."""

import pytest
import torch

from contracts.errors import InputError
from foundation.config import ExpertView
from foundation.wukong import GlobalInteraction, WukongExpert


def interaction(
    *, tokens: int = 7, experts: int = 2, inputs: int | None = None, attentive: bool = False, view: ExpertView = "full"
) -> GlobalInteraction:
    sizes = {"pooled": 2, "dim": 6, "rank": 3, "hidden": 8}
    return GlobalInteraction(tokens=tokens, experts=experts, inputs=inputs, attentive=attentive, view=view, **sizes)


@pytest.mark.parametrize("attentive", [False, True])
def test_expert_is_fm_and_linear_compression(attentive: bool) -> None:
    expert, x = WukongExpert(tokens=5, slots=4, dim=6, rank=3, hidden=8, attentive=attentive), torch.randn(2, 5, 6)
    if expert.project is not None:
        projection = expert.project.weight.T.expand(2, -1, -1)
    else:
        assert expert.attentive is not None
        projection = expert.attentive(x.transpose(1, 2))
    dots = torch.einsum("bjd,bkd->bjk", x, x)  # all pairwise products, then their projection: X X^T Y
    interactions = torch.einsum("bjk,bkr->bjr", dots, projection)
    fm = expert.mlp(expert.norm_fm(interactions.flatten(1))).unflatten(1, (2, 6))
    linear = torch.einsum("lj,bjd->bld", expert.compress.weight, x)
    torch.testing.assert_close(expert(x), torch.cat([fm, linear], dim=1), atol=1e-5, rtol=1e-5)


def test_an_attentive_projection_differs_between_examples() -> None:
    expert, x = WukongExpert(tokens=5, slots=4, dim=6, rank=3, hidden=8, attentive=True), torch.randn(2, 6, 5)
    assert expert.attentive is not None
    first, second = expert.attentive(x)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(expert.attentive(x[1:])[0], second)


@pytest.mark.parametrize("view", ["full", "partition"])
@pytest.mark.parametrize("inputs", [None, 4])
@pytest.mark.parametrize("experts", [1, 2, 3])
def test_number_of_set_tokens_stays(experts: int, inputs: int | None, view: ExpertView) -> None:
    module = interaction(experts=experts, inputs=inputs, view=view)
    read = None if inputs is None else torch.randn(2, inputs, 6)
    out = module(torch.randn(2, 7, 6), torch.randn(2, 2, 6), read)
    assert out.shape == (2, 7, 6)
    out.square().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_every_expert_sees_all_tokens_and_fills_its_own_slots() -> None:
    module = interaction(tokens=6)
    x, h = torch.randn(1, 6, 6), torch.randn(1, 2, 6)
    outputs = [expert(torch.cat([x, h], dim=1)) for expert in module.experts]
    torch.testing.assert_close(module(x, h), module.norm(x + torch.cat(outputs, dim=1)))
    assert [output.shape[1] for output in outputs] == [3, 3]


def test_a_partition_shows_an_expert_its_own_slots_and_the_summary() -> None:
    module = interaction(view="partition")
    x, h = torch.randn(1, 7, 6), torch.randn(1, 2, 6)
    first, second = module.experts
    outputs = [first(torch.cat([x[:, :4], h], dim=1)), second(torch.cat([x[:, 4:], h], dim=1))]
    torch.testing.assert_close(module(x, h), module.norm(x + torch.cat(outputs, dim=1)))


def test_more_experts_than_slots_are_refused() -> None:
    with pytest.raises(InputError, match="at most 3 experts"):
        interaction(experts=4)
    with pytest.raises(InputError, match="cannot part 2 tokens"):
        interaction(experts=3, inputs=2, view="partition")


def test_examples_do_not_see_each_other() -> None:
    module = interaction(attentive=True)
    x, h = torch.randn(3, 7, 6), torch.randn(3, 2, 6)
    torch.testing.assert_close(module(x[1:2], h[1:2])[0], module(x, h)[1], atol=1e-6, rtol=1e-5)
