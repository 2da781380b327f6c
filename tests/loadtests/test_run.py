"""The load test as a command, against a live server: counts, the CSV report, exit codes."""

import csv
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from tests.loadtests.test_answers import ANSWER
from tests.serving.live_server import Server, running
from tests.serving.small_student import catalogue_table, write_artifact, write_catalogue


def load(*options: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtests.run", "--csv", str(folder / "load"), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A live server without a cache."""
    folder = tmp_path_factory.mktemp("server")
    write_artifact(folder / "models")
    catalogue = write_catalogue(folder / "catalog.arrow")
    nowhere = "redis://127.0.0.1:1/0"
    with running(log=folder / "log", models=folder / "models", catalog=catalogue, redis_url=nowhere) as found:
        yield found


def test_right_answers_are_counted_and_reported(server: Server, tmp_path: Path):
    catalogue = server.log.parent / "catalog.arrow"
    options = ("--host", server.url + "/", "--users", 2, "--rate", 20, "--duration", 4, "--catalog", catalogue)
    ended = load(*options, "--candidates", 30, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["failures"] == 0
    assert 0 < result["requests"] <= 4 * 20 + 2
    rows = list(csv.DictReader((tmp_path / "load_stats.csv").read_text().splitlines()))
    (row,) = [row for row in rows if row["Name"] == "/v1/rank"]
    assert int(row["Request Count"]) == result["requests"]
    assert list(result["embeddings"]) == ["unavailable"]
    assert result["embeddings"]["unavailable"] == result["requests"]


def test_wrong_answers_end_with_exit_code_1(server: Server, tmp_path: Path):
    # a time that the server's clock does not allow: every answer is a 422
    ended = load("--host", server.url, "--users", 1, "--duration", 4, "--timestamp-ms", 1, folder=tmp_path)
    assert ended.returncode == 1
    assert "answers failed" in ended.stderr.splitlines()[-1]
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["failures"] == result["requests"] > 0
    assert result["embeddings"] == {}


class BreaksAtTheEnd(BaseHTTPRequestHandler):
    """Ready, with a model, and ranks rightly for a while; then every answer is a 500."""

    healthy_s = 2.5
    started = 0.0
    broken = 0

    def do_GET(self) -> None:
        self.answer(200, {"models": [{"surfaces": ["feed"]}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).started = type(self).started or time.monotonic()
        if time.monotonic() - self.started > self.healthy_s:
            type(self).broken += 1
            return self.answer(500, {"code": "internal"})
        return self.answer(200, ANSWER | {"results": []})

    def answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_wrong_answers_of_the_last_moment_are_not_lost(tmp_path: Path):
    with ThreadingHTTPServer(("127.0.0.1", 0), BreaksAtTheEnd) as stub:
        thread = threading.Thread(target=stub.serve_forever)
        thread.start()
        host = f"http://127.0.0.1:{stub.server_port}"
        ended = load("--host", host, "--users", 1, "--rate", 20, "--duration", 3, "--candidates", 0, folder=tmp_path)
        stub.shutdown()
        thread.join()
    assert ended.returncode == 1
    result = json.loads(ended.stdout.splitlines()[-1])
    assert 0 < result["failures"] == BreaksAtTheEnd.broken
    assert result["requests"] == result["failures"] + result["embeddings"]["fresh"]
    rows = list(csv.DictReader((tmp_path / "load_stats.csv").read_text().splitlines()))
    assert [int(row["Failure Count"]) for row in rows if row["Name"] == "/v1/rank"] == [result["failures"]]


def test_no_server_is_bad_usage(tmp_path: Path):
    ended = load("--host", "http://127.0.0.1:1", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: --host: nothing answers")
    assert not list(tmp_path.iterdir())


def test_a_server_without_models_of_ours_is_bad_usage(tmp_path: Path):
    """The metrics port answers any path with 200."""
    registry = CollectorRegistry()
    httpd, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        ended = load("--host", f"http://127.0.0.1:{httpd.server_port}", folder=tmp_path)
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "has no /v1/models" in ended.stderr


@pytest.mark.parametrize("options", [("--objective", "foo"), ("--timestamp-ms", -1)])
def test_a_bad_option_is_bad_usage(options: tuple[object, ...], tmp_path: Path):
    ended = load(*options, folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert str(options[0]) in ended.stderr


def test_a_report_that_cannot_be_written_is_bad_usage(server: Server, tmp_path: Path):
    (tmp_path / "file").touch()
    ended = load("--host", server.url, folder=tmp_path / "file")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: --csv: ")
    assert len(ended.stderr.splitlines()) == 1


def test_more_candidates_than_ads_is_bad_usage(server: Server, tmp_path: Path):
    catalogue = write_catalogue(tmp_path / "small.arrow", catalogue_table(("a", "b")))
    ended = load("--host", server.url, "--catalog", catalogue, "--candidates", 3, folder=tmp_path)
    assert ended.returncode == 2
    assert "--candidates 3 is more than the 2 ads" in ended.stderr
