"""InterFormer's preprocessing of the sequence (MaskNet) and its Sequence Arch (personalised FFN, then attention).

Legend: B batch, T sequence tokens, M summary tokens, D width, H heads, d head width, P = d / 2 rotary pairs, C channels
of an event. Source: InterFormer (2411.09852). The paper prints neither norms nor residuals; both are pre-norm here.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.baselines.configs import InterFormerConfig
from foundation.rote import rotate

RANK_BASE = 10_000.0
"""Slowest wavelength of RoPE (2104.09864)."""


class MaskNet(nn.Module):
    """MLP_lce(S * MLP_mask(S)): the channels of an event weigh each other before they become one token.

    Each column of an event is one of the k aligned sequences of the paper; its known labels and the floats of its ad
    are channels too. The mask starts at one, so that small embeddings are not squared away.
    """

    def __init__(self, channels: int, *, hidden: int, dim: int) -> None:
        super().__init__()
        self.mask = nn.Sequential(nn.Linear(channels, hidden), nn.SiLU(), nn.Linear(hidden, channels))
        self.lce = nn.Linear(channels, dim)
        last = self.mask[-1]
        assert isinstance(last, nn.Linear)
        nn.init.ones_(last.bias)

    def forward(self, s_BTC: Tensor) -> Tensor:
        """s [B, T, C] -> [B, T, D]."""
        token_BTD: Tensor = self.lce(s_BTC * self.mask(s_BTC))
        return token_BTD


class PersonalisedFFN(nn.Module):
    """S + Norm(S) W_x with W_x = X_sum^T W in R^{D x D}: one linear map of the channels for each request (appendix)."""

    def __init__(self, config: InterFormerConfig) -> None:
        super().__init__()
        self.norm, self.norm_summary = nn.RMSNorm(config.dim), nn.RMSNorm(config.dim)
        spread = (config.summary_tokens * config.dim) ** -0.5
        self.weight = nn.Parameter(torch.randn(config.summary_tokens, config.dim) * spread)

    def forward(self, s_BTD: Tensor, x_sum_BMD: Tensor) -> Tensor:
        """s [B, T, D] and the summary of the set [B, M, D] -> [B, T, D]."""
        map_BDD = self.norm_summary(x_sum_BMD).transpose(1, 2) @ self.weight
        return s_BTD + self.norm(s_BTD) @ map_BDD


class RotaryAttention(nn.Module):
    """S + MHA(Norm(S)); queries and keys turn with their place in the sequence (RoPE)."""

    def __init__(self, config: InterFormerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = nn.RMSNorm(config.dim)
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, s_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """s [B, T, D] and its mask -> [B, T, D]."""
        q, k, v = self.qkv(self.norm(s_BTD)).unflatten(2, (3, self.heads, -1)).unbind(2)
        table = rope(s_BTD.shape[1], q.shape[-1], like=s_BTD)
        q, k = rotate(q, *table), rotate(k, *table)
        seen_BHTd = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask_BT[:, None, None, :]
        )
        attended_BTD: Tensor = s_BTD + self.out(seen_BHTd.transpose(1, 2).flatten(2))
        return attended_BTD


class SequenceArch(nn.Module):
    """S' = MHA(PFFN(X_sum, S))."""

    def __init__(self, config: InterFormerConfig) -> None:
        super().__init__()
        self.ffn, self.attention = PersonalisedFFN(config), RotaryAttention(config)

    def forward(self, s_BTD: Tensor, x_sum_BMD: Tensor, mask_BT: Tensor) -> Tensor:
        """s [B, T, D], the summary of the same layer's set [B, M, D], the mask -> [B, T, D]."""
        after_BTD: Tensor = self.attention(self.ffn(s_BTD, x_sum_BMD), mask_BT)
        return after_BTD


def rope(tokens: int, head_width: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """(cos, sin) of the angles of `tokens` places for `rote.rotate`, each [T, 1, P], on the device of `like`."""
    pairs = head_width // 2
    rates_P = RANK_BASE ** (-torch.arange(pairs, device=like.device) / pairs)
    angles_T1P = torch.arange(tokens, device=like.device)[:, None, None] * rates_P
    return angles_T1P.cos(), angles_T1P.sin()
