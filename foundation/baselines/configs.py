"""Sizes and switches of the baselines as frozen dataclasses. Defaults were chosen on 30 April of KuaiRand alone."""

from dataclasses import dataclass, field
from typing import Literal

from foundation.config import AggregatePath
from foundation.rote import TimeEncoding


@dataclass(frozen=True)
class InterFormerConfig:
    """InterFormer (2411.09852): `layers` of Cross, Interaction and Sequence Arch over tokens of width `dim`.

    `summary_tokens` is n_sum, also the number of CLS tokens (paper: 4), `pma_tokens` (2) and `recent_tokens` (2) join
    them in the summary of the sequence. `dot_rank` tokens enter the dot products of an interaction, `cross_rank` is the
    rank of its DCNv2 (the paper's baseline: 32), `interaction_hidden` the width of its MLP, `mask_hidden` that of
    MaskNet (0: the event's channels are projected by one linear map instead). `gating`: "multiplied" is
    X * sigmoid(MLP(X)) as in public code, "printed" is sigmoid(X * MLP(X)) as in the paper, "none" passes X on.
    """

    dim: int = 32
    heads: int = 2
    layers: int = 2
    embedding_dim: int = 16
    history_length: int = 30
    summary_tokens: int = 4
    pma_tokens: int = 2
    recent_tokens: int = 2
    dot_rank: int = 8
    cross_rank: int = 32
    interaction_hidden: int = 64
    mask_hidden: int = 64
    gating: Literal["multiplied", "printed", "none"] = "multiplied"
    head_hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.2
    first_order: bool = True
    time: TimeEncoding = field(default_factory=TimeEncoding)
    aggregates: int = 0
    aggregate_path: AggregatePath = "tokens"


@dataclass(frozen=True)
class WukongConfig:
    """Wukong (2403.02545): `layers` of `fm_tokens` (n_F) tokens from the factorisation machine of rank `fm_rank` (k)
    with an MLP of width `fm_hidden`, and `linear_tokens` (n_L) from linear compression.

    `attentive` lets the tokens choose the machine's projection (an MLP of width `fm_hidden` over their summary)
    instead of learning a fixed one. History enters as `pma_tokens` pooled by learned queries, its mean, and the newest
    `recent_tokens` events.
    """

    dim: int = 32
    layers: int = 2
    embedding_dim: int = 16
    history_length: int = 30
    fm_tokens: int = 16
    linear_tokens: int = 16
    fm_rank: int = 8
    fm_hidden: int = 128
    attentive: bool = True
    heads: int = 2
    pma_tokens: int = 4
    recent_tokens: int = 2
    head_hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.2
    first_order: bool = True
    time: TimeEncoding = field(default_factory=TimeEncoding)
    aggregates: int = 0
    aggregate_path: AggregatePath = "tokens"


@dataclass(frozen=True)
class LibraryConfig:
    """DIN (1706.06978), DIEN (1809.03672), BST (1905.06874) or DCNv2 (2008.13535) from torch-rechub.

    Tokens are `dim` wide. The interest in the candidate, if the model has a history, joins the set tokens in
    `cross_layers` of DCNv2's cross network (0: none) beside a tower of `head_hidden`. `attention_hidden` is the hidden
    layer of DIN's activation unit; `heads`, `blocks` and `feed_forward` are those of BST's encoder.
    """

    name: Literal["DIN", "DIEN", "BST", "DCNv2"] = "DIN"
    dim: int = 16
    embedding_dim: int = 16
    history_length: int = 30
    attention_hidden: int = 36
    heads: int = 2
    blocks: int = 1
    feed_forward: int = 128
    cross_layers: int = 2
    head_hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.1
    first_order: bool = True
    time: TimeEncoding = field(default_factory=TimeEncoding)
    aggregates: int = 0
    aggregate_path: AggregatePath = "tokens"


BaselineConfig = InterFormerConfig | WukongConfig | LibraryConfig
