"""Aggregates -> set tokens, and a piecewise-linear path of their own to the logits.

Legend: B batch, A aggregate columns, V = 2 A input values (the columns, then their missing flags), S bins, D width,
N tokens, K tasks. A column is a rank in [-1, 1] (`quantiles.py`), so even bins of it are quantile bins of the raw
value: piecewise-linear encoding of Gorishniy et al. (2203.05556, section 3.2), as one product for all columns.
"""

import torch
from torch import Tensor, nn

BINS = 16
"""Enough for the shapes that trees find in aggregates (2203.05556 tunes 2 to 256; on ranks few are lost)."""
TOKENS = 4
"""Set tokens that share the columns: user, ad and cross aggregates come in this order and mix little in one token."""
TOKEN_STD = 0.05


def piecewise_linear(aggregates_BV: Tensor, bins: int) -> Tensor:
    """Encoding of every column, float32 [B, A, S + 1]: how far the value fills each bin, then the missing flag.

    A missing column fills no bin; so does a value at -1, which its flag tells apart.
    """
    value_BA, missing_BA = aggregates_BV.chunk(2, dim=1)
    filled_BA = (torch.where(missing_BA > 0, -1.0, value_BA) + 1) * (bins / 2)
    edges = torch.arange(bins + 1, dtype=value_BA.dtype, device=value_BA.device)
    encoded_BAS = (filled_BA[..., None] - edges).clamp_(0, 1)
    encoded_BAS[..., bins] = missing_BA  # no value reaches the bin behind the last
    return encoded_BAS


class AggregateTokens(nn.Module):
    """Set tokens from consecutive groups of columns: one linear map of a group's encoding per token.

    `values` is V, the width of `GemBatch.aggregates_BA`.
    """

    def __init__(self, values: int, dim: int, *, tokens: int = TOKENS, bins: int = BINS) -> None:
        super().__init__()
        columns = values // 2
        self.tokens, self._bins = min(tokens, columns), bins
        self._group = -(-columns // self.tokens)
        self.tokens = -(-columns // self._group)  # no token without a column
        self._padding = self.tokens * self._group - columns
        width = self._group * (bins + 1)
        # neighbouring bins of a column move together: the spread of a sum over columns, not over bins, is kept
        self.weight = nn.Parameter(torch.randn(self.tokens, width, dim) * (self._group * bins) ** -0.5)
        self.bias = nn.Parameter(torch.randn(self.tokens, dim) * TOKEN_STD)

    def forward(self, aggregates_BV: Tensor) -> Tensor:
        """Tokens [B, N, D]."""
        encoded_BAS = piecewise_linear(aggregates_BV, self._bins)
        padded_BAS = nn.functional.pad(encoded_BAS, (0, 0, 0, self._padding))
        groups_NBW = padded_BAS.unflatten(1, (self.tokens, self._group)).flatten(2).transpose(0, 1)
        return torch.bmm(groups_NBW, self.weight).transpose(0, 1) + self.bias


class AggregateLogits(nn.Module):
    """A generalised additive model beside the network: per column and task one piecewise-linear function, zero at the
    start."""

    def __init__(self, values: int, tasks: int, *, bins: int = BINS) -> None:
        super().__init__()
        self._bins = bins
        self.weight = nn.Parameter(torch.zeros(values // 2 * (bins + 1), tasks))

    def forward(self, aggregates_BV: Tensor) -> Tensor:
        """Terms of the logits [B, K]."""
        return piecewise_linear(aggregates_BV, self._bins).flatten(1) @ self.weight
