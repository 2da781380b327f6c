"""POST /v1/rank on the wire: headers, limits, problems; and that no body whatever makes the server fail."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.bodies import RankRequest, RankResponse
from serving.endpoint import RankEndpoint
from serving.problems import PROBLEMS
from tests.serving.conftest import Client, body
from tests.serving.small_student import ADS

Open = Callable[..., Client]


@pytest.fixture
def lonely(open_client: Open) -> Client:
    """An app whose store cannot be reached."""
    return open_client(clock="request")


def test_an_answer_carries_its_request_id_and_timings(lonely: Client):
    response = lonely.rank(body(), **{"x-request-id": "abc-1"})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] == response.json()["request_id"] == "abc-1"
    assert response.headers["server-timing"].startswith("total;dur=")


def test_the_bodys_request_id_goes_before_the_headers(lonely: Client):
    response = lonely.rank(body(request_id="from the body ✓"), **{"x-request-id": "abc-1"})
    assert response.json()["request_id"] == "from the body ✓"
    assert response.headers["x-request-id"] == "abc-1"


@pytest.mark.parametrize("given_id", ["", "two words", "x" * 129])
def test_a_request_id_that_is_no_token_is_replaced(lonely: Client, given_id: str):
    response = lonely.rank(body(), **{"x-request-id": given_id})
    assert response.headers["x-request-id"] == response.json()["request_id"] != given_id


def test_the_answer_has_exactly_the_fields_of_the_design(lonely: Client):
    answer = lonely.rank(body()).json()
    assert set(answer) == set(RankResponse.__struct_fields__)
    assert set(answer["results"][0]) == {"ad_id", "rank", "score", "p", "status"}


def test_ids_go_out_as_text_without_loss(lonely: Client):
    ids = [9007199254740993, 18446744073709551615]
    answer = lonely.rank(body(user_id=ids[1], candidates={"ad_ids": ids})).json()
    assert {result["ad_id"] for result in answer["results"]} == {"9007199254740993", "18446744073709551615"}


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"],
)
def test_json_is_taken_under_its_usual_names(lonely: Client, content_type: str):
    assert lonely.send(json.dumps(body()).encode(), **{"content-type": content_type}).status_code == 200


def test_a_missing_content_type_is_taken_for_json(lonely: Client):
    response = lonely.request("POST", "/v1/rank", content=json.dumps(body()).encode())
    assert "content-type" not in response.request.headers
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (b"{}", {"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        (b"{}", {"content-encoding": "gzip"}, 415, "unsupported_media_type"),
        (b" " * (1 << 20) + b"{}", {}, 413, "body_too_large"),
        (b"{}", {"content-length": "1048577"}, 413, "body_too_large"),
        (b"{", {}, 422, "malformed_json"),
        (b'{"surface": NaN}', {}, 422, "malformed_json"),
        (rb'{"surface": "\ud800"}', {}, 422, "malformed_json"),
        (b"{}", {}, 422, "invalid_request"),
    ],
)
def test_what_cannot_be_ranked_is_a_problem_with_a_code(
    lonely: Client, content: bytes, headers: dict[str, str], status: int, code: str
):
    response = lonely.send(content, **headers)
    problem = response.json()
    assert (response.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:gem:problem:{code}"
    assert problem["request_id"] == response.headers["x-request-id"]
    assert problem["title"]
    assert problem["detail"]


def test_a_body_without_a_length_is_cut_off_at_the_limit(lonely: Client):
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 65_536

    response = lonely.request("POST", "/v1/rank", content=endless(), headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
    assert response.headers["connection"] == "close"


def test_a_body_in_pieces_is_put_together(lonely: Client):
    async def pieces() -> Any:
        for byte in json.dumps(body()).encode():
            yield bytes([byte])

    assert lonely.request("POST", "/v1/rank", content=pieces()).status_code == 200


def test_a_client_that_goes_away_gets_no_answer_and_no_failure(lonely: Client):
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    lonely.runner.run(RankEndpoint(lonely.service)({"type": "http", "headers": []}, receive, send))
    assert sent == []


def test_a_refusal_echoes_the_bodys_request_id(lonely: Client):
    for changes, code in (({"surface": "nowhere"}, "unknown_surface"), ({"strict": True}, "embedding_required")):
        response = lonely.rank(body(request_id="mine-7", **changes), **{"x-request-id": "abc-1"})
        assert (response.json()["code"], response.json()["request_id"]) == (code, "mine-7")
        assert response.headers["x-request-id"] == "mine-7"
    response = lonely.rank(body(request_id="mine ✓", surface="nowhere"), **{"x-request-id": "abc-1"})
    assert (response.json()["request_id"], response.headers["x-request-id"]) == ("mine ✓", "abc-1")


def test_the_log_line_of_a_refusal_has_the_bodys_request_id(lonely: Client, monkeypatch: pytest.MonkeyPatch):
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(lonely.service.request_log, "add", lambda *, fields, **_: lines.append(fields))
    lonely.rank(body(request_id="mine-7", surface="nowhere"))
    assert lines[0]["request_id"] == "mine-7"


def test_strict_names_a_time_to_come_back(lonely: Client):
    response = lonely.rank(body(strict=True))
    assert (response.status_code, response.json()["code"]) == (503, "embedding_required")
    assert response.headers["retry-after"] == "1"


def test_a_failure_of_the_server_is_a_problem_and_tells_no_secrets(lonely: Client, monkeypatch: pytest.MonkeyPatch):
    async def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("password")

    monkeypatch.setattr(lonely.service.ranker, "rank", fail)
    response = lonely.rank(body())
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "password" not in response.text
    ready = lonely.get("/readyz")
    assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")


def test_every_answer_to_concurrent_requests_holds_its_own_candidates(lonely: Client):
    lists = [list(ADS[start : start + 20]) for start in range(0, 1000, 20)]
    alone = [lonely.rank(body(candidates={"ad_ids": ids})).json()["results"] for ids in lists]

    async def crowd() -> list[Any]:
        bodies = [body(candidates={"ad_ids": ids}) for ids in lists]
        return await asyncio.gather(*(lonely.http.post("/v1/rank", json=each) for each in bodies))

    together = [response.json()["results"] for response in lonely.runner.run(crowd())]
    assert [[r["ad_id"] for r in results] for results in together] == [[r["ad_id"] for r in one] for one in alone]


# ---- fuzz -----------------------------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["feed", "p", "ecpm", "a1", "\x00", "𝕏" * 64])
)
anything = st.recursive(
    scalars, lambda s: st.lists(s, max_size=4) | st.dictionaries(st.text(max_size=5), s, max_size=4), max_leaves=10
)


@st.composite
def nearly_valid(draw: st.DrawFn) -> dict[str, Any]:
    request = body()
    for name in draw(st.lists(st.sampled_from([*RankRequest.__struct_fields__, "extra"]), max_size=3)):
        if draw(st.booleans()):
            request[name] = draw(anything)
        else:
            request.pop(name, None)
    return request


@given(
    st.binary(max_size=60) | anything.map(json.dumps).map(str.encode) | nearly_valid().map(json.dumps).map(str.encode)
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_makes_the_server_fail(lonely: Client, content: bytes):
    response = lonely.send(content)
    problem = response.json()
    if response.status_code == 503:  # strict, and there is no store
        assert problem["code"] == "embedding_required"
    elif response.status_code != 200:
        assert 400 <= response.status_code < 500
        assert PROBLEMS[problem["code"]].status == response.status_code
