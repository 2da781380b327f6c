"""The load test as a command, against a live server: counts, the CSV report, exit codes."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    options = ("--host", server.url, "--users", 2, "--rate", 20, "--duration", 4, "--catalog", catalogue)
    ended = load(*options, "--candidates", 30, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["failures"] == 0
    assert 0 < result["requests"] <= 4 * 20 + 2
    rows = list(csv.DictReader((tmp_path / "load_stats.csv").read_text().splitlines()))
    (row,) = [row for row in rows if row["Name"] == "/v1/rank"]
    assert int(row["Request Count"]) == result["requests"]


def test_wrong_answers_end_with_exit_code_1(server: Server, tmp_path: Path):
    # an objective that the contract does not know: every answer is a 422
    ended = load("--host", server.url, "--users", 1, "--duration", 4, "--objective", "x", folder=tmp_path)
    assert ended.returncode == 1
    assert "answers failed" in ended.stderr.splitlines()[-1]
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["failures"] == result["requests"] > 0


def test_no_server_is_bad_usage(tmp_path: Path):
    ended = load("--host", "http://127.0.0.1:1", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: --host: nothing answers")
    assert not list(tmp_path.iterdir())


def test_more_candidates_than_ads_is_bad_usage(server: Server, tmp_path: Path):
    catalogue = write_catalogue(tmp_path / "small.arrow", catalogue_table(("a", "b")))
    ended = load("--host", server.url, "--catalog", catalogue, "--candidates", 3, folder=tmp_path)
    assert ended.returncode == 2
    assert "--candidates 3 is more than the 2 ads" in ended.stderr
