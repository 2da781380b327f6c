"""Bodies of POST /v1/rank: what is accepted, what is refused, and that the published schema says the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.bodies import (
    MAX_CANDIDATES,
    BodyError,
    Candidate,
    CandidateColumns,
    CandidateList,
    RankRequest,
    body_schemas,
    canonical_id,
    decode_rank_request,
    json_pointer,
)

VALID = {"surface": "feed", "user_id": "u1", "candidates": [{"ad_id": "a1", "bid": 1.5}]}


def decode(**changes: Any) -> RankRequest:
    return decode_rank_request(json.dumps(VALID | changes).encode())


def refused(content: bytes | dict[str, Any]) -> BodyError:
    raw = content if isinstance(content, bytes) else json.dumps(VALID | content).encode()
    with pytest.raises(BodyError) as caught:
        CandidateList.of(decode_rank_request(raw))
    return caught.value


def test_the_row_form_and_the_columnar_form_mean_the_same():
    rows = decode(candidates=[{"ad_id": "a1", "bid": 1.5}, {"ad_id": 7}, {"ad_id": "c", "bid": None}])
    columns = decode(candidates={"ad_ids": ["a1", 7, "c"], "bids": [1.5, None, None]})
    assert CandidateList.of(rows) == CandidateList.of(columns) == CandidateList(["a1", "7", "c"], [1.5, None, None])


def test_columns_may_leave_the_bids_out():
    assert CandidateList.of(decode(candidates={"ad_ids": ["a", "b"]})) == CandidateList(["a", "b"], [None, None])


def test_defaults_are_those_of_the_design():
    request = decode()
    assert (request.objective, request.top_k, request.explain, request.strict) == ("p", None, False, False)


@pytest.mark.parametrize("number", [0, 9007199254740993, 18446744073709551615])
def test_integer_ids_are_exact(number: int):
    request = decode(user_id=number, candidates=[{"ad_id": number}])
    assert canonical_id(request.user_id, pointer="/user_id") == str(number)
    assert CandidateList.of(request).ad_ids == [str(number)]


def test_text_ids_are_not_normalised():
    assert CandidateList.of(decode(candidates={"ad_ids": ["042", "42", " 42"]})).ad_ids == ["042", "42", " 42"]


@pytest.mark.parametrize(
    ("content", "pointer"),
    [
        ({"candidates": [{"ad_id": 18446744073709551616}]}, "/candidates/0/ad_id"),
        ({"candidates": {"ad_ids": ["a", 18446744073709551616]}}, "/candidates/ad_ids/1"),
        ({"candidates": [{"ad_id": -1}]}, "/candidates/0/ad_id"),
        ({"candidates": [{"ad_id": 1.0}]}, "/candidates/0/ad_id"),
        ({"candidates": [{"ad_id": True}]}, "/candidates/0/ad_id"),
        ({"candidates": [{"ad_id": ""}]}, "/candidates/0/ad_id"),
        ({"candidates": [{"ad_id": "é" * 129}]}, "/candidates/0/ad_id"),
        ({"candidates": [{"ad_id": "a"}, {"ad_id": "b", "bid": -0.5}]}, "/candidates/1/bid"),
        ({"candidates": [{"ad_id": "a", "bid": "1.5"}]}, "/candidates/0/bid"),
        ({"candidates": [{"ad_id": "a", "bid": True}]}, "/candidates/0/bid"),
        ({"candidates": [{"ad_id": "a", "color": 1}]}, "/candidates/0"),
        ({"candidates": {"ad_ids": ["a", "b"], "bids": [1.0]}}, "/candidates/bids"),
        ({"candidates": {"bids": [1.0]}}, "/candidates"),
        ({"candidates": "a1"}, "/candidates"),
        ({"user_id": None}, "/user_id"),
        ({"user_id": "u" * 257}, "/user_id"),
        ({"surface": 3}, "/surface"),
        ({"top_k": 0}, "/top_k"),
        ({"top_k": 2.0}, "/top_k"),
        ({"objective": "profit"}, "/objective"),
        ({"deadline_ms": 0}, "/deadline_ms"),
        ({"deadline_ms": 60_001}, "/deadline_ms"),
        ({"context": {"device": "ios"}}, "/context"),
        ({"explain": "yes"}, "/explain"),
        ({"strict": 1}, "/strict"),
        ({"whatever": 1}, ""),
        (b"[]", ""),
        (b'{"surface":"feed","user_id":"u1"}', ""),
    ],
)
def test_a_body_that_does_not_fit_is_refused_with_the_place(content: bytes | dict[str, Any], pointer: str):
    error = refused(content)
    assert (error.code, error.pointer) == ("invalid_request", pointer)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"user_id": NaN}',
        b'{"user_id": Infinity}',
        b'{"surface":"feed","user_id":"\xff","candidates":[]}',
        rb'{"surface":"feed","user_id":"\ud800","candidates":[]}',
        b"\x00",
    ],
)
def test_what_is_not_json_in_utf8_is_refused(content: bytes):
    assert refused(content).code == "malformed_json"


@pytest.mark.parametrize("bid", [b"1e999", b"-1e999", b"9" * 400])
def test_numbers_that_are_not_finite_are_refused(bid: bytes):
    error = refused(b'{"surface":"f","user_id":"u","candidates":[{"ad_id":"a","bid":%s}]}' % bid)
    assert (error.code, error.pointer) == ("invalid_request", "/candidates/0/bid")


def test_deep_nesting_is_refused_and_not_a_crash():
    # "context" wants numbers, so the decoder need not descend; an unknown field is skipped at any depth
    assert refused(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}").code in ("malformed_json", "invalid_request")


def test_more_candidates_than_the_limit_have_a_code_of_their_own():
    assert len(CandidateList.of(decode(candidates={"ad_ids": list(range(MAX_CANDIDATES))})).ad_ids) == MAX_CANDIDATES
    error = refused({"candidates": {"ad_ids": list(range(MAX_CANDIDATES + 1))}})
    assert (error.code, error.pointer) == ("too_many_candidates", "/candidates")


def test_paths_become_json_pointers():
    assert json_pointer("$.candidates[3].bid") == "/candidates/3/bid"
    assert json_pointer("$.context[...]") == "/context"
    assert json_pointer("") == ""


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda s: st.lists(s) | st.dictionaries(st.text(), s),
    )
)
def test_any_json_is_decoded_or_refused(value: Any):
    code = "decoded"
    try:
        decode_rank_request(json.dumps(value).encode())
    except BodyError as error:
        code = error.code
    assert code in ("decoded", "malformed_json", "invalid_request")


# ---- the published schema and the decoder say the same --------------------------------------------------------------


def accepts(value: Any, schema: dict[str, Any]) -> bool:
    """JSON Schema's verdict, for the keywords that the bodies use; an unknown keyword is an error here."""
    schema = resolve(schema)
    known = {"title", "description", "default", "type", "anyOf", "enum", "properties", "required", "items"} | {
        "additionalProperties", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "maxItems"
    }  # fmt: skip
    assert set(schema) <= known, f"teach the test {set(schema) - known}"
    if "anyOf" in schema:
        return any(accepts(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    kinds |= {"array": list, "object": dict}
    if not isinstance(value, kinds[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        return False
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    if isinstance(value, list):
        return len(value) <= schema.get("maxItems", len(value)) and all(accepts(v, schema["items"]) for v in value)
    if isinstance(value, dict):
        properties, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
        named = all(accepts(v, properties[k]) for k, v in value.items() if k in properties)
        others = [v for k, v in value.items() if k not in properties]
        fits = not others or (extra is not False and (extra is True or all(accepts(v, extra) for v in others)))
        return named and fits and set(schema.get("required", [])) <= set(value)
    if isinstance(value, bool) or value is None:
        return True
    low, high = schema.get("minimum", value), schema.get("maximum", value)
    return bool(low <= value <= high and value > schema.get("exclusiveMinimum", value - 1))


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    return body_schemas()[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


def decodes(value: Any) -> bool:
    try:
        CandidateList.of(decode_rank_request(json.dumps(value).encode()))
    except BodyError:
        return False
    return True


def scalars() -> st.SearchStrategy[Any]:
    numbers = st.sampled_from([-1, 0, 1, 3, 0.5, -0.5, 60_000, 60_001, 2**53, 2**64 - 1, 2**64])
    return st.none() | st.booleans() | numbers | st.sampled_from(["", "x", "p", "ecpm", "feed", "u" * 256, "u" * 257])


def like_a_request() -> st.SearchStrategy[dict[str, Any]]:
    """Requests that fit, or nearly: each field takes a value that is right, or any scalar, list or object."""
    anything = (
        scalars()
        | st.lists(scalars(), max_size=2)
        | st.dictionaries(st.sampled_from(["ad_id", "bid", "x"]), scalars(), max_size=2)
    )
    ids = st.sampled_from(["a", "b", 1]) | anything
    candidate = st.fixed_dictionaries({"ad_id": ids}, optional={"bid": st.just(1.5) | anything}) | anything
    columns = st.integers(0, 3).flatmap(
        lambda n: st.fixed_dictionaries(
            {"ad_ids": st.lists(ids, min_size=n, max_size=n)},
            optional={"bids": st.lists(st.just(1.5) | scalars(), min_size=n, max_size=n) | st.none()},
        )
    )
    optional = {name: anything for name in RankRequest.__struct_fields__ if name not in VALID} | {"extra": anything}
    required = {
        "surface": st.just("feed") | anything,
        "user_id": ids,
        "candidates": st.lists(candidate, max_size=3) | columns | anything,
    }
    return st.fixed_dictionaries(required, optional=optional)


@given(like_a_request())
def test_the_schema_and_the_decoder_agree(value: dict[str, Any]):
    assert accepts(value, body_schemas()["RankRequest"]) == decodes(value), value


def test_the_schema_names_every_field():
    schemas = body_schemas()
    for struct in (RankRequest, Candidate, CandidateColumns):
        assert set(schemas[struct.__name__]["properties"]) == set(struct.__struct_fields__)
        assert schemas[struct.__name__]["additionalProperties"] is False
