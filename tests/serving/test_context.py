"""The request's now and its context features."""

from typing import Any

import pytest

from contracts.bodies import BodyError
from serving.context import MAX_SKEW_MS, Context, read_context
from tests.serving.small_student import NOW_MS, SCHEMA

KNOWN = {feature.name: feature for feature in SCHEMA.features if feature.side == "context"}


def read(given: dict[str, Any] | None, clock: str = "server") -> Context:
    return read_context(given, KNOWN, clock=clock, server_ms=NOW_MS)


def test_without_a_timestamp_the_server_says_what_time_it_is():
    assert read(None) == read({}) == Context(NOW_MS, {})


def test_features_become_columns():
    columns = read({"device": 3, "battery": 0.5}).columns
    assert {name: column.tolist() for name, column in columns.items()} == {"device": [3], "battery": [0.5]}


@pytest.mark.parametrize("skew", [-MAX_SKEW_MS, 0, MAX_SKEW_MS])
def test_the_timestamp_is_the_only_now(skew: int):
    assert read({"timestamp_ms": NOW_MS + skew}).now_ms == NOW_MS + skew


@pytest.mark.parametrize("skew", [-MAX_SKEW_MS - 1, MAX_SKEW_MS + 1])
def test_a_clock_more_than_five_minutes_off_is_refused_unless_requests_are_trusted(skew: int):
    with pytest.raises(BodyError) as caught:
        read({"timestamp_ms": NOW_MS + skew})
    assert (caught.value.code, caught.value.pointer) == ("clock_skew", "/context/timestamp_ms")
    assert read({"timestamp_ms": NOW_MS + skew}, clock="request").now_ms == NOW_MS + skew


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"timestamp_ms": -1}, "/context/timestamp_ms"),
        ({"timestamp_ms": 2**60}, "/context/timestamp_ms"),
        ({"timestamp_ms": 1.5}, "/context/timestamp_ms"),
        ({"device": 4}, "/context/device"),
        ({"device": -1}, "/context/device"),
        ({"device": 1.0}, "/context/device"),
        ({"battery": 1e39}, "/context/battery"),
        ({"battery": 10**400}, "/context/battery"),
        ({"age": 1}, "/context/age"),
        ({"a/b~c": 1}, "/context/a~1b~0c"),
    ],
)
def test_what_the_schema_lacks_is_refused_with_the_place(given: dict[str, Any], pointer: str):
    with pytest.raises(BodyError) as caught:
        read(given, clock="request")
    assert (caught.value.code, caught.value.pointer) == ("invalid_context", pointer)
