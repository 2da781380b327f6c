"""What a batch says of each row: its own impression first, then its past, newest first; labels only once known."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from contracts.errors import InputError
from contracts.hashing import bucket
from contracts.schema import Task
from events.log import InteractionLog, UntimedEvents
from foundation.batch import PRIOR_RATE, BatchSource, GemBatch, feedback_rates, task_depths
from foundation.layout import InputLayout
from foundation.log_tensors import LogTensors
from tests.events.small_logs import SCHEMA, small_log

LAYOUT = InputLayout(SCHEMA)
AD, SURFACE = LAYOUT.column("ad_id"), LAYOUT.column("surface")
HISTORY_COUNT = 2
"""Column of the set floats behind the two float features."""
KNOWN, POSITIVE = 0, 2
"""Columns of the event floats for the first task; the second task follows each."""


def batch(log: InteractionLog, rows: list[int], length: int = 4) -> GemBatch:
    source = BatchSource(LogTensors(log), np.array(rows), history_length=length)
    return source.batch(torch.arange(len(rows)))


def ad_rows(*ads: int) -> list[int]:
    return [AD.offset + bucket(f"a{ad}", SCHEMA.ad_buckets) for ad in ads]


def test_request_first_then_history_newest_first() -> None:
    log = small_log([(0, 1000), (0, 2000), (1, 2500), (0, 4000)])
    one = batch(log, [3])
    assert one.event_codes_BTC[0, :, 0].tolist() == ad_rows(3, 1, 0)
    assert one.age_s_BT[0].tolist() == [0.0, 2.0, 3.0]
    assert one.mask_BT.all()
    assert one.timed_BT.all()


def test_only_the_newest_and_padding_last() -> None:
    log = small_log([(0, 1000), (0, 2000), (0, 3000), (1, 3500), (0, 4000)])
    both = batch(log, [3, 4], length=2)
    assert both.mask_BT.tolist() == [[True, False, False], [True, True, True]]
    assert both.event_codes_BTC[1, :, 0].tolist() == ad_rows(0, 2, 1)
    assert not both.timed_BT[0, 1:].any()


def same(one: GemBatch, other: GemBatch) -> bool:
    return all(torch.equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))


def test_gaps_lead_to_the_next_newer_event() -> None:
    log = small_log([(0, 1000), (0, 2000), (1, 2500), (0, 4500)], untimed=[0, 0])
    one = batch(log, [3])
    assert one.gap_s_BT[0].tolist() == [0.0, 2.5, 1.0, 0.0, 0.0]
    assert one.age_s_BT[0].tolist() == [0.0, 2.5, 3.5, 0.0, 0.0]


def test_event_types_are_the_deepest_known_positive() -> None:
    log = small_log([(0, 1000), (0, 2000), (0, 3000), (0, 3050), (0, 4000)], clicks=[1, 0, 1, 1, 1])
    log.labels["conversion"][:] = [1, -1, 1, 0, 1]
    assert batch(log, [4]).event_type_BT[0].tolist() == [0, 1, 2, 0, 2]
    waiting = batch(log, [3])  # 50 ms after the click at 3000, whose conversion takes 100 ms
    assert waiting.event_type_BT[0].tolist() == [0, 1, 0, 2]
    assert waiting.event_type_BT.dtype == torch.int64


def test_depth_is_the_chain_of_parents_then_the_place_in_the_schema() -> None:
    tasks = (Task("click"), Task("conversion", parent="click"), Task("like"))
    place, types = task_depths(replace(SCHEMA, tasks=tasks))
    assert place.tolist() == [1, 3, 2]
    assert types.tolist() == [0, 1, 3, 2]


def test_surfaces_are_codes_of_the_schema() -> None:
    log = small_log([(0, 1000), (0, 2000)], untimed=[0])
    assert batch(log, [0, 1, 2]).surface_B.tolist() == [0, 1, len(SCHEMA.surfaces)]


def test_aggregates_come_with_flags_of_what_is_missing() -> None:
    log = small_log([(0, 1000), (0, 2000)])
    values = np.array([[0.5, np.nan], [-1.0, 0.25]], dtype=np.float32)
    source = BatchSource(LogTensors(log), np.array([0, 1]), history_length=2, aggregates=values)
    found = source.batch(torch.tensor([1, 0])).aggregates_BA
    assert found.tolist() == [[-1.0, 0.25, 0.0, 0.0], [0.5, 0.0, 0.0, 1.0]]
    assert batch(log, [0, 1]).aggregates_BA.shape == (2, 0)


def test_aggregates_must_be_those_of_the_events() -> None:
    with pytest.raises(InputError, match="1 rows of aggregates for 2 events"):
        BatchSource(
            LogTensors(small_log([(0, 1), (0, 2)])), np.arange(2), history_length=2, aggregates=np.zeros((1, 3))
        )


def test_flipping_own_labels_changes_nothing(tiny_log: InteractionLog, later_rows: np.ndarray) -> None:
    own = later_rows[np.unique(tiny_log.user[later_rows], return_index=True)[1]]  # one row of each user
    labels = {task: values.copy() for task, values in tiny_log.labels.items()}
    label_ms = {task: values.copy() for task, values in tiny_log.label_ms.items()}
    for task in labels:
        labels[task][own] = 1 - np.maximum(labels[task][own], 0)
        label_ms[task][own] = 0
    flipped = replace(tiny_log, labels=labels, label_ms=label_ms)
    assert same(batch(tiny_log, own.tolist(), 16), batch(flipped, own.tolist(), 16))


def test_permuting_the_future_changes_nothing(tiny_log: InteractionLog) -> None:
    cut_ms = int(np.median(tiny_log.event_ms))
    future = np.flatnonzero(tiny_log.event_ms >= cut_ms)
    order = np.random.default_rng(0).permutation(future)
    columns = {name: getattr(tiny_log, name).copy() for name in ("user", "ad", "surface", "ingested_ms", "event_ms")}
    for column in columns.values():
        column[future] = column[order]
    labels = {task: values.copy() for task, values in tiny_log.labels.items()}
    for values in labels.values():
        values[future] = values[order]
    other = replace(tiny_log, **columns, labels=labels)
    past = np.flatnonzero(tiny_log.event_ms < cut_ms).tolist()
    assert same(batch(tiny_log, past, 16), batch(other, past, 16))


def test_labels_that_are_not_known_yet_change_nothing(tiny_log: InteractionLog, later_rows: np.ndarray) -> None:
    """Event types, feedback and floats read a label only once it is known: those still open may be anything."""
    now_ms = int(tiny_log.event_ms[later_rows[len(later_rows) // 2]])
    labels = {
        task: np.where(tiny_log.label_ms[task] >= now_ms, 1 - np.maximum(values, 0), values).astype(np.int8)
        for task, values in tiny_log.labels.items()
    }
    seen = later_rows[tiny_log.event_ms[later_rows] <= now_ms].tolist()
    one, other = batch(tiny_log, seen, 16), batch(replace(tiny_log, labels=labels), seen, 16)
    assert one.event_type_BT.any()
    assert same(one, other)


def test_an_empty_history_leaves_the_request_alone() -> None:
    one = batch(small_log([(0, 1000)]), [0])
    assert one.mask_BT.tolist() == [[True]]
    assert one.set_floats_BG[0, HISTORY_COUNT] == 0


def test_untimed_events_carry_no_time_and_no_surface() -> None:
    log = small_log([(0, 1000), (0, 2000)], untimed=[0, 0])
    one = batch(log, [1])
    assert one.timed_BT.tolist() == [[True, True, False, False]]
    assert one.age_s_BT.tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert (one.event_codes_BTC[0, 2:, -1] == SURFACE.offset + len(SCHEMA.surfaces)).all()


def test_labels_of_the_past_are_read_once_known() -> None:
    log = small_log([(0, 1000), (0, 2000), (0, 4000)], clicks=[1, 0, 1], label_delay_ms=1500)
    early, late = batch(log, [1]).event_floats_BTG[0], batch(log, [2]).event_floats_BTG[0]
    assert early[:, KNOWN].tolist() == [0, 0]  # known at 2500, the row is at 2000
    assert late[:, KNOWN].tolist() == [0, 1, 1]
    assert late[:, POSITIVE].tolist() == [0, 0, 1]


def test_own_labels_never_appear() -> None:
    log = small_log([(0, 1000), (0, 2000)], clicks=[1, 1])
    hasty = replace(log, label_ms={name: times - 10_000 for name, times in log.label_ms.items()})
    assert not batch(hasty, [0, 1]).event_floats_BTG[:, 0, :4].any()


def test_labels_of_untimed_events() -> None:
    log = small_log([(0, 1000)], untimed=[0, 0])
    past = UntimedEvents(
        user=np.zeros(2, dtype=np.int32),
        ad=np.array([1, 2], dtype=np.int32),
        labels={"click": np.array([1, -1], dtype=np.int8)},
        before_ms=np.zeros(2, dtype=np.int64),
    )
    one = batch(replace(log, untimed=past), [0])
    assert one.event_codes_BTC[0, :, 0].tolist() == ad_rows(0, 2, 1)
    assert one.event_floats_BTG[0, :, KNOWN].tolist() == [0, 0, 1]
    assert one.event_floats_BTG[0, :, POSITIVE].tolist() == [0, 0, 1]
    assert not one.event_floats_BTG[0, :, 1].any()  # the source has no conversions


def test_a_batch_is_a_part_of_the_whole(tiny_log: InteractionLog, later_rows: np.ndarray) -> None:
    source = BatchSource(LogTensors(tiny_log), later_rows, history_length=8)
    whole, part = source.batch(torch.arange(len(source))), source.batch(torch.tensor([5, 3]))
    width = part.mask_BT.shape[1]
    assert torch.equal(part.set_codes_BC, whole.set_codes_BC[[5, 3]])
    assert torch.equal(part.mask_BT, whole.mask_BT[[5, 3], :width])
    assert torch.equal(part.event_codes_BTC, whole.event_codes_BTC[[5, 3], :width])


def test_codes_stay_inside_the_table(tiny_log: InteractionLog) -> None:
    rows = np.arange(len(tiny_log))
    everything = BatchSource(LogTensors(tiny_log), rows, history_length=8).batch(torch.arange(len(rows)))
    layout = InputLayout(tiny_log.schema)
    for number, column in enumerate(layout.columns):
        codes = everything.set_codes_BC[:, number]
        assert codes.min() >= column.offset
        assert codes.max() < column.offset + column.size
    assert everything.event_floats_BTG.shape[2] == layout.event_floats
    assert everything.set_floats_BG.shape[1] == layout.set_floats


def test_feedback_rates_count_known_labels_of_the_newest_events() -> None:
    known = torch.tensor([[False, True, True, False, True, True]])[..., None]  # the request, then newest first
    positive = torch.tensor([[False, True, False, False, True, True]])[..., None]
    last_3, last_8, everything, count = feedback_rates(known, positive)[0].tolist()
    assert last_3 == pytest.approx((1 + PRIOR_RATE) / 3)
    assert last_8 == everything == pytest.approx((3 + PRIOR_RATE) / 5)
    assert count == pytest.approx(np.log1p(4) / 4)


def test_an_untimed_event_can_be_the_request() -> None:
    log = small_log([(0, 1000)], untimed=[0, 0, 1])
    source = BatchSource(LogTensors(log), np.array([1 + 1, 1 + 0, 1 + 2, 0]), history_length=4)
    batch = source.batch(torch.arange(4))
    assert batch.mask_BT.sum(dim=1).tolist() == [2, 1, 1, 3]
    assert not batch.timed_BT[:3].any()
    columns = {column.name: number for number, column in enumerate(LAYOUT.columns)}
    for name in ("surface", "hour", "weekday"):
        column = LAYOUT.column(name)
        assert (batch.set_codes_BC[:3, columns[name]] == column.offset + column.unknown).all()
        assert batch.set_codes_BC[3, columns[name]] != column.offset + column.unknown
