"""The feature log: what the model saw, bit for bit, and never a failed request."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from contracts.errors import InputError
from contracts.hashing import stable_hash
from serving.feature_log import FeatureLog
from tests.serving.conftest import Cache, Client, body
from tests.serving.small_student import GENERATION, NOW_MS, SPACE, SPEC

Open = Callable[..., Client]


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_logged_request_can_be_scored_again_to_the_bit(
    open_client: Open, valkey_url: str, cache: Cache, tmp_path: Path
):
    cache.go_live()
    cache.publish("u1", computed_ms=NOW_MS - 5000)
    client = open_client(redis_url=valkey_url, clock="request", feature_log=tmp_path / "log", feature_log_rate=1)
    answers = [
        client.rank(body(candidates={"ad_ids": ids}, context={"timestamp_ms": NOW_MS}, objective="ecpm")).json()
        for ids in (["a1", "a2", "new"], ["a9"], [])
    ]
    client.service.feature_log.flush()
    table = pq.read_table(only_file(tmp_path / "log"))
    shapes = json.loads(table.schema.metadata[b"tensors"])
    scorer = client.service.ranker.models["feed"].scorer
    for row, answer in zip(table.to_pylist(), answers, strict=True):
        inputs = {
            tensor.name: np.array(row[f"input_{tensor.name}"], dtype=tensor.dtype).reshape(-1, *shapes[tensor.name])
            for tensor in SPEC.tensors()
        }
        again = scorer.run(inputs)
        np.testing.assert_array_equal(np.array(row["probabilities"], dtype=np.float32), again.ravel())
        assert dict(zip(row["ad_ids"], row["scores"], strict=True)) == {
            result["ad_id"]: result["score"] for result in answer["results"]
        }
        assert (row["request_id"], row["timestamp_ms"]) == (answer["request_id"], NOW_MS)
        assert (row["model"], row["version"], row["space"], row["generation"]) == ("student", "1", SPACE, GENERATION)
        assert row["embedding_status"] == "fresh"
        assert row["catalogue"] == client.service.ranker.catalogue.current.version


def test_users_appear_as_hashes_only(open_client: Open, tmp_path: Path):
    client = open_client(feature_log=tmp_path / "log", feature_log_rate=1)
    client.rank(body(user_id="somebody@example.org"))
    client.service.feature_log.flush()
    path = only_file(tmp_path / "log")
    assert b"somebody" not in path.read_bytes()
    assert pq.read_table(path)["user_hash"].to_pylist() == [stable_hash("somebody@example.org")]


def test_only_the_sampled_share_is_kept(open_client: Open, tmp_path: Path):
    client = open_client()
    draws = iter([0.1, 0.9, 0.49, 0.5])
    log = FeatureLog(tmp_path / "log", rate=0.5, random=lambda: next(draws), rows_per_file=1)
    client.service.feature_log = log
    for _ in range(4):
        client.rank(body())
    assert (log.written, len(list((tmp_path / "log").iterdir()))) == (2, 2)


def test_a_file_is_written_when_the_buffer_is_full_and_at_the_end(open_client: Open, tmp_path: Path):
    client = open_client()
    log = client.service.feature_log = FeatureLog(tmp_path / "log", rate=1, random=lambda: 0.0, rows_per_file=3)
    for _ in range(4):
        client.rank(body())
    assert log.written == 3
    client.runner.run(client.service.close())
    assert log.written == 4
    assert all(path.suffix == ".parquet" for path in (tmp_path / "log").iterdir())


def test_a_restart_overwrites_nothing_though_process_and_time_are_the_same(open_client: Open, tmp_path: Path):
    client = open_client(clock="request")
    for _ in range(3):
        client.service.feature_log = FeatureLog(tmp_path / "log", rate=1, random=lambda: 0.0, rows_per_file=1)
        client.rank(body(context={"timestamp_ms": NOW_MS}))
    assert len(list((tmp_path / "log").iterdir())) == 3


def test_a_disk_that_fails_costs_rows_and_not_requests(open_client: Open, tmp_path: Path):
    client = open_client()
    log = client.service.feature_log = FeatureLog(tmp_path / "log", rate=1, random=lambda: 0.0, rows_per_file=1)
    shutil.rmtree(tmp_path / "log")
    assert client.rank(body()).status_code == 200
    assert (log.written, log.dropped) == (0, 1)


def test_a_folder_that_cannot_be_made_ends_the_start(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="GEM_FEATURE_LOG"):
        FeatureLog(tmp_path / "file" / "log", rate=1, random=lambda: 0.0)
