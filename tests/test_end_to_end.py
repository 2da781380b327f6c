"""The chain as an operator runs it: real commands in processes of their own, a real Valkey, a real server.

It goes on from the README's demo on the smoke world: new impressions arrive, a refresh takes them up, the server serves
them, generations are flipped and rolled back, Valkey dies.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from contracts.hashing import stable_hash
from events.log import InteractionLog
from events.store import append, read_log
from tests.command_runner import Done, run_commands
from tests.conftest import DemoRun, ValkeyServer, free_port

ROOT = Path(__file__).resolve().parents[1]
NEW_ROWS = 40


def gem(module: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", module, *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def result_of(module: str, *options: object) -> dict[str, Any]:
    """The JSON object of a command that must succeed."""
    done = gem(module, *options)
    assert done.returncode == 0, f"{module}: {done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Site:
    """A work folder of the demo, a Valkey, and the options that the commands share."""

    folder: Path
    valkey: ValkeyServer

    @property
    def space(self) -> Path:
        (index,) = (self.folder / "representations").glob("*/log.json")
        return index.parent

    def refresh(self) -> dict[str, Any]:
        options = ("--log", self.folder / "log", "--checkpoint", self.folder / "teacher")
        return result_of("precompute.refresh", *options, "--representations", self.space.parent, *self.url)

    @property
    def url(self) -> tuple[str, str]:
        return "--redis-url", self.valkey.url


@pytest.fixture
def site(smoke_run: DemoRun, tmp_path: Path, spawn_valkey: Callable[..., ValkeyServer]) -> Site:
    """A copy of what the demo left, and an empty Valkey."""
    for name in ("log", "teacher", "representations", "artifacts"):
        shutil.copytree(smoke_run.folder / name, tmp_path / name)
    return Site(tmp_path, spawn_valkey())


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    url: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return json.load(answer)

    def rank(self, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/v1/rank", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.status == 200
            return json.load(answer)


def until(holds: Callable[[], bool], *, seconds: float = 20) -> None:
    """Wait for something that happens in the background."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@contextmanager
