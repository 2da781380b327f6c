"""A real server process: `python -m serving` on a free port, its ready line, its signals."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Server:
    """A server that has said that it is ready."""

    process: subprocess.Popen[str]
    url: str
    ready_line: str
    log: Path


def launch(*, log: Path, python: tuple[str, ...] = (), **settings: object) -> subprocess.Popen[str]:
    """Start `python -m serving` with these GEM_ settings and no others; standard error goes to `log`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEM_")}
    environment |= {"GEM_PORT": "0", "GEM_METRICS_PORT": "0", "PYTHONPATH": str(ROOT)}
    environment |= {f"GEM_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, *python, "-m", "serving"]
    with log.open("w") as errors:
        return subprocess.Popen(
            command, cwd=log.parent, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )


@contextmanager
def running(*, log: Path, python: tuple[str, ...] = (), **settings: object) -> Iterator[Server]:
    """A ready server; killed at the end if it still runs, and after a minute whatever happens."""
    process = launch(log=log, python=python, **settings)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"ready: (http://\S+) serves ", line)
        assert found, f"no ready line but {line!r}; {log.read_text()}"
        yield Server(process, found[1], line, log)
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
