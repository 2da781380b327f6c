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
    """The checkout's commit, with `+changes` where tracked files outside results differ from it."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    status = ["git", "status", "--porcelain", "-uno", "--", ".", ":!results", ":!docs/results"]
    changed = subprocess.run(status, capture_output=True, text=True, check=True)
    return head + ("+changes" if changed.stdout else "")


def processor() -> str:
    """Name of the processor; the architecture where the system does not tell."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0] if names else platform.machine()
