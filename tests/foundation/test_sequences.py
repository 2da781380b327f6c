"""Histories by arithmetic are those of the history index, late events included, whatever the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from events.history import HistoryIndex
from events.log import InteractionLog
from foundation.log_tensors import NO_UNTIMED
from foundation.sequences import UserSequences
from tests.events.small_logs import small_log


def histories(log: InteractionLog, events: list[int], length: int) -> tuple[list[list[int]], list[int]]:
    """Histories newest first, 0 as padding, and their lengths."""
    sequences = UserSequences(log, log.untimed or NO_UNTIMED, HistoryIndex(log))
    pasts = sequences.before(np.array(events, dtype=np.int64), length)
    now = [log.event_ms[e] if e < len(log) else 0 for e in events]
    newest = sequences.newest(pasts, torch.arange(len(events)), torch.tensor(now))
    return newest.tolist(), pasts.length_n.tolist()


def reference(log: InteractionLog, rows: list[int], length: int) -> list[list[int]]:
    found = HistoryIndex(log).before(np.array(rows, dtype=np.int64), length)
    events = np.where(found.index >= 0, found.index, found.untimed + len(log))
    return [events[b, :count][::-1].tolist() for b, count in enumerate(found.length)]


def test_newest_first_and_untimed_events_behind() -> None:
    log = small_log([(0, 1000), (0, 2000), (0, 3000)], untimed=[0, 0])
    assert histories(log, [2, 0], 3) == ([[1, 0, 4], [4, 3, 0]], [3, 2])


def test_untimed_events_have_those_ahead_of_them() -> None:
    log = small_log([(0, 1000)], untimed=[0, 0, 0, 1, 1])
    assert histories(log, [3, 1, 5, 4], 2) == ([[2, 1], [0, 0], [4, 0], [0, 0]], [2, 0, 1, 0])


def test_what_had_not_arrived_is_passed_over() -> None:
    log = small_log([(0, 1000), (0, 2000), (0, 3000), (0, 4000)], late_ms=[0, 1500, 0, 0])
    assert histories(log, [2, 3], 2) == ([[0, 0], [2, 1]], [1, 2])
    assert histories(log, [2, 3], 1) == ([[0], [2]], [1, 1])


def test_an_empty_log_and_an_empty_batch() -> None:
    assert histories(small_log([(0, 1000)]), [], 4) == ([], [])
    assert histories(small_log([(0, 1000)]), [0], 4) == ([[]], [0])


@pytest.mark.parametrize("length", [1, 5, 40])
def test_equal_the_history_index(tiny_log: InteractionLog, length: int) -> None:
    rows = np.random.default_rng(0).permutation(len(tiny_log))[:300].tolist()
    assert (tiny_log.ingested_ms - tiny_log.event_ms).max() > 3_600_000
    newest, lengths = histories(tiny_log, rows, length)
    expected = reference(tiny_log, rows, length)
    assert [events[:count] for events, count in zip(newest, lengths, strict=True)] == expected


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 15)), min_size=1, max_size=24),
    untimed=st.lists(st.integers(0, 2), max_size=6),
    length=st.integers(1, 9),
)
def test_equal_the_history_index_on_any_log(
    events: list[tuple[int, int, int]], untimed: list[int], length: int
) -> None:
    log = small_log([(user, time) for user, time, _ in events], untimed=untimed)
    log = replace(log, ingested_ms=np.array([time + late for _, time, late in events], dtype=np.int64))
    rows = list(range(len(log)))
    newest, lengths = histories(log, rows, length)
    assert [row[:count] for row, count in zip(newest, lengths, strict=True)] == reference(log, rows, length)
    assert all(not any(row[count:]) for row, count in zip(newest, lengths, strict=True))


def test_long_histories_need_no_array_of_all_rows() -> None:
    rows, length = 6_000, 2_048
    log = small_log([(0, time) for time in range(rows)], users=1)
    sequences = UserSequences(log, NO_UNTIMED, HistoryIndex(log))
    pasts = sequences.before(np.arange(rows), length)
    held = [value for value in vars(pasts).values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.numel() for tensor in held) <= 3 * rows
    newest = sequences.newest(pasts, torch.tensor([rows - 1]), torch.tensor([rows - 1]))
    assert newest[0].tolist() == list(range(rows - 2, rows - 2 - length, -1))
