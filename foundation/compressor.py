"""The compressor: activations of GEM -> z in [-1, 1]^64, whose prefixes are usable alone.

Legend: B batch, E activations, Z width of z. LoopFM (2605.29280): an autoencoder trained beside the model on
detached activations, last encoder activation tanh, Matryoshka loss with one decoder per prefix. Activations are
standardised per dimension with running statistics, since they are unbounded (docs/adr/0006).
"""

import torch
from torch import Tensor, nn

from foundation.config import REPRESENTATION_DIM, REPRESENTATION_PREFIXES

MOMENTUM = 0.01
"""Weight of the newest batch in the running statistics: the last hundred batches count."""


class Standardise(nn.Module):
    """(e - mean) / spread per dimension, both running over the training batches, the same formula in training and use.

    Unlike batch normalisation a row's output never depends on the other rows of its batch.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.square: Tensor
        self.weight: Tensor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("square", torch.zeros(width))
        self.register_buffer("weight", torch.zeros(1))

    @torch.no_grad()
    def update(self, e_BE: Tensor) -> None:
        """Takes one training batch into the running statistics."""
        self.mean.lerp_(e_BE.mean(dim=0), MOMENTUM)
        self.square.lerp_(e_BE.square().mean(dim=0), MOMENTUM)
        self.weight.lerp_(torch.ones_like(self.weight), MOMENTUM)

    def forward(self, e_BE: Tensor) -> Tensor:
        weight = self.weight.clamp(min=1e-6)  # as Adam's bias correction: early averages are not pulled towards zero
        mean = self.mean / weight
        variance = (self.square / weight - mean.square()).clamp(min=0)
        return ((e_BE - mean) / (variance.sqrt() + 1e-3)).clamp(-8, 8)


class Compressor(nn.Module):
    """Encoder Linear-GELU-Linear-tanh; one linear decoder per prefix 8, 16, 32, 64.

    `hidden` is the encoder's inner width, by default that of the activations. `aligned`: z ends in an affine map to
    another space and a clip to [-1, 1]; the map is the identity until it is set (`foundation.align`), and the decoders
    and the loss stay with the z before it.
    """

    map_ZZ: Tensor
    shift_Z: Tensor

    def __init__(self, activations: int, *, hidden: int | None = None, aligned: bool = False) -> None:
        super().__init__()
        hidden = hidden or activations
        self.aligned = aligned
        self.standardise = Standardise(activations)
        self.encoder = nn.Sequential(
            nn.Linear(activations, hidden),
            nn.GELU(approximate="tanh"),
            nn.Linear(hidden, REPRESENTATION_DIM),
            nn.Tanh(),
        )
        self.decoders = nn.ModuleList(nn.Linear(prefix, activations) for prefix in REPRESENTATION_PREFIXES)
        if aligned:
            self.register_buffer("map_ZZ", torch.eye(REPRESENTATION_DIM))
            self.register_buffer("shift_Z", torch.zeros(REPRESENTATION_DIM))

    def forward(self, e_BE: Tensor) -> Tensor:
        """z [B, 64] of the activations."""
        z_BZ: Tensor = self.encoder(self.standardise(e_BE.detach()))
        if self.aligned:
            z_BZ = (z_BZ @ self.map_ZZ.T + self.shift_Z).clamp(-1, 1)
        return z_BZ

    def loss(self, e_BE: Tensor) -> Tensor:
        """Mean over prefixes of the reconstruction error per dimension; updates the statistics, never the model."""
        e_BE = e_BE.detach().float()
        self.standardise.update(e_BE)
        return self._errors(e_BE).mean()

    @torch.no_grad()
    def reconstruction(self, e_BE: Tensor) -> Tensor:
        """Mean squared error of each prefix's decoder per standardised dimension, float32 [prefixes], for reports:
        nothing learns, and the statistics stay."""
        return self._errors(e_BE.float())

    def _errors(self, e_BE: Tensor) -> Tensor:
        target_BE = self.standardise(e_BE)
        z_BZ = self.encoder(target_BE)
        errors = [
            nn.functional.mse_loss(decoder(z_BZ[:, :prefix]), target_BE)
            for prefix, decoder in zip(REPRESENTATION_PREFIXES, self.decoders, strict=True)
        ]
        return torch.stack(errors)
