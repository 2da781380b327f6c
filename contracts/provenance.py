"""Where a figure comes from: command, commit, machine and date, written beside it."""

import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from contracts.command import finite

ROOT = Path(__file__).resolve().parents[1]


def record(path: Path, *, command: str, figures: dict[str, Any], cost: dict[str, Any]) -> None:
    """Write the comparison's figures with command, commit, machine and date."""
    machine = {"processor": processor(), "cores": os.cpu_count(), "system": platform.platform(), "python": sys.version}
    versions = {name: version(name) for name in ("torch", "numpy", "onnxruntime")}
    provenance = {
        "command": command,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine, **versions},
    }
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(finite({**provenance, **cost, **figures}), indent=1, allow_nan=False) + "\n")
    os.replace(partial, path)


def commit() -> str:
    """Commit of the checkout that this code lies in, with `+changes` where tracked files outside results differ from
    it; "unknown" where it lies in none, so that hours of work do not end for want of a name."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "-uno", "--", ".", ":!results", ":!docs/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def processor() -> str:
    """Name of the processor; the architecture where the system does not tell."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0] if names else platform.machine()
