"""HTTP bodies of `POST /v1/rank`: typed, strict, and the only place that says what a request may hold.

Decoding refuses unknown fields, numbers that are not finite, lone surrogates and text where a number belongs. Ids are
strings, or integers up to 2^64 - 1 without loss; they go out as strings. A refusal is a `BodyError` with a stable code
and the JSON pointer of the culprit.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from contracts.errors import InputError
from contracts.hashing import MAX_ID_BYTES, id_text

MAX_CANDIDATES = 1000
MAX_INTEGER_ID = 2**64 - 1
MAX_DEADLINE_MS = 60_000
MAX_TIMESTAMP_MS = 2**53
"""Integers up to here survive every JSON parser, and history arithmetic stays far from int64's end."""
TIMESTAMP = "timestamp_ms"

Id: TypeAlias = (
    Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
    | Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_INTEGER_ID})]
)
"""1 to 256 bytes of UTF-8, or an integer, which means its decimal text."""
Bid: TypeAlias = Annotated[float, Meta(ge=0)]
EmbeddingStatus: TypeAlias = Literal["fresh", "stale", "expired", "missing", "unavailable"]
EmbeddingSource: TypeAlias = Literal["l1", "valkey", "failover", "segment", "default"]
BidSource: TypeAlias = Literal["request", "catalogue", "none"]
CandidateStatus: TypeAlias = Literal["ok", "unknown_ad", "no_bid", "not_finite"]


