"""Hierarchical seed pooling: many seeds attend to the sequence, then a sum of Kronecker products compresses them.

Legend: B batch, T tokens, S seeds, P pooled tokens, D width, H heads, r terms of the Kronecker sum. Source: Kunlun
(2602.10016), HSP; open points (norms, value projection kept, initialisation) as in docs/adr/0006.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.config import Compression


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


class TokenLinear(nn.Module):
    """Y_b = Z^T X_b: [B, S, D] -> [B, P, D], the plain compression that SumKronLinear is compared with."""

    def __init__(self, *, seeds: int, pooled: int) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.randn(seeds, pooled) * seeds**-0.5)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.z.T @ x_BSD


class SeedPooling(nn.Module):
    """Learned seeds pool the sequence by softmax attention; RMSNorm follows the compression.

    HSP: over-complete seeds (S > P) and a `compression`. PMA: `compression` None, and the seeds are the P queries.
    Without `values` the values are the normalised tokens themselves.
    """

    def __init__(
        self,
        *,
        dim: int,
        heads: int,
        seeds: int,
        pooled: int,
        rank: int,
        compression: Compression | None = "sumkron",
        values: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.values = heads, values
        self.seeds = nn.Parameter(torch.randn(pooled if compression is None else seeds, dim))
        self.norm_seeds = nn.RMSNorm(dim, elementwise_affine=False)
        self.norm_tokens = nn.RMSNorm(dim, elementwise_affine=False)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, (1 + values) * dim, bias=False)
        self.compress: nn.Module = nn.Identity()
        if compression == "sumkron":
            self.compress = SumKronLinear(seeds=seeds, pooled=pooled, dim=dim, rank=rank)
        elif compression == "linear":
            self.compress = TokenLinear(seeds=seeds, pooled=pooled)
        self.norm_out = nn.RMSNorm(dim)

    def forward(self, p_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """p [B, T, D] and its mask -> [B, P, D]. At least one token of a row must be unmasked."""
        q_SHd = self.query(self.norm_seeds(self.seeds)).unflatten(1, (self.heads, -1))
        normed_BTD = self.norm_tokens(p_BTD)
        projected = self.key_value(normed_BTD)
        k_BTD, v_BTD = projected.chunk(2, dim=2) if self.values else (projected, normed_BTD.to(projected.dtype))
        k_BHTd, v_BHTd = (x.unflatten(2, (self.heads, -1)).transpose(1, 2) for x in (k_BTD, v_BTD))
        q_BHSd = q_SHd.transpose(0, 1).expand(len(p_BTD), -1, -1, -1)
        pooled_BHSd = functional.scaled_dot_product_attention(
            q_BHSd, k_BHTd, v_BHTd, attn_mask=mask_BT[:, None, None, :]
        )
        pooled: Tensor = self.norm_out(self.compress(pooled_BHSd.transpose(1, 2).flatten(2)))
        return pooled
