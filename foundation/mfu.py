"""Model FLOPs utilisation: what the model needs per second over what a plain matmul reaches here and now."""

import time
from typing import Any

import torch

TRAINING_FACTOR = 3
"""A training step costs three forward passes: forward, then gradients of inputs and of weights."""
SIDE, REPEATS = 1024, 5
"""Large enough for the full rate of a core, small enough for a tenth of a second on it; GPUs need a larger side."""


def peak_flops(device: torch.device, dtype: torch.dtype = torch.float32, *, side: int | None = None) -> float:
    """FLOP/s of a square matmul on this device with this process's threads: the best of a few."""
    side = side or (SIDE if device.type == "cpu" else 8 * SIDE)
    left = torch.ones(side, side, device=device, dtype=dtype)
    best_s = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        float((left @ left)[0, 0])  # waits for the device
        best_s = min(best_s, time.perf_counter() - started)
    return 2 * side**3 / best_s


class Speed:
    """Examples per second and MFU of a training run, from its making on.

    `forward_flops` are those of one example, `peak` is in FLOP/s (`peak_flops`, in the precision of the run).
    """

    def __init__(self, *, forward_flops: float, peak: float) -> None:
        self._forward_flops, self._peak = forward_flops, peak
        self._examples, self._started = 0, time.monotonic()

    def add(self, examples: int) -> None:
        """Takes the examples of one step."""
        self._examples += examples

    @property
    def examples_per_s(self) -> float:
        return self._examples / max(1e-9, time.monotonic() - self._started)

    @property
    def mfu(self) -> float:
        """In [0, 1], of training: three forward passes per example."""
        return TRAINING_FACTOR * self._forward_flops * self.examples_per_s / self._peak

    def to_json(self) -> dict[str, Any]:
        return {
            "examples_per_s": round(self.examples_per_s, 1),
            "forward_flops_per_example": round(self._forward_flops),
            "peak_flops": round(self._peak),
            "mfu": round(self.mfu, 5),
        }

    def __str__(self) -> str:
        return f"{self.examples_per_s:,.0f} examples/s MFU {100 * self.mfu:.1f} %"
