"""Global interaction: parallel Wukong experts over [set tokens; sequence summary].

Legend: B batch, N set tokens (kept), I set tokens as read (N, or those of a summary), P pooled tokens, J tokens that an
expert sees, D width, R rank of the factorisation machine, A tokens behind an attentive projection.
Wukong (2403.02545): each block joins linear compression (LCB) and an optimised factorisation machine (FMB), then
Add & Norm. Kunlun figure 1: M blocks in parallel, all see all tokens, no router; their outputs fill disjoint slots of
the N tokens, which equals a sum of disjoint parts (docs/adr/0006).
"""

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from foundation.config import ExpertView

ATTENTIVE_TOKENS = 4
"""Tokens to which all are compressed before they choose the projection of the factorisation machine."""


class AttentiveProjection(nn.Module):
    """Y(X) = Y_0 + MLP(LCB(X)): an FM projection [B, J, R] that depends on the example (Wukong 3.1)."""

    def __init__(self, *, tokens: int, dim: int, rank: int) -> None:
        super().__init__()
        self.shape = (tokens, rank)
        self.compress = nn.Linear(tokens, ATTENTIVE_TOKENS, bias=False)
        choose = nn.Linear(dim, tokens * rank)
        # at most as large as the fixed part, however many tokens there are
        nn.init.normal_(choose.weight, std=(tokens * dim) ** -0.5)
        nn.init.zeros_(choose.bias)
        self.mlp = nn.Sequential(
            nn.LayerNorm(ATTENTIVE_TOKENS * dim),
            nn.Linear(ATTENTIVE_TOKENS * dim, dim),
            nn.GELU(approximate="tanh"),
            choose,
        )
        self.start = nn.Parameter(torch.randn(tokens, rank) * tokens**-0.5)

    def forward(self, across_BDJ: Tensor) -> Tensor:
        flat_BA = self.compress(across_BDJ).flatten(1)
        return self.start + self.mlp(flat_BA).unflatten(1, self.shape)


class WukongExpert(nn.Module):
    """`slots` output tokens: about half from the FMB, the others from the LCB."""

    def __init__(self, *, tokens: int, slots: int, dim: int, rank: int, hidden: int, attentive: bool = False) -> None:
        super().__init__()
        self.fm_slots = slots // 2
        self.project = None if attentive else nn.Linear(tokens, rank, bias=False)
        self.attentive = AttentiveProjection(tokens=tokens, dim=dim, rank=rank) if attentive else None
        self.norm_fm = nn.LayerNorm(tokens * rank)
        self.mlp = nn.Sequential(
            nn.Linear(tokens * rank, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, self.fm_slots * dim)
        )
        self.compress = nn.Linear(tokens, slots - self.fm_slots, bias=False)

    def forward(self, x_BJD: Tensor) -> Tensor:
        """x [B, J, D] -> [B, slots, D], before Add & Norm."""
        across_BDJ = x_BJD.transpose(1, 2)
        if self.project is not None:
            projected_BDR = self.project(across_BDJ)
        else:
            assert self.attentive is not None
            projected_BDR = across_BDJ @ self.attentive(across_BDJ)
        interactions_BJR = x_BJD @ projected_BDR
        fm_BFD = self.mlp(self.norm_fm(interactions_BJR.flatten(1))).unflatten(1, (self.fm_slots, -1))
        linear_BLD = self.compress(across_BDJ).transpose(1, 2)
        return torch.cat([fm_BFD, linear_BLD], dim=1)


class GlobalInteraction(nn.Module):
    """X' = Norm(X + [expert_1; ...; expert_M]([X; H])): the number of set tokens stays N.

    The experts read the set tokens themselves, or `inputs` tokens in their place. With the view "partition" each
    reads its own share of them, in order, and the whole summary.
    """

    def __init__(
        self,
        *,
        tokens: int,
        pooled: int,
        dim: int,
        experts: int,
        rank: int,
        hidden: int,
        inputs: int | None = None,
        attentive: bool = False,
        view: ExpertView = "full",
    ) -> None:
        super().__init__()
        if tokens < 2 * experts:
            raise InputError(f"{experts} experts share {tokens} set tokens; take at most {tokens // 2} experts")
        read = tokens if inputs is None else inputs
        slots, self.shares = split(tokens, experts), split(read, experts)
        self.view = view
        if view == "partition" and min(self.shares) < 1:
            raise InputError(f"{experts} experts cannot part {read} tokens; take the view full or fewer experts")
        self.experts = nn.ModuleList(
            WukongExpert(
                tokens=(read if view == "full" else share) + pooled,
                slots=own,
                dim=dim,
                rank=rank,
                hidden=hidden,
                attentive=attentive,
            )
            for own, share in zip(slots, self.shares, strict=True)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x_BND: Tensor, h_BPD: Tensor, read_BID: Tensor | None = None) -> Tensor:
        """x [B, N, D], the summary h [B, P, D] and what stands for x among the experts' inputs -> [B, N, D]."""
        read_BID = x_BND if read_BID is None else read_BID
        if self.view == "full":
            joint_BJD = torch.cat([read_BID, h_BPD], dim=1)
            outputs = [expert(joint_BJD) for expert in self.experts]
        else:
            shares = read_BID.split(self.shares, dim=1)
            outputs = [
                expert(torch.cat([share, h_BPD], dim=1)) for expert, share in zip(self.experts, shares, strict=True)
            ]
        return self.norm(x_BND + torch.cat(outputs, dim=1))


def split(tokens: int, parts: int) -> list[int]:
    """Sizes of `parts` shares of the tokens, as even as can be."""
    return [tokens // parts + (number < tokens % parts) for number in range(parts)]
