"""Global interaction: parallel Wukong experts over [set tokens; sequence summary].

Legend: B batch, N set tokens (kept), J input tokens = N + P, D width, R rank of the factorisation machine.
Wukong (2403.02545): each block joins linear compression (LCB) and an optimised factorisation machine (FMB), then
Add & Norm. Kunlun figure 1: M blocks in parallel, all see all tokens, no router; their outputs fill disjoint slots of
the N tokens, which equals a sum of disjoint parts (docs/adr/0006).
"""

import torch
from torch import Tensor, nn


class WukongExpert(nn.Module):
    """`slots` output tokens: about half from the FMB, the others from the LCB."""

    def __init__(self, *, tokens: int, slots: int, dim: int, rank: int, hidden: int) -> None:
        super().__init__()
        self.fm_slots = slots // 2
        self.project = nn.Linear(tokens, rank, bias=False)
        self.norm_fm = nn.LayerNorm(tokens * rank)
        self.mlp = nn.Sequential(
            nn.Linear(tokens * rank, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, self.fm_slots * dim)
        )
        self.compress = nn.Linear(tokens, slots - self.fm_slots, bias=False)

    def forward(self, x_BJD: Tensor) -> Tensor:
        """x [B, J, D] -> [B, slots, D], before Add & Norm."""
        across_BDJ = x_BJD.transpose(1, 2)
        interactions_BJR = x_BJD @ self.project(across_BDJ)
        fm_BFD = self.mlp(self.norm_fm(interactions_BJR.flatten(1))).unflatten(1, (self.fm_slots, -1))
        linear_BLD = self.compress(across_BDJ).transpose(1, 2)
        return torch.cat([fm_BFD, linear_BLD], dim=1)


class GlobalInteraction(nn.Module):
    """X' = Norm(X + [expert_1; ...; expert_M]([X; H])): the number of set tokens stays N."""

    def __init__(self, *, tokens: int, pooled: int, dim: int, experts: int, rank: int, hidden: int) -> None:
        super().__init__()
        slots = [tokens // experts + (number < tokens % experts) for number in range(experts)]
        self.experts = nn.ModuleList(
            WukongExpert(tokens=tokens + pooled, slots=share, dim=dim, rank=rank, hidden=hidden) for share in slots
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x_BND: Tensor, h_BPD: Tensor) -> Tensor:
        """x [B, N, D] and the summary h [B, P, D] -> [B, N, D]."""
        joint_BJD = torch.cat([x_BND, h_BPD], dim=1)
        return self.norm(x_BND + torch.cat([expert(joint_BJD) for expert in self.experts], dim=1))
