"""Sizes and parts of GEM as one frozen dataclass; a recipe holds it, a checkpoint saves it."""

from dataclasses import dataclass

REPRESENTATION_DIM = 64
REPRESENTATION_PREFIXES = (8, 16, 32, 64)
"""Width of z and its prefixes that are usable alone (LoopFM, Matryoshka); the representation log relies on both."""


@dataclass(frozen=True)
class GemConfig:
    """Sizes of the model. `dim` is the token width D, split over `heads`; embeddings are `embedding_dim` wide.

    `history_length` is the configured maximum length: the tau of GDPA (docs/adr/0006) counts it plus the
    request token. `pffn_hidden` is F, `summary_tokens` n_sum of WeightGen, `seeds` > `pooled_tokens` those of HSP,
    `kron_rank` k of SumKronLinear, `window` the sliding window w (None: full attention), `experts` M parallel Wukong
    blocks with an FM of rank `fm_rank` and an MLP of width `fm_hidden`. `dropout` acts on set tokens and in the head.
    """

    dim: int
    heads: int
    layers: int
    embedding_dim: int
    history_length: int
    pffn_hidden: int
    summary_tokens: int
    seeds: int
    pooled_tokens: int
    kron_rank: int
    window: int | None
    experts: int
    fm_rank: int
    fm_hidden: int
    head_hidden: tuple[int, ...]
    dropout: float = 0.0
