from dataclasses import replace

import pytest
import redis

from contracts.errors import GemError, InputError
from contracts.keys import live_key, registry_key, watermark_key
from precompute.generations import BUILDING, LIVE, RETIRED, Generation, Registry
from tests.events.made_rows import SPACE

HOUR_MS = 3_600_000


@pytest.fixture
def registry(valkey: redis.Redis) -> Registry:
    return Registry(valkey, SPACE, retired_ttl_s=3_600)


@pytest.fixture
def now_ms(valkey: redis.Redis) -> int:
    """The server's own time: it decides what has expired."""
    seconds, micros = valkey.time()
    return seconds * 1000 + micros // 1000


def built(registry: Registry, now_ms: int) -> str:
    """A generation with two keys that was built and flipped to."""
    entry = registry.create(epoch=1, length=4, now_ms=now_ms)
    for key in ("{a}:h", "{b}:h"):
        registry._client.set(f"emb:{SPACE}:{entry.name}:{key}", b"bytes")
    registry.update(entry.name, lambda entry: replace(entry, built_ms=now_ms, users=2))
    assert registry.flip(registry.pointer(), entry.name)
    registry.reconcile(now_ms)
    return entry.name


@pytest.mark.parametrize("field", [b"junk", b"\xff"])
def test_an_entry_under_a_name_that_is_none_is_bad_input(registry, valkey, field):
    valkey.hset(registry_key(SPACE), field, b"{}")
    with pytest.raises(InputError, match=r"delete it \(HDEL\) and run precompute\.publish --full"):
        registry.generations()


def lives(valkey: redis.Redis, name: str) -> list[int]:
    return [valkey.pttl(key) for key in sorted(valkey.scan_iter(match=f"emb:{SPACE}:{name}:*"))]


def test_numbers_rise_and_are_never_given_twice(registry, now_ms):
    names = [registry.create(epoch=1, length=4, now_ms=now_ms).name for _ in range(3)]
    assert names == ["g000001", "g000002", "g000003"]
    assert [entry.state for entry in registry.generations().values()] == [BUILDING] * 3


def test_a_flip_succeeds_only_from_the_expected_generation(registry):
    assert registry.flip(None, "g000001")
    assert not registry.flip(None, "g000002")
    assert not registry.flip("g000003", "g000002")
    assert registry.flip("g000001", "g000002")
    assert registry.pointer() == "g000002"


def test_an_entry_changes_by_compare_and_set(registry, valkey, now_ms):
    """Another job changes the entry between the read and the write: both changes are kept."""
    name = registry.create(epoch=1, length=4, now_ms=now_ms).name
    other = Registry(valkey, SPACE, retired_ttl_s=3_600)
    calls: list[Generation] = []

    def change(entry):
        if not calls:
            other.update(name, lambda entry: replace(entry, users=7))
        calls.append(entry)
        return replace(entry, offset=5)

    registry.update(name, change)
    assert len(calls) == 2
    assert (registry.entry(name).users, registry.entry(name).offset) == (7, 5)


def test_the_live_generation_has_no_end_and_the_one_before_lives_an_hour(registry, valkey, now_ms):
    first, second = built(registry, now_ms), built(registry, now_ms)
    entries = registry.generations()
    assert (entries[first].state, entries[second].state) == (RETIRED, LIVE)
    assert entries[first].expires_ms == now_ms + HOUR_MS
    assert all(life > HOUR_MS - 60_000 for life in lives(valkey, first))
    assert lives(valkey, second) == [-1, -1]


def test_a_job_that_was_killed_after_its_flip_is_put_right(registry, valkey, now_ms):
    first, second = built(registry, now_ms), registry.create(epoch=1, length=4, now_ms=now_ms).name
    valkey.set(live_key(SPACE), second)
    registry.reconcile(now_ms)
    assert [registry.entry(name).state for name in (first, second)] == [RETIRED, LIVE]
    assert all(life > 0 for life in lives(valkey, first))


def test_a_job_that_was_killed_while_it_revived_a_generation_is_put_right(registry, valkey, now_ms):
    first = built(registry, now_ms)
    built(registry, now_ms)
    registry.revive(first)
    assert lives(valkey, first) == [-1, -1]
    registry.reconcile(now_ms)
    assert all(life > HOUR_MS - 60_000 for life in lives(valkey, first))


def test_a_revived_generation_that_becomes_live_has_no_end(registry, valkey, now_ms):
    first, second = built(registry, now_ms), built(registry, now_ms)
    registry.revive(first)
    assert registry.flip(second, first)
    registry.reconcile(now_ms)
    assert lives(valkey, first) == [-1, -1]
    assert all(life > HOUR_MS - 60_000 for life in lives(valkey, second))


def test_keys_written_with_the_wrong_end_are_found(registry, valkey, now_ms):
    name = built(registry, now_ms)
    valkey.expire(f"emb:{SPACE}:{name}:{{a}}:h", 50)
    registry.unsettle(name)
    registry.reconcile(now_ms)
    assert lives(valkey, name) == [-1, -1]


def test_a_generation_that_became_live_while_its_keys_got_an_end_loses_it_again(registry, valkey, now_ms, monkeypatch):
    """A slow sweep of a retired generation goes on after another job has revived, flipped and settled it."""
    first, second = built(registry, now_ms), built(registry, now_ms)
    registry.unsettle(first)
    scan = valkey.scan_iter
    pending = [second]

    def scan_and_flip(**arguments):
        yield from scan(**arguments)
        while pending:
            expected = pending.pop()
            other = Registry(valkey, SPACE, retired_ttl_s=3_600)
            other.revive(first)
            assert other.flip(expected, first)
            other.reconcile(now_ms)

    monkeypatch.setattr(valkey, "scan_iter", scan_and_flip)
    registry.reconcile(now_ms)
    assert registry.pointer() == first
    assert lives(valkey, first) == [-1, -1]


def test_an_expired_generation_is_forgotten_with_all_its_keys(registry, valkey, now_ms):
    first, second = built(registry, now_ms), built(registry, now_ms)
    valkey.persist(f"emb:{SPACE}:{first}:{{a}}:h")
    registry.reconcile(now_ms + HOUR_MS + 1)
    assert list(registry.generations()) == [second]
    assert lives(valkey, first) == []


def test_the_newest_number_outlives_its_generation(registry, now_ms):
    first, second = built(registry, now_ms), built(registry, now_ms)
    assert registry.flip(second, first)
    registry.reconcile(now_ms)
    registry.reconcile(now_ms + HOUR_MS + 1)
    assert registry.create(epoch=1, length=4, now_ms=now_ms).name == "g000003"


def test_a_watermark_never_goes_back(registry, valkey, now_ms):
    entry = registry.create(epoch=1, length=4, now_ms=now_ms)
    key = watermark_key(SPACE, entry.name)
    for given, expected in ((None, None), (50, b"50"), (7, b"50"), (1_700_000_000_000, b"1700000000000")):
        registry.raise_watermark(replace(entry, watermark_ms=given))
        assert valkey.get(key) == expected


def test_an_entry_that_vanished_ends_the_job(registry):
    with pytest.raises(GemError, match="vanished"):
        registry.update("g000001", lambda entry: replace(entry, users=1))


@pytest.mark.parametrize("text", ["", "[]", '{"state":"live"}', '{"state":"live","epoch":1,"length":4,"created_ms":0}'])
def test_an_entry_of_another_version_is_refused(registry, valkey, text):
    valkey.hset(registry_key(SPACE), "g000001", text)
    with pytest.raises(InputError, match="g000001"):
        registry.generations()
