"""The commands, on the tiny world with its real teacher and a real Valkey."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import redis

from contracts.errors import InputError
from contracts.schema import Feature
from events.log import InteractionLog
from events.representations import RepresentationLog
from events.store import append, read_calendar, write_log
from foundation.teacher import Teacher
from precompute import backfill, publish, refresh, rollback, status
from tests.precompute.rebuild import expect_rebuild

ROOT = Path(__file__).parents[2]
LENGTH = 50


@pytest.fixture
def refreshed(tiny_log_dir, tiny_checkpoint, tmp_path, valkey_url, capsys):
    """Runs the command in process and returns its report: refreshed(log=..., **options)."""

    def run(log: Path = tiny_log_dir, **options) -> dict:
        arguments = {"checkpoint": tiny_checkpoint, "representations": tmp_path / "rows", "redis_url": valkey_url}
        refresh.main(**{"log": log, **arguments, "available": "event+600", "shard_rows": 500, **options})
        return last_line(capsys)

    return run


def last_line(capsys: pytest.CaptureFixture) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def log_in(folder: Path) -> RepresentationLog:
    (space,) = (folder / "rows").iterdir()
    return RepresentationLog(space)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def everything(client: redis.Redis) -> dict:
    """All records of all spaces."""
    return {key: client.get(key) for key in client.scan_iter(match="emb:*:h")}


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", f"precompute.{name}", *map(str, arguments)]


def run(name: str, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(command(name, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_refresh_represents_publishes_and_reports(refreshed, valkey, tmp_path, tiny_log, tiny_checkpoint):
    done = refreshed()
    log, later = log_in(tmp_path), tiny_log.event_ms >= Teacher.load(tiny_checkpoint).trained_until_ms
    assert (done["new"], done["computed"], done["skipped"]) == (len(tiny_log), later.sum(), (~later).sum())
    assert (done["generation"], done["created"], done["refused"]) == ("g000001", done["users"], 0)
    assert done["watermark_ms"] == tiny_log.event_ms[later].max()
    expect_rebuild(valkey, log, length=LENGTH, now_ms=now_ms())


def test_refreshing_twice_computes_and_writes_nothing_the_second_time(refreshed, valkey):
    refreshed()
    before = everything(valkey)
    done = refreshed()
    assert [done[name] for name in ("new", "computed", "users_touched", "created", "replaced", "unchanged")] == [0] * 6
    assert everything(valkey) == before


def test_new_impressions_alone_are_computed_and_their_users_published(
    refreshed, valkey, tmp_path, tiny_log, tiny_log_dir
):
    folder = tmp_path / "log"
    write_log(folder, tiny_log.take(np.arange(2_800)), calendar=read_calendar(tiny_log_dir))
    refreshed(folder)
    append(folder, tiny_log.take(np.arange(2_800, len(tiny_log))))
    done = refreshed(folder)
    assert done["computed"] == len(tiny_log) - 2_800
    assert done["users_touched"] == len(np.unique(tiny_log.user[2_800:]))
    expect_rebuild(valkey, log_in(tmp_path), length=LENGTH, now_ms=now_ms())


KILLED = """
import os, runpy, signal, sys
from events import representation_shards

finish, sys.argv, written = os.replace, sys.argv[1:], []

def killed_at_the_fourth_shard(partial, path):
    if str(path).endswith(".parquet"):
        written.append(path)
        if len(written) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
    finish(partial, path)