class BodyError(InputError):
    """A body that cannot be ranked: stable code, one sentence, JSON pointer ("" for the body as a whole)."""

    def __init__(self, code: str, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.code, self.pointer = code, pointer


class Candidate(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One ad to rank. Without a bid the catalogue's default counts."""

    ad_id: Id
    bid: Bid | None = None


class CandidateColumns(Struct, frozen=True, forbid_unknown_fields=True):
    """The same candidates by column: `bids`, if given, has one entry (or null) for each ad id."""

    ad_ids: Annotated[list[Id], Meta(extra_json_schema={"maxItems": MAX_CANDIDATES})]
    bids: Annotated[list[Bid | None], Meta(extra_json_schema={"maxItems": MAX_CANDIDATES})] | None = None


class RankRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What to rank, for whom and where.

    `context` holds `timestamp_ms` (the request's only "now"; default: the server's clock) and the schema's context
    features. `objective` "p" ranks by the probability of the ad's own objective, "ecpm" by bid times that. `top_k`
    keeps the first results, `deadline_ms` bounds the answer, `explain` adds the reasons to each result, and `strict`
    asks for a refusal (503) where the embedding is neither fresh nor stale.
    """

    surface: Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
    user_id: Id
    candidates: Annotated[list[Candidate], Meta(extra_json_schema={"maxItems": MAX_CANDIDATES})] | CandidateColumns
    request_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)] | None = None
    top_k: Annotated[int, Meta(ge=1)] | None = None
    objective: Literal["p", "ecpm"] = "p"
    deadline_ms: Annotated[float, Meta(gt=0, le=MAX_DEADLINE_MS)] | None = None
    context: dict[str, int | float] | None = None
    explain: bool = False
    strict: bool = False


class ModelRef(Struct, frozen=True):
    """The artifact that ranked."""

    name: str
    version: str


class PairInfo(Struct, frozen=True):
    """Precomputed pairs of this user: `covered` of `total` candidates have one that is not expired."""

    status: EmbeddingStatus
    covered: int
    total: int


class EmbeddingInfo(Struct, frozen=True):
    """How good the user's embedding was. `expired` was found but not used; times are null where nothing was read.

    `age_s` is now minus the later of `computed_at_ms` and the watermark: a user without news is fresh.
    """

    status: EmbeddingStatus
    source: EmbeddingSource
    space: str
    generation: str | None
    computed_at_ms: int | None
    age_s: float | None
    pairs: PairInfo


class Explanation(Struct, frozen=True):
    """Why a candidate scored as it did: probability of each task given its parent, the ad's objective and the bid."""

    tasks: dict[str, float]
    objective: str
    bid: float | None
    bid_source: BidSource


class Result(Struct, frozen=True, omit_defaults=True, gc=False):
    """One ranked candidate. With status `no_bid` or `not_finite` score is 0 and the candidate stands at the end.

    An unknown ad without a bid under `ecpm` has status `no_bid`: it goes before `unknown_ad`.
    """

    ad_id: str
    rank: int
    score: float
    p: float
    status: CandidateStatus
    explain: Explanation | UnsetType = UNSET


class Dropped(Struct, frozen=True):
    """A candidate that was not ranked."""

    ad_id: str
    reason: Literal["duplicate"]


class RankResponse(Struct, frozen=True):
    """The ranked candidates, how the answer came about, and every reason why it is not the best possible one."""

    request_id: str
    surface: str
    model: ModelRef
    embedding: EmbeddingInfo
    degraded: list[str]
    results: list[Result]
    dropped: list[Dropped]


class Problem(Struct, frozen=True, omit_defaults=True):
    """RFC 9457 problem+json; `code` is stable, `pointer` is the JSON pointer of the culprit in the body."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str | None = None
    pointer: str | None = None


@dataclass(frozen=True, slots=True)
class CandidateList:
    """Candidates of either form with canonical ids: bids has one entry, or None, for each ad id."""

    ad_ids: list[str]
    bids: Sequence[float | None]

    @classmethod
    def of(cls, request: RankRequest, *, max_candidates: int = MAX_CANDIDATES) -> "CandidateList":
        """The request's candidates; BodyError for too many, for bids of another length, for an id out of bounds."""
        given = request.candidates
        if isinstance(given, CandidateColumns):
            raw, at = given.ad_ids, "/candidates/ad_ids/{}"
            bids: Sequence[float | None] = given.bids if given.bids is not None else [None] * len(raw)
            if len(bids) != len(raw):
                detail = f"bids has {len(bids)} entries for {len(raw)} ad_ids; send one for each, null for none"
                raise BodyError("invalid_request", detail, "/candidates/bids")
        else:
            raw, at = [candidate.ad_id for candidate in given], "/candidates/{}/ad_id"
            bids = [candidate.bid for candidate in given]
        if len(raw) > max_candidates:
            detail = f"{len(raw)} candidates are more than {max_candidates}; split the request"
            raise BodyError("too_many_candidates", detail, "/candidates")
        # the fast path (ASCII text, whose length msgspec has checked) is nearly all of the traffic
        ids = [
            v if type(v) is str and v.isascii() else canonical_id(v, pointer=at.format(i)) for i, v in enumerate(raw)
        ]
        return cls(ids, bids)


def canonical_id(value: str | int, *, pointer: str) -> str:
    """The id's text; BodyError over 256 bytes of UTF-8 or over 2^64 - 1."""
    if isinstance(value, int) and value > MAX_INTEGER_ID:
        raise BodyError("invalid_request", "an integer id goes up to 2^64 - 1; send a string", pointer)
    try:
        return id_text(value, field="the id")
    except InputError as error:
        raise BodyError("invalid_request", str(error), pointer) from None


_DECODER = msgspec.json.Decoder(RankRequest)
_ENCODER = msgspec.json.Encoder()


def decode_rank_request(body: bytes) -> RankRequest:
    """The typed request; BodyError with code `malformed_json` or `invalid_request`."""
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        detail, _, path = str(error).partition(" - at ")
        raise BodyError("invalid_request", detail, json_pointer(path.strip("`"))) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BodyError("malformed_json", f"the body is not valid JSON in UTF-8: {error}") from None


def encode(body: Struct) -> bytes:
    """JSON bytes of a response body."""
    return _ENCODER.encode(body)


def json_pointer(path: str) -> str:
    """RFC 6901 pointer of msgspec's path: `$.candidates[3].bid` -> `/candidates/3/bid`; an unnamed key ends it."""
    steps = (name or index for name, index in re.findall(r"\.([A-Za-z_]\w*)|\[(\d+|\.\.\.)\]", path))
    return "".join(f"/{step}" for step in takewhile("...".__ne__, steps))


def body_schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of every body by name, as OpenAPI components hold them."""
    bodies = (RankRequest, RankResponse, Problem)
    _, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    return components
