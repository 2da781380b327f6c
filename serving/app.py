"""The HTTP surface: which path leads where. Ranking itself is in `ranker.py`, its transport in `endpoint.py`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from serving.endpoint import RankEndpoint, header_request_id
from serving.openapi import RANK, describe
from serving.problems import PROBLEM_JSON, problem
from serving.service import Service

CANARY_TIMEOUT_S = 2.0
log = logging.getLogger(__name__)


def create_app(service: Service, *, on_ready: Callable[[], None] = lambda: None) -> FastAPI:
    """The ASGI application of a built service; `on_ready` is called once, when requests can be answered."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        on_ready()
        yield
        await service.close()

    app = FastAPI(title="GEM ranking", version="1", lifespan=lifespan, redoc_url=None)
    app.router.routes.insert(0, Route(RANK, endpoint=RankEndpoint(service), methods=["POST"]))
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    app.add_exception_handler(HTTPException, _http_problem)

    @app.get("/livez", summary="The event loop turns")
    async def livez() -> Response:
        return _json({"status": "alive"})

    @app.get("/readyz", summary="Every model ranks: proved by ranking one ad on the real path")
    async def readyz() -> Response:
        try:
            async with asyncio.timeout(CANARY_TIMEOUT_S):
                degraded = await service.ranker.canary()
        except Exception as error:
            log.exception("not ready")
            status, content = problem("not_ready", f"the canary request failed: {error!r}")
            return Response(content, status, media_type=PROBLEM_JSON.decode())
        return _json({"status": "ready", "degraded": degraded, "catalogue": service.ranker.catalogue.current.version})

    @app.get("/v1/models", summary="The models that serve, and the embeddings they read")
    async def models() -> Response:
        return _json({"models": _models(service), "catalogue": service.ranker.catalogue.current.version})

    return app


def _models(service: Service) -> list[dict[str, Any]]:
    by_label = {model.label: model for model in service.ranker.models.values()}
    return [
        {
            "name": model.manifest.name,
            "version": model.manifest.version,
            "created_at": model.manifest.created_at,
            "surfaces": model.manifest.surfaces,
            "tasks": model.manifest.tasks,
            "space": model.manifest.space,
            "generation": service.ranker.store.live(model.manifest.space).generation,
            "history_length": model.manifest.history_length,
            "max_candidates": model.manifest.max_candidates,
            "schema_fingerprint": model.manifest.schema_fingerprint,
            "context": list(model.context_features),
        }
        for model in by_label.values()
    ]


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "internal")
    request_id = header_request_id(dict(request.scope["headers"])).decode()
    status, content = problem(code, error.detail, request_id=request_id)
    headers = {**(error.headers or {}), "x-request-id": request_id}
    return Response(content, status, headers=headers, media_type=PROBLEM_JSON.decode())


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
