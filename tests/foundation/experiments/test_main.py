"""The command: --list names the five, an unknown one is refused, a known one is run and reported."""

import json
import sys
from pathlib import Path

import pytest

from contracts.command import run
from foundation.experiments import speed
from foundation.experiments.__main__ import EXPERIMENTS, app
from foundation.experiments.timed_case import Case

FIVE = ["quality", "unification", "architecture", "scaling", "speed"]


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit code of `python -m foundation.experiments` with these arguments, in this process."""
    monkeypatch.setattr(sys, "argv", ["foundation.experiments", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        run(app)
    return int(left.value.code or 0)


def test_list_names_all_five_and_ends_with_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "--list") == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == FIVE
    assert all(len(line.split()) > 3 for line in lines)
    assert json.loads(last) == {"experiments": FIVE}
    for name in EXPERIMENTS:
        assert (Path(speed.__file__).parent / f"{name}.py").exists()


@pytest.mark.parametrize("arguments", [("qualty",), ()])
def test_an_unknown_name_exits_2_and_names_the_choices(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: no experiment 'qualty'" if arguments else "error: name an experiment: ")
    assert all(name in captured.err for name in FIVE)
    assert captured.out == ""


def test_an_experiment_is_run_written_and_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")

    def timed(case: Case) -> dict[str, float]:
        step_ms = {"pffn_gdpa": 1.0, "pffn_unfused": 2.0, "pffn_reference": 8.0, "model": 4.0}[case.kind]
        return {"step_ms": step_ms, "examples_per_s": 1e3, "forward_flops": 1e6, "mfu": 0.5, "peak_mb": 100.0}

    monkeypatch.setattr(speed, "_timed", timed)
    assert ended(monkeypatch, "speed", "--smoke", "--seeds", 1, "--work", tmp_path / "work", "--out", tmp_path) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["experiment"] == "speed"
    raw, page = json.loads(Path(told["raw"]).read_text()), Path(told["page"]).read_text()
    assert raw["command"] == "python -m foundation.experiments speed --seeds 1 --smoke"
    assert raw["ratios"]["GDPA over unfused PFFN"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert raw["ratios"]["GDPA over reference loops"]["median"] == 8
    assert "| GDPA over unfused PFFN | 2.00 | 2.00 to 2.00 |" in page
    assert raw["commit"] in page
    (plot,) = [line.split("](")[1].rstrip(")") for line in page.splitlines() if line.startswith("![")]
    assert (Path(told["page"]).parent / plot).exists()
