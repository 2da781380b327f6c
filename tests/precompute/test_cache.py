import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from contracts.embedding import HistoryRecord, encode_history
from contracts.errors import GemError, InputError
from contracts.keys import history_key
from precompute.cache import RecordWriter, Written, connected, redacted
from precompute.settings import PrecomputeSettings
from tests.events.made_rows import SPACE

USER = "some user"
KEY = history_key(SPACE, "g000001", USER)
HUGE = st.one_of(st.integers(0, 3), st.integers(2**53 - 2, 2**53 + 2), st.integers(2**64 - 3, 2**64 - 1))


def record(*, offset: int = 5, fence: int = 1, impressions: int = 2, shade: float = 0.5) -> HistoryRecord:
    return HistoryRecord(np.full((2, 32), shade, np.float32), np.array([1, 2]), impressions, 9, offset, fence)


def blob(**fields) -> bytes:
    return encode_history(record(**fields), user_id=USER)


@pytest.fixture
def writer(valkey: redis.Redis) -> RecordWriter:
    return RecordWriter(valkey, SPACE)


def write(writer: RecordWriter, content: bytes, *, expires_ms: int | None = None) -> Written:
    return writer.write("g000001", [(USER, content)], expires_ms=expires_ms)


def test_a_new_record_is_created_and_the_same_bytes_change_nothing(valkey, writer):
    assert write(writer, blob()) == Written(created=1)
    assert write(writer, blob()) == Written(unchanged=1)
    assert valkey.get(KEY) == blob()


@pytest.mark.parametrize("field", ["fence", "offset", "impressions"])
@pytest.mark.parametrize("value", [3, 255, 2**31, 2**32 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 2])
def test_a_newer_record_replaces_and_an_older_one_is_refused(valkey, writer, field, value):
    older, newer = blob(**{field: value}), blob(**{field: value + 1})
    write(writer, older)
    assert write(writer, newer) == Written(replaced=1)
    assert write(writer, older) == Written(refused=1)
    assert valkey.get(KEY) == newer


def test_a_stale_fence_is_refused_however_high_its_offset(valkey, writer):
    write(writer, blob(fence=8, offset=3))
    assert write(writer, blob(fence=7, offset=2**64 - 1)) == Written(refused=1)
    assert write(writer, blob(fence=9, offset=0)) == Written(replaced=1)


def test_an_equally_old_record_with_other_bytes_replaces(writer):
    write(writer, blob(shade=0.5))
    assert write(writer, blob(shade=0.25)) == Written(replaced=1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(HUGE, HUGE, HUGE), min_size=2, max_size=6))
def test_the_newest_of_any_writes_in_any_order_stays(valkey, writer, ages):
    valkey.delete(KEY)
    for fence, offset, impressions in ages:
        write(writer, blob(fence=fence, offset=offset, impressions=impressions))
    fence, offset, impressions = max(ages)
    assert valkey.get(KEY) == blob(fence=fence, offset=offset, impressions=impressions)


@pytest.mark.parametrize("damaged", [b"", b"GEMR", b"x" * 200, b"GEMR" + b"\xff" * 10])
def test_bytes_that_are_no_record_are_overwritten(valkey, writer, damaged):
    valkey.set(KEY, damaged)
    assert write(writer, blob()) == Written(replaced=1)


def test_live_records_have_no_end_and_retired_ones_have_one(valkey, writer):
    in_an_hour = int(time.time() * 1000) + 3_600_000
    for expires_ms, remaining in ((None, -1), (in_an_hour, 3_600), (None, -1)):
        for content in (blob(offset=6), blob(offset=6), blob(offset=5)):
            write(writer, content, expires_ms=expires_ms)
            assert abs(valkey.ttl(KEY) - remaining) <= 5
    assert valkey.get(KEY) == blob(offset=6)


def test_a_server_that_forgot_the_script_is_taught_it_again(valkey, writer):
    valkey.script_flush()
    assert write(writer, blob()) == Written(created=1)


def test_stored_bytes_and_life_are_read_back(writer):
    write(writer, blob())
    assert writer.read("g000001", [USER, "nobody"]) == [(blob(), -1), (None, -2)]


def settings_for(url: str) -> PrecomputeSettings:
    return PrecomputeSettings(redis_url=SecretStr(url), redis_timeout_s=2)


def test_an_unreachable_server_is_bad_input_that_hides_the_password():
    with (
        pytest.raises(InputError, match=r"cannot reach Valkey at redis://127\.0\.0\.1:1/0.*GEM_REDIS_URL") as caught,
        connected(settings_for("redis://someone:secret@127.0.0.1:1/0")),
    ):
        pass
    assert "secret" not in str(caught.value)
    assert "someone" not in str(caught.value)


@pytest.mark.parametrize("option", ["colour=red", "decode_responses=1&colour=red"])
def test_an_option_of_the_url_that_the_client_does_not_know_is_bad_input(valkey_url, option):
    url = valkey_url.replace("redis://", "redis://default:hunter2@") + "?" + option
    with pytest.raises(InputError, match="mend GEM_REDIS_URL") as caught, connected(settings_for(url)):
        pass
    assert "hunter2" not in str(caught.value)


def test_a_redacted_url_keeps_host_port_and_database():
    assert redacted("rediss://u:p@cache.example:7000/2") == "rediss://cache.example:7000/2"
    assert redacted("redis://localhost") == "redis://localhost"


def write_much(url: str, before: Callable[[redis.Redis], object]) -> None:
    """A job that writes about 15 MB, after `before` has done something to the server."""
    with connected(settings_for(url)) as client:
        writer = RecordWriter(client, SPACE)
        before(client)
        for part in range(50):
            users = [f"user {part} {number}" for number in range(1_000)]
            writer.write("g000001", [(user, encode_history(record(), user_id=user)) for user in users], expires_ms=None)


def test_a_full_server_ends_the_job_with_one_sentence(spawn_valkey):
    server = spawn_valkey(None, "--maxmemory", "4mb")
    with pytest.raises(GemError, match="is at its maxmemory; raise it"):
        write_much(server.url, lambda client: client.ping())


def test_a_replica_ends_the_job_with_one_sentence(spawn_valkey):
    server = spawn_valkey()
    with pytest.raises(GemError, match="is a replica; point GEM_REDIS_URL at the primary"):
        write_much(server.url, lambda client: client.replicaof("127.0.0.1", 1))


def test_a_server_that_stays_away_ends_the_job_with_exit_code_1(spawn_valkey, monkeypatch):
    monkeypatch.setattr("precompute.cache.RETRIES", 1)
    server = spawn_valkey()
    with pytest.raises(GemError, match="failed midway") as caught:
        write_much(server.url, lambda client: server.stop())
    assert caught.value.exit_code == 1


def test_a_server_that_restarts_midway_is_waited_for(spawn_valkey, tmp_path):
    server = spawn_valkey(tmp_path, "--appendfsync", "always")
    with connected(settings_for(server.url)) as client:
        writer = RecordWriter(client, SPACE)
        write(writer, blob(offset=1))
        server.stop()
        restart = threading.Timer(0.3, server.start)
        restart.start()
        assert write(writer, blob(offset=2)) == Written(replaced=1)
        restart.join()
        assert client.get(KEY) == blob(offset=2)


def test_counts_add_up():
    total = Written(created=1, refused=2) + replace(Written(unchanged=3), replaced=4)
    assert total == Written(created=1, replaced=4, unchanged=3, refused=2)
    assert total.records == 10
