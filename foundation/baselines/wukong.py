"""Wukong (2403.02545) as a sibling of GEM: interactions of tokens, and of a history no more than pooled tokens.

Legend: B batch, T sequence tokens (the request's own impression first, then its history, newest first), N set tokens,
J tokens into a layer, D width, R rank of the factorisation machine, K tasks.
"""

import torch
from torch import Tensor, nn

from foundation.baselines.baseline import AttentionPooling, Baseline, newest, tower
from foundation.baselines.configs import WukongConfig
from foundation.layout import InputLayout


class WukongLayer(nn.Module):
    """X' = LN(concat(FMB(X), LCB(X)) + X): n_F tokens of the FM's MLP, n_L linear compressions (section 3).

    FM(X) = X X^T Y with Y in R^{J x R}, learned, or, if attentive, an MLP of the tokens' mean over the channels. The
    residual is projected over the token axis where the numbers of tokens differ.
    """

    def __init__(self, config: WukongConfig, *, tokens: int) -> None:
        super().__init__()
        self.fm_tokens = config.fm_tokens
        rank, hidden = config.fm_rank, config.fm_hidden
        self.project = nn.Parameter(torch.randn(tokens, rank) * tokens**-0.5)
        self.attend = None
        if config.attentive:
            self.attend = nn.Sequential(nn.Linear(tokens, rank), nn.SiLU(), nn.Linear(rank, tokens * rank))
        self.norm_fm = nn.LayerNorm(tokens * rank)
        self.mlp = nn.Sequential(
            nn.Linear(tokens * rank, hidden), nn.SiLU(), nn.Linear(hidden, config.fm_tokens * config.dim)
        )
        self.compress = nn.Linear(tokens, config.linear_tokens, bias=False)
        self.tokens = config.fm_tokens + config.linear_tokens
        self.residual = None if tokens == self.tokens else nn.Linear(tokens, self.tokens, bias=False)
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, x_BJD: Tensor) -> Tensor:
        """x [B, J, D] -> [B, n_F + n_L, D]."""
        across_BDJ = x_BJD.transpose(1, 2)
        project: Tensor = self.project
        if self.attend is not None:
            project = project + self.attend(x_BJD.mean(dim=2)).unflatten(1, self.project.shape)
        products_BJR = x_BJD @ (across_BDJ @ project)
        fm_BFD = self.mlp(self.norm_fm(products_BJR.flatten(1))).unflatten(1, (self.fm_tokens, -1))
        joint_BID = torch.cat([fm_BFD, self.compress(across_BDJ).transpose(1, 2)], dim=1)
        kept_BID = x_BJD if self.residual is None else self.residual(across_BDJ).transpose(1, 2)
        after_BID: Tensor = self.norm(joint_BID + kept_BID)
        return after_BID


class PooledHistory(nn.Module):
    """The history as tokens: its mean, learned queries' poolings (PMA), and the newest events with the request's own.

    Wukong has no part for sequences: its inputs are embeddings that arrive pooled. The mean is what such systems
    pool by; the queries give it attention without the candidate; the newest events are all a pooling forgets. The
    request's own impression is among them, so that its event embedding meets those of the past in the first layer.
    """

    def __init__(self, config: WukongConfig) -> None:
        super().__init__()
        self.recent = config.recent_tokens + 1
        self.tokens = 1 + config.pma_tokens + self.recent
        queries = config.pma_tokens
        self.pma = AttentionPooling(dim=config.dim, heads=config.heads, queries=queries) if queries else None

    def forward(self, s_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """s [B, T, D] and its mask -> [B, tokens, D]."""
        kept_BTD = s_BTD * mask_BT[..., None]
        count_B11 = mask_BT[:, 1:].sum(dim=1).clamp(min=1)[:, None, None]
        parts = [kept_BTD[:, 1:].sum(dim=1, keepdim=True) / count_B11, newest(s_BTD, mask_BT, self.recent)]
        if self.pma is not None:
            parts.append(self.pma(s_BTD, mask_BT))
        return torch.cat(parts, dim=1)


class Wukong(Baseline):
    """[set tokens; pooled history] -> Wukong layers -> a head over all tokens."""

    def __init__(self, layout: InputLayout, config: WukongConfig) -> None:
        super().__init__(layout, config)
        self.history = PooledHistory(config)
        layers, tokens = [], self.set_tokens + self.history.tokens
        for _ in range(config.layers):
            layers.append(WukongLayer(config, tokens=tokens))
            tokens = layers[-1].tokens
        self.layers = nn.Sequential(*layers)
        self.head = tower(tokens * config.dim, config.head_hidden, len(layout.schema.tasks), dropout=config.dropout)

    def logits(self, s_BTD: Tensor, x_BND: Tensor, mask_BT: Tensor) -> Tensor:
        """Logits [B, K]."""
        x_BJD = torch.cat([x_BND, self.history(s_BTD, mask_BT)], dim=1)
        logits_BK: Tensor = self.head(self.layers(x_BJD).flatten(1))
        return logits_BK
