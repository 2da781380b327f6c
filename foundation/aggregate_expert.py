"""An expert that reads aggregates alone: a few small networks side by side, each with a loss of its own.

Legend: B batch, V = 2 A input values (columns, then their missing flags), W width of their encoding, M members,
H hidden width, K tasks. The members share inputs and batches and nothing else, computed as one product: an ensemble,
as TabM (2410.24210) makes for tables, where its members match boosted trees. Its logits are averaged with those of the
deep model, whose tokens do not see the aggregates: trained apart, the two err apart, and their mean is better than a
model that reads both (docs/log.md has both figures).
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from foundation.aggregate_tokens import AggregateLogits, piecewise_linear

MEMBERS, HIDDEN, BINS = 4, 256, 8
DROPOUT = 0.2
HEAD_STD = 0.02


RATE_SHARE = 0.5
"""Adam moves every weight by the rate: products of this share take the steps of that share of the dense rate. The
additive path, which adds up all columns, takes a quarter of them (docs/log.md)."""


class AggregateExpert(nn.Module):
    """M members: piecewise-linear encoding -> hidden layer -> logits, beside an additive path that starts at zero."""

    def __init__(
        self, values: int, tasks: int, *, members: int = MEMBERS, hidden: int = HIDDEN, bins: int = BINS
    ) -> None:
        super().__init__()
        columns = values // 2
        width = columns * (bins + 1)
        self.members, self._bins = members, bins
        # a column fills half of its bins, and neighbouring bins move together: the sum over columns keeps unit spread
        self.first = nn.Parameter(torch.randn(members, width, hidden) * (2 * columns) ** -0.5 / RATE_SHARE)
        self.bias = nn.Parameter(torch.zeros(members, 1, hidden))
        self.head = nn.Parameter(torch.randn(members, hidden, tasks) * HEAD_STD / RATE_SHARE)
        self.additive = nn.Parameter(torch.zeros(members, width, tasks))
        self.level = nn.Parameter(torch.zeros(members, 1, tasks))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, aggregates_BV: Tensor) -> Tensor:
        """Logits of every member, [M, B, K]."""
        encoded_BW = piecewise_linear(aggregates_BV, self._bins).flatten(1) - 0.5
        encoded_MBW = encoded_BW.expand(self.members, -1, -1)
        hidden_MBH = nn.functional.gelu(
            torch.baddbmm(self.bias, encoded_MBW, self.first, alpha=RATE_SHARE), approximate="tanh"
        )
        deep_MBK = RATE_SHARE * torch.bmm(self.dropout(hidden_MBH), self.head)
        return deep_MBK + RATE_SHARE / 4 * torch.bmm(encoded_MBW, self.additive) + self.level


class AggregateConfig(Protocol):
    """What the paths of the aggregates need to know of a model's configuration."""

    @property
    def aggregates(self) -> int: ...
    @property
    def aggregate_path(self) -> str: ...


class AggregatePaths(nn.Module):
    """Joins the aggregates to a deep model's logits: the mean with an expert's, or the sum with an additive model's."""

    def __init__(self, config: AggregateConfig, tasks: int) -> None:
        super().__init__()
        expert = config.aggregate_path == "expert"
        self.expert = AggregateExpert(config.aggregates, tasks) if expert else None
        self.additive = None if expert else AggregateLogits(config.aggregates, tasks)

    def forward(self, logits_BK: Tensor, aggregates_BV: Tensor) -> tuple[Tensor, Tensor | None]:
        """(logits [B, K], those of the deep model and of every member [1 + M, B, K], None without an expert)."""
        if self.expert is None:
            assert self.additive is not None
            return logits_BK + self.additive(aggregates_BV), None
        members_MBK: Tensor = self.expert(aggregates_BV)
        return (logits_BK + members_MBK.mean(dim=0)) / 2, torch.cat([logits_BK[None], members_MBK])
