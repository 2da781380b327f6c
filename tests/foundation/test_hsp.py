"""Seed pooling and its compression."""

import pytest
import torch

from foundation.config import Compression
from foundation.hsp import SeedPooling, SumKronLinear, TokenLinear


def pooling(*, compression: Compression | None = "sumkron", values: bool = True) -> SeedPooling:
    return SeedPooling(dim=8, heads=2, seeds=6, pooled=3, rank=2, compression=compression, values=values)


def test_sum_kron_is_a_sum_of_kronecker_products() -> None:
    layer = SumKronLinear(seeds=5, pooled=3, dim=4, rank=2).double()
    x = torch.randn(7, 5, 4, dtype=torch.float64)
    # row-major vec: vec(Z^T X W) = (Z^T kron W^T) vec(X)
    terms = [torch.kron(z.T.contiguous(), w.T.contiguous()) for z, w in zip(layer.z, layer.w, strict=True)]
    full = torch.stack(terms).sum(dim=0)
    expected = (x.flatten(1) @ full.T).unflatten(1, (3, 4))
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-10)


def test_sum_kron_gradients() -> None:
    layer = SumKronLinear(seeds=3, pooled=2, dim=2, rank=2).double()
    assert torch.autograd.gradcheck(layer, (torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True),))


def test_compressions_start_with_unit_variance() -> None:
    for layer in (SumKronLinear(seeds=64, pooled=16, dim=64, rank=4), TokenLinear(seeds=64, pooled=16)):
        assert abs(layer(torch.randn(64, 64, 64)).std().item() - 1) < 0.1


def test_linear_compression_mixes_tokens_alone() -> None:
    layer, x = TokenLinear(seeds=5, pooled=3), torch.randn(2, 5, 4)
    torch.testing.assert_close(layer(x), torch.einsum("sp,bsd->bpd", layer.z, x))


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("compression", ["sumkron", "linear", None])
def test_pools_an_example_as_if_it_were_alone(compression: Compression | None, values: bool) -> None:
    module, p = pooling(compression=compression, values=values), torch.randn(3, 5, 8)
    lengths = [1, 3, 5]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    out = module(p, mask)
    assert out.shape == (3, 3, 8)
    for b, length in enumerate(lengths):
        alone = module(p[b : b + 1, :length], mask[b : b + 1, :length])
        torch.testing.assert_close(out[b], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("compression", ["sumkron", "linear", None])
def test_is_softmax_attention_of_the_seeds(compression: Compression | None, values: bool) -> None:
    module, p = pooling(compression=compression, values=values), torch.randn(1, 4, 8)
    q = module.query(module.norm_seeds(module.seeds)).unflatten(1, (2, 4))
    normed = module.norm_tokens(p[0])
    projected = module.key_value(normed) if values else torch.cat([module.key_value(normed), normed], dim=1)
    k, v = projected.unflatten(1, (2, 2, 4)).unbind(1)
    weights = torch.softmax(torch.einsum("shd,thd->hst", q, k) / 2.0, dim=2)
    pooled = torch.einsum("hst,thd->shd", weights, v).flatten(1)
    expected = module.norm_out(module.compress(pooled[None]))
    torch.testing.assert_close(module(p, torch.ones(1, 4, dtype=torch.bool)), expected, atol=1e-5, rtol=1e-5)


def test_queries_of_plain_pooling_are_the_pooled_tokens() -> None:
    module = pooling(compression=None)
    assert module.seeds.shape == (3, 8)
    assert not list(module.compress.parameters())


def test_order_of_tokens_does_not_matter() -> None:
    module, p, mask = pooling(), torch.randn(1, 4, 8), torch.ones(1, 4, dtype=torch.bool)
    torch.testing.assert_close(module(p.flip(1), mask), module(p, mask), atol=1e-5, rtol=1e-5)
