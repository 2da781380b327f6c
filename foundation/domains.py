"""Domain experts: beside the trunk that all surfaces share, each surface has a small expert of its own with a gate.

Legend: B batch, S surfaces, E features of the trunk, W width of an expert, K tasks.
GEM's announcement names a domain-expert framework and no form; the form here is this project's [I], after the central
model with a light expert per surface of Foundation-Expert (arXiv 2508.02929).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class DomainExperts(nn.Module):
    """What a surface's expert adds to the trunk's logits: gate(h) * (gelu(h A_s + a_s) C_s + c_s), zero at the start.

    A surface that no training row came from, and any code outside 0 .. S - 1, adds exactly zero: it falls back to the
    trunk. `trunk_share` of the training rows do without their expert, so that the trunk stays calibrated alone.
    All experts are computed for every row and the own one is kept: two products, cheaper than a gather of weights as
    long as S W is of the order of E.
    """

    seen_S: Tensor

    def __init__(self, features: int, surfaces: int, width: int, tasks: int, *, trunk_share: float = 0.1) -> None:
        super().__init__()
        self.surfaces, self.width, self.tasks, self.trunk_share = surfaces, width, tasks, trunk_share
        self.inner = nn.Linear(features, surfaces * width)
        self.gate = nn.Linear(features, surfaces)
        self.outer = nn.Parameter(torch.zeros(surfaces * width, tasks))
        self.bias = nn.Parameter(torch.zeros(surfaces, tasks))
        self.register_buffer("seen_S", torch.zeros(surfaces, dtype=torch.bool))

    def forward(self, hidden_BE: Tensor, surface_B: Tensor) -> Tensor:
        """logits_BK to add to the trunk's, of the trunk's features and the schema's surface codes (int64)."""
        own_BS = surface_B[:, None] == torch.arange(self.surfaces, device=surface_B.device)
        if self.training:
            self.seen_S |= own_BS.any(dim=0)
            own_BS = own_BS & (torch.rand(len(own_BS), 1, device=own_BS.device) >= self.trunk_share)
        else:
            own_BS = own_BS & self.seen_S
        gate_BS = own_BS * torch.sigmoid(self.gate(hidden_BE))
        inner_BSW = functional.gelu(self.inner(hidden_BE), approximate="tanh").unflatten(1, (self.surfaces, self.width))
        experts_BK: Tensor = (inner_BSW * gate_BS[..., None]).flatten(1) @ self.outer + gate_BS @ self.bias
        return experts_BK
