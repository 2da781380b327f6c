"""Ranking end to end in process: request, real Valkey, real ONNX, answer."""

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from contracts.features import HistoryBatch, in_order, user_bucket, user_inputs
from contracts.hashing import bucket
from contracts.keys import history_key
from tests.serving.conftest import Cache, Client, body, now_ms
from tests.serving.small_student import (
    ADS,
    GENERATION,
    NOW_MS,
    OBJECTIVES,
    SCHEMA,
    SPACE,
    SPEC,
    ad_table,
    build_graph,
    write_artifact,
)

Open = Callable[..., Client]


def at(ms: int, **features: float) -> dict[str, Any]:
    return {"timestamp_ms": ms, **features}


def rank(client: Client, **changes: Any) -> dict[str, Any]:
    response = client.rank(body(**changes))
    assert response.status_code == 200, response.text
    return response.json()


def code(client: Client, **changes: Any) -> tuple[int, str]:
    response = client.rank(body(**changes))
    return response.status_code, response.json()["code"]


# ---- scores ---------------------------------------------------------------------------------------------------------


def test_the_answer_is_what_the_model_gives_for_the_assemblers_inputs(client: Client, cache: Cache):
    record = cache.publish("u1", computed_ms=NOW_MS - 5000, elements=8)
    ids = ["a3", "a700", "unheard of", "a1"]
    answer = rank(client, candidates={"ad_ids": ids}, context=at(NOW_MS, device=2, battery=0.25), explain=True)
    inputs = user_inputs(
        SPEC,
        user_buckets=np.array([user_bucket(SCHEMA, "u1")]),
        surfaces=np.array([1]),
        now_ms=np.array([NOW_MS]),
        context={"device": np.array([2]), "battery": np.array([0.25])},
        history=HistoryBatch.from_record(record, spec=SPEC, now_ms=NOW_MS),
    )
    inputs |= ad_table().rows(np.array([3, 700, -1, 1]))
    expected = client.service.ranker.models["feed"].scorer.run(in_order(SPEC, inputs))
    by_id = {result["ad_id"]: result for result in answer["results"]}
    for row, ad_id in enumerate(ids):
        tasks = by_id[ad_id]["explain"]["tasks"]
        np.testing.assert_array_equal(np.array(list(tasks.values()), dtype=np.float32), expected[row])


def test_p_follows_the_objective_of_each_ad(client: Client):
    for result in rank(client, candidates={"ad_ids": ["a0", "a1", "a2"]}, explain=True)["results"]:
        tasks, objective = result["explain"]["tasks"], OBJECTIVES[int(result["ad_id"][1:])]
        assert result["explain"]["objective"] == objective
        assert result["p"] == (tasks["click"] if objective == "click" else tasks["click"] * tasks[objective])
        assert result["score"] == result["p"]


def test_ecpm_is_bid_times_p_with_the_catalogues_bid_where_the_request_names_none(client: Client):
    results = rank(client, objective="ecpm", explain=True, candidates=[{"ad_id": "a1"}, {"ad_id": "a2", "bid": 7}])
    found = {result["ad_id"]: result for result in results["results"]}
    assert (found["a1"]["explain"]["bid"], found["a1"]["explain"]["bid_source"]) == (1.5, "catalogue")
    assert (found["a2"]["explain"]["bid"], found["a2"]["explain"]["bid_source"]) == (7, "request")
    assert all(result["score"] == result["p"] * result["explain"]["bid"] for result in found.values())


def test_results_are_sorted_numbered_and_finite(client: Client):
    for objective in ("p", "ecpm"):
        results = rank(client, candidates={"ad_ids": list(ADS[:300])}, objective=objective)["results"]
        scores = [result["score"] for result in results]
        assert scores == sorted(scores, reverse=True)
        assert [result["rank"] for result in results] == list(range(1, 301))
        assert np.isfinite(scores).all()


def test_the_order_of_the_candidates_does_not_matter(client: Client):
    ids = list(ADS[:50])
    one, other = (rank(client, candidates={"ad_ids": order})["results"] for order in (ids, ids[::-1]))
    assert [result["ad_id"] for result in one] == [result["ad_id"] for result in other]


def test_top_k_keeps_the_best(client: Client):
    everything = rank(client, candidates={"ad_ids": list(ADS[:20])})["results"]
    assert rank(client, candidates={"ad_ids": list(ADS[:20])}, top_k=3)["results"] == everything[:3]
    assert rank(client, candidates={"ad_ids": list(ADS[:20])}, top_k=10**30)["results"] == everything


@pytest.mark.parametrize("n", [0, 1, 256, 257, 1000])
def test_any_number_of_candidates_up_to_a_thousand(client: Client, n: int):
    assert len(rank(client, candidates={"ad_ids": list(ADS[:n])})["results"]) == n


