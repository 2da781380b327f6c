"""Metrics: what happened is counted, under bounded names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.conftest import Cache, Client, body, now_ms
from tests.serving.small_student import write_catalogue

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
