"""Recorded figures say where they come from."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from contracts import provenance
from contracts.provenance import commit, processor, record


def test_recorded_figures_name_command_commit_machine_and_date(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    record(file, command="make demo", figures={"ne": {"click": {"base": 0.9}}}, cost={"seconds": 1})
    recorded = json.loads(file.read_text())
    assert recorded["command"] == "make demo"
    assert re.fullmatch(r"[0-9a-f]{40}(\+changes)?", recorded["commit"])
    assert recorded["machine"]["cores"] > 0
    assert recorded["machine"]["processor"] == processor() != ""
    assert datetime.fromisoformat(recorded["date"]).tzinfo is not None
    assert (recorded["ne"], recorded["seconds"]) == ({"click": {"base": 0.9}}, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["demo.json"]


def test_a_record_that_cannot_be_written_keeps_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    record(file, command="make demo", figures={"ne": 0.9}, cost={})
    before = file.read_bytes()
    with pytest.raises(TypeError):
        record(file, command="make demo", figures={"ne": object()}, cost={})
    assert file.read_bytes() == before


def test_the_commit_is_that_of_the_code_wherever_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = commit()
    monkeypatch.chdir(tmp_path)
    assert commit() == here != "unknown"
    monkeypatch.setattr(provenance, "ROOT", tmp_path)  # an installation without a checkout
    assert commit() == "unknown"