def test_more_than_a_thousand_are_refused(client: Client):
    assert code(client, candidates={"ad_ids": list(ADS[:1001])}) == (422, "too_many_candidates")


def test_duplicates_keep_the_first_and_name_the_others(client: Client):
    answer = rank(
        client,
        candidates=[
            {"ad_id": "a1", "bid": 3},
            {"ad_id": 7},
            {"ad_id": "a1", "bid": 9},
            {"ad_id": "7"},
            {"ad_id": "a1"},
        ],
        explain=True,
    )
    assert {result["ad_id"] for result in answer["results"]} == {"a1", "7"}
    assert next(r for r in answer["results"] if r["ad_id"] == "a1")["explain"]["bid"] == 3
    assert answer["dropped"] == [{"ad_id": ad_id, "reason": "duplicate"} for ad_id in ("a1", "7", "a1")]


def test_an_unknown_ad_is_ranked_with_the_row_for_unknown_ads(client: Client):
    results = rank(client, candidates=[{"ad_id": "new", "bid": 2}, {"ad_id": "newer", "bid": 2}])["results"]
    assert [result["status"] for result in results] == ["unknown_ad"] * 2
    assert results[0]["p"] == results[1]["p"] > 0
    assert [result["ad_id"] for result in results] == ["new", "newer"], "equal scores and bids: by id"


def test_an_unknown_ad_without_a_bid_has_no_ecpm_and_stands_last(client: Client):
    candidates = [{"ad_id": "new"}, {"ad_id": "a1", "bid": 0}, {"ad_id": "newer", "bid": 1}]
    results = rank(client, candidates=candidates, objective="ecpm")["results"]
    assert [(r["ad_id"], r["status"]) for r in results] == [("newer", "unknown_ad"), ("a1", "ok"), ("new", "no_bid")]
    assert results[2]["score"] == 0


def test_a_score_that_is_not_finite_stays_with_its_candidate(open_client: Open, tmp_path: Path):
    graph = build_graph(SPEC, nan_for_bucket=bucket("a5", SCHEMA.ad_buckets))
    write_artifact(tmp_path, graph=graph)
    results = rank(open_client(models=tmp_path), candidates={"ad_ids": ["a5", "a1", "a2"]}, explain=True)["results"]
    assert [result["status"] for result in results] == ["ok", "ok", "not_finite"]
    assert (results[2]["ad_id"], results[2]["score"], results[2]["p"]) == ("a5", 0, 0)


# ---- the embedding --------------------------------------------------------------------------------------------------


def test_a_published_user_is_fresh(client: Client, cache: Cache):
    cache.publish("u1", computed_ms=NOW_MS - 5000)
    answer = rank(client, context=at(NOW_MS))
    assert answer["degraded"] == []
    assert answer["embedding"] == {
        "status": "fresh",
        "source": "valkey",
        "space": SPACE,
        "generation": GENERATION,
        "computed_at_ms": NOW_MS - 5000,
        "age_s": 5.0,
        "pairs": {"status": "missing", "covered": 0, "total": 2},
    }


def test_the_history_changes_the_scores(client: Client, cache: Cache):
    without = rank(client, context=at(NOW_MS))["results"]
    cache.publish("u1", computed_ms=NOW_MS - 5000)
    assert rank(client, context=at(NOW_MS))["results"] != without


def test_an_expired_embedding_scores_as_a_missing_one(client: Client, cache: Cache):
    without = rank(client, context=at(NOW_MS))["results"]
    cache.publish("u1", computed_ms=NOW_MS - 30 * 86_400_000)
    answer = rank(client, context=at(NOW_MS))
    assert (answer["embedding"]["status"], answer["degraded"]) == ("expired", ["embedding_expired"])
    assert answer["results"] == without


def test_a_watermark_keeps_a_user_without_news_fresh(client: Client, cache: Cache):
    cache.publish("u1", computed_ms=NOW_MS - 30 * 86_400_000)
    cache.go_live(watermark_ms=NOW_MS - 1000)
    client.poll()
    answer = rank(client, context=at(NOW_MS))
    assert (answer["embedding"]["status"], answer["embedding"]["age_s"]) == ("fresh", 1.0)


def test_elements_at_or_after_the_requests_now_are_not_history(client: Client, cache: Cache):
    without = rank(client, context=at(NOW_MS))["results"]
    record = cache.publish("u1", computed_ms=NOW_MS + 86_400_000)
    assert record.event_ms.min() > NOW_MS
    future = rank(client, context=at(NOW_MS))
    assert future["embedding"]["status"] == "fresh"
    assert [r["ad_id"] for r in future["results"]] == [r["ad_id"] for r in without]


def test_an_unknown_user_gets_an_answer_that_says_so(client: Client):
    answer = rank(client, user_id="nobody")
    assert (answer["embedding"]["status"], answer["embedding"]["source"]) == ("missing", "default")
    assert answer["degraded"] == ["embedding_missing"]


