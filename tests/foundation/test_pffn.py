"""The personalised FFN: generated weights with 1/tau folded in, two residuals, norms without affine."""

import torch
from torch.nn import functional

from foundation.gdpa import gdpa
from foundation.pffn import SCORE_STD, PersonalisedFFN, WeightGen


def weight_gen(max_length: int = 51) -> WeightGen:
    return WeightGen(tokens=9, summary=4, hidden=6, dim=8, heads=2, max_length=max_length)


def test_weights_have_the_shape_of_keys_and_values() -> None:
    k, v = weight_gen()(torch.randn(3, 9, 8))
    assert k.shape == v.shape == (3, 6, 2, 4)


def test_weights_differ_between_examples_and_not_with_the_batch() -> None:
    generate, x = weight_gen(), torch.randn(3, 9, 8)
    k, v = generate(x)
    assert not torch.allclose(k[0], k[1])
    k_alone, v_alone = generate(x[1:2])
    torch.testing.assert_close(k_alone[0], k[1])
    torch.testing.assert_close(v_alone[0], v[1])


def test_tau_is_folded_into_the_keys() -> None:
    generate, x = weight_gen(), torch.randn(2, 9, 8)
    k, v = generate(x)
    generate.tau *= 2
    halved, same = generate(x)
    torch.testing.assert_close(halved, k / 2)
    torch.testing.assert_close(same, v)


def test_scores_start_with_the_same_spread_whatever_tau_is() -> None:
    for max_length in (17, 1001):
        generate = WeightGen(tokens=9, summary=8, hidden=64, dim=64, heads=4, max_length=max_length)
        k, _ = generate(torch.randn(16, 9, 64))
        q = functional.layer_norm(torch.randn(16, 20, 64), (64,)).unflatten(2, (4, 16))
        spread = torch.einsum("bthd,bfhd->bhtf", q, k).std().item()
        assert 0.5 * SCORE_STD < spread < 2 * SCORE_STD


def test_block_is_normed_gdpa_with_two_residuals() -> None:
    block, s = PersonalisedFFN(dim=8, heads=2), torch.randn(3, 5, 8)
    k, v = weight_gen()(torch.randn(3, 9, 8))
    q = functional.layer_norm(s, (8,))
    y = gdpa(q.unflatten(2, (2, 4)), k, v).flatten(2) + q
    expected = y / (y.square().mean(dim=2, keepdim=True) + 1e-5).sqrt() + s
    torch.testing.assert_close(block(s, k, v), expected)
    assert not list(block.parameters())
