import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from precompute.valkey import server_arguments, valkey_binary
from tests.conftest import free_port

ROOT = Path(__file__).parents[2]
START_S = 60.0


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
            wait_for(client, server)
            assert client.get("key") == expected
            client.set("key", b"value")
        server.terminate()
        server.wait(timeout=START_S)


def wait_for(client: redis.Redis, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            client.ping()
            return
        except redis.RedisError:
            assert server.poll() is None, "the server ended at once"
            if time.monotonic() > deadline:
                server.kill()
                raise
            time.sleep(0.05)


def test_a_file_in_the_place_of_the_folder_ends_with_one_sentence(tmp_path):
    file = tmp_path / "data"
    file.touch()
    arguments = [sys.executable, "-m", "precompute.valkey", "--dir", str(file)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 2
    assert done.stderr == f"error: {file}: File exists; choose another path, or mend this one\n"
