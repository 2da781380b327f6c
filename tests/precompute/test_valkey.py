import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from precompute.valkey import server_arguments, valkey_binary
from tests.conftest import free_port

ROOT = Path(__file__).parents[2]


def test_the_binary_of_the_wheel_runs():
    version = subprocess.run([valkey_binary(), "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("Valkey server")


def test_a_server_listens_on_the_loopback_address_alone():
    arguments = server_arguments(7000, None)
    assert arguments[arguments.index("--bind") + 1] == "127.0.0.1"


@pytest.mark.parametrize("kept", [True, False])
def test_the_command_runs_a_server_that_keeps_its_data_where_it_is_told(tmp_path, kept):
    port = free_port()
    options = ["--dir", str(tmp_path / "data")] if kept else []
    for expected in (None, b"value" if kept else None):
        server = subprocess.Popen(
            [sys.executable, "-m", "precompute.valkey", "--port", str(port), *options],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        with redis.Redis(port=port) as client:
            while True:
                try:
                    found = client.get("key")
                    break
                except redis.ConnectionError:
                    assert server.poll() is None
                    time.sleep(0.05)
            assert found == expected
            client.set("key", b"value")
        server.terminate()
        server.wait()
