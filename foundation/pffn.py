"""The personalised feed-forward network: a GDPA whose keys and values are generated from the set tokens.

Legend: B batch, T sequence tokens, N set tokens, M summary tokens (n_sum), F hidden width, D model width, H heads,
d head width. Source: Kunlun figure 1 (wiring), Meta's FlashNormAttention post (norms and residuals), InterFormer
(2411.09852; gated token-axis summary); the open points are settled as in docs/adr/0006.
"""

import math

import torch
from torch import Tensor, nn

from foundation.gdpa import gdpa

SCORE_STD = 0.5
"""Spread of the scores at the start: GELU must leave its linear part, whatever tau is (docs/adr/0006)."""


class WeightGen(nn.Module):
    """Set tokens -> keys and values of the personalised FFN.

    X_sum = Norm(Gate(LCE(X))) with the linear compression on the token axis, N -> M; K = W_k X_sum + b_k mixes tokens
    and channels apart (F x M and D x D), never a dense map of flat X_sum. 1/tau, tau = the configured maximum length,
    is folded into K beside a learned gain per head.
    """

    def __init__(self, *, tokens: int, summary: int, hidden: int, dim: int, heads: int, max_length: int) -> None:
        super().__init__()
        self.heads, self.tau = heads, float(max_length)
        self.compress = nn.Linear(tokens, summary)
        self.gate = nn.Linear(dim, dim)
        self.norm = nn.RMSNorm(dim, elementwise_affine=False)
        self.mix_k, self.mix_v = nn.Linear(summary, hidden, bias=False), nn.Linear(summary, hidden, bias=False)
        self.channel_k, self.channel_v = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.bias_k = nn.Parameter(torch.randn(hidden, dim) * math.sqrt(0.5))
        self.bias_v = nn.Parameter(torch.randn(hidden, dim) * math.sqrt(0.5 / hidden))
        self.gain_k = nn.Parameter(torch.full((heads, 1), SCORE_STD * max_length / math.sqrt(dim // heads)))
        for mix, spread in ((self.mix_k, 0.5), (self.mix_v, 0.5 / hidden)):
            nn.init.normal_(mix.weight, std=math.sqrt(spread / summary))
        for channel in (self.channel_k, self.channel_v):
            nn.init.normal_(channel.weight, std=dim**-0.5)

    def forward(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, N, D] -> keys (with 1/tau) and values, both [B, F, H, d]."""
        summary_BMD = self.compress(x_BND.transpose(1, 2)).transpose(1, 2)
        summary_BMD = self.norm(summary_BMD * torch.sigmoid(self.gate(summary_BMD)))
        k_BFD = self._generate(summary_BMD, self.mix_k, self.channel_k, self.bias_k)
        v_BFD = self._generate(summary_BMD, self.mix_v, self.channel_v, self.bias_v)
        k_BFHd = k_BFD.unflatten(2, (self.heads, -1)) * (self.gain_k / self.tau)
        return k_BFHd, v_BFD.unflatten(2, (self.heads, -1))

    @staticmethod
    def _generate(summary_BMD: Tensor, mix: nn.Linear, channel: nn.Linear, bias_FD: Tensor) -> Tensor:
        return mix.weight @ channel(summary_BMD) + bias_FD


class PersonalisedFFN(nn.Module):
    """out = RMSNorm(GDPA(q_n, K, V) + q_n) + q with q_n = LayerNorm(q), norms over all heads, no affine."""

    def __init__(self, *, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm_out = nn.RMSNorm(dim, eps=1e-5, elementwise_affine=False)

    def forward(self, s_BTD: Tensor, k_BFHd: Tensor, v_BFHd: Tensor) -> Tensor:
        """s [B, T, D] and the generated weights [B, F, H, d] -> [B, T, D]."""
        q_BTD = self.norm_in(s_BTD)
        y_BTHd = gdpa(q_BTD.unflatten(2, (self.heads, -1)), k_BFHd, v_BFHd)
        return self.norm_out(y_BTHd.flatten(2) + q_BTD) + s_BTD