representation_shards.os.replace = killed_at_the_fourth_shard
runpy.run_module("precompute.refresh", run_name="__main__")
"""


def test_a_refresh_that_is_killed_midway_loses_nothing(
    refreshed, valkey, valkey_url, tmp_path, tiny_log, tiny_log_dir, tiny_checkpoint
):
    """kill -9 while the fourth shard is written and not yet renamed."""
    options = ["--log", tiny_log_dir, "--checkpoint", tiny_checkpoint, "--representations", tmp_path / "rows"]
    more = ["--shard-rows", 200, "--redis-url", valkey_url]
    arguments = [sys.executable, "-c", KILLED, "refresh", *map(str, options + more)]
    killed = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    log = log_in(tmp_path)
    kept = {shard.path.name: shard.path.read_bytes() for shard in log.shards()}
    rows_kept = len(log.read())
    assert (len(kept), rows_kept) == (3, 600)
    assert list(log.folder.glob(".*.parquet.tmp"))
    assert valkey.dbsize() == 0

    done = refreshed(shard_rows=200)
    later = tiny_log.event_ms >= Teacher.load(tiny_checkpoint).trained_until_ms
    assert done["computed"] == later.sum() - rows_kept, "only the shard in hand is computed again"
    assert all((log.folder / name).read_bytes() == content for name, content in kept.items())
    np.testing.assert_array_equal(log.read().event_id, tiny_log.event_id[later])
    assert not list(log.folder.glob(".*.parquet.tmp"))
    expect_rebuild(valkey, log, length=LENGTH, now_ms=now_ms())


def test_a_second_refresh_of_the_same_log_waits_outside(refreshed, valkey_url, tmp_path, tiny_log_dir, tiny_checkpoint):
    refreshed()
    arguments = ["--log", tiny_log_dir, "--checkpoint", tiny_checkpoint, "--representations", tmp_path / "rows"]
    with log_in(tmp_path).writing():
        second = run("refresh", *arguments, "--redis-url", valkey_url)
    assert "error: another process is writing" in second.stderr
    assert second.returncode == 1
    assert second.stdout == ""


def test_two_first_refreshes_at_once_end_with_the_log_of_one(
    valkey, valkey_url, tmp_path, tiny_log_dir, tiny_checkpoint
):
    """Two real processes on a folder without a log: one makes it, the other ends or finds it done."""
    options = ["--log", tiny_log_dir, "--checkpoint", tiny_checkpoint, "--representations", tmp_path / "rows"]
    arguments = command("refresh", *options, "--redis-url", valkey_url)
    jobs = [
        subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for job in jobs:
        said = job.communicate(timeout=120)[1]
        assert job.returncode == 0 or "error: another process is writing" in said
        assert job.returncode in (0, 1)
        assert "Traceback" not in said
    assert 0 in [job.returncode for job in jobs]
    expect_rebuild(valkey, log_in(tmp_path), length=LENGTH, now_ms=now_ms())


@pytest.mark.parametrize("name", ["refresh", "backfill"])
def test_a_file_in_the_place_of_the_representations_is_bad_input(
    valkey_url, tmp_path, tiny_log_dir, tiny_checkpoint, name
):
    (tmp_path / "rows").touch()
    options = ["--log", tiny_log_dir, "--checkpoint", tiny_checkpoint, "--representations", tmp_path / "rows"]
    done = run(name, *options, *(["--redis-url", valkey_url] if name == "refresh" else []))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {tmp_path / 'rows'}")
    assert done.stderr.count("\n") == 1


def other_schema(log: InteractionLog, folder: Path, tiny_log_dir: Path) -> Path:
    feature = Feature("more", "context", cardinality=3)
    schema = replace(log.schema, features=(*log.schema.features, feature))
    context = {**log.context, "more": np.zeros(len(log), dtype=np.int32)}
    write_log(folder, replace(log, schema=schema, context=context), calendar=read_calendar(tiny_log_dir))
    return folder


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("log", Path("nowhere"), "nowhere"),
        ("checkpoint", Path("nowhere"), "nowhere"),
        ("available", "soon", "--available soon"),
        ("redis_url", "redis://127.0.0.1:1/0", r"cannot reach Valkey at redis://127\.0\.0\.1:1/0"),
    ],
)
def test_bad_input_is_named_and_writes_nothing(refreshed, valkey, tmp_path, option, value, message):
    with pytest.raises(InputError, match=message):
        refreshed(**{option: value})
    assert not (tmp_path / "rows").exists()
    assert valkey.dbsize() == 0


def test_a_checkpoint_of_another_schema_is_refused_and_writes_nothing(
    refreshed, valkey, tmp_path, tiny_log, tiny_log_dir
):
    folder = other_schema(tiny_log, tmp_path / "log", tiny_log_dir)
    with pytest.raises(InputError, match="train a teacher on this log"):
        refreshed(folder)
    assert not (tmp_path / "rows").exists()
    assert valkey.dbsize() == 0


def test_a_corrupt_shard_is_named_and_mended_as_it_says(refreshed, valkey, tmp_path):
    refreshed()
    log = log_in(tmp_path)
    epoch, before, shard = log.epoch, log.read(), log.shards()[1]
    columns = pq.read_metadata(shard.path).row_group(0)
    (codes,) = (columns.column(at) for at in range(columns.num_columns) if columns.column(at).path_in_schema == "codes")
    content = bytearray(shard.path.read_bytes())
    content[codes.data_page_offset + codes.total_compressed_size // 2] ^= 1
    shard.path.write_bytes(content)
    with pytest.raises(InputError, match=f"{shard.path.name} .*delete this file and run the refresh again"):
        publish.main(representations=log.folder, redis_url=valkey_url_of(valkey), full=True)
    shard.path.unlink()
    done = refreshed()
    assert done["computed"] == 500
    assert done["built"], "records of the new epoch stand in a generation of their own"
    log = log_in(tmp_path)
    assert log.epoch > epoch
    np.testing.assert_array_equal(log.read().event_id, before.event_id)
    expect_rebuild(valkey, log, length=LENGTH, now_ms=now_ms())


def valkey_url_of(client: redis.Redis) -> str:
    return f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}/0"


def test_a_backfill_needs_no_valkey_and_a_publication_no_teacher(
    valkey, valkey_url, tmp_path, tiny_log_dir, tiny_checkpoint, capsys
):
    rows = tmp_path / "rows"
    backfill.main(log=tiny_log_dir, checkpoint=tiny_checkpoint, representations=rows, delay=60, shard_rows=500)
    done = last_line(capsys)
    log = log_in(tmp_path)
    assert done["computed"] == len(log.read())
    assert (log.read().available_ms == log.read().event_ms + 60_000).all()
    assert valkey.dbsize() == 0
    publish.main(representations=log.folder, redis_url=valkey_url, length=7)
    assert last_line(capsys)["built"]
    expect_rebuild(valkey, log, length=7, now_ms=now_ms())


def test_a_refresh_serves_the_width_and_quantiser_that_it_is_told(refreshed, valkey, tmp_path):
    done = refreshed(dim=16, dtype="kint4")
    assert done["space"].endswith("-d16-kint4")
    expect_rebuild(valkey, log_in(tmp_path), length=LENGTH, now_ms=now_ms())
    assert refreshed(dim=16, dtype="kint4")["computed"] == 0


def test_a_rollback_and_the_status_say_what_is_live(refreshed, valkey, valkey_url, tmp_path, capsys):
    space = refreshed()["space"]
    log = log_in(tmp_path)
    publish.main(representations=log.folder, redis_url=valkey_url, full=True)
    rollback.main(space=space, redis_url=valkey_url)
    done = last_line(capsys)
    assert (done["from"], done["generation"]) == ("g000002", "g000001")
    status.main(redis_url=valkey_url)
    output = capsys.readouterr().out
    found = json.loads(output.splitlines()[-1])["spaces"][space]
    assert found["live"] == "g000001"
    assert [row["state"] for row in found["generations"]] == ["live", "retired"]
    assert [row["expires_s"] is None for row in found["generations"]] == [True, False]
    assert {row["users"] for row in found["generations"]} == {done["users"]}
    assert found["generations"][0]["watermark_age_s"] > 0
    assert "g000002" in output
    assert "retired" in output


def test_a_rollback_without_a_generation_to_go_to_is_bad_input(refreshed, valkey_url, tmp_path):
    with pytest.raises(InputError, match="nothing is published"):
        rollback.main(space="gem-000000-d32-int8", redis_url=valkey_url)
    with pytest.raises(InputError, match="no embedding space"):
        rollback.main(space="gem", redis_url=valkey_url)
    space = refreshed()["space"]
    with pytest.raises(InputError, match="no generation before g000001"):
        rollback.main(space=space, redis_url=valkey_url)
    with pytest.raises(InputError, match="--to g000007"):
        rollback.main(space=space, to="g000007", redis_url=valkey_url)


def test_a_rollback_to_a_generation_that_has_begun_to_expire_is_refused(refreshed, valkey, valkey_url, tmp_path):
    space = refreshed()["space"]
    publish.main(representations=log_in(tmp_path).folder, redis_url=valkey_url, full=True)
    valkey.delete(next(valkey.scan_iter(match=f"emb:{space}:g000001:*:h")))
    with pytest.raises(InputError, match=r"g000001 holds .* the others have expired"):
        rollback.main(space=space, redis_url=valkey_url)
    assert valkey.get(f"emb:{space}:live") == b"g000002"
    assert all(valkey.ttl(key) > 3_600 for key in valkey.scan_iter(match=f"emb:{space}:g000001:*"))


@pytest.mark.parametrize("junk", [b"junk", b"\xff\xfe", b"", b"g1"])
def test_a_damaged_live_pointer_is_named_and_mended_as_the_message_says(
    refreshed, valkey, valkey_url, tmp_path, capsys, junk
):
    space = refreshed()["space"]
    key, folder = f"emb:{space}:live", log_in(tmp_path).folder
    valkey.set(key, junk)
    mend = f"run DEL {key} in Valkey, then python -m precompute.publish --full"
    for job in (
        lambda: publish.main(representations=folder, redis_url=valkey_url),
        lambda: publish.main(representations=folder, redis_url=valkey_url, full=True),
        lambda: rollback.main(space=space, redis_url=valkey_url),
        lambda: status.main(redis_url=valkey_url),
    ):
        with pytest.raises(InputError, match=mend):
            job()
    valkey.delete(key)
    publish.main(representations=folder, redis_url=valkey_url, full=True)
    assert last_line(capsys)["generation"] == "g000002"
    expect_rebuild(valkey, RepresentationLog(folder), length=LENGTH, now_ms=now_ms())


def test_publishing_what_is_no_log_or_holds_nothing_yet_is_bad_input(tmp_path, valkey_url, tiny_log, teacher):
    with pytest.raises(InputError, match="no representation log"):
        publish.main(representations=tmp_path, redis_url=valkey_url)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("status", "--redis-url", "redis://127.0.0.1:1"), "error: cannot reach Valkey at redis://127.0.0.1:1"),
        (("publish", "--representations", "nowhere"), "error: nowhere is no representation log"),
        (("refresh", "--log", "x"), "Missing option"),
    ],
)
def test_bad_usage_ends_with_one_sentence_and_exit_code_2(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_two_publications_at_once_end_with_the_bytes_of_a_rebuild(refreshed, valkey, valkey_url, tmp_path):
    """Two real processes over one log: both bring its increment to the same generation."""
    refreshed()
    log = log_in(tmp_path)
    shard = log.shards()[-1]
    aside = tmp_path / shard.path.name
    shutil.move(shard.path, aside)
    rewritten = json.loads((log.folder / "log.json").read_text())
    (log.folder / "log.json").write_text(json.dumps({**rewritten, "covered_offset": shard.first}))
    valkey.flushall()
    publish.main(representations=log.folder, redis_url=valkey_url)
    shutil.move(aside, shard.path)
    jobs = [
        subprocess.Popen(
            command("publish", "--representations", log.folder, "--redis-url", valkey_url),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(2)
    ]
    reports = [json.loads(job.communicate()[0].splitlines()[-1]) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    assert sum(report["created"] + report["replaced"] for report in reports) > 0
    expect_rebuild(valkey, RepresentationLog(log.folder), length=LENGTH, now_ms=now_ms())
