"""`POST /v1/rank` as a plain ASGI callable: bytes in, bytes out, and every failure a problem with a stable code.

It spares the request FastAPI's dependency and response machinery; the app's OpenAPI document lists it all the same.
"""

import logging
import os
import re
import time
from typing import Any

from starlette.types import Receive, Scope, Send

from contracts.bodies import BodyError, decode_rank_request, encode
from serving.problems import PROBLEM_JSON, PROBLEMS, problem
from serving.ranker import EmbeddingRequiredError, Ranked
from serving.service import Service

JSON = b"application/json"
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
log = logging.getLogger(__name__)


class RankEndpoint:
    """Reads the body, has it ranked, and writes answer, headers, metrics and logs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._body_limit = service.settings.body_limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        header_id = header_request_id(headers)
        request_id = header_id.decode()
        close = False
        ranked: Ranked | None = None
        try:
            _check_headers(headers, self._body_limit)
            body = await _read(receive, self._body_limit)
            if body is None:
                return  # the client has gone
            request = decode_rank_request(body)
            request_id = request.request_id or request_id
            ranked = await self._service.ranker.rank(request, request_id=request_id, started=started)
            status, content = 200, encode(ranked.response)
        except (BodyError, EmbeddingRequiredError) as error:
            code, detail, pointer = error.code, str(error), error.pointer
            status, content = problem(code, detail, request_id=request_id, pointer=pointer)
            close = status == 413  # the rest of the body is not read
        except Exception:
            log.exception("request %s failed", request_id)
            code, detail = "internal", "the request failed; the server's log has it under this request_id"
            status, content = problem(code, detail, request_id=request_id)
        took_s = time.perf_counter() - started
        if ranked is not None:
            self._answered(ranked, took_s)
        else:
            self._refused(code, detail, status, request_id)
        if _REQUEST_ID.fullmatch(own_id := request_id.encode()):
            header_id = own_id  # an id that is no token stands in the body only
        await _respond(send, status, content, _headers(status, content, header_id, ranked, took_s, close=close))

    def _answered(self, ranked: Ranked, took_s: float) -> None:
        service, response = self._service, ranked.response
        service.telemetry.answered(ranked, took_s=took_s)
        if service.feature_log is not None:
            service.feature_log.offer(ranked)
        fields: dict[str, Any] = {
            "request_id": response.request_id,
            "surface": response.surface,
            "model": ranked.model.label,
            "catalogue": ranked.catalogue_version,
            "generation": response.embedding.generation,
            "embedding": response.embedding.status,
            "degraded": response.degraded,
            "candidates": len(ranked.ad_ids),
            "ms": round(took_s * 1000, 3),
        }
        service.request_log.add(status=200, user_id=ranked.user_id, fields=fields)

    def _refused(self, code: str, detail: str, status: int, request_id: str) -> None:
        self._service.telemetry.refused(code)
        fields = {"request_id": request_id, "code": code, "detail": detail}
        self._service.request_log.add(status=status, user_id=None, fields=fields)


def header_request_id(headers: dict[bytes, bytes]) -> bytes:
    """The x-request-id that the client sent, or a new one if that is no token of 1 to 128 visible characters."""
    given = headers.get(b"x-request-id", b"")
    return given if _REQUEST_ID.fullmatch(given) else os.urandom(8).hex().encode()


def _check_headers(headers: dict[bytes, bytes], body_limit: int) -> None:
    media_type = headers.get(b"content-type", JSON).split(b";", 1)[0].strip().lower()
    if media_type != JSON and not (media_type.startswith(b"application/") and media_type.endswith(b"+json")):
        detail = f"content-type is {media_type.decode('latin-1')!r}; send application/json"
        raise BodyError("unsupported_media_type", detail)
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise BodyError("unsupported_media_type", "the body is compressed; send it as it is")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > body_limit:
        raise _too_large(body_limit)


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None when the client has gone."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body", False) and not chunks:
            return chunk
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(limit: int) -> BodyError:
    return BodyError("body_too_large", f"the body is larger than {limit} bytes; split the request")


def _headers(
    status: int, content: bytes, request_id: bytes, ranked: Ranked | None, took_s: float, *, close: bool
) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", JSON if status == 200 else PROBLEM_JSON),
        (b"content-length", b"%d" % len(content)),
        (b"x-request-id", request_id),
    ]
    if ranked is not None:
        stages = (took_s * 1000, ranked.store_s * 1000, ranked.infer_s * 1000)
        headers.append((b"server-timing", b"total;dur=%.3f, embed;dur=%.3f, infer;dur=%.3f" % stages))
    if status == PROBLEMS["embedding_required"].status:
        headers.append((b"retry-after", b"1"))
    if close:
        headers.append((b"connection", b"close"))
    return headers


async def _respond(send: Send, status: int, content: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
