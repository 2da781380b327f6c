"""Fixtures that several folders share: a real Valkey, and small logs."""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from events import recipes
from events.log import InteractionLog
from events.store import read_log, write_log
from events.world import make_world, world_calendar
from precompute.valkey import server_arguments

# ---- Valkey -----------------------------------------------------------------------------------------------------


class ValkeyServer:
    """A real server of its own; a test may stop, kill or restart it."""

    def __init__(self, folder: Path | None = None, *arguments: str) -> None:
        self.folder, self.arguments = folder, arguments
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        command = [*server_arguments(self.port, self.folder), *self.arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with redis.Redis.from_url(self.url, socket_timeout=1) as client:
            for _ in range(200):
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    assert self.process.poll() is None, "the Valkey server ended at once"
                    time.sleep(0.02)
        raise AssertionError("the Valkey server did not answer within 4 s")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[ValkeyServer]:
    server = ValkeyServer()
    yield server
    server.stop()


@pytest.fixture
def valkey(_shared_server: ValkeyServer) -> Iterator[redis.Redis]:
    """An empty Valkey; replies are bytes."""
    with redis.Redis.from_url(_shared_server.url, decode_responses=False) as client:
        client.flushall()
        client.script_flush()
        yield client


@pytest.fixture
def valkey_url(valkey: redis.Redis, _shared_server: ValkeyServer) -> str:
    """URL of the Valkey behind the fixture `valkey`."""
    return _shared_server.url


@pytest.fixture
def spawn_valkey() -> Iterator[Callable[..., ValkeyServer]]:
    """Starts servers that a test may stop or break: spawn_valkey(folder=None, *server_options)."""
    servers: list[ValkeyServer] = []

    def spawn(folder: Path | None = None, *arguments: str) -> ValkeyServer:
        servers.append(ValkeyServer(folder, *arguments))
        return servers[-1]

    yield spawn
    for server in servers:
        server.stop()


# ---- logs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tiny_log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic world `tiny` (about 3,000 impressions) on disk. Read only: copy it before you change it."""
    folder = tmp_path_factory.mktemp("tiny") / "log"
    config = recipes.tiny()
    log, truth = make_world(config)
    write_log(folder, log, calendar=world_calendar(config), truth=truth)
    return folder


@pytest.fixture(scope="session")
def tiny_log(tiny_log_dir: Path) -> InteractionLog:
    """The same in memory."""
    return read_log(tiny_log_dir)


@pytest.fixture(scope="session")
def kuairand_dir() -> Path:
    """KuaiRand-Pure's data folder: GEM_KUAIRAND_DIR, else ../shared/data/kuairand beside the checkout, else skip."""
    return kuairand_folder(
        os.environ.get("GEM_KUAIRAND_DIR"), default=Path(__file__).parents[2] / "shared" / "data" / "kuairand"
    )


def kuairand_folder(named: str | None, *, default: Path) -> Path:
    """The folder that was named, which must exist: a mistyped one fails; else the default or a skip."""
    if named:
        assert Path(named).is_dir(), f"GEM_KUAIRAND_DIR is {named}, which is no folder; mend it or unset it"
        return Path(named)
    if not default.is_dir():
        pytest.skip(f"no KuaiRand data: GEM_KUAIRAND_DIR is not set and {default} does not exist")
    return default


# ---- one run of the whole chain ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class DemoRun:
    """What the README's demo block did on the smoke world: its work folder, its standard output, its last line."""

    folder: Path
    output: str
    result: dict[str, Any]


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """The README's demo, run once on the smoke world, for all workers of the test run. Read only."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, output = shared / "smoke-demo", shared / "smoke-demo.txt"
    with (shared / "smoke-demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            root = Path(__file__).parents[1]
            (command,) = re.findall(r"^```bash demo\n(make demo)\n```", (root / "README.md").read_text(), re.MULTILINE)
            # the installation that runs these tests, taken as it is
            here = [f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed", "DATA=smoke", f"OUT={folder}"]
            run = subprocess.run([*command.split(), *here], cwd=root, capture_output=True, text=True, timeout=300)
            assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
            output.write_text(run.stdout)
    text = output.read_text()
    return DemoRun(folder, text, json.loads(text.splitlines()[-1]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the demo first: other files that read it come last, so that no worker waits for it."""
    items.sort(key=lambda item: item.path.name != "test_end_to_end.py")
