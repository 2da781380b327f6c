"""The feature schema: what it refuses, its JSON and its fingerprint."""

import json
from dataclasses import replace

import pytest

from contracts.errors import InputError
from contracts.schema import Feature, FeatureSchema, Task

SCHEMA = FeatureSchema(
    name="test",
    surfaces=("other", "feed", "reels"),
    tasks=(
        Task("click"),
        Task("conversion", parent="click", window_ms=86_400_000),
        Task("refund", parent="conversion"),
    ),
    features=(
        Feature("age", "user", cardinality=8, teacher_only=True),
        Feature("category", "ad", cardinality=12),
        Feature("quality", "ad", kind="float"),
        Feature("device", "context", cardinality=4),
    ),
    user_buckets=64,
    ad_buckets=32,
)
GOLDEN_FINGERPRINT = "c4addebf926ae245"


def test_json_there_and_back_keeps_schema_and_fingerprint() -> None:
    again = FeatureSchema.from_json(json.loads(json.dumps(SCHEMA.to_json())))
    assert again == SCHEMA
    assert again.fingerprint() == SCHEMA.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"surfaces": ("other", "reels", "feed")},
        {"user_buckets": 65},
        {"utc_offset_ms": 1},
        {"tasks": SCHEMA.tasks[:2]},
        {"features": SCHEMA.features[::-1]},
        {"features": (replace(SCHEMA.features[0], cardinality=9), *SCHEMA.features[1:])},
    ],
)
def test_any_change_changes_the_fingerprint(change: dict) -> None:
    assert replace(SCHEMA, **change).fingerprint() != SCHEMA.fingerprint()


def test_the_fingerprint_is_stable_across_releases() -> None:
    assert SCHEMA.fingerprint() == GOLDEN_FINGERPRINT


def test_the_student_sees_no_teacher_only_feature() -> None:
    assert SCHEMA.select("user", "categorical", teacher=False) == ()
    assert [f.name for f in SCHEMA.select("user", "categorical", teacher=True)] == ["age"]


def test_a_task_chain_ends_at_the_task_without_parent() -> None:
    assert SCHEMA.task_chain("refund") == ("refund", "conversion", "click")
    assert SCHEMA.task_chain("click") == ("click",)


def test_a_surface_without_a_code_is_pooled() -> None:
    assert SCHEMA.surface_code("reels") == 2
    assert SCHEMA.surface_code("never seen") == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": (SCHEMA.features[1], SCHEMA.features[1])}, "twice"),
        ({"features": (Feature("age", "user", cardinality=1),)}, "cardinality"),
        ({"features": (Feature("age", "user", kind="float", cardinality=3),)}, "cardinality"),
        ({"tasks": (Task("conversion", parent="click"), Task("click"))}, "stand before"),
        ({"surfaces": ()}, "surface"),
        ({"ad_buckets": 1}, "buckets"),
    ],
)
def test_a_schema_that_contradicts_itself_is_refused(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SCHEMA, **change)


@pytest.mark.parametrize("raw", [{}, {**SCHEMA.to_json(), "extra": 1}, {**SCHEMA.to_json(), "tasks": [{"title": "x"}]}])
def test_json_of_something_else_is_refused(raw: dict) -> None:
    with pytest.raises(InputError, match="not a feature schema"):
        FeatureSchema.from_json(raw)


def test_an_unknown_task_is_named_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"no task 'like'.*click"):
        SCHEMA.task("like")
