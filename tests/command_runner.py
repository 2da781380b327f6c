"""Run many commands in one process: torch is imported once, and each ends as it would in a process of its own.

As a script it reads a JSON list of argument lists from standard input and writes [exit code, stdout, stderr] of each.
"""

import contextlib
import io
import json
import runpy
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def run_commands(commands: list[list[str]]) -> list[Done]:
    """`python -m <module> <options>` for each [module, *options], one after the other in one process."""
    script = [sys.executable, __file__]
    child = subprocess.run(script, input=json.dumps(commands), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr
    return [Done(*ended) for ended in json.loads(child.stdout)]


def _run(command: list[str]) -> tuple[int, str, str]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = list(command)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    # a command that another one's imports have loaded: of no account here
    warnings.simplefilter("ignore", RuntimeWarning)
    print(json.dumps([_run(command) for command in json.load(sys.stdin)]))
