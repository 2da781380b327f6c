"""InterFormer's Interaction Arch: one DHEN layer over the set tokens and the summary of the sequence, then an MLP.

Legend: B batch, N set tokens, J = N + S tokens in, D width, R tokens that enter dot products. Source: InterFormer
(2411.09852), whose benchmark takes DHEN (2203.11014): Norm(Ensemble(DOT, DCN) + shortcut MLP).
"""

import torch
from torch import Tensor, nn

from foundation.baselines.configs import InterFormerConfig


class DotProducts(nn.Module):
    """Dot products of R compressed tokens with all J, through an MLP to `slots` tokens.

    All pairs of J tokens would cost J^2 D; compressed as in Wukong (2403.02545), R J D.
    """

    def __init__(self, config: InterFormerConfig, *, tokens: int, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.compress = nn.Linear(tokens, config.dot_rank, bias=False)
        self.norm = nn.LayerNorm(tokens * config.dot_rank)
        self.mlp = nn.Sequential(
            nn.Linear(tokens * config.dot_rank, config.interaction_hidden),
            nn.SiLU(),
            nn.Linear(config.interaction_hidden, slots * config.dim),
        )

    def forward(self, x_BJD: Tensor) -> Tensor:
        """x [B, J, D] -> [B, slots, D]."""
        dots_BJR = x_BJD @ self.compress(x_BJD.transpose(1, 2))
        mixed_BSD: Tensor = self.mlp(self.norm(dots_BJR.flatten(1))).unflatten(1, (self.slots, -1))
        return mixed_BSD


class LowRankCross(nn.Module):
    """One low-rank cross of DCNv2 (2008.13535) over the flat tokens, x * (U V x + b) + x; then J -> slots."""

    def __init__(self, config: InterFormerConfig, *, tokens: int, slots: int) -> None:
        super().__init__()
        wide = tokens * config.dim
        self.down = nn.Linear(wide, config.cross_rank, bias=False)
        self.up = nn.Linear(config.cross_rank, wide)
        self.compress = nn.Linear(tokens, slots)

    def forward(self, x_BJD: Tensor) -> Tensor:
        """x [B, J, D] -> [B, slots, D]."""
        crossed_BJD = x_BJD * self.up(self.down(x_BJD.flatten(1))).unflatten(1, x_BJD.shape[1:]) + x_BJD
        compressed_BSD: Tensor = self.compress(crossed_BJD.transpose(1, 2)).transpose(1, 2)
        return compressed_BSD


class InteractionArch(nn.Module):
    """X' = MLP(Norm(concat(DOT, DCN) + LCE([X; S_sum]))), N tokens again: half of them from the dot products.

    The shortcut is linear over the token axis, since the numbers of tokens differ (DHEN, equation 4). The MLP acts on
    every token and has a residual, which the paper does not print.
    """

    def __init__(self, config: InterFormerConfig, *, set_tokens: int, summary_tokens: int) -> None:
        super().__init__()
        tokens, half = set_tokens + summary_tokens, set_tokens // 2
        self.dot = DotProducts(config, tokens=tokens, slots=half)
        self.cross = LowRankCross(config, tokens=tokens, slots=set_tokens - half)
        self.shortcut = nn.Linear(tokens, set_tokens)
        self.norm = nn.LayerNorm(config.dim)
        self.mlp = nn.Sequential(nn.Linear(config.dim, config.dim), nn.SiLU(), nn.Linear(config.dim, config.dim))

    def forward(self, x_BND: Tensor, s_sum_BSD: Tensor) -> Tensor:
        """x [B, N, D] and the summary [B, S, D] of the same layer -> [B, N, D]."""
        joint_BJD = torch.cat([x_BND, s_sum_BSD], dim=1)
        ensemble_BND = torch.cat([self.dot(joint_BJD), self.cross(joint_BJD)], dim=1)
        mixed_BND: Tensor = self.norm(ensemble_BND + self.shortcut(joint_BJD.transpose(1, 2)).transpose(1, 2))
        return mixed_BND + self.mlp(mixed_BND)
