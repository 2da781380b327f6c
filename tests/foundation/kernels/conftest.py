"""Random operands of GDPA, padded or jagged."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Operands = tuple[Tensor, Tensor, Tensor]


@pytest.fixture
def padded() -> Callable[..., Operands]:
    """padded(B, T, F, H, d) -> q [B, T, H, d], k and v [B, F, H, d], float64 unless said."""

    def make(
        batch: int, tokens: int, rows: int, heads: int, width: int, dtype: torch.dtype = torch.float64
    ) -> Operands:
        q = torch.randn(batch, tokens, heads, width, dtype=dtype)
        k, v = (torch.randn(batch, rows, heads, width, dtype=dtype) for _ in range(2))
        return q, k, v

    return make


@pytest.fixture
def offsets_of() -> Callable[[list[int]], Tensor]:
    """Lengths -> offsets [B + 1]."""
    return lambda lengths: torch.tensor([0, *lengths]).cumsum(0)
