"""Self attention: a window in both directions, padding never read, equal to plain attention of each example alone."""

import pytest
import torch

from foundation.attention import SelfAttention, attention_mask
from foundation.rote import rotary_table, rotate

LENGTHS = [1, 4, 7]


def mask(lengths: list[int]) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def reference(module: SelfAttention, p_TD: torch.Tensor, age_T: torch.Tensor, window: int | None) -> torch.Tensor:
    """One unpadded example, by the formula, token by token."""
    q, k, v = module.qkv(module.norm(p_TD)).unflatten(1, (3, module.heads, -1)).unbind(1)
    table = rotary_table(age_T[None], q.shape[-1])
    q, k = rotate(q[None], *table)[0], rotate(k[None], *table)[0]
    rows = []
    for t in range(len(p_TD)):
        near = [s for s in range(len(p_TD)) if window is None or abs(s - t) <= window]
        weights = torch.softmax(torch.einsum("hd,shd->hs", q[t], k[near]) / q.shape[-1] ** 0.5, dim=1)
        rows.append(torch.einsum("hs,shd->hd", weights, v[near]).flatten())
    return p_TD + module.out(torch.stack(rows))


@pytest.mark.parametrize("window", [None, 0, 2])
def test_equals_the_formula_without_padding(window: int | None) -> None:
    module, p, age = SelfAttention(dim=8, heads=2), torch.randn(3, 7, 8), torch.rand(3, 7) * 5
    out = module(p, attention_mask(mask(LENGTHS), window), rotary_table(age, 4))
    for b, length in enumerate(LENGTHS):
        alone = reference(module, p[b, :length], age[b, :length], window)
        torch.testing.assert_close(out[b, :length], alone, atol=1e-5, rtol=1e-5)


def test_padding_is_finite_and_never_read() -> None:
    module, p = SelfAttention(dim=8, heads=2), torch.randn(2, 6, 8)
    visible = attention_mask(mask([3, 6]), 2)
    other = p.clone()
    other[0, 3:] = 100.0
    table = rotary_table(torch.zeros(2, 6), 4)
    out, changed = module(p, visible, table), module(other, visible, table)
    assert torch.isfinite(changed).all()
    torch.testing.assert_close(changed[0, :3], out[0, :3], rtol=0, atol=0)


def test_mask_is_a_band_over_present_keys_and_the_diagonal() -> None:
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert attention_mask(mask([3, 4]), 1)[0, 0].int().tolist() == expected
