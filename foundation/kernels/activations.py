"""The activations that a head of GDPA may have, by name."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda scores: functional.gelu(scores, approximate="tanh"),
    "silu": functional.silu,
    "relu": torch.relu,
    "squared_relu": lambda scores: torch.relu(scores).square(),
    "raw": lambda scores: scores,
    "sigmoid": torch.sigmoid,
}
"""Name -> function. The default `gelu` is the tanh form, as in Meta's kernels (`fast_gelu` of ads_model_kernel_library,
which offers one activation a head too). `sigmoid` is the only one that is not zero at zero."""


def per_head(activation: str | Sequence[str], heads: int) -> tuple[str, ...]:
    """One name a head from one name for all or a sequence of one or `heads` names; ValueError for anything else."""
    names = (activation,) if isinstance(activation, str) else tuple(activation)
    for name in names:
        if name not in ACTIVATIONS:
            raise ValueError(f"there is no activation {name!r}: choose from {', '.join(ACTIVATIONS)}")
    if len(names) not in (1, heads):
        raise ValueError(f"{len(names)} activations for {heads} heads: give one for all or one a head")
    return names * heads if len(names) == 1 else names
