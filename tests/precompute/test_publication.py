import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import redis

from contracts.embedding import decode_history
from contracts.errors import GemError, InputError
from contracts.keys import history_key, meta_key, watermark_key
from contracts.quantiser import DTYPES, INT8, Quantiser, fit_centres
from events.representations import RepresentationLog
from precompute.generations import BUILDING, RETIRED, Registry
from precompute.publication import Progress
from precompute.rollback import roll_back
from tests.events.made_rows import SPACE, append, made_rows, new_log
from tests.precompute.rebuild import LENGTH, NOW_MS, expect_rebuild, publisher, rebuilt, registry_of, stored

ROOT = Path(__file__).parents[2]
# the absolute time: NOW_MS is read at import, and minutes may pass before a test of a long run asks for a TTL
AN_HOUR_LATER_MS = NOW_MS + 3_600_000


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RepresentationLog:
    """200 rows of 39 users in two shards; records are written in batches of 8."""
    monkeypatch.setattr("precompute.publication.WRITE_BATCH", 8)
    log = new_log(tmp_path)
    for _ in range(2):
        append(log, more_rows(log))
    return log


def more_rows(log: RepresentationLog, *, rows: int = 100, users: int = 40, delay_ms: int = 0):
    """Rows that follow those of the log in offset and time."""
    at = log.end_offset
    return made_rows(rows, first=at, users=users, seed=at, start_ms=4 * at, delay_ms=delay_ms)


def midway(act: Callable[[], object], *, after: int = 2) -> Progress:
    """A progress that does something once, when so many batches are written: another job comes in between."""
    pending = [act]

    def progress(items: Iterable, *, title: str, total: int | None = None) -> Iterator:
        for number, item in enumerate(items):
            if number == after and pending:
                pending.pop()()
            yield item

    return progress


def test_the_first_publication_builds_a_generation(valkey, log):
    done = publisher(valkey, log).publish(length=LENGTH)
    assert (done.generation, done.built, done.users, done.written.created) == ("g000001", True, 39, 39)
    expect_rebuild(valkey, log)


