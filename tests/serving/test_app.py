"""The small routes, and the OpenAPI document."""

from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.bodies import body_schemas
from serving.problems import PROBLEMS
from tests.serving.conftest import Cache, Client, body
from tests.serving.small_student import ADS, GENERATION, SPACE, catalogue_table, write_catalogue

Open = Callable[..., Client]


def test_alive_and_ready_with_a_store(client: Client):
    assert client.get("/livez").json() == {"status": "alive"}
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["status"], ready.json()["degraded"]) == (200, "ready", [])


def test_without_the_store_the_server_is_ready_and_degraded(open_client: Open):
    ready = open_client().get("/readyz")
    assert (ready.status_code, ready.json()["degraded"]) == (200, ["embedding_store_unreachable"])


def test_without_a_generation_the_server_is_ready_and_degraded(client: Client, cache: Cache):
    cache.client.flushall()
    client.poll()
    assert client.get("/readyz").json()["degraded"] == ["embedding_generation_missing"]


def test_the_models_are_listed(client: Client):
    (model,) = client.get("/v1/models").json()["models"]
    assert (model["name"], model["version"]) == ("student", "1")
    assert model["surfaces"] == ["other", "feed", "reels"]
    assert (model["space"], model["generation"], model["max_candidates"]) == (SPACE, GENERATION, 1000)
    assert model["context"] == ["device", "battery"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/metrics", 404, "not_found"),
        ("GET", "/v1/rank", 405, "method_not_allowed"),
        ("POST", "/livez", 405, "method_not_allowed"),
    ],
)
def test_wrong_paths_and_methods_are_problems(client: Client, method: str, path: str, status: int, code: str):
    response = client.request(method, path)
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert ("allow" in response.headers) == (status == 405)
    assert response.json()["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/nowhere"), ("POST", "/livez")])
def test_wrong_paths_and_methods_keep_a_request_id_that_is_a_token(client: Client, method: str, path: str):
    assert client.request(method, path, headers={"x-request-id": "abc-1"}).json()["request_id"] == "abc-1"
    replaced = client.request(method, path, headers={"x-request-id": "no token"})
    assert replaced.json()["request_id"] == replaced.headers["x-request-id"] != "no token"


def test_openapi_describes_the_bodies_that_the_decoder_takes(client: Client):
    document = client.get("/openapi.json").json()
    operation = document["paths"]["/v1/rank"]["post"]
    reference = {"$ref": "#/components/schemas/RankRequest"}
    assert operation["requestBody"]["content"]["application/json"]["schema"] == reference
    for name, schema in body_schemas().items():
        assert document["components"]["schemas"][name] == schema
    assert set(document["paths"]) == {"/v1/rank", "/livez", "/readyz", "/v1/models"}
    assert client.get("/docs").status_code == 200


def test_openapi_names_every_code_of_the_rank_route(client: Client):
    responses = client.get("/openapi.json").json()["paths"]["/v1/rank"]["post"]["responses"]
    for code, kind in PROBLEMS.items():
        if code not in ("not_found", "method_not_allowed", "not_ready"):
            assert f"`{code}`" in responses[str(kind.status)]["description"]


def test_the_documents_example_is_answered(client: Client):
    document = client.get("/openapi.json").json()
    example = document["paths"]["/v1/rank"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert client.rank(example).status_code == 200


def test_a_new_catalogue_serves_without_a_restart(open_client: Open, tmp_path: Path):
    path = write_catalogue(tmp_path / "catalog.arrow", catalogue_table(ADS[:1]))
    client = open_client(catalog=path)
    status = lambda: client.rank(body(candidates=[{"ad_id": "a7"}])).json()["results"][0]["status"]  # noqa: E731
    version = client.get("/readyz").json()["catalogue"]
    assert status() == "unknown_ad"
    path.write_bytes(b"half")
    client.poll()
    assert (status(), client.get("/readyz").json()["catalogue"]) == ("unknown_ad", version)
    write_catalogue(path)
    client.poll()
    assert status() == "ok"
    assert client.get("/readyz").json()["catalogue"] != version
