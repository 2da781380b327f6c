"""Histories: newest first cut, strictly earlier, arrived, point in time, and untouched by the future (leak guard 3)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.history import HistoryIndex, HistoryRows
from events.log import UNKNOWN_LABEL, InteractionLog
from tests.events.small_logs import small_log

Element = tuple[str, int]

timed = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.sampled_from([0, 0, 0, 1, 3, 9])), max_size=30)
untimed = st.lists(st.integers(0, 2), max_size=8)


def elements(histories: HistoryRows, row: int) -> list[Element]:
    """One row's history, oldest first, as ("timed" or "untimed", row number); checks that the rest is empty."""
    length = int(histories.length[row])
    assert (histories.index[row, length:] == -1).all()
    assert (histories.untimed[row, length:] == -1).all()
    pairs = zip(histories.index[row, :length].tolist(), histories.untimed[row, :length].tolist(), strict=True)
    found: list[Element] = []
    for index, past in pairs:
        assert (index >= 0) != (past >= 0), "an element is timed or untimed"
        found.append(("timed", index) if index >= 0 else ("untimed", past))
    return found


def history_by_definition(log: InteractionLog, row: int, length: int) -> list[Element]:
    """The definition, event by event."""
    user, now = log.user[row], log.event_ms[row]
    before = [
        (log.event_ms[r], log.event_id[r], r)
        for r in range(len(log))
        if log.user[r] == user and log.event_ms[r] < now and log.ingested_ms[r] < now
    ]
    past = [h for h in range(len(log.untimed.user)) if log.untimed.user[h] == user] if log.untimed else []
    everything: list[Element] = [("untimed", h) for h in past] + [("timed", r) for _, _, r in sorted(before)]
    return everything[-length:]


@given(timed, untimed, st.integers(1, 6))
def test_histories_are_those_of_the_definition(rows: list[tuple[int, int, int]], past: list[int], length: int) -> None:
    log = small_log([(user, time) for user, time, _ in rows], late_ms=[late for _, _, late in rows], untimed=past)
    histories = HistoryIndex(log).before(np.arange(len(log)), length)
    assert histories.index.shape == histories.untimed.shape == (len(log), length)
    for row in range(len(log)):
        assert elements(histories, row) == history_by_definition(log, row, length)


def test_many_late_events_do_not_hide_older_ones() -> None:
    """All of the newest 300 events arrive late: the history is what lies behind them."""
    events = [(0, time) for time in range(310)] + [(0, 1_000)]
    late = [0] * 10 + [5_000] * 300 + [0]
    log = small_log(events, late_ms=late)
    histories = HistoryIndex(log).before(np.array([310]), 4)
    assert elements(histories, 0) == [("timed", row) for row in (6, 7, 8, 9)]


def test_a_user_with_one_row_has_no_history() -> None:
    histories = HistoryIndex(small_log([(0, 5), (1, 9)])).before(np.arange(2), 3)
    assert histories.length.tolist() == [0, 0]


def test_ads_of_one_request_are_not_each_others_history() -> None:
    histories = HistoryIndex(small_log([(0, 5), (0, 5), (0, 5)])).before(np.arange(3), 3)
    assert histories.length.tolist() == [0, 0, 0]


def test_no_rows_give_no_histories() -> None:
    histories = HistoryIndex(small_log([])).before(np.zeros(0, dtype=np.int64), 3)
    assert histories.index.shape == (0, 3)


def test_rows_may_be_asked_in_any_order_and_twice() -> None:
    log = small_log([(0, 1), (0, 2), (0, 3)])
    index = HistoryIndex(log)
    asked = index.before(np.array([2, 0, 2]), 2)
    assert [elements(asked, row) for row in range(3)] == [
        [("timed", 0), ("timed", 1)],
        [],
        [("timed", 0), ("timed", 1)],
    ]


def test_untimed_events_precede_timed_ones_and_fill_what_is_left() -> None:
    log = small_log([(1, 1), (1, 2)], untimed=[0, 1, 1, 1])
    index = HistoryIndex(log)
    assert elements(index.before(np.array([1]), 3), 0) == [("untimed", 2), ("untimed", 3), ("timed", 0)]
    assert elements(index.before(np.array([1]), 9), 0) == [("untimed", h) for h in (1, 2, 3)] + [("timed", 0)]


def test_a_label_is_read_only_once_it_is_known() -> None:
    log = small_log([(0, 0), (0, 10), (0, 20)], clicks=[1, 1, 0], label_delay_ms=15)
    index = HistoryIndex(log)
    rows = np.array([2])
    histories = index.before(rows, 3)
    # at t = 20 the click of t = 0 is known since 15, that of t = 10 only from 25 on
    assert index.labels("click", histories, rows).tolist() == [[1, UNKNOWN_LABEL, UNKNOWN_LABEL]]


def test_a_label_known_at_the_same_instant_is_not_known_before() -> None:
    log = small_log([(0, 0), (0, 10)], clicks=[1, 0], label_delay_ms=10)
    index = HistoryIndex(log)
    rows = np.array([1])
    assert index.labels("click", index.before(rows, 1), rows).tolist() == [[UNKNOWN_LABEL]]


def test_untimed_events_have_the_labels_that_their_source_has() -> None:
    log = small_log([(0, 5)], untimed=[0, 0, 1])
    index = HistoryIndex(log)
    rows = np.array([0])
    histories = index.before(rows, 3)
    assert index.labels("click", histories, rows).tolist() == [[0, 1, UNKNOWN_LABEL]]
    assert index.labels("conversion", histories, rows).tolist() == [[UNKNOWN_LABEL] * 3]


def by_event(log: InteractionLog, rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Everything that the rows' histories say, in terms of events rather than row numbers."""
    index = HistoryIndex(log)
    histories = index.before(rows, 20)
    present = histories.index >= 0
    ids = np.where(present, log.event_id[histories.index], 0)
    labels = [index.labels(task.name, histories, rows) for task in log.schema.tasks]
    return ids, histories.length, *labels


@pytest.mark.parametrize("change", ["delete", "permute", "flip"])
def test_the_future_cannot_touch_the_past(tiny_log: InteractionLog, change: str) -> None:
    """Leak guard 3: deleting, permuting or relabelling what arrived after t leaves histories at t bit-identical."""
    now = int(np.quantile(tiny_log.event_ms, 0.6))
    past = np.flatnonzero(tiny_log.event_ms < now)
    expected = by_event(tiny_log, past)
    future = tiny_log.event_ms >= now
    rng = np.random.default_rng(0)
    if change == "delete":
        changed = tiny_log.take(~future)
    elif change == "permute":
        changed = tiny_log.take(np.concatenate([rng.permutation(np.flatnonzero(future)), past]))
    else:
        labels = {task: np.where(future, 1, values).astype(np.int8) for task, values in tiny_log.labels.items()}
        changed = InteractionLog(**{**vars(tiny_log), "labels": labels})
    rows = np.flatnonzero(changed.event_ms < now)
    assert (changed.event_id[rows] == tiny_log.event_id[past]).all()
    for found, wanted in zip(by_event(changed, rows), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_late_arrivals_do_not_rewrite_history(tiny_log: InteractionLog) -> None:
    """A row's history is the same whether it is computed as soon as the row arrives or from the whole log."""
    for offset in range(500, len(tiny_log), 500):
        so_far = tiny_log.take(np.arange(offset))
        row = np.array([offset - 1])
        for found, wanted in zip(by_event(so_far, row), by_event(tiny_log, row), strict=True):
            np.testing.assert_array_equal(found, wanted)
