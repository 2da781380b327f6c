"""What a right answer looks like: every load test checks every answer, and counts a wrong one as a failure."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from contracts.bodies import EmbeddingStatus, RankResponse

_decoder = msgspec.json.Decoder(RankResponse)


class _Embedding(msgspec.Struct):
    status: EmbeddingStatus


class _Answer(msgspec.Struct):
    embedding: _Embedding


_embedding_decoder = msgspec.json.Decoder(_Answer)


def fault(status: int, content: bytes, request: Mapping[str, Any]) -> str | None:
    """What is wrong with the answer to a request in columnar form; None when nothing is.

    Decoding checks types and words (embedding.status among them); the rest is order, completeness and honesty.
    """
    if status != 200:
        return f"status {status}: {content[:200]!r}"
    try:
        answer = _decoder.decode(content)
    except msgspec.DecodeError as error:
        return f"not a rank response: {error}"
    asked = set(request["candidates"]["ad_ids"])
    ranked = [result.ad_id for result in answer.results]
    expected = min(len(asked), request.get("top_k") or len(asked))
    if len(ranked) != expected or len(set(ranked)) != expected:
        return f"{len(ranked)} results ({len(set(ranked))} ads) where {expected} are due"
    if not set(ranked) <= asked:
        return "results hold an ad that was not asked for"
    if [result.rank for result in answer.results] != list(range(1, expected + 1)):
        return "ranks do not count from 1"
    if not all(math.isfinite(result.score) and math.isfinite(result.p) for result in answer.results):
        return "a score is not finite"
    scores = [result.score for result in answer.results if result.status in ("ok", "unknown_ad")]
    if scores != sorted(scores, reverse=True):
        return "results are not sorted by score"
    if answer.embedding.status != "fresh" and not answer.degraded:
        return f"embedding is {answer.embedding.status} and no reason is given"
    return None


def embedding_status(content: bytes) -> EmbeddingStatus:
    """`embedding.status` of an answer that has no fault: with what knowledge of the user it was ranked."""
    return _embedding_decoder.decode(content).embedding.status
