"""The one assembler: record and log give the same bits, the future is left out, and unknowns have rows of their own."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.elements import ELEMENTS
from contracts.embedding import HistoryRecord, decode_history, encode_history
from contracts.errors import InputError
from contracts.features import UNKNOWN_AD, AdTable, HistoryBatch, InputSpec, in_order, user_bucket, user_inputs
from contracts.hashing import bucket
from contracts.quantiser import INT8
from contracts.schema import Feature, FeatureSchema, Task

SCHEMA = FeatureSchema(
    name="test",
    surfaces=("other", "feed"),
    tasks=(Task("click"),),
    features=(
        Feature("age", "user", cardinality=8, teacher_only=True),
        Feature("category", "ad", cardinality=12),
        Feature("hidden", "ad", cardinality=3, teacher_only=True),
        Feature("quality", "ad", kind="float"),
        Feature("device", "context", cardinality=4),
        Feature("load", "context", kind="float"),
    ),
    user_buckets=64,
    ad_buckets=32,
    utc_offset_ms=8 * 3_600_000,
)
LENGTH, DIM = 4, 3
SPEC = InputSpec(SCHEMA, LENGTH, DIM)
WITH_ELEMENTS = InputSpec(SCHEMA, LENGTH, DIM, ELEMENTS)
ADS = AdTable.build(
    SCHEMA, ["a", "b"], {"category": np.array([3, 11]), "quality": np.array([0.5, -0.25], dtype=np.float32)}
)


def record(times: list[int], *, seed: int = 0) -> HistoryRecord:
    """A record as serving reads it: encoded and decoded."""
    vectors = np.random.default_rng(seed).uniform(-1, 1, (len(times), DIM)).astype(np.float32)
    raw = HistoryRecord(vectors, np.array(times, dtype=np.int64), len(times) + 5, max(times, default=0), 0)
    return decode_history(encode_history(raw, user_id="u"), user_id="u", dim=DIM)


def with_elements(plain: HistoryRecord, *, seed: int = 0) -> HistoryRecord:
    """The record with surfaces (one of them unknown to the schema), ads over all 64 bits, and outcomes."""
    rng, count = np.random.default_rng(seed), len(plain.event_ms)
    full = replace(
        plain,
        surface=rng.integers(0, 3, count).astype(np.uint8),
        ad_hash=rng.integers(0, 2**64, count, dtype=np.uint64),
        outcome=rng.integers(0, 2, count).astype(np.uint8),
    )
    return decode_history(encode_history(full, user_id="u"), user_id="u", dim=DIM)


def same_bits(one: HistoryBatch, other: HistoryBatch) -> bool:
    return all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes()
        for name in ("vectors", "event_ms", "mask", "impressions")
    )


def element_bytes(history: HistoryBatch, now_ms: int) -> dict[str, bytes]:
    """The inputs of the elements, as bytes."""
    inputs = user_inputs(
        WITH_ELEMENTS,
        user_buckets=np.array([7]),
        surfaces=np.array([1]),
        now_ms=np.array([now_ms]),
        context={},
        history=history,
    )
    return {f"history_{name}": inputs[f"history_{name}"].tobytes() for name in ELEMENTS}


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), max_size=9).map(sorted), st.integers(0, 60), st.integers(0, 99))
def test_the_record_and_the_log_give_the_same_bits(times: list[int], now_ms: int, seed: int) -> None:
    stored = record(times, seed=seed)
    past = [row for row, time in enumerate(times) if time < now_ms]
    newest_first = past[::-1][:LENGTH]
    index = np.array([newest_first + [-1] * (LENGTH - len(newest_first))])
    from_log = HistoryBatch.from_index(
        stored.vectors, np.array(times, dtype=np.int64), index, np.array([len(past) + 5])
    )
    assert same_bits(HistoryBatch.from_record(stored, spec=SPEC, now_ms=now_ms), from_log)


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), max_size=9).map(sorted), st.integers(0, 60), st.integers(0, 99))
def test_the_elements_of_the_record_and_of_the_log_are_the_same_bits(times: list[int], now_ms: int, seed: int) -> None:
    stored = with_elements(record(times, seed=seed), seed=seed)
    assert stored.surface is not None
    assert stored.ad_hash is not None
    assert stored.outcome is not None
    past = [row for row, time in enumerate(times) if time < now_ms]
    index = np.array([past[::-1][:LENGTH] + [-1] * (LENGTH - len(past[:LENGTH]))])
    outcome = np.zeros(index.shape, np.uint8)
    outcome[index >= 0] = stored.outcome[index[index >= 0]]
    from_log = HistoryBatch.from_index(
        stored.vectors,
        stored.event_ms,
        index,
        np.array([len(past) + 5]),
        surface=stored.surface,
        ad_hash=stored.ad_hash,
        outcome=outcome,
    )
    from_record = HistoryBatch.from_record(stored, spec=WITH_ELEMENTS, now_ms=now_ms)
    assert same_bits(from_record, from_log)
    assert element_bytes(from_record, now_ms) == element_bytes(from_log, now_ms)


def test_a_source_without_elements_reads_as_unknown_ones() -> None:
    plain, nothing = record([1, 2]), HistoryBatch.from_record(None, spec=WITH_ELEMENTS, now_ms=5)
    without = HistoryBatch.from_record(plain, spec=WITH_ELEMENTS, now_ms=5)
    assert element_bytes(without, 5) == element_bytes(nothing, 5)
    assert not any(any(values) for values in element_bytes(without, 5).values())


def test_a_spec_without_elements_does_not_read_them() -> None:
    plain = record([1, 2])
    batch = HistoryBatch.from_record(with_elements(plain), spec=SPEC, now_ms=5)
    assert (batch.surface, batch.ad_hash, batch.outcome) == (None, None, None)
    assert same_bits(batch, HistoryBatch.from_record(plain, spec=SPEC, now_ms=5))


def test_a_spec_without_vectors_reads_the_rest() -> None:
    spec = InputSpec(SCHEMA, LENGTH, 0, ("ad_hash",))
    assert [tensor.name for tensor in spec.tensors()] == [
        "user_cat",
        "user_num",
        "history_age_s",
        "history_mask",
        "history_stats",
        "history_ad_hash",
        "ad_cat",
        "ad_num",
    ]
    stored = with_elements(record([10, 20]))
    batch = HistoryBatch.from_record(stored, spec=spec, now_ms=100)
    assert batch.vectors.shape == (1, LENGTH, 0)
    assert batch.event_ms.tolist() == [[20, 10, 0, 0]]


def test_the_switches_add_their_tensors_and_move_no_other() -> None:
    plain, switched = SPEC.tensors(), WITH_ELEMENTS.tensors()
    assert [tensor for tensor in switched if tensor in plain] == list(plain)
    added = {tensor.name: (tensor.dtype, tensor.shape) for tensor in switched if tensor not in plain}
    assert added == {
        "history_surface": ("int64", ("B", LENGTH)),
        "history_ad_hash": ("int64", ("B", LENGTH)),
        "history_outcome": ("float32", ("B", LENGTH, 1)),
    }


def test_elements_at_or_after_now_are_no_history() -> None:
    batch = HistoryBatch.from_record(record([10, 20, 20, 30]), spec=SPEC, now_ms=20)
    assert batch.event_ms.tolist() == [[10, 0, 0, 0]]
    assert batch.mask.tolist() == [[True, False, False, False]]
    assert batch.impressions.tolist() == [4 + 5 - 3]


def test_the_newest_come_first_and_the_rest_is_zero() -> None:
    stored = record([10, 20])
    batch = HistoryBatch.from_record(stored, spec=SPEC, now_ms=100)
    assert batch.event_ms.tolist() == [[20, 10, 0, 0]]
    assert np.array_equal(batch.vectors[0, :2], stored.vectors[::-1])
    assert not batch.vectors[0, 2:].any()


def test_a_longer_record_gives_its_newest_elements() -> None:
    batch = HistoryBatch.from_record(record([1, 2, 3, 4, 5, 6]), spec=SPEC, now_ms=100)
    assert batch.event_ms.tolist() == [[6, 5, 4, 3]]


def test_no_record_an_empty_record_and_an_empty_log_are_no_history() -> None:
    nothing = HistoryBatch.from_record(None, spec=SPEC, now_ms=5)
    empty_log = HistoryBatch.from_index(
        np.zeros((0, DIM), np.float32), np.zeros(0, np.int64), np.full((1, LENGTH), -1), np.zeros(1, np.int64)
    )
    assert same_bits(nothing, empty_log)
    assert not nothing.mask.any()
    empty = HistoryBatch.from_record(record([]), spec=SPEC, now_ms=5)
    assert same_bits(empty, HistoryBatch(nothing.vectors, nothing.event_ms, nothing.mask, np.array([5])))


def assemble(now_ms: list[int], history: HistoryBatch, context: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    count = len(now_ms)
    return user_inputs(
        SPEC,
        user_buckets=np.full(count, 7),
        surfaces=np.ones(count, dtype=np.int64),
        now_ms=np.array(now_ms, dtype=np.int64),
        context=context,
        history=history,
    )


def test_hour_and_weekday_are_those_of_the_schemas_clock() -> None:
    now = datetime(2022, 5, 7, 18, 30, tzinfo=UTC)  # a Saturday; 02:30 on Sunday at +8 h
    now_ms = int(now.timestamp() * 1000)
    inputs = assemble([now_ms], HistoryBatch.from_record(None, spec=SPEC, now_ms=now_ms), {})
    assert inputs["user_cat"].tolist() == [[7, 1, 2, 6, 0]]


def test_context_that_is_absent_reads_as_unknown() -> None:
    nothing = HistoryBatch.from_record(None, spec=SPEC, now_ms=0)
    with_context = assemble([0], nothing, {"device": np.array([3]), "load": np.array([0.5])})
    assert (with_context["user_cat"][0, 4], with_context["user_num"].tolist()) == (3, [[0.5]])
    without = assemble([0], nothing, {})
    assert (without["user_cat"][0, 4], without["user_num"].tolist()) == (0, [[0.0]])


def test_age_counts_from_now_in_seconds_and_is_zero_where_masked() -> None:
    inputs = assemble([5_000], HistoryBatch.from_record(record([1_000, 2_500]), spec=SPEC, now_ms=5_000), {})
    assert inputs["history_age_s"].tolist() == [[2.5, 4.0, 0.0, 0.0]]
    assert inputs["history_mask"].tolist() == [[1, 1, 0, 0]]
    assert inputs["history_stats"].tolist() == [[7, 1]]


def test_inputs_have_the_names_types_and_shapes_of_the_spec() -> None:
    inputs = assemble([5], HistoryBatch.from_record(None, spec=SPEC, now_ms=5), {}) | ADS.rows(np.array([0, 1, -1]))
    ordered = in_order(SPEC, inputs)
    assert list(ordered) == [tensor.name for tensor in SPEC.tensors()]
    for tensor in SPEC.tensors():
        array = ordered[tensor.name]
        assert array.dtype == tensor.dtype
        assert array.flags["C_CONTIGUOUS"]
        assert array.shape == tuple({"B": 1, "N": 3}.get(str(size), size) for size in tensor.shape)


def test_a_student_without_history_reads_no_history_inputs() -> None:
    names = [tensor.name for tensor in InputSpec(SCHEMA, 0, DIM).tensors()]
    assert names == ["user_cat", "user_num", "ad_cat", "ad_num"]


def test_column_sizes_match_columns() -> None:
    assert SPEC.user_cat_sizes() == (64, 2, 24, 7, 4)
    assert SPEC.ad_cat_sizes() == (32, 12)


def test_an_unknown_ad_is_the_row_of_zeros_and_no_candidates_are_no_rows() -> None:
    rows = ADS.rows(np.array([1, UNKNOWN_AD]))
    assert rows["ad_cat"].tolist() == [[bucket("b", 32), 11], [0, 0]]
    assert rows["ad_num"].tolist() == [[-0.25], [0.0]]
    none = ADS.rows(np.zeros(0, dtype=np.int64))
    assert (none["ad_cat"].shape, none["ad_num"].shape) == ((0, 2), (0, 1))


def test_an_empty_catalogue_knows_no_ad() -> None:
    empty = AdTable.build(SCHEMA, [], {"category": np.zeros(0, np.int64), "quality": np.zeros(0, np.float32)})
    assert empty.rows(np.array([UNKNOWN_AD, UNKNOWN_AD]))["ad_cat"].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"quality": [0.0, 0.0]}, "lack the column 'category'"),
        ({"category": [0], "quality": [0.0, 0.0]}, "1 values for 2 ads"),
        ({"category": [0, 12], "quality": [0.0, 0.0]}, "outside 0..11"),
        ({"category": [-1, 0], "quality": [0.0, 0.0]}, "outside 0..11"),
        ({"category": [0, 0], "quality": [0.0, float("nan")]}, "not finite"),
    ],
)
def test_an_ad_column_that_does_not_fit_is_named(columns: dict[str, list], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AdTable.build(SCHEMA, ["a", "b"], {name: np.array(values) for name, values in columns.items()})


def test_a_schema_whose_user_features_a_request_would_need_is_refused() -> None:
    visible = FeatureSchema("x", ("o",), (Task("click"),), (Feature("age", "user", cardinality=8),), 8, 8)
    with pytest.raises(InputError, match="teacher_only"):
        InputSpec(visible, 0, 1)


def test_quantised_vectors_are_what_both_sides_read() -> None:
    codes = np.array([[127, -127, 1]], dtype=np.int8)
    stored = HistoryRecord(INT8.decode(codes), np.array([1]), 1, 1, 0)
    read = decode_history(encode_history(stored, user_id="u"), user_id="u")
    assert read.vectors.tobytes() == INT8.decode(codes).tobytes()


def test_the_users_bucket_is_the_hash_of_the_id() -> None:
    assert user_bucket(SCHEMA, "042") == bucket("042", 64) != user_bucket(SCHEMA, "42")
