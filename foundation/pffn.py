"""The personalised feed-forward network: a GDPA whose keys and values are generated from the set tokens.

Legend: B batch, T sequence tokens, N set tokens, M summary tokens (n_sum), F hidden width, D model width, H heads,
d head width. Source: Kunlun figure 1 (wiring), Meta's FlashNormAttention post (norms and residuals), InterFormer
(2411.09852; gated token-axis summary); the open points are settled as in docs/adr/0006.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foundation.config import Tau
from foundation.kernels import ACTIVATIONS, gdpa

SCORE_STD = 0.5
"""Spread of the scores at the start: GELU must leave its linear part, whatever tau is (docs/adr/0006)."""


class WeightGen(nn.Module):
    """Set tokens -> keys and values of the personalised FFN.

    X_sum = Norm(Gate(LCE(X))) with the linear compression on the token axis, N -> M; K = W_k X_sum + b_k mixes tokens
    and channels apart (F x M and D x D), never a dense map of flat X_sum. The scale 1/tau is folded into K, and the
    scores start with the spread SCORE_STD under each `tau`:
      "maxlen": tau = the configured maximum length (figure 1), beside a learned gain per head;
      "sqrt_d": tau = the root of the head width, as in softmax attention, and a fixed gain;
      "learned": one learned scalar per head, the logarithm of the scale.
    """

    def __init__(
        self, *, tokens: int, summary: int, hidden: int, dim: int, heads: int, max_length: int, tau: Tau = "maxlen"
    ) -> None:
        super().__init__()
        self.heads, self.scaling = heads, tau
        self.compress = nn.Linear(tokens, summary)
        self.gate = nn.Linear(dim, dim)
        self.norm = nn.RMSNorm(dim, elementwise_affine=False)
        self.mix_k, self.mix_v = nn.Linear(summary, hidden, bias=False), nn.Linear(summary, hidden, bias=False)
        self.channel_k, self.channel_v = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.bias_k = nn.Parameter(torch.randn(hidden, dim) * math.sqrt(0.5))
        self.bias_v = nn.Parameter(torch.randn(hidden, dim) * math.sqrt(0.5 / hidden))
        start = SCORE_STD / math.sqrt(dim // heads)
        self.tau = {"maxlen": float(max_length), "sqrt_d": math.sqrt(dim // heads), "learned": 1.0}[tau]
        if tau == "maxlen":
            self.gain_k = nn.Parameter(torch.full((heads, 1), start * max_length))
        elif tau == "learned":
            self.log_scale = nn.Parameter(torch.full((heads, 1), math.log(start)))
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
        k_BFHd = k_BFD.unflatten(2, (self.heads, -1)) * self._scale()
        return k_BFHd, v_BFD.unflatten(2, (self.heads, -1))

    def _scale(self) -> Tensor | float:
        if self.scaling == "learned":
            return self.log_scale.exp()
        return (self.gain_k if self.scaling == "maxlen" else SCORE_STD) / self.tau

    @staticmethod
    def _generate(summary_BMD: Tensor, mix: nn.Linear, channel: nn.Linear, bias_FD: Tensor) -> Tensor:
        return mix.weight @ channel(summary_BMD) + bias_FD


class PersonalisedFFN(nn.Module):
    """out = RMSNorm(GDPA(q_n, K, V) + q_n) + q with q_n = LayerNorm(q), norms over all heads, no affine.

    `activations` holds one name for all heads or one per head (the kernel API of Meta has one per head; which heads get
    which is not published). `projections` puts learned W_q and W_o around GDPA; not published either, off by default,
    since K and V hold both matrices of the FFN.
    """

    def __init__(
        self, *, dim: int, heads: int, activations: Sequence[str] = ("gelu",), projections: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.activations = heads, tuple(activations)
        self.norm_in = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm_out = nn.RMSNorm(dim, eps=1e-5, elementwise_affine=False)
        self.query = _square(dim) if projections else nn.Identity()
        self.out = _square(dim) if projections else nn.Identity()

    def forward(self, s_BTD: Tensor, k_BFHd: Tensor, v_BFHd: Tensor) -> Tensor:
        """s [B, T, D] and the generated weights [B, F, H, d] -> [B, T, D]."""
        n_BTD = self.norm_in(s_BTD)
        q_BTHd = self.query(n_BTD).unflatten(2, (self.heads, -1))
        y_BTHd = gdpa(q_BTHd, k_BFHd, v_BFHd, activation=self.activations)
        return self.norm_out(self.out(y_BTHd.flatten(2)) + n_BTD) + s_BTD


class PlainFFN(nn.Module):
    """The control of the personalised FFN: D -> F -> D with weights that all examples share.

    Hidden width F, FLOPs (4 T F D), norms and residuals are those of `PersonalisedFFN`; only the weights are nobody's.
    An ordinary FFN has no heads, so it has one activation.
    """

    def __init__(self, *, dim: int, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.norm_in = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm_out = nn.RMSNorm(dim, eps=1e-5, elementwise_affine=False)
        self.first, self.second = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False)
        nn.init.normal_(self.first.weight, std=SCORE_STD * dim**-0.5)
        nn.init.normal_(self.second.weight, std=hidden**-0.5)

    def forward(self, s_BTD: Tensor) -> Tensor:
        """s [B, T, D] -> [B, T, D]."""
        n_BTD = self.norm_in(s_BTD)
        y_BTD = self.second(self.activation(self.first(n_BTD)))
        return self.norm_out(y_BTD + n_BTD) + s_BTD


def _square(dim: int) -> nn.Linear:
    """A projection that keeps the variance, so that the scores start with the same spread."""
    linear = nn.Linear(dim, dim, bias=False)
    nn.init.normal_(linear.weight, std=dim**-0.5)
    return linear
