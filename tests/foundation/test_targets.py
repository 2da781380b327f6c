"""Labels count once they are defined, known and past their window."""

from dataclasses import replace

import numpy as np

from events.log import UntimedEvents
from foundation.log_tensors import LogTensors
from foundation.targets import Targets
from tests.events.small_logs import small_log


def test_leaves_out_what_does_not_count_yet() -> None:
    log = small_log([(0, 1000), (0, 2000), (0, 3000)], clicks=[1, 1, 0])
    targets = Targets.of(LogTensors(log), np.arange(3), as_of_ms=2050)
    counts = targets.counts_nK
    assert not counts[2, 1]  # no conversion without a click
    assert counts[0, 1]
    assert not counts[1, 1]  # its window of 100 ms has not passed
    assert (targets.label_nK[~counts] == 0).all()


def test_an_untimed_event_counts_for_the_tasks_that_it_has_a_label_for() -> None:
    past = UntimedEvents(
        user=np.zeros(2, dtype=np.int32),
        ad=np.zeros(2, dtype=np.int32),
        labels={"click": np.array([1, -1], dtype=np.int8)},
        before_ms=np.array([10, 10]),
    )
    log = replace(small_log([(0, 1000)], clicks=[0]), untimed=past)
    targets = Targets.of(LogTensors(log), np.array([2, 1, 0]), as_of_ms=10_000)
    assert targets.counts_nK.tolist() == [[False, False], [True, False], [True, False]]
    assert targets.label_nK[:, 0].tolist() == [0, 1, 0]
