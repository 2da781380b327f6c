"""Metrics: what happened is counted, under bounded names."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.telemetry import all_workers
from tests.serving.conftest import Cache, Client, body, now_ms
from tests.serving.small_student import ADS, catalogue_table, write_catalogue

ROOT = Path(__file__).parents[2]
Open = Callable[..., Client]


@pytest.fixture
def value(client: Client) -> Callable[..., float]:
    return lambda name, **labels: client.service.telemetry.registry.get_sample_value(name, labels) or 0.0


def test_answers_are_counted_by_what_they_were(client: Client, cache: Cache, value):
    cache.publish("u1", computed_ms=now_ms())
    for user in ("u1", "u1", "nobody"):
        client.rank(body(user_id=user, candidates={"ad_ids": ["a1", "a1"]}))
    assert value("gem_requests_total", surface="feed", model="student", outcome="ok") == 2
    assert value("gem_requests_total", surface="feed", model="student", outcome="degraded") == 1
    assert value("gem_degraded_total", reason="embedding_missing") == 1
    assert value("gem_embedding_lookups_total", source="valkey", status="fresh") == 2
    assert value("gem_embedding_lookups_total", source="default", status="missing") == 1
    assert value("gem_dropped_candidates_total", reason="duplicate") == 3
    assert value("gem_request_duration_seconds_count", surface="feed") == 3
    assert value("gem_embedding_age_seconds_count") == 2


def test_refusals_are_counted_by_code(client: Client, value):
    client.send(b"{")
    client.rank(body(surface="s" * 100))
    assert value("gem_requests_total", surface="", model="", outcome="malformed_json") == 1
    assert value("gem_requests_total", surface="", model="", outcome="unknown_surface") == 1


def test_the_state_of_store_and_catalogue_is_shown(client: Client, value):
    client.poll()
    version = client.service.ranker.catalogue.current.version
    assert value("gem_store_up") == 1
    assert value("gem_catalogue_info", version=version) == 1


def test_catalogue_reloads_are_counted(open_client: Open, tmp_path: Path):
    path = write_catalogue(tmp_path / "catalog.arrow")
    client = open_client(catalog=path)
    path.write_bytes(b"half")
    client.poll()
    write_catalogue(path)
    client.poll()
    registry = client.service.telemetry.registry
    for result in ("ok", "refused"):
        assert registry.get_sample_value("gem_catalogue_reloads_total", {"result": result}) == 1


def test_after_a_reload_only_the_new_catalogue_is_named(open_client: Open, tmp_path: Path):
    path = write_catalogue(tmp_path / "catalog.arrow")
    client = open_client(catalog=path)
    client.poll()
    old = client.service.ranker.catalogue.current.version
    write_catalogue(path, catalogue_table(ADS[:9]))
    client.poll()
    client.poll()
    new = client.service.ranker.catalogue.current.version
    sample = client.service.telemetry.registry.get_sample_value
    assert [sample("gem_catalogue_info", {"version": version}) for version in (old, new)] == [0, 1]


WORKER = """
import dataclasses, sys
from serving.telemetry import Telemetry
Catalogue = dataclasses.make_dataclass("Catalogue", ["version", "updated_ms"])
telemetry = Telemetry()
telemetry.refused("internal")
for version in ("old", "new"):
    telemetry.catalogue(Catalogue(version, 1000))
telemetry.store(up=sys.argv[1] == "up", breaker_open=sys.argv[1] != "up")
print("told", flush=True)
sys.stdin.readline()
"""


def test_a_dead_workers_gauges_go_and_its_counts_stay(tmp_path: Path):
    def worker(state: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        command = [sys.executable, "-W", "error", "-c", WORKER, state]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "told\n"
        return process

    registry = all_workers(str(tmp_path))
    with worker("up") as healthy, worker("down") as failing:
        assert registry.get_sample_value("gem_store_up") == 0
        assert registry.get_sample_value("gem_store_breaker_open") == 1
        failing.kill()
        failing.wait()
        assert registry.get_sample_value("gem_store_up") == 1
        assert registry.get_sample_value("gem_store_breaker_open") == 0
        assert registry.get_sample_value("gem_catalogue_info", {"version": "old"}) == 0
        assert registry.get_sample_value("gem_catalogue_info", {"version": "new"}) == 1
        labels = {"surface": "", "model": "", "outcome": "internal"}
        assert registry.get_sample_value("gem_requests_total", labels) == 2
        healthy.kill()


def test_strange_requests_make_no_new_series(client: Client):
    def series() -> set[tuple]:
        families = client.service.telemetry.registry.collect()
        return {(s.name, *sorted(s.labels.items())) for family in families for s in family.samples}

    client.rank(body())
    client.rank(body(surface="x"))
    before = series()
    for n in range(20):
        client.rank(body(user_id=f"u{n}", request_id=f"r{n}"))
        client.rank(body(surface=f"s{n}"))
    assert series() == before
