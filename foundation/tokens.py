"""Feature embeddings -> set tokens and sequence tokens.

Legend: B batch, C set columns, N = C + 1 set tokens, T sequence tokens, E embedding width, D token width, G floats.
Every categorical column is one set token, all floats together are one more (InterFormer, 2411.09852). Time enters a
sequence token by learned tables over log-age buckets and ranks (`ts_event_request_log` and `pos_emb` of Meta's kernels,
docs/adr/0006); bucket 0 says that the event carries no time.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from foundation.batch import GemBatch
from foundation.config import GemConfig
from foundation.layout import InputLayout

AGE_BUCKETS = 32
BUCKETS_PER_NAT = 2.0
"""Bucket of an age: 1 + floor(2 log(1 + age / 1 s)): about 1.6 times longer each, the last from two months on."""
EMBEDDING_STD = 0.01
TOKEN_STD = 0.05
FLOAT_STD = 0.1
"""Small starts: products of tokens begin near zero, where values and not the tokens' biases decide them."""


def age_bucket(age_s_BT: Tensor, timed_BT: Tensor) -> Tensor:
    """Bucket of the age table, int64 [B, T]: 0 for events without a time."""
    bucket = (torch.log1p(age_s_BT) * BUCKETS_PER_NAT).long() + 1
    return torch.where(timed_BT, bucket.clamp(max=AGE_BUCKETS - 1), 0)


class Tokens(nn.Module):
    """The embedding table and the projections of its rows to tokens."""

    def __init__(self, layout: InputLayout, config: GemConfig) -> None:
        super().__init__()
        width, dim = config.embedding_dim, config.dim
        columns = len(layout.columns)
        self.tokens = columns + 1
        user, ad = layout.column("user_id"), layout.column("ad_id")
        self._unknown_user, self._unknown_ad = user.offset + user.unknown, ad.offset + ad.unknown
        self._ad_column = layout.user_columns
        self.table = nn.Embedding(layout.table_rows, width, sparse=True)
        self.column_weight = nn.Parameter(torch.randn(columns, width, dim) * width**-0.5)
        self.column_bias = nn.Parameter(torch.randn(columns, dim) * TOKEN_STD)
        self.floats = nn.Linear(layout.set_floats, dim)
        self.event = nn.Linear(layout.event_columns * width + layout.event_floats, dim)
        self.age = nn.Embedding(AGE_BUCKETS, dim)
        self.rank = nn.Embedding(config.history_length + 1, dim)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.table.weight, std=EMBEDDING_STD)
        nn.init.normal_(self.floats.weight, std=FLOAT_STD)
        nn.init.normal_(self.floats.bias, std=TOKEN_STD)
        nn.init.normal_(self.age.weight, std=0.1)
        nn.init.normal_(self.rank.weight, std=0.1)

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
        x_BND = torch.cat([columns_BCD, self.floats(batch.set_floats_BG)[:, None]], dim=1)
        s_BTD = self.event(torch.cat([event_BTCE.flatten(2), batch.event_floats_BTG], dim=2))
        s_BTD = s_BTD + self.age(age_bucket(batch.age_s_BT, batch.timed_BT))
        return s_BTD + self.rank.weight[: s_BTD.shape[1]], self.dropout(x_BND)
