"""Every pair of tokens counts once."""

from itertools import combinations

import torch

from foundation.factorisation import pair_products


def test_is_the_sum_over_pairs() -> None:
    x = torch.randn(5, 6, 4, dtype=torch.float64)
    pairs = torch.stack([x[:, i] * x[:, j] for i, j in combinations(range(6), 2)]).sum(dim=0)
    torch.testing.assert_close(pair_products(x), pairs, rtol=0, atol=1e-10)


def test_one_token_has_no_pairs() -> None:
    assert pair_products(torch.randn(3, 1, 4)).abs().max() < 1e-6
