"""Errors on the wire: RFC 9457 problem+json with a stable `code`. The table below is the list of all of them."""

from typing import NamedTuple

from contracts.bodies import Problem, encode

PROBLEM_JSON = b"application/problem+json"


class Kind(NamedTuple):
    """Status and title of one code."""

    status: int
    title: str


PROBLEMS = {
    "malformed_json": Kind(422, "The body is not JSON"),
    "invalid_request": Kind(422, "The body does not fit the schema"),
    "too_many_candidates": Kind(422, "Too many candidates"),
    "unknown_surface": Kind(422, "No model serves this surface"),
    "invalid_context": Kind(422, "The context does not fit the feature schema"),
    "clock_skew": Kind(422, "The request's time is not the server's"),
    "body_too_large": Kind(413, "The body is too large"),
    "unsupported_media_type": Kind(415, "The body must be JSON"),
    "not_found": Kind(404, "No such resource"),
    "method_not_allowed": Kind(405, "The resource does not take this method"),
    "embedding_required": Kind(503, "The embedding that strict asks for is not there"),
    "not_ready": Kind(503, "No model can run"),
    "internal": Kind(500, "The server failed"),
}


def problem(code: str, detail: str, *, request_id: str | None = None, pointer: str | None = None) -> tuple[int, bytes]:
    """Status and body of a problem."""
    kind = PROBLEMS[code]
    body = Problem(
        type=f"urn:gem:problem:{code}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        code=code,
        request_id=request_id,
        pointer=pointer or None,
    )
    return kind.status, encode(body)
