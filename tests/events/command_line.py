"""Run a command in this process, as `python -m` would: through contracts.command.run."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from contracts.command import run


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class CommandLine:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, app: typer.Typer, *arguments: str | Path) -> Done:
        self.monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run(app)
        captured = self.capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, captured.out, captured.err)
