"""The list of openings of the test day."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from contracts.errors import InputError
from events.openings import note_opening

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_openings_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "results" / "openings.json"
    note_opening(path, now=NOW, command=["a", "--final"])
    note_opening(path, now=NOW, command=["b"])
    openings = json.loads(path.read_text())
    assert [opening["command"] for opening in openings] == [["a", "--final"], ["b"]]
    assert openings[0]["date"] == "2026-01-02T03:04:05+00:00"


def test_outside_a_repository_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    note_opening(tmp_path / "openings.json", now=NOW, command=["a"])
    assert json.loads((tmp_path / "openings.json").read_text())[0]["commit"] == "unknown"


def test_a_broken_list_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "openings.json"
    path.write_text("[{")
    with pytest.raises(InputError, match=r"openings\.json is not JSON"):
        note_opening(path, now=NOW, command=["a"])
    assert path.read_text() == "[{"
