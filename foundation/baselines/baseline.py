"""What all baselines share: the tokens, the paths past the model, and the output.

Legend: B batch, T sequence tokens (the request's own impression first, then its history, newest first), N set tokens,
D token width, K tasks.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from foundation.aggregate_expert import AggregatePaths
from foundation.baselines.configs import BaselineConfig
from foundation.batch import GemBatch
from foundation.first_order import FirstOrder
from foundation.layout import InputLayout
from foundation.tokens import Tokens


@dataclass(frozen=True)
class BaselineOutput:
    """logits_BK of each task given its parent's positive label; members_MBK as in `GemOutput`."""

    logits_BK: Tensor
    members_MBK: Tensor | None = None


class Baseline(nn.Module):
    """Tokens -> `logits` of the model at hand. Where the configuration asks for them, first-order terms and an additive
    model of the aggregates are added: the same paths past the model that GEM has.

    A subclass builds its layers for `set_tokens` tokens and defines `logits`.
    """

    def __init__(self, layout: InputLayout, config: BaselineConfig) -> None:
        super().__init__()
        self.tokens = Tokens(layout, config)
        self.set_tokens: int = self.tokens.tokens
        self.first_order = FirstOrder(layout) if config.first_order else None
        tasks = len(layout.schema.tasks)
        self.aggregates = AggregatePaths(config, tasks) if config.aggregates else None

    def logits(self, s_BTD: Tensor, x_BND: Tensor, mask_BT: Tensor) -> Tensor:
        """Logits [B, K] from sequence tokens, set tokens and the sequence's mask."""
        raise NotImplementedError

    def forward(self, batch: GemBatch, *, user_dropout: float = 0.0, ad_dropout: float = 0.0) -> BaselineOutput:
        """Logits; the dropouts are shares of ids that read as unknown (training)."""
        if user_dropout or ad_dropout:
            batch = self.tokens.forget_ids(batch, user_share=user_dropout, ad_share=ad_dropout)
        s_BTD, x_BND = self.tokens(batch)
        logits_BK = self.logits(s_BTD, x_BND, batch.mask_BT)
        if self.first_order is not None:
            logits_BK = logits_BK + self.first_order(batch.set_codes_BC, batch.set_floats_BG)
        members_MBK = None
        if self.aggregates is not None:
            logits_BK, members_MBK = self.aggregates(logits_BK, batch.aggregates_BA)
        return BaselineOutput(logits_BK, members_MBK)

    def auxiliary_loss(self, output: BaselineOutput) -> Tensor:
        """Zero: a baseline learns from the labels alone."""
        return output.logits_BK.new_zeros(())


def tower(before: int, hidden: tuple[int, ...], tasks: int, *, dropout: float) -> nn.Sequential:
    """Swish layers with dropout, then the logits of all tasks."""
    widths = (before, *hidden)
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.SiLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], tasks))


class AttentionPooling(nn.Module):
    """Pooling by multi-head attention (PMA, 1810.00825): learned queries over the tokens that the mask admits."""

    def __init__(self, *, dim: int, heads: int, queries: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries = nn.Parameter(torch.randn(queries, dim))
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, s_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """s [B, T, D] -> [B, queries, D]. At least one token of a row must be admitted."""
        q_QHd = self.query(self.queries).unflatten(1, (self.heads, -1))
        k, v = self.key_value(s_BTD).unflatten(2, (2, self.heads, -1)).unbind(2)
        q_BHQd = q_QHd.transpose(0, 1).expand(len(s_BTD), -1, -1, -1)
        pooled_BHQd = nn.functional.scaled_dot_product_attention(
            q_BHQd, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask_BT[:, None, None, :]
        )
        return self.out(pooled_BHQd.transpose(1, 2).flatten(2))


def newest(s_BTD: Tensor, mask_BT: Tensor, count: int) -> Tensor:
    """The first `count` tokens of the sequence, zero where it has fewer: [B, count, D]."""
    kept_BRD = (s_BTD * mask_BT[..., None])[:, :count]
    return nn.functional.pad(kept_BRD, (0, 0, 0, count - kept_BRD.shape[1]))
