"""One Kunlun layer, wired as figure 1 of the paper.

Legend: B batch, T sequence tokens, N set tokens, P pooled tokens, D width.

    W_l   = WeightGen(X_l)
    P_l   = GDPA_PFFN(S_l; W_l)
    S_l+1 = SelfAttention(P_l)
    H_l   = HSP(P_l)                          # the PFFN's output, neither S_l nor the attention's output
    X_l+1 = GlobalInteraction([X_l; H_l])     # the raw set tokens bypass WeightGen
"""

from dataclasses import dataclass

from torch import Tensor, nn

from foundation.attention import SelfAttention, attention_mask
from foundation.config import GemConfig
from foundation.hsp import HierarchicalSeedPooling
from foundation.pffn import PersonalisedFFN, WeightGen
from foundation.rote import rotary_table
from foundation.wukong import GlobalInteraction


@dataclass(frozen=True)
class SequenceGeometry:
    """What all layers share about a batch's sequences: mask [B, T], visible pairs [B, 1, T, T], rotary table."""

    mask_BT: Tensor
    visible_B1TT: Tensor
    rotary: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, mask_BT: Tensor, log_age_BT: Tensor, config: GemConfig) -> "SequenceGeometry":
        """Geometry of right-padded sequences, token 0 being the request."""
        rotary = rotary_table(log_age_BT, config.dim // config.heads)
        return cls(mask_BT, attention_mask(mask_BT, config.window), rotary)


class KunlunLayer(nn.Module):
    """(S, X) -> (S', X', H). The last layer of a stack has no reader for S' and leaves self attention out."""

    def __init__(self, config: GemConfig, *, set_tokens: int, last: bool) -> None:
        super().__init__()
        dim, heads = config.dim, config.heads
        self.weight_gen = WeightGen(
            tokens=set_tokens,
            summary=config.summary_tokens,
            hidden=config.pffn_hidden,
            dim=dim,
            heads=heads,
            max_length=config.history_length + 1,
        )
        self.pffn = PersonalisedFFN(dim=dim, heads=heads)
        self.attention = None if last else SelfAttention(dim=dim, heads=heads)
        self.hsp = HierarchicalSeedPooling(
            dim=dim, heads=heads, seeds=config.seeds, pooled=config.pooled_tokens, rank=config.kron_rank
        )
        self.interaction = GlobalInteraction(
            tokens=set_tokens,
            pooled=config.pooled_tokens,
            dim=dim,
            experts=config.experts,
            rank=config.fm_rank,
            hidden=config.fm_hidden,
        )

    def forward(self, s_BTD: Tensor, x_BND: Tensor, geometry: SequenceGeometry) -> tuple[Tensor, Tensor, Tensor]:
        p_BTD = self.pffn(s_BTD, *self.weight_gen(x_BND))
        h_BPD = self.hsp(p_BTD, geometry.mask_BT)
        x_BND = self.interaction(x_BND, h_BPD)
        if self.attention is not None:
            s_BTD = self.attention(p_BTD, geometry.visible_B1TT, geometry.rotary)
        return s_BTD, x_BND, h_BPD
