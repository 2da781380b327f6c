"""The OpenAPI document: FastAPI's for the small routes, and `POST /v1/rank` from the schemas of contracts.bodies."""

from typing import Any

from fastapi import FastAPI

from contracts.bodies import body_schemas
from serving.problems import PROBLEMS

RANK = "/v1/rank"
_EXAMPLE = {
    "surface": "feed",
    "user_id": "u42",
    "candidates": [{"ad_id": "a1", "bid": 1.5}, {"ad_id": "18446744073709551615"}],
    "objective": "ecpm",
    "top_k": 10,
}


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    document = FastAPI.openapi(app)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components.update(body_schemas())
    document["paths"][RANK] = {"post": rank_operation()}
    return document


def rank_operation() -> dict[str, Any]:
    """The operation object of `POST /v1/rank`."""
    problems: dict[str, list[str]] = {}
    for code, kind in PROBLEMS.items():
        if code not in ("not_found", "method_not_allowed", "not_ready"):
            problems.setdefault(str(kind.status), []).append(f"`{code}`")
    return {
        "operationId": "rank",
        "summary": "Rank candidates for a user",
        "description": "Answers with 200 whenever a model can run; `embedding` and `degraded` say how well.",
        "requestBody": {
            "required": True,
            "content": {"application/json": {**_ref("RankRequest"), "example": _EXAMPLE}},
        },
        "responses": {
            "200": {"description": "The ranked candidates", "content": {"application/json": _ref("RankResponse")}},
            **{
                status: {"description": ", ".join(codes), "content": {"application/problem+json": _ref("Problem")}}
                for status, codes in sorted(problems.items())
            },
        },
    }


def _ref(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}
