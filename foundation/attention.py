"""Self attention of the sequence, full or within a sliding window.

Legend: B batch, T tokens, D model width, H heads, d head width. Kunlun 1.6: token t attends |i - t| <= w, in both
directions; every event precedes the request, so nothing of the future is seen.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.rote import rotate


def attention_mask(mask_BT: Tensor, window: int | None) -> Tensor:
    """Which key each query may see: bool [B, 1, T, T].

    Padding is never a key for another token; a token always sees itself, so that a padded query stays finite.
    """
    tokens = mask_BT.shape[1]
    rank = torch.arange(tokens, device=mask_BT.device)
    distance_TT = (rank[:, None] - rank).abs()
    near_TT = distance_TT <= (tokens if window is None else window)
    return ((near_TT & mask_BT[:, None, :]) | (distance_TT == 0))[:, None]


class SelfAttention(nn.Module):
    """Pre-norm multi-head self attention with residual; queries and keys carry rank and age by rotation."""

    def __init__(self, *, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(dim, elementwise_affine=False)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, p_BTD: Tensor, mask_B1TT: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """p [B, T, D], mask of `attention_mask`, table of `rote.rotary_table` -> [B, T, D]."""
        q, k, v = self.qkv(self.norm(p_BTD)).unflatten(2, (3, self.heads, -1)).unbind(2)
        q, k = rotate(q, *rotary), rotate(k, *rotary)
        seen_BHTd = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask_B1TT
        )
        return p_BTD + self.out(seen_BHTd.transpose(1, 2).flatten(2))
