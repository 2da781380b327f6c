"""The list of times that the test day was opened: it stays honest only if each look at it is written down."""

import json
import os
import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from contracts.errors import InputError


def note_opening(path: Path, *, now: datetime, command: Sequence[str]) -> None:
    """Append date, commit and command to the JSON list at `path` (created if absent), in one atomic step."""
    openings = []
    if path.exists():
        try:
            openings = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise InputError(f"{path} is not JSON ({error}); restore it from version control") from None
    openings.append({"date": now.isoformat(timespec="seconds"), "commit": _commit(), "command": list(command)})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(openings, indent=1) + "\n")
    os.replace(partial, path)


def _commit() -> str:
    """The checked-out commit; "unknown" outside a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
