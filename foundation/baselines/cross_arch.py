"""InterFormer's Cross Arch: short summaries of the set and of the sequence, which the other two arches exchange.

Legend: B batch, T sequence tokens (CLS tokens first), N set tokens, M summary tokens (n_sum), S summary tokens of the
sequence, D width. Source: InterFormer (2411.09852), Cross Arch and appendix.
"""

import torch
from torch import Tensor, nn

from foundation.baselines.baseline import AttentionPooling, newest
from foundation.baselines.configs import InterFormerConfig


class Gating(nn.Module):
    """sigma(X * MLP(X)) as the paper prints it, X * sigma(MLP(X)) as public code has it, or X; the map is over D.

    Printed, a sigmoid squashes every value to (0, 1), so the multiplied form is the default.
    """

    def __init__(self, dim: int, form: str) -> None:
        super().__init__()
        self.form = form
        self.map = None if form == "none" else nn.Linear(dim, dim)

    def forward(self, x_BMD: Tensor) -> Tensor:
        if self.map is None:
            return x_BMD
        gate_BMD = self.map(x_BMD)
        if self.form == "printed":
            return torch.sigmoid(x_BMD * gate_BMD)
        return x_BMD * torch.sigmoid(gate_BMD)


class SetSummary(nn.Module):
    """X_sum = Gating(LCE(X)): a linear map of the token axis, N -> M (the paper's appendix calls it LCE)."""

    def __init__(self, config: InterFormerConfig, *, tokens: int) -> None:
        super().__init__()
        self.compress = nn.Linear(tokens, config.summary_tokens)
        self.gate = Gating(config.dim, config.gating)

    def forward(self, x_BND: Tensor) -> Tensor:
        """x [B, N, D] -> [B, M, D]."""
        summary_BMD: Tensor = self.gate(self.compress(x_BND.transpose(1, 2)).transpose(1, 2))
        return summary_BMD


class SequenceSummary(nn.Module):
    """S_sum = Gating([CLS; PMA; newest]): what the CLS tokens gathered, learned queries, and the newest events, before
    which stands the request's own impression."""

    def __init__(self, config: InterFormerConfig) -> None:
        super().__init__()
        self.cls, self.recent = config.summary_tokens, 1 + config.recent_tokens
        self.tokens = self.cls + config.pma_tokens + self.recent
        queries = config.pma_tokens
        self.pma = AttentionPooling(dim=config.dim, heads=config.heads, queries=queries) if queries else None
        self.norm = nn.RMSNorm(config.dim)
        self.gate = Gating(config.dim, config.gating)

    def forward(self, s_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """s [B, T, D] with the CLS tokens in front, and its mask -> [B, S, D]."""
        s_BTD = self.norm(s_BTD)
        parts = [s_BTD[:, : self.cls]]
        if self.pma is not None:
            parts.append(self.pma(s_BTD, mask_BT))
        parts.append(newest(s_BTD[:, self.cls :], mask_BT[:, self.cls :], self.recent))
        summary_BSD: Tensor = self.gate(torch.cat(parts, dim=1))
        return summary_BSD
