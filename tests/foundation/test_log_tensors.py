"""One numbering for all events, and what each event's user did before it."""

import numpy as np
import pytest

from events.history import HistoryIndex
from events.log import InteractionLog
from foundation.log_tensors import LogTensors
from tests.events.small_logs import small_log


def test_untimed_events_follow_the_rows() -> None:
    log = small_log([(0, 1000), (1, 2000)], untimed=[0, 1])
    tensors = LogTensors(log)
    assert tensors.timed.tolist() == [True, True, False, False]
    assert tensors.user.tolist() == [0, 1, 0, 1]
    assert len(tensors.labels_EK) == len(tensors.ad) == 4


def test_histories_are_newest_first() -> None:
    log = small_log([(0, 1000), (0, 2000), (0, 3000)], untimed=[0, 0])
    events, lengths = LogTensors(log).histories_of(np.array([2, 0]), 3)
    assert events.tolist() == [[1, 0, 4], [4, 3, 0]]
    assert lengths.tolist() == [3, 2]


def test_histories_of_untimed_events_stay_with_their_user() -> None:
    log = small_log([(0, 1000)], untimed=[0, 0, 0, 1, 1])
    events, lengths = LogTensors(log).histories_of(np.array([3, 1, 5, 4]), 2)
    assert lengths.tolist() == [2, 0, 1, 0]
    assert events.tolist() == [[2, 1], [0, 0], [4, 0], [0, 0]]


@pytest.mark.parametrize("length", [1, 5, 40])
def test_equal_the_history_index_reversed(tiny_log: InteractionLog, length: int) -> None:
    rows = np.random.default_rng(0).permutation(len(tiny_log))[:300]
    events, lengths = LogTensors(tiny_log).histories_of(rows, length)
    expected = HistoryIndex(tiny_log).before(rows, length)
    for b in range(len(rows)):
        assert lengths[b] == expected.length[b]
        assert events[b, : lengths[b]].tolist() == expected.index[b, : lengths[b]][::-1].tolist()
