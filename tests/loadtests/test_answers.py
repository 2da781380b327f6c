"""The judge of answers: a right one passes, each kind of wrong one is named."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from loadtests.answers import embedding_status, fault

REQUEST = {"surface": "feed", "user_id": "u1", "candidates": {"ad_ids": ["a", "b", "c"], "bids": [1, 1, 1]}}
ANSWER: dict[str, Any] = {
    "request_id": "r",
    "surface": "feed",
    "model": {"name": "student", "version": "1"},
    "embedding": {
        "status": "fresh",
        "source": "valkey",
        "space": "gem-3f9a1c-d4-int8",
        "generation": "g000001",
        "computed_at_ms": 1,
        "age_s": 1.0,
        "pairs": {"status": "missing", "covered": 0, "total": 3},
    },
    "degraded": [],
    "results": [
        {"ad_id": "b", "rank": 1, "score": 0.5, "p": 0.5, "status": "ok"},
        {"ad_id": "a", "rank": 2, "score": 0.5, "p": 0.5, "status": "unknown_ad"},
        {"ad_id": "c", "rank": 3, "score": 0.0, "p": 0.7, "status": "no_bid"},
    ],
    "dropped": [],
}


def judge(change: Callable[[dict[str, Any]], Any] = lambda _: None, **request: Any) -> str | None:
    answer = copy.deepcopy(ANSWER)
    change(answer)
    return fault(200, json.dumps(answer).encode(), REQUEST | request)


def test_a_right_answer_has_no_fault():
    assert judge() is None


def test_top_k_is_what_is_due():
    assert judge(lambda answer: answer["results"].pop(), top_k=2) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda a: a["results"].pop(), "2 results"),
        (lambda a: a["results"][0].update(ad_id="a"), "(2 ads)"),
        (lambda a: a["results"][0].update(ad_id="z"), "not asked for"),
        (lambda a: a["results"][1].update(rank=1), "ranks"),
        (lambda a: a["results"][1].update(score=0.6), "not sorted"),
        (lambda a: a["results"][1].update(score=None), "not a rank response"),
        (lambda a: a["embedding"].update(status="lukewarm"), "not a rank response"),
        (lambda a: a["embedding"].update(status="stale"), "no reason"),
        (lambda a: a.pop("model"), "not a rank response"),
    ],
)
def test_a_wrong_answer_is_named(change: Callable[[dict[str, Any]], Any], named: str):
    assert named in str(judge(change))


def test_the_embedding_status_is_read_from_the_answer():
    assert embedding_status(json.dumps(ANSWER).encode()) == "fresh"


def test_any_other_status_is_a_fault():
    assert fault(503, b"{}", REQUEST) == "status 503: b'{}'"