def test_publishing_twice_writes_nothing_the_second_time(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    again = publisher(valkey, log).publish()
    assert (again.generation, again.built, again.touched, again.written.records) == ("g000001", False, 0, 0)


def test_only_users_with_news_are_written(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    rows = more_rows(log, rows=20, users=3)
    append(log, rows)
    done = publisher(valkey, log).publish()
    assert done.touched == done.written.replaced == len(set(rows.user_id))
    expect_rebuild(valkey, log)


def test_many_parts_give_the_same_bytes_as_one(valkey, log):
    publisher(valkey, log, part_rows=1).publish(length=LENGTH)
    expect_rebuild(valkey, log)


def test_a_row_that_is_not_available_yet_waits(valkey, tmp_path):
    log = new_log(tmp_path)
    append(log, made_rows(50, users=4, start_ms=NOW_MS - 1_000))
    append(log, made_rows(50, first=50, users=8, start_ms=NOW_MS - 500, delay_ms=60_000))
    first = publisher(valkey, log).publish(length=LENGTH)
    assert first.users == len(set(log.read().user_id[:50]))
    expect_rebuild(valkey, log)
    later = NOW_MS + 120_000
    done = publisher(valkey, log, now_ms=later).publish()
    assert done.users == len(set(log.read().user_id))
    assert done.touched > 0
    expect_rebuild(valkey, log, now_ms=later)


def test_a_log_without_a_visible_row_publishes_nothing(valkey, tmp_path):
    log = new_log(tmp_path)
    append(log, made_rows(10, start_ms=NOW_MS + 10))
    done = publisher(valkey, log).publish()
    assert (done.generation, done.users) == (None, 0)
    assert valkey.dbsize() == 0


def test_the_watermark_is_the_newest_visible_event(valkey, tmp_path):
    log = new_log(tmp_path)
    rows = made_rows(50, start_ms=NOW_MS - 1_000)
    append(log, rows)
    append(log, made_rows(5, first=50, start_ms=NOW_MS + 10_000))
    done = publisher(valkey, log).publish()
    assert done.watermark_ms == rows.event_ms.max()
    assert int(valkey.get(watermark_key(SPACE, "g000001"))) == rows.event_ms.max()


def test_a_full_publication_flips_and_keeps_the_last_generation_for_an_hour(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    done = publisher(valkey, log).publish(full=True)
    assert (done.generation, done.built) == ("g000002", True)
    expect_rebuild(valkey, log)
    assert stored(valkey, log, "g000001") == rebuilt(log, "g000001")
    assert all(valkey.pexpiretime(key) == AN_HOUR_LATER_MS for key in valkey.scan_iter(match=f"emb:{SPACE}:g000001:*"))


def test_increments_reach_the_generation_that_is_kept_for_rollback(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    publisher(valkey, log).publish(full=True)
    append(log, more_rows(log, users=50))
    publisher(valkey, log).publish()
    for name in ("g000001", "g000002"):
        assert stored(valkey, log, name) == rebuilt(log, name)
    assert all(valkey.pexpiretime(key) == AN_HOUR_LATER_MS for key in valkey.scan_iter(match=f"emb:{SPACE}:g000001:*"))


def test_a_rollback_loses_nothing(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    publisher(valkey, log).publish(full=True)
    append(log, more_rows(log))
    publisher(valkey, log).publish()
    assert roll_back(registry_of(valkey, log), to=None, now_ms=NOW_MS)[1].name == "g000001"
    expect_rebuild(valkey, log)


def test_a_longer_history_is_a_new_generation(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    done = publisher(valkey, log).publish(length=6)
    assert (done.generation, done.built) == ("g000002", True)
    expect_rebuild(valkey, log, length=6)
    append(log, more_rows(log))
    publisher(valkey, log).publish()
    assert stored(valkey, log, "g000001") == rebuilt(log, "g000001", length=LENGTH)
    expect_rebuild(valkey, log, length=6)


def test_a_new_epoch_is_a_new_generation_and_the_old_log_is_refused(valkey, log, tmp_path):
    publisher(valkey, log).publish(length=LENGTH)
    newer = new_log(tmp_path / "again", epoch=2)
    append(newer, made_rows(60, users=7, seed=99))
    assert publisher(valkey, newer).publish(length=LENGTH).generation == "g000002"
    expect_rebuild(valkey, newer)
    append(log, more_rows(log))
    with pytest.raises(InputError, match=r"stale fence: g000002 .* epoch 2"):
        publisher(valkey, log).publish()
    expect_rebuild(valkey, newer)


def test_a_writer_that_becomes_stale_midway_changes_no_newer_record(valkey, log, tmp_path):
    """While the old log's increment is written, a newer log takes over the space."""
    publisher(valkey, log).publish(length=LENGTH)
    append(log, more_rows(log))
    newer = new_log(tmp_path / "again", epoch=2)
    append(newer, made_rows(60, users=40, seed=99))
    takes_over = midway(lambda: publisher(valkey, newer).publish(length=LENGTH))
    with pytest.raises(InputError, match="stale fence"):
        publisher(valkey, log, progress=takes_over).publish()
    expect_rebuild(valkey, newer)


def test_two_writers_at_once_end_with_the_bytes_of_a_rebuild(valkey, log):
    """While one publishes, another appends more rows of the same users and publishes those."""
    publisher(valkey, log).publish(length=LENGTH)
    append(log, more_rows(log))

    def overtake() -> None:
        append(log, more_rows(log))
        publisher(valkey, log).publish()

    done = publisher(valkey, log, progress=midway(overtake)).publish()
    assert done.written.refused + done.written.unchanged > 0
    expect_rebuild(valkey, log)


def test_a_flip_during_an_increment_ends_with_the_bytes_of_a_rebuild(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    append(log, more_rows(log, users=60))
    flips = midway(lambda: publisher(valkey, log).publish(full=True))
    publisher(valkey, log, progress=flips).publish()
    assert registry_of(valkey, log).pointer() == "g000002"
    expect_rebuild(valkey, log)
    assert stored(valkey, log, "g000001") == rebuilt(log, "g000001")
    assert all(valkey.pexpiretime(key) == AN_HOUR_LATER_MS for key in valkey.scan_iter(match=f"emb:{SPACE}:g000001:*"))


def test_a_rollback_during_an_increment_ends_with_the_bytes_of_a_rebuild(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    publisher(valkey, log).publish(full=True)
    append(log, more_rows(log, users=60))
    back = midway(lambda: roll_back(registry_of(valkey, log), to=None, now_ms=NOW_MS))
    publisher(valkey, log, progress=back).publish()
    assert registry_of(valkey, log).pointer() == "g000001"
    expect_rebuild(valkey, log)
    assert all(valkey.pexpiretime(key) == AN_HOUR_LATER_MS for key in valkey.scan_iter(match=f"emb:{SPACE}:g000002:*"))


def test_rows_that_arrive_during_a_build_are_in_the_new_generation(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)

    def refresh() -> None:
        append(log, more_rows(log, users=60))
        publisher(valkey, log).publish()

    publisher(valkey, log, progress=midway(refresh)).publish(full=True)
    assert registry_of(valkey, log).pointer() == "g000002"
    expect_rebuild(valkey, log)


def test_a_new_generation_is_complete_before_it_becomes_live(valkey, log, monkeypatch):
    flip, at_the_flip = Registry.flip, []

    def look_and_flip(registry: Registry, expected: str | None, name: str) -> bool:
        at_the_flip.append(stored(valkey, log, name) == rebuilt(log, name))
        return flip(registry, expected, name)

    monkeypatch.setattr(Registry, "flip", look_and_flip)
    arrives = midway(lambda: append(log, more_rows(log, users=60)))
    publisher(valkey, log, progress=arrives).publish(length=LENGTH)
    assert at_the_flip == [True]


def test_a_generation_that_a_killed_job_left_behind_is_brought_up(valkey, log):
    """The job had published to the live generation and not yet to the one that is kept."""
    publisher(valkey, log).publish(length=LENGTH)
    publisher(valkey, log).publish(full=True)
    registry = registry_of(valkey, log)
    before, records = registry.entry("g000001"), stored(valkey, log, "g000001")
    append(log, more_rows(log))
    publisher(valkey, log).publish()
    for key, content in records.items():
        valkey.set(key, content, keepttl=True)
    registry.update("g000001", lambda entry: replace(entry, offset=before.offset, as_of_ms=before.as_of_ms))
    publisher(valkey, log).publish()
    assert stored(valkey, log, "g000001") == rebuilt(log, "g000001")


def test_a_build_does_not_undo_a_rollback_that_came_meanwhile(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    publisher(valkey, log).publish(full=True)
    back = midway(lambda: roll_back(registry_of(valkey, log), to=None, now_ms=NOW_MS))
    with pytest.raises(GemError, match="changed from g000002 to g000001 while g000003 was built"):
        publisher(valkey, log, progress=back).publish(full=True)
    expect_rebuild(valkey, log)
    assert roll_back(registry_of(valkey, log), to="g000003", now_ms=NOW_MS)[1].name == "g000003"
    expect_rebuild(valkey, log)


def test_one_build_at_a_time(valkey, log):
    errors = []

    def build() -> None:
        with pytest.raises(GemError, match="another process is building") as caught:
            publisher(valkey, log).publish(full=True)
        errors.append(caught.value)

    publisher(valkey, log, progress=midway(build)).publish(length=LENGTH)
    assert len(errors) == 1
    expect_rebuild(valkey, log)


def test_a_view_with_more_rows_and_one_with_a_later_time_are_merged(valkey, log):
    """One job sees a row that the other finds not available yet; the other sees rows that the first does not have."""
    publisher(valkey, log).publish(length=LENGTH)
    append(log, replace(more_rows(log, users=10), available_ms=np.full(100, NOW_MS + 5_000)))
    times = iter([NOW_MS] * 2 + [NOW_MS + 10_000] * 20)
    early = publisher(valkey, log)
    early._now_ms = lambda: next(times)

    def overtake() -> None:
        publisher(valkey, log, now_ms=NOW_MS + 10_000).publish()

    append(log, more_rows(log, users=10))
    overtake()
    append(log, more_rows(log, users=10))
    early.publish()
    expect_rebuild(valkey, log, now_ms=NOW_MS + 10_000)


@pytest.mark.parametrize("seed", range(2))
def test_writers_flips_and_rollbacks_at_once_end_with_the_bytes_of_a_rebuild(valkey_url, valkey, log, seed):
    """Real threads: two writers, a builder and an operator who rolls back and forth, in whatever order they meet."""
    publisher(valkey, log).publish(length=LENGTH)
    publisher(valkey, log).publish(full=True)
    random = np.random.default_rng(seed)
    appends = threading.Lock()
    failures: list[BaseException] = []

    def job(act: Callable[[redis.Redis], object], times: int) -> threading.Thread:
        def run() -> None:
            with redis.Redis.from_url(valkey_url) as client:
                for _ in range(times):
                    try:
                        act(client)
                    except (GemError, InputError) as error:
                        if "changed" not in str(error) and "no generation" not in str(error):
                            failures.append(error)
                    except BaseException as error:
                        failures.append(error)

        return threading.Thread(target=run)

    def write(client: redis.Redis) -> None:
        with appends:
            append(log, more_rows(log, rows=int(random.integers(5, 60)), users=60))
        publisher(client, log).publish()

    def roll(client: redis.Redis) -> None:
        registry = registry_of(client, log)
        kept = [name for name, entry in registry.generations().items() if entry.built_ms]
        roll_back(registry, to=kept[int(random.integers(len(kept)))], now_ms=NOW_MS)

    threads = [
        job(write, 6),
        job(write, 6),
        job(lambda client: publisher(client, log).publish(full=True), 3),
        job(roll, 6),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    expect_rebuild(valkey, log)
    registry = registry_of(valkey, log)
    for entry in registry.generations().values():
        lives = [valkey.pexpiretime(key) for key in valkey.scan_iter(match=f"emb:{SPACE}:{entry.name}:*")]
        if entry.state == RETIRED:
            assert stored(valkey, log, entry.name) == rebuilt(log, entry.name)
            assert all(life >= AN_HOUR_LATER_MS for life in lives)


KILLED = """
import os, signal, sys
from pathlib import Path
import redis
from events.representations import RepresentationLog
from precompute import publication
from tests.precompute.rebuild import publisher

publication.WRITE_BATCH = 8
folder, url, after, full = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "full"

def progress(items, *, title, total=None):
    for number, item in enumerate(items):
        if number == after:
            os.kill(os.getpid(), signal.SIGKILL)
        yield item

log, client = RepresentationLog(folder), redis.Redis.from_url(url)
publisher(client, log, progress=progress, part_rows=1_000).publish(full=full, length=4)
"""


def kill_publication(log: RepresentationLog, url: str, *, after: int, full: bool) -> None:
    arguments = [str(log.folder), url, str(after), "full" if full else "increment"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr


@pytest.mark.parametrize("after", [0, 3])
def test_a_build_that_is_killed_goes_on_in_its_generation(valkey, valkey_url, log, after):
    kill_publication(log, valkey_url, after=after, full=True)
    registry = registry_of(valkey, log)
    assert registry.pointer() is None
    assert registry.entry("g000001").state == BUILDING
    done = publisher(valkey, log).publish(length=LENGTH)
    assert (done.generation, done.written.unchanged) == ("g000001", 8 * after)
    expect_rebuild(valkey, log)


def test_a_killed_increment_is_made_good(valkey, valkey_url, log):
    publisher(valkey, log).publish(length=LENGTH)
    append(log, more_rows(log, users=60))
    kill_publication(log, valkey_url, after=2, full=False)
    assert stored(valkey, log, "g000001") != rebuilt(log, "g000001")
    publisher(valkey, log).publish()
    expect_rebuild(valkey, log)


def test_a_killed_rebuild_leaves_the_live_generation_alone(valkey, valkey_url, log):
    publisher(valkey, log).publish(length=LENGTH)
    kill_publication(log, valkey_url, after=2, full=True)
    assert registry_of(valkey, log).pointer() == "g000001"
    expect_rebuild(valkey, log)


def test_a_build_that_another_length_left_over_expires(valkey, valkey_url, log):
    kill_publication(log, valkey_url, after=2, full=True)
    done = publisher(valkey, log).publish(length=LENGTH + 1)
    assert done.generation == "g000002"
    entry = registry_of(valkey, log).entry("g000001")
    assert (entry.state, entry.built_ms) == (RETIRED, None)
    assert all(valkey.pexpiretime(key) == AN_HOUR_LATER_MS for key in stored(valkey, log, "g000001"))


def test_a_user_who_is_not_in_a_new_log_has_no_record(valkey, log, tmp_path):
    publisher(valkey, log).publish(length=LENGTH)
    user = log.read().user_id[0]
    smaller = new_log(tmp_path / "again", epoch=2)
    rows = log.read().take(log.read().user_id != user)
    smaller.append(rows, first_offset=0, end_offset=200)
    publisher(valkey, smaller).publish(length=LENGTH)
    assert registry_of(valkey, log).pointer() == "g000002"
    assert valkey.get(history_key(SPACE, "g000002", user)) is None
    expect_rebuild(valkey, smaller)


def test_a_server_that_lost_everything_is_filled_again(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    valkey.flushall()
    assert publisher(valkey, log).publish(length=LENGTH).built
    expect_rebuild(valkey, log)


def test_a_server_that_loses_everything_midway_ends_the_job(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    append(log, more_rows(log))
    with pytest.raises(GemError, match=r"vanished|lost or evicted|read-back"):
        publisher(valkey, log, progress=midway(valkey.flushall)).publish()
    publisher(valkey, log).publish(length=LENGTH)
    expect_rebuild(valkey, log)


def test_a_server_that_evicts_records_is_noticed(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    valkey.delete(*stored(valkey, log, "g000001"))
    append(log, more_rows(log, rows=3, users=1))
    with pytest.raises(GemError, match=r"have no record in g000001.*noeviction"):
        publisher(valkey, log).publish()


def test_a_build_that_loses_records_does_not_become_live(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    loses = midway(lambda: valkey.delete(next(valkey.scan_iter(match=f"emb:{SPACE}:g000002:*:h"))))
    with pytest.raises(GemError, match=r"g000002 holds 38 of 39 records|read-back"):
        publisher(valkey, log, progress=loses).publish(full=True)
    assert registry_of(valkey, log).pointer() == "g000001"
    expect_rebuild(valkey, log)


def test_records_hold_the_newest_rows_oldest_first(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    rows = log.read()
    user = rows.user_id[0]
    record = decode_history(valkey.get(history_key(SPACE, "g000001", user)), user_id=user, dim=32)
    own = np.flatnonzero(rows.user_id == user)
    assert record.impressions == len(own)
    assert record.log_offset == rows.offset[own].max()
    assert record.computed_ms == rows.available_ms[own].max()
    assert record.event_ms.tolist() == sorted(rows.event_ms[own])[-LENGTH:]


def log_of(root: Path, dtype: str, *, seed: int = 0, epoch: int = 1) -> RepresentationLog:
    """200 rows, in a space of this quantiser; centres by the seed."""
    quantiser = Quantiser(dtype, fit_centres(made_rows(50, seed=seed).z) if dtype == "kint4" else ())
    log = new_log(root, space=f"gem-3f9a1c-d32-{dtype}", centres=quantiser.centres, epoch=epoch)
    append(log, made_rows(200, users=40, quantiser=quantiser))
    return log


def meta_of(client: redis.Redis, space: str) -> dict:
    return json.loads(client.get(meta_key(space)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_records_of_every_quantiser_are_those_of_a_rebuild_and_the_space_says_how_to_read_them(valkey, tmp_path, dtype):
    log = log_of(tmp_path, dtype)
    publisher(valkey, log).publish(length=LENGTH)
    append(log, made_rows(20, first=200, users=3, start_ms=900, quantiser=log.quantiser))
    publisher(valkey, log).publish()
    expect_rebuild(valkey, log)
    expected = {"dtype": dtype, "dim": 32, "centres": list(log.quantiser.centres), "version": log.quantiser.version}
    assert meta_of(valkey, log.space) == expected
    assert valkey.ttl(meta_key(log.space)) == -1


def test_the_space_says_how_to_read_it_before_its_first_generation_goes_live(monkeypatch, valkey, log):
    said = []
    flip = Registry.flip

    def looking(registry: Registry, expected: str | None, name: str) -> bool:
        said.append(meta_of(valkey, SPACE)["version"])
        assert registry.pointer() is None
        return flip(registry, expected, name)

    monkeypatch.setattr(Registry, "flip", looking)
    publisher(valkey, log).publish(length=LENGTH)
    assert said == [INT8.version]


def test_a_log_made_anew_says_its_own_centres_and_the_older_one_never_says_its_own_again(valkey, tmp_path):
    old, new = (log_of(tmp_path / str(seed), "kint4", seed=seed, epoch=seed + 1) for seed in (0, 1))
    assert old.quantiser != new.quantiser
    publisher(valkey, old).publish(length=LENGTH)
    publisher(valkey, new).publish()
    assert meta_of(valkey, new.space)["version"] == new.quantiser.version
    expect_rebuild(valkey, new)
    with pytest.raises(InputError, match="stale fence"):
        publisher(valkey, old).publish()
    assert meta_of(valkey, new.space)["version"] == new.quantiser.version


def test_a_space_that_lost_what_it_said_says_it_again(valkey, log):
    publisher(valkey, log).publish(length=LENGTH)
    valkey.delete(meta_key(SPACE))
    publisher(valkey, log).publish()
    assert meta_of(valkey, SPACE)["version"] == INT8.version
