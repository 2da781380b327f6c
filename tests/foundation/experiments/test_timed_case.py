"""One timed case prints its figures as one JSON line."""

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch

from foundation.experiments import timed_case
from foundation.experiments.timed_case import HEADS, HIDDEN, Case, main, unfused_ffn
from foundation.kernels import gdpa
from foundation.presets import tiny_model

PEAK = 1e9


@pytest.fixture(autouse=True)
def _known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_case, "peak_flops", lambda device, dtype: PEAK)


def told_by(case: Case, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    main(json.dumps(asdict(case)))
    (line,) = capsys.readouterr().out.splitlines()
    told: dict[str, float] = json.loads(line)
    return told


@pytest.mark.parametrize("kind", ["pffn_gdpa", "pffn_unfused", "pffn_reference"])
def test_an_operator_case_prints_its_figures(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = told_by(Case(kind, 2, 4), capsys)
    assert set(told) == {"step_ms", "examples_per_s", "forward_flops", "mfu", "peak_mb"}
    assert told["forward_flops"] == 4 * 4 * HIDDEN * HEADS * timed_case.HEAD_WIDTH
    assert told["examples_per_s"] == pytest.approx(2 / (told["step_ms"] / 1e3))
    assert told["mfu"] == pytest.approx(3 * told["forward_flops"] * told["examples_per_s"] / PEAK)
    assert told["peak_mb"] > 10


@pytest.mark.parametrize("changed", [{}, {"masked": True}, {"precision": "bf16"}])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_a_model_case_takes_training_steps(changed: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    told = told_by(Case("model", 2, 8, asdict(tiny_model()), **changed), capsys)
    longer = told_by(Case("model", 2, 16, asdict(tiny_model()), **changed), capsys)
    assert 0 < told["forward_flops"] < longer["forward_flops"]
    assert told["step_ms"] > 0


def test_the_unfused_ffn_is_the_same_operator() -> None:
    q, k, v = (torch.randn(3, tokens, 2, 16) for tokens in (5, 8, 8))
    torch.testing.assert_close(unfused_ffn(q, k, v), gdpa(q, k, v), rtol=1e-4, atol=1e-4)