def test_an_empty_cache_gets_an_answer_that_says_so(client: Client, cache: Cache):
    cache.client.flushall()
    client.poll()
    answer = rank(client)
    assert (answer["embedding"]["status"], answer["embedding"]["generation"]) == ("missing", None)
    assert answer["degraded"] == ["embedding_generation_missing"]


def test_another_users_record_is_never_used(client: Client, cache: Cache):
    cache.publish("u2", computed_ms=NOW_MS)
    blob = cache.client.get(history_key(SPACE, GENERATION, "u2"))
    cache.client.set(history_key(SPACE, GENERATION, "u1"), blob)
    answer = rank(client, context=at(NOW_MS))
    assert (answer["embedding"]["status"], answer["degraded"]) == ("missing", ["embedding_corrupt"])


def test_an_unreachable_store_gets_an_answer_that_says_so(open_client: Open):
    answer = rank(open_client())
    assert answer["embedding"]["status"] == "unavailable"
    assert answer["embedding"]["pairs"] == {"status": "unavailable", "covered": 0, "total": 2}
    assert answer["degraded"] == ["embedding_store_unreachable"]


def test_a_hung_store_gets_answers_that_say_so_and_recovery_is_seen(open_client: Open, spawn_valkey, cache: Cache):
    server = spawn_valkey()
    with redis.Redis.from_url(server.url) as raw:
        Cache(raw).go_live()
        Cache(raw).publish("u1", computed_ms=now_ms())
    client = open_client(redis_url=server.url, store_timeout_ms=50)
    assert rank(client)["embedding"]["status"] == "fresh"
    os.kill(server.process.pid, signal.SIGSTOP)
    for _ in range(8):
        answer = rank(client)
        assert (answer["embedding"]["status"], answer["degraded"]) == ("unavailable", ["embedding_store_timeout"])
        assert len(answer["results"]) == 2
    os.kill(server.process.pid, signal.SIGCONT)
    client.poll()
    assert rank(client)["embedding"]["status"] == "fresh"


def test_pairs_say_how_many_candidates_they_cover(client: Client, cache: Cache):
    cache.publish_pairs("u1", ["a1", "new", "a9"], computed_ms=[NOW_MS - 1000] * 3)
    answer = rank(client, candidates={"ad_ids": ["a1", "a2", "new", "newer"]}, context=at(NOW_MS))
    assert answer["embedding"]["pairs"] == {"status": "fresh", "covered": 2, "total": 4}


def test_strict_refuses_what_is_neither_fresh_nor_stale(client: Client, cache: Cache):
    assert code(client, strict=True) == (503, "embedding_required")
    for age_ms, status in ((5000, 200), (7_200_000, 200), (30 * 86_400_000, 503)):
        cache.publish("u1", computed_ms=NOW_MS - age_ms)
        assert client.rank(body(strict=True, context=at(NOW_MS))).status_code == status


def test_no_time_for_the_store_is_stated(client: Client, cache: Cache):
    cache.publish("u1", computed_ms=now_ms())
    answer = rank(client, deadline_ms=0.001)
    assert answer["embedding"]["status"] == "unavailable"
    assert answer["degraded"] == ["embedding_store_skipped", "deadline_exceeded"]
    assert len(answer["results"]) == 2


# ---- surfaces, clock, models ----------------------------------------------------------------------------------------


def test_an_unknown_surface_is_refused_and_the_served_ones_named(client: Client):
    response = client.rank(body(surface="stories"))
    assert (response.status_code, response.json()["code"]) == (422, "unknown_surface")
    assert "feed, other, reels" in response.json()["detail"]
    assert response.json()["pointer"] == "/surface"


def test_each_surface_has_its_model(open_client: Open, tmp_path: Path):
    write_artifact(tmp_path, name="one", surfaces=("feed", "other"))
    write_artifact(tmp_path, name="two", version="5", surfaces=("reels",), graph=build_graph(SPEC, seed=9))
    client = open_client(models=tmp_path)
    models = {surface: rank(client, surface=surface)["model"] for surface in ("feed", "other", "reels")}
    one, two = {"name": "one", "version": "1"}, {"name": "two", "version": "5"}
    assert models == {"feed": one, "other": one, "reels": two}


def test_the_servers_clock_refuses_other_times_unless_told_otherwise(open_client: Open):
    assert code(open_client(), context=at(NOW_MS)) == (422, "clock_skew")
    assert open_client(clock="request").rank(body(context=at(NOW_MS))).status_code == 200


def test_context_features_reach_the_model(client: Client):
    answers = [rank(client, context=at(NOW_MS, device=device))["results"] for device in (0, 1, 2)]
    assert all(one != other for one, other in itertools.pairwise(answers))
    assert answers[0] == rank(client, context=at(NOW_MS))["results"], "an absent feature is unknown, code 0"
