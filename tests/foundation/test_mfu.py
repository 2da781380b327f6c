"""Utilisation is arithmetic on counts; the peak is that of a real matmul."""

import pytest
import torch

from foundation.mfu import Speed, peak_flops


def test_the_peak_is_measured() -> None:
    assert peak_flops(torch.device("cpu"), side=64) > 1e6
    assert peak_flops(torch.device("cpu"), torch.bfloat16, side=64) > 1e4


def test_utilisation_counts_three_forward_passes_per_example(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("foundation.mfu.time.monotonic", lambda: now[0])
    speed = Speed(forward_flops=1e6, peak=1e9)
    speed.add(30)
    speed.add(20)
    now[0] += 2.0
    assert speed.examples_per_s == 25
    assert speed.mfu == pytest.approx(3 * 1e6 * 25 / 1e9)
    assert speed.to_json() == {
        "examples_per_s": 25,
        "forward_flops_per_example": 1_000_000,
        "peak_flops": 1_000_000_000,
        "mfu": 0.075,
    }
    assert str(speed) == "25 examples/s MFU 7.5 %"