def serving(site: Site, *, features: Path) -> Iterator[Server]:
    """`python -m serving` over the site, stopped by SIGTERM at the end; it must end with 0."""
    port = free_port()
    settings = {
        "GEM_MODELS": str(site.folder / "artifacts"),
        "GEM_CATALOG": str(site.folder / "log" / "catalog.arrow"),
        "GEM_REDIS_URL": site.valkey.url,
        "GEM_CLOCK": "request",
        "GEM_PORT": str(port),
        "GEM_METRICS_PORT": "0",
        "GEM_STORE_TIMEOUT_MS": "1000",
        "GEM_FEATURE_LOG": str(features),
        "GEM_FEATURE_LOG_RATE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "serving"], cwd=ROOT, env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready: ")
        yield Server(process, f"http://127.0.0.1:{port}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def new_impressions(log: InteractionLog) -> InteractionLog:
    """Impressions from ten minutes after the log's last one on, one each of users whom the log knows."""
    users = np.unique(log.user, return_index=True)[1][:NEW_ROWS]
    more, times = log.take(users), int(log.event_ms.max()) + 600_000 + np.arange(NEW_ROWS)
    return replace(
        more,
        event_id=more.event_id + np.uint64(1),
        event_ms=times,
        ingested_ms=times + 1,
        label_ms=dict.fromkeys(more.label_ms, times + 1),
    )


def test_new_impressions_reach_a_ranked_answer(site: Site, tmp_path: Path) -> None:
    log = read_log(site.folder / "log")
    first = site.refresh()
    assert (first["computed"], first["built"]) == (0, True)
    again = site.refresh()
    assert (again["computed"], again["users_touched"], again["built"]) == (0, 0, False)

    more = new_impressions(log)
    user, seen = str(log.user_ids[more.user[0]]), int((log.user == more.user[0]).sum())
    body = {
        "surface": "feed",
        "user_id": user,
        "candidates": {"ad_ids": [*map(str, log.ad_ids[:30]), "an ad that nobody knows"]},
        "objective": "ecpm",
        "context": {"timestamp_ms": int(more.event_ms.max()) + 1, "device": 1},
        "deadline_ms": 5000,
    }
    with serving(site, features=tmp_path / "features") as server:
        before = server.rank(body | {"request_id": "before"})
        assert before["embedding"]["status"] == "fresh"
        append(site.folder / "log", more)
        taken_up = site.refresh()
        assert (taken_up["computed"], taken_up["users_touched"]) == (NEW_ROWS, NEW_ROWS)
        after = server.rank(body | {"request_id": "after"})
        assert after["embedding"]["status"] == "fresh"
        assert [row["score"] for row in after["results"]] != [row["score"] for row in before["results"]]
        assert [row["rank"] for row in after["results"]] == list(range(1, 32))
        scores = [row["score"] for row in after["results"]]
        assert scores == sorted(scores, reverse=True)
        unknown_ads = [row["ad_id"] for row in after["results"] if row["status"] != "ok"]
        assert unknown_ads == ["an ad that nobody knows"]

        stranger = server.rank(body | {"user_id": "nobody knows me", "request_id": "stranger"})
        assert (stranger["embedding"]["status"], len(stranger["results"])) == ("missing", 31)

        maps = Path(f"/proc/{server.process.pid}/maps")
        if maps.exists():
            assert "onnxruntime" in (text := maps.read_text())
            assert "torch" not in text

        site.valkey.stop()
        dead = server.rank(body | {"request_id": "dead"})
        assert (dead["embedding"]["status"], len(dead["results"])) == ("unavailable", 31)

    kept = {
        row["request_id"]: row
        for file in (tmp_path / "features").glob("*.parquet")
        for row in pq.read_table(file).to_pylist()
    }
    assert set(kept) == {"before", "after", "stranger", "dead"}
    assert kept["after"]["user_hash"] == stable_hash(user)
    in_log = kept["before"]["input_history_stats"][0]
    assert 0 < in_log <= seen
    assert kept["after"]["input_history_stats"] == [in_log + 1, 1]
    assert kept["dead"]["input_history_stats"] == [0, 0]


def test_a_flip_and_a_rollback_are_followed_by_a_running_server(site: Site, tmp_path: Path) -> None:
    first = site.refresh()["generation"]
    with serving(site, features=tmp_path / "features") as server:

        def served() -> str:
            (model,) = server.get("/v1/models")["models"]
            return str(model["generation"])

        assert served() == first
        second = result_of("precompute.publish", "--representations", site.space, "--full", *site.url)["generation"]
        assert second != first
        until(lambda: served() == second)
        assert result_of("precompute.rollback", "--space", site.space.name, *site.url)["generation"] == first
        until(lambda: served() == first)
        status = result_of("precompute.status", *site.url)["spaces"][site.space.name]
        assert status["live"] == first
        assert {entry["generation"] for entry in status["generations"]} == {first, second}


def test_the_request_that_the_demo_leaves_is_ranked_with_a_fresh_embedding(
    site: Site, smoke_run: DemoRun, tmp_path: Path
) -> None:
    site.refresh()
    with serving(site, features=tmp_path / "features") as server:
        answer = server.rank(json.loads((smoke_run.folder / "request.json").read_text()))
        assert answer["embedding"]["status"] == "fresh"
        assert {row["status"] for row in answer["results"]} <= {"ok", "no_bid"}

        ids = (
            "--catalog",
            site.folder / "log" / "catalog.arrow",
            "--users-file",
            site.folder / "log" / "users.parquet",
        )
        time_from = ("--request", smoke_run.folder / "request.json", "--csv", tmp_path / "load" / "run")
        load = ("--host", server.url, "--users", 2, "--rate", 20, "--duration", 4, "--candidates", 20)
        loaded = result_of("loadtests.run", *load, *ids, *time_from)
        assert loaded["failures"] == 0
        assert loaded["embeddings"]["fresh"] > loaded["requests"] / 2


def test_an_artifact_with_one_flipped_byte_is_not_served(site: Site) -> None:
    (model,) = (site.folder / "artifacts").glob("*/*/model.onnx")
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(bytes(content))
    settings = {"GEM_MODELS": str(site.folder / "artifacts"), "GEM_CATALOG": str(site.folder / "log" / "catalog.arrow")}
    ended = subprocess.run(
        [sys.executable, "-m", "serving"],
        cwd=ROOT,
        env=os.environ | settings | {"GEM_PORT": "0", "GEM_METRICS_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "sha256" in ended.stderr


NOWHERE = "no/such/folder"
WRONG = {
    "events.kuairand": ("--dir", NOWHERE, "--out", "{tmp}/out"),
    "foundation.train": ("--log", NOWHERE, "--out", "{tmp}/out"),
    "foundation.evaluate": ("--log", NOWHERE, "--checkpoint", NOWHERE),
    "precompute.backfill": ("--log", NOWHERE, "--checkpoint", NOWHERE, "--representations", "{tmp}/out"),
    "precompute.publish": ("--representations", NOWHERE, "--redis-url", "redis://127.0.0.1:1/0"),
    "precompute.status": ("--redis-url", "redis://127.0.0.1:1/0"),
    "precompute.rollback": ("--space", "gem-000000-d4-int8", "--redis-url", "redis://127.0.0.1:1/0"),
    "student_models.train": ("--log", NOWHERE, "--representations", NOWHERE, "--out", "{tmp}/out"),
    "student_models.evaluate": ("--log", NOWHERE, "--runs", NOWHERE),
    "student_models.export": ("--run", NOWHERE, "--log", NOWHERE, "--out", "{tmp}/out"),
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Done, Path]]:
    """How each command ended, and the folder that it could have written to."""
    folders = {module: tmp_path_factory.mktemp("out") for module in WRONG}
    commands = [
        [module, *(option.replace("{tmp}", str(folders[module])) for option in options)]
        for module, options in WRONG.items()
    ]
    return {module: (done, folders[module]) for module, done in zip(WRONG, run_commands(commands), strict=True)}


@pytest.mark.parametrize("module", WRONG)
def test_a_wrong_path_or_server_is_one_sentence_and_exit_code_2(
    module: str, wrong: dict[str, tuple[Done, Path]]
) -> None:
    done, folder = wrong[module]
    assert done.code == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert list(folder.iterdir()) == [], "something half-written is left"


WRONG_OUTPUT = {
    "foundation.train": ("--log", "{run}/log", "--recipe", "tiny", "--out", "{file}/out"),
    "foundation.evaluate": ("--log", "{run}/log", "--checkpoint", "{run}/teacher", "--predictions", "{file}/p.parquet"),
    "precompute.backfill": ("--log", "{run}/log", "--checkpoint", "{run}/teacher", "--representations", "{file}/out"),
    "precompute.refresh": (
        *("--log", "{run}/log", "--checkpoint", "{run}/teacher"),
        *("--representations", "{run}/representations", "--redis-url", "redis://127.0.0.1:1/0"),
    ),
    "student_models.train": ("--log", "{run}/log", "--representations", "{space}", "--out", "{file}/out"),
    "student_models.export": ("--run", "{run}/students/kd_loopfm/seed0", "--log", "{run}/log", "--out", "{file}/out"),
}
"""Right inputs, but the output would lie under a file, or the cache cannot be reached."""


@pytest.fixture(scope="module")
def wrong_output(smoke_run: DemoRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """How each command ended."""
    file = tmp_path_factory.mktemp("out") / "file"
    file.touch()
    (index,) = (smoke_run.folder / "representations").glob("*/log.json")
    names = {"run": smoke_run.folder, "file": file, "space": index.parent}
    commands = [[module, *(option.format(**names) for option in options)] for module, options in WRONG_OUTPUT.items()]
    return dict(zip(WRONG_OUTPUT, run_commands(commands), strict=True))


@pytest.mark.parametrize("module", WRONG_OUTPUT)
def test_an_output_that_cannot_be_written_is_one_sentence_and_exit_code_2(
    module: str, wrong_output: dict[str, Done]
) -> None:
    done = wrong_output[module]
    assert done.code == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    sentences = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1, done.stderr
    assert done.stderr.splitlines()[-1] == sentences[0]
