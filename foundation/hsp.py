"""Hierarchical seed pooling: many seeds attend to the sequence, then a sum of Kronecker products compresses them.

Legend: B batch, T tokens, S seeds, P pooled tokens, D width, H heads, r terms of the Kronecker sum. Source: Kunlun
(2602.10016), HSP; open points (norms, value projection kept, initialisation) as in docs/adr/0006.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class SumKronLinear(nn.Module):
    """Y_b = sum_i Z_i^T X_b W_i: [B, S, D] -> [B, P, D] with r (S P + D^2) parameters instead of S P D^2."""

    def __init__(self, *, seeds: int, pooled: int, dim: int, rank: int) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.randn(rank, seeds, pooled) * (rank * seeds) ** -0.5)
        self.w = nn.Parameter(torch.randn(rank, dim, dim) * dim**-0.5)

    def forward(self, x_BSD: Tensor) -> Tensor:
        rank, seeds, pooled = self.z.shape
        z_SrP = self.z.permute(2, 0, 1).reshape(pooled * rank, seeds)
        mixed_BPrD = (z_SrP @ x_BSD).unflatten(1, (pooled, rank))
        return mixed_BPrD.flatten(2) @ self.w.flatten(0, 1)


class HierarchicalSeedPooling(nn.Module):
    """Learned, over-complete seeds (S > P) pool the sequence by softmax attention; RMSNorm follows the compression."""

    def __init__(self, *, dim: int, heads: int, seeds: int, pooled: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.seeds = nn.Parameter(torch.randn(seeds, dim))
        self.norm_seeds = nn.RMSNorm(dim, elementwise_affine=False)
        self.norm_tokens = nn.RMSNorm(dim, elementwise_affine=False)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.compress = SumKronLinear(seeds=seeds, pooled=pooled, dim=dim, rank=rank)
        self.norm_out = nn.RMSNorm(dim)

    def forward(self, p_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """p [B, T, D] (the PFFN's output) and its mask -> [B, P, D]. At least one token of a row must be unmasked."""
        q_SHd = self.query(self.norm_seeds(self.seeds)).unflatten(1, (self.heads, -1))
        k, v = self.key_value(self.norm_tokens(p_BTD)).unflatten(2, (2, self.heads, -1)).unbind(2)
        q_BHSd = q_SHd.transpose(0, 1).expand(len(p_BTD), -1, -1, -1)
        pooled_BHSd = functional.scaled_dot_product_attention(
            q_BHSd, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask_BT[:, None, None, :]
        )
        return self.norm_out(self.compress(pooled_BHSd.transpose(1, 2).flatten(2)))
