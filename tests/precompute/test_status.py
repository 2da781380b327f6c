import json
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from events.representations import RepresentationLog
from precompute.status import main, space_status, spaces_of
from tests.events.made_rows import SPACE, append, made_rows, new_log
from tests.precompute.rebuild import LENGTH, NOW_MS, publisher, registry_of

OTHER = "gem-4b0c2d-d32-int8"


def published(client: redis.Redis, root: Path, *, space: str = SPACE, users: int = 5) -> RepresentationLog:
    """A log of 50 rows, of which the newest is a few seconds old, and its first generation."""
    log = new_log(root, space=space)
    append(log, made_rows(50, users=users, start_ms=NOW_MS - 5_000))
    publisher(client, log).publish(length=LENGTH)
    return log


def shown(capsys: pytest.CaptureFixture[str], **options: str) -> tuple[list[list[str]], dict]:
    """The cells of each row of the table, and the JSON object."""
    capsys.readouterr()
    main(**options)
    *lines, last = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line], json.loads(last)


def test_every_generation_has_its_state(valkey, valkey_url, tmp_path, capsys):
    log = published(valkey, tmp_path)
    publisher(valkey, log).publish(full=True)
    publisher(valkey, log).publish(full=True)
    registry = registry_of(valkey, log)
    registry.update("g000001", lambda entry: replace(entry, expires_ms=NOW_MS - 1))
    registry.create(epoch=1, length=LENGTH, now_ms=NOW_MS)
    rows, found = shown(capsys, redis_url=valkey_url)
    states = [("g000001", "expired"), ("g000002", "retired"), ("g000003", "live"), ("g000004", "building")]
    generations = found["spaces"][SPACE]["generations"]
    assert found["spaces"][SPACE]["live"] == "g000003"
    assert [(entry["generation"], entry["state"]) for entry in generations] == states
    assert [row[:3] for row in rows] == [[SPACE, *state] for state in states]
    assert [row[3] for row in rows] == ["5", "5", "5", "0"]
    assert (rows[0][-1], rows[2][-1], rows[3][-1]) == ("0 min", "never", "never")
    assert 0 < generations[1]["expires_s"] <= 3_600
    assert generations[3]["watermark_age_s"] is None


def test_the_pointer_says_what_is_live_before_the_registry_does(valkey, tmp_path):
    log = published(valkey, tmp_path)
    publisher(valkey, log).publish(full=True)
    assert registry_of(valkey, log).flip("g000002", "g000001")
    status = space_status(valkey, SPACE, now_ms=NOW_MS)
    assert [entry["state"] for entry in status["generations"]] == ["live", "retired"]


def test_a_generation_says_what_it_covers_and_how_old_that_is(valkey, tmp_path):
    log = published(valkey, tmp_path)
    (entry,) = space_status(valkey, SPACE, now_ms=NOW_MS + 60_000)["generations"]
    newest_ms = log.read().event_ms.max()
    assert (entry["users"], entry["length"], entry["epoch"], entry["offset"]) == (5, LENGTH, 1, 50)
    assert (entry["published_ms"], entry["watermark_ms"]) == (NOW_MS, newest_ms)
    assert entry["watermark_age_s"] == (NOW_MS + 60_000 - newest_ms) / 1000
    assert entry["expires_s"] is None


def test_an_empty_server_has_no_space_and_says_how_much_memory_it_uses(valkey, valkey_url, capsys):
    rows, found = shown(capsys, redis_url=valkey_url)
    memory = valkey.info("memory")
    assert (rows, found["spaces"], found["redis"]) == ([], {}, valkey_url)
    assert found["used_memory_bytes"] > 0
    assert found["maxmemory_bytes"] == memory["maxmemory"]
    assert found["maxmemory_policy"] == memory["maxmemory_policy"]


def test_all_spaces_or_one(valkey, valkey_url, tmp_path, capsys):
    published(valkey, tmp_path, space=OTHER, users=3)
    published(valkey, tmp_path)
    assert spaces_of(valkey) == [SPACE, OTHER]
    rows, found = shown(capsys, redis_url=valkey_url)
    assert [(row[0], row[3]) for row in rows] == [(SPACE, "5"), (OTHER, "3")]
    assert set(found["spaces"]) == {SPACE, OTHER}
    rows, found = shown(capsys, redis_url=valkey_url, space=OTHER)
    assert [row[0] for row in rows] == list(found["spaces"]) == [OTHER]
    rows, found = shown(capsys, redis_url=valkey_url, space="gem-000000-d32-int8")
    assert (rows, list(found["spaces"].values())) == ([], [{"live": None, "generations": []}])
