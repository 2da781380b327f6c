"""Feature embeddings -> set tokens and sequence tokens.

Legend: B batch, C set columns, N set tokens, T sequence tokens, E embedding width, D token width, G floats.
Every categorical column is one set token, all floats together are one more (InterFormer, 2411.09852), and aggregates,
where the batch carries them, a few more. Time enters a sequence token by learned tables over buckets of age and gap and
over ranks, as `rote.TimeEncoding` says; bucket 0 says that the event carries no time.
"""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from foundation.aggregate_tokens import AggregateTokens
from foundation.batch import GemBatch
from foundation.layout import InputLayout
from foundation.rote import TimeEncoding

AGE_BUCKETS = 32
BUCKETS_PER_NAT = 2.0
"""Bucket of an age or a gap: 1 + floor(2 log(1 + age / 1 s)): about 1.6 times longer each, the last from two months."""
EVEN_BUCKETS = 128
EVEN_BUCKET_S = 6 * 3600.0
"""Even buckets of a quarter of a day, the last from 31 days on: fine enough for the rhythm of days, which logarithmic
buckets lose (the sizes in Meta's kernels are not public)."""
EMBEDDING_STD = 0.01
TOKEN_STD = 0.05
FLOAT_STD = 0.1
TIME_STD = 0.1
"""Small starts: products of tokens begin near zero, where values and not the tokens' biases decide them."""


class TokenConfig(Protocol):
    """What the tokens need to know of a model's configuration; GEM's and every baseline's has it.

    `aggregates` is the width of `GemBatch.aggregates_BA`, 0 for none; they become tokens on the path "tokens" alone.
    """

    @property
    def dim(self) -> int: ...
    @property
    def embedding_dim(self) -> int: ...
    @property
    def history_length(self) -> int: ...
    @property
    def dropout(self) -> float: ...
    @property
    def time(self) -> TimeEncoding: ...
    @property
    def aggregates(self) -> int: ...
    @property
    def aggregate_path(self) -> str: ...


def age_bucket(age_s_BT: Tensor, timed_BT: Tensor) -> Tensor:
    """Logarithmic bucket of an age or a gap, int64 [B, T]: 0 for events without a time."""
    bucket = (torch.log1p(age_s_BT) * BUCKETS_PER_NAT).long() + 1
    return torch.where(timed_BT, bucket.clamp(max=AGE_BUCKETS - 1), 0)


def even_bucket(age_s_BT: Tensor, timed_BT: Tensor) -> Tensor:
    """Even bucket of an age, int64 [B, T]: 0 for events without a time."""
    bucket = (age_s_BT / EVEN_BUCKET_S).clamp(max=EVEN_BUCKETS).long() + 1
    return torch.where(timed_BT, bucket.clamp(max=EVEN_BUCKETS - 1), 0)


class Tokens(nn.Module):
    """The embedding table and the projections of its rows to tokens. `tokens` is N, the number of set tokens."""

    def __init__(self, layout: InputLayout, config: TokenConfig) -> None:
        super().__init__()
        width, dim, time = config.embedding_dim, config.dim, config.time
        columns = len(layout.columns)
        user, ad = layout.column("user_id"), layout.column("ad_id")
        self._unknown_user, self._unknown_ad = user.offset + user.unknown, ad.offset + ad.unknown
        self._ad_column = layout.user_columns
        self.table = nn.Embedding(layout.table_rows, width, sparse=True)
        self.column_weight = nn.Parameter(torch.randn(columns, width, dim) * width**-0.5)
        self.column_bias = nn.Parameter(torch.randn(columns, dim) * TOKEN_STD)
        self.floats = nn.Linear(layout.set_floats, dim)
        self.event = nn.Linear(layout.event_columns * width + layout.event_floats, dim)
        self.age = nn.Embedding(AGE_BUCKETS, dim) if time.age_log else None
        self.rank = nn.Embedding(config.history_length + 1, dim) if time.position else None
        self.age_even = nn.Embedding(EVEN_BUCKETS, dim) if time.age_even else None
        self.gap = nn.Embedding(AGE_BUCKETS, dim) if time.gap_log else None
        self.aggregates: AggregateTokens | None = None
        if config.aggregates and config.aggregate_path == "tokens":
            self.aggregates = AggregateTokens(config.aggregates, dim)
        self.tokens = columns + 1 + (self.aggregates.tokens if self.aggregates else 0)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.table.weight, std=EMBEDDING_STD)
        nn.init.normal_(self.floats.weight, std=FLOAT_STD)
        nn.init.normal_(self.floats.bias, std=TOKEN_STD)
        for table in (self.age, self.rank, self.age_even, self.gap):
            if table is not None:
                nn.init.normal_(table.weight, std=TIME_STD)

    def forget_ids(self, batch: GemBatch, *, user_share: float, ad_share: float) -> GemBatch:
        """The batch in which random shares of its user and ad ids read as unknown (training only)."""
        set_codes_BC, event_codes_BTC = batch.set_codes_BC.clone(), batch.event_codes_BTC.clone()
        set_codes_BC[torch.rand(len(set_codes_BC)) < user_share, 0] = self._unknown_user
        without_ad_B = torch.rand(len(set_codes_BC)) < ad_share
        set_codes_BC[without_ad_B, self._ad_column] = self._unknown_ad
        event_codes_BTC[without_ad_B, 0, 0] = self._unknown_ad  # the request's own token
        return replace(batch, set_codes_BC=set_codes_BC, event_codes_BTC=event_codes_BTC)

    def forward(self, batch: GemBatch) -> tuple[Tensor, Tensor]:
        """Sequence tokens s [B, T, D] and set tokens x [B, N, D]."""
        set_codes_BC, event_codes_BTC = batch.set_codes_BC, batch.event_codes_BTC
        embedded = self.table(torch.cat([set_codes_BC.flatten(), event_codes_BTC.flatten()]))  # one sparse gradient
        set_BCE = embedded[: set_codes_BC.numel()].unflatten(0, set_codes_BC.shape)
        event_BTCE = embedded[set_codes_BC.numel() :].unflatten(0, event_codes_BTC.shape)
        columns_BCD = torch.bmm(set_BCE.transpose(0, 1), self.column_weight).transpose(0, 1) + self.column_bias
        set_tokens = [columns_BCD, self.floats(batch.set_floats_BG)[:, None]]
        if self.aggregates is not None:
            set_tokens.append(self.aggregates(batch.aggregates_BA))
        s_BTD = self.event(torch.cat([event_BTCE.flatten(2), batch.event_floats_BTG], dim=2))
        return self._timed(s_BTD, batch), self.dropout(torch.cat(set_tokens, dim=1))

    def _timed(self, s_BTD: Tensor, batch: GemBatch) -> Tensor:
        if self.age is not None:
            s_BTD = s_BTD + self.age(age_bucket(batch.age_s_BT, batch.timed_BT))
        if self.age_even is not None:
            s_BTD = s_BTD + self.age_even(even_bucket(batch.age_s_BT, batch.timed_BT))
        if self.gap is not None:
            s_BTD = s_BTD + self.gap(age_bucket(batch.gap_s_BT, batch.timed_BT))
        if self.rank is not None:
            s_BTD = s_BTD + self.rank.weight[: s_BTD.shape[1]]
        return s_BTD
