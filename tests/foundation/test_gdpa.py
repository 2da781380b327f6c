"""GDPA is the per-example feed-forward network with block-diagonal weights, without the zeros."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from foundation.gdpa import block_diagonal_ffn, gdpa, gelu

SHAPES = [(1, 1, 1, 1, 2), (2, 5, 3, 1, 4), (3, 7, 8, 4, 2), (4, 31, 17, 3, 5)]


def inputs(shape: tuple[int, int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    batch, tokens, hidden, heads, width = shape
    q = torch.randn(batch, tokens, heads, width, dtype=torch.float64)
    k, v = (torch.randn(batch, hidden, heads, width, dtype=torch.float64) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_block_diagonal_ffn(shape: tuple[int, int, int, int, int]) -> None:
    q, k, v = inputs(shape)
    torch.testing.assert_close(gdpa(q, k, v), block_diagonal_ffn(q, k, v), rtol=0, atol=1e-10)


def test_equals_the_block_diagonal_ffn_with_an_activation_per_head() -> None:
    q, k, v = inputs((2, 5, 6, 3, 4))
    acts = (gelu, functional.silu, torch.relu)
    torch.testing.assert_close(gdpa(q, k, v, acts), block_diagonal_ffn(q, k, v, acts), rtol=0, atol=1e-10)


def test_the_scale_may_stand_in_the_keys() -> None:
    q, k, v = inputs((2, 5, 6, 2, 4))
    tau = 51.0
    scores = torch.einsum("bthd,bfhd->bhtf", q, k) / tau
    expected = torch.einsum("bhtf,bfhd->bthd", gelu(scores), v)
    torch.testing.assert_close(gdpa(q, k / tau, v), expected, rtol=0, atol=1e-10)


def test_gradients() -> None:
    tensors = tuple(tensor.requires_grad_() for tensor in inputs((2, 3, 4, 2, 3)))
    assert torch.autograd.gradcheck(gdpa, tensors)


def test_gradients_equal_those_of_the_reference() -> None:
    q, k, v = tensors = tuple(tensor.requires_grad_() for tensor in inputs((2, 5, 3, 2, 4)))
    ours = torch.autograd.grad(gdpa(q, k, v).square().sum(), tensors)
    reference = torch.autograd.grad(block_diagonal_ffn(q, k, v).square().sum(), tensors)
    for own, expected in zip(ours, reference, strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-10)


def test_tokens_do_not_see_each_other() -> None:
    q, k, v = inputs((2, 5, 4, 2, 4))
    changed = q.clone()
    changed[:, 3:] = 7.0
    torch.testing.assert_close(gdpa(changed, k, v)[:, :3], gdpa(q, k, v)[:, :3], rtol=0, atol=0)
