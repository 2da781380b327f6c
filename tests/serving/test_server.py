"""`python -m serving` as a process: start, refusals to start, metrics, workers, the end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from serving.server import serve
from tests.conftest import free_port
from tests.serving.conftest import Cache, body, now_ms
from tests.serving.live_server import launch, running
from tests.serving.small_student import write_artifact, write_catalogue


@pytest.fixture
def settings(artifacts: Path, catalogue_path: Path, valkey_url: str, cache: Cache, tmp_path: Path) -> dict[str, Any]:
    """Settings of a server with a published user u1."""
    cache.go_live()
    cache.publish("u1", computed_ms=now_ms())
    return {
        "models": artifacts,
        "catalog": catalogue_path,
        "redis_url": valkey_url,
        "log": tmp_path / "server.log",
        "store_timeout_ms": 500,
        "deadline_ms": 5000,
    }


def metric(url: str, name: str) -> float:
    lines = httpx.get(url).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def test_a_server_ranks_without_torch_and_ends_cleanly(settings: dict[str, Any]):
    port = free_port()
    with running(python=("-X", "importtime"), metrics_port=port, **settings) as server:
        assert "serves student/1 for feed, other, reels" in server.ready_line
        answer = httpx.post(f"{server.url}/v1/rank", json=body())
        assert (answer.status_code, answer.json()["embedding"]["status"]) == (200, "fresh")
        assert httpx.get(f"{server.url}/readyz").json()["status"] == "ready"
        assert httpx.get(f"{server.url}/metrics").status_code == 404
        metrics = f"http://127.0.0.1:{port}/metrics"
        assert metric(metrics, "gem_requests_total") == 1
        assert metric(metrics, "process_resident_memory_bytes") > 0
        assert "u1" not in httpx.get(metrics).text
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
    imported = {line.rsplit("|", 1)[1].strip() for line in server.log.read_text().splitlines() if "|" in line}
    assert {"serving.ranker", "contracts.features", "onnxruntime"} <= imported
    folders = {name.split(".")[0] for name in imported}
    assert not folders & {"torch", "events", "foundation", "precompute", "student_models", "loadtests", "triton"}


def test_a_request_in_flight_is_answered_before_the_end(settings: dict[str, Any], spawn_valkey: Callable[..., Any]):
    store = spawn_valkey()
    with redis.Redis.from_url(store.url) as client:
        Cache(client).go_live()
    slow = {"redis_url": store.url, "store_timeout_ms": 1500}
    with running(**settings | slow) as server, httpx.Client(base_url=server.url) as client:
        client.get("/livez")  # the connection stays open
        os.kill(store.process.pid, signal.SIGSTOP)
        answers: list[httpx.Response] = []
        request = threading.Thread(target=lambda: answers.append(client.post("/v1/rank", json=body(), timeout=10)))
        request.start()
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        request.join()
        os.kill(store.process.pid, signal.SIGCONT)
        assert server.process.wait(20) == 0
    assert answers[0].status_code == 200
    assert answers[0].json()["degraded"] == ["embedding_store_timeout"]


def test_two_workers_share_the_port_and_every_scrape_sees_both(settings: dict[str, Any]):
    port = free_port()
    with running(workers=2, metrics_port=port, **settings) as server:
        assert server.process.stdout is not None
        server.process.stdout.readline()  # the other worker
        for _ in range(40):
            assert httpx.post(f"{server.url}/v1/rank", json=body()).status_code == 200
        for _ in range(3):
            assert metric(f"http://127.0.0.1:{port}/metrics", "gem_requests_total") == 40
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0


def test_what_cannot_serve_ends_with_one_sentence_and_exit_code_2(settings: dict[str, Any], tmp_path: Path):
    flipped = write_artifact(tmp_path / "flipped")
    content = bytearray((flipped / "model.onnx").read_bytes())
    content[-10] ^= 1
    (flipped / "model.onnx").write_bytes(content)
    truncated = write_catalogue(tmp_path / "truncated.arrow")
    truncated.write_bytes(truncated.read_bytes()[:500])
    (tmp_path / "empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        faults = {
            "model.onnx differs": {"models": tmp_path / "flipped"},
            "truncated.arrow is no whole Arrow file": {"catalog": truncated},
            "holds no artifact": {"models": tmp_path / "empty", "workers": 2},
            "GEM_CLOCK": {"clock": "sundial"},
            "cannot be bound": {"port": taken.getsockname()[1]},
            "GEM_METRICS_PORT": {"metrics_port": taken.getsockname()[1]},
        }
        processes = {}
        for number, (message, changes) in enumerate(faults.items()):
            processes[message] = launch(**settings | changes | {"log": tmp_path / f"{number}.log"})
        for number, (message, process) in enumerate(processes.items()):
            output, _ = process.communicate(timeout=60)
            errors = (tmp_path / f"{number}.log").read_text()
            assert process.returncode == 2, f"{message}: {errors}"
            assert errors.startswith("error: ")
            assert errors.count("\n") == 1, errors
            assert message in errors
            assert output == ""


def test_an_unforeseen_failure_at_the_start_shows_itself(make_settings: Callable[..., Any], monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("unforeseen")

    monkeypatch.setattr("serving.server.build", fail)
    with pytest.raises(TypeError, match="unforeseen"):
        serve(make_settings(port=0))


def test_help_needs_no_settings():
    shown = subprocess.run([sys.executable, "-m", "serving", "--help"], capture_output=True, text=True, check=True)
    assert "GEM_MODELS" in shown.stdout
