"""One Kunlun layer, wired as figure 1 of the paper.

Legend: B batch, T tokens of a sequence, N set tokens, P pooled tokens, D width, E width of a tower.

    W_l   = WeightGen(X_l)
    P_l   = GDPA_PFFN(S_l; W_l)
    S_l+1 = SelfAttention(P_l)
    H_l   = HSP(P_l)                          # the PFFN's output, neither S_l nor the attention's output
    X_l+1 = GlobalInteraction([X_l; H_l])     # the raw set tokens bypass WeightGen

With CompSkip even layers do without the attention, and odd layers attend alone and keep the last H. Every tower has a
column of its own (S, W, P, H); the global interaction reads all summaries.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foundation.attention import Reach, SelfAttention
from foundation.config import GemConfig, Tower
from foundation.hsp import SeedPooling
from foundation.hstu import HstuAttention
from foundation.pffn import PersonalisedFFN, PlainFFN, WeightGen
from foundation.towers import SequenceGeometry
from foundation.wukong import GlobalInteraction


@dataclass(frozen=True)
class Parts:
    """What a tower computes in a layer; a part whose output nobody reads is left out."""

    pffn: bool
    attention: bool
    pooling: bool


def parts(config: GemConfig, tower: Tower, number: int) -> Parts:
    """Parts of layer `number` (from 0) of a tower.

    The last pooling ends a tower: no attention follows it, nor a PFFN when the pooling reads the layer's input.
    """
    if number >= tower.layers:
        return Parts(pffn=False, attention=False, pooling=False)
    even = number % 2 == 0
    later = number + 1 + (config.compskip and even) < tower.layers  # a later layer that pools
    pooling = even or not config.compskip
    return Parts(
        pffn=config.pffn != "none" and pooling and (later or config.hsp_input == "pffn_out"),
        attention=later and not (config.compskip and even),
        pooling=pooling,
    )


class TowerLayer(nn.Module):
    """(S, X, H) -> (S', H'): a tower's part of a layer. H' [B, P, D] is fresh, or the one that came in."""

    def __init__(self, config: GemConfig, tower: Tower, *, number: int, set_tokens: int) -> None:
        super().__init__()
        dim, heads, has = tower.dim, tower.heads, parts(config, tower, number)
        self.from_input = config.hsp_input == "seq_in"
        self.narrow = self.widen = self.weight_gen = self.attention = self.hsp = None
        self.pffn: PlainFFN | PersonalisedFFN | None = None
        if has.pffn and config.pffn == "plain":
            self.pffn = PlainFFN(dim=dim, hidden=config.pffn_hidden, activation=config.activations[0])
        elif has.pffn:
            if config.dim != dim:
                self.narrow = nn.Linear(config.dim, dim)
            self.weight_gen = WeightGen(
                tokens=set_tokens,
                summary=config.summary_tokens,
                hidden=config.pffn_hidden,
                dim=dim,
                heads=heads,
                max_length=tower.length + 1,
                tau=config.tau,
            )
            self.pffn = PersonalisedFFN(
                dim=dim, heads=heads, activations=config.activations, projections=config.gdpa_projections
            )
        if has.attention:
            self.attention = _attention(config, tower)
        if has.pooling:
            self.hsp = SeedPooling(
                dim=dim,
                heads=heads,
                seeds=config.seeds,
                pooled=tower.pooled_tokens,
                rank=config.kron_rank,
                compression=config.compression if config.pooling == "hsp" else None,
                values=config.hsp_values,
            )
            if config.dim != dim:
                self.widen = nn.Linear(dim, config.dim)

    def forward(
        self, s_BTE: Tensor, x_BND: Tensor, h_BPD: Tensor | None, geometry: SequenceGeometry
    ) -> tuple[Tensor, Tensor | None]:
        p_BTE = s_BTE
        if self.pffn is not None:
            x_BNE = x_BND if self.narrow is None else self.narrow(x_BND)
            p_BTE = self.pffn(s_BTE, *(() if self.weight_gen is None else self.weight_gen(x_BNE)))
        if self.hsp is not None:
            h_BPD = self.hsp(s_BTE if self.from_input else p_BTE, geometry.mask_BU)
            h_BPD = h_BPD if self.widen is None else self.widen(h_BPD)
        if self.attention is not None:
            p_BTE = self.attention(p_BTE, geometry.mask_BU, geometry.rotary)
        return p_BTE, h_BPD


def _attention(config: GemConfig, tower: Tower) -> nn.Module:
    reach = Reach(config.attention, tower.window, config.block)
    if config.mixer == "softmax":
        return SelfAttention(dim=tower.dim, heads=tower.heads, reach=reach, time=config.time)
    length = tower.length + 1
    return HstuAttention(dim=tower.dim, heads=tower.heads, reach=reach, time=config.time, max_length=length)


class SetSummary(nn.Module):
    """X_sum = Norm(Gate(LCE(X))), as in WeightGen: [B, N, D] -> [B, n_sum, D]."""

    def __init__(self, *, tokens: int, summary: int, dim: int) -> None:
        super().__init__()
        self.compress = nn.Linear(tokens, summary)
        self.gate = nn.Linear(dim, dim)
        self.norm = nn.RMSNorm(dim, elementwise_affine=False)

    def forward(self, x_BND: Tensor) -> Tensor:
        summary_BMD = self.compress(x_BND.transpose(1, 2)).transpose(1, 2)
        normed: Tensor = self.norm(summary_BMD * torch.sigmoid(self.gate(summary_BMD)))
        return normed


@dataclass(frozen=True)
class Stream:
    """A tower's state between layers: tokens s [B, T, E], the last summary h [B, P, D] (None before the first)."""

    s_BTE: Tensor
    geometry: SequenceGeometry
    h_BPD: Tensor | None = None


class KunlunLayer(nn.Module):
    """(streams, X) -> (streams', X'). `number` counts the layers from 0."""

    def __init__(self, config: GemConfig, *, number: int, set_tokens: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            TowerLayer(config, tower, number=number, set_tokens=set_tokens) for tower in config.towers
        )
        self.summary = None
        if config.global_input == "x_sum":
            self.summary = SetSummary(tokens=set_tokens, summary=config.summary_tokens, dim=config.dim)
        self.interaction = GlobalInteraction(
            tokens=set_tokens,
            pooled=config.summary_width,
            dim=config.dim,
            experts=config.experts,
            rank=config.fm_rank,
            hidden=config.fm_hidden,
            inputs=None if self.summary is None else config.summary_tokens,
            attentive=config.attentive_fm,
            view=config.expert_view,
        )

    def forward(self, streams: list[Stream], x_BND: Tensor) -> tuple[list[Stream], Tensor]:
        after = []
        for tower, stream in zip(self.towers, streams, strict=True):
            s_BTE, h_BPD = tower(stream.s_BTE, x_BND, stream.h_BPD, stream.geometry)
            after.append(Stream(s_BTE, stream.geometry, h_BPD))
        read_BID = None if self.summary is None else self.summary(x_BND)
        return after, self.interaction(x_BND, summaries(after), read_BID)


def summaries(streams: list[Stream]) -> Tensor:
    """The summaries of all towers side by side: [B, P, D]."""
    return torch.cat([stream.h_BPD for stream in streams if stream.h_BPD is not None], dim=1)
