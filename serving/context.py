"""The context of a request: its only "now", and one input column for each context feature of the schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from contracts.bodies import MAX_TIMESTAMP_MS, TIMESTAMP, BodyError
from contracts.schema import Feature

MAX_SKEW_MS = 300_000
Clock: TypeAlias = Literal["server", "request"]


@dataclass(frozen=True, slots=True)
class Context:
    """now_ms, and columns int64 or float64 [1] by feature name; a feature that is absent reads as unknown."""

    now_ms: int
    columns: dict[str, np.ndarray]


def read_context(
    given: Mapping[str, int | float] | None, known: Mapping[str, Feature], *, clock: Clock, server_ms: int
) -> Context:
    """The checked context. Raises BodyError `invalid_context` for a name or value that the schema lacks, and
    `clock_skew` for a time more than five minutes from the server's, unless `clock` trusts the request."""
    now_ms, columns = server_ms, {}
    for name, value in (given or {}).items():
        if name == TIMESTAMP:
            now_ms = _timestamp(value, clock=clock, server_ms=server_ms)
        else:
            columns[name] = np.array([_feature(name, value, known)])
    return Context(now_ms, columns)


def _timestamp(value: float, *, clock: Clock, server_ms: int) -> int:
    pointer = f"/context/{TIMESTAMP}"
    if not isinstance(value, int) or not 0 <= value <= MAX_TIMESTAMP_MS:
        raise BodyError("invalid_context", f"{TIMESTAMP} is a whole number of milliseconds since 1970", pointer)
    if clock == "server" and abs(value - server_ms) > MAX_SKEW_MS:
        detail = f"{TIMESTAMP} is {abs(value - server_ms) // 1000} s from the server's clock, more than 300 s"
        raise BodyError("clock_skew", detail, pointer)
    return value


def _feature(name: str, value: float, known: Mapping[str, Feature]) -> float:
    pointer = f"/context/{name.replace('~', '~0').replace('/', '~1')}"
    feature = known.get(name)
    if feature is None:
        raise BodyError("invalid_context", f"no such context feature; there are {[TIMESTAMP, *known]}", pointer)
    if feature.kind == "categorical":
        if not isinstance(value, int) or not 0 <= value < feature.cardinality:
            raise BodyError("invalid_context", f"{name} is a code from 0 to {feature.cardinality - 1}", pointer)
    elif not abs(value) <= float(np.finfo(np.float32).max):
        raise BodyError("invalid_context", f"{name} does not fit a float32", pointer)
    return value
