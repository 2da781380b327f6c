"""One numbering for all events, with what is known of each."""

import numpy as np

from foundation.log_tensors import LONG_AGO_MS, LogTensors
from tests.events.small_logs import small_log


def test_untimed_events_follow_the_rows() -> None:
    log = small_log([(0, 1000), (1, 2000)], untimed=[0, 1])
    tensors = LogTensors(log)
    assert tensors.timed.tolist() == [True, True, False, False]
    assert tensors.user.tolist() == [0, 1, 0, 1]
    assert len(tensors.labels_EK) == len(tensors.ad) == 4


def test_an_event_is_settled_when_its_last_defined_label_is_known() -> None:
    log = small_log([(0, 1000), (0, 2000)], clicks=[1, 0], untimed=[0], label_delay_ms=30)
    assert LogTensors(log).settled_ms_E.tolist() == [1100, 2030, 0]  # a conversion takes 100 ms and needs a click
    log.labels["click"][:] = -1
    log.labels["conversion"][:] = -1
    assert LogTensors(log).settled_ms_E[:2].tolist() == [LONG_AGO_MS] * 2
    assert np.iinfo(np.int64).min == LONG_AGO_MS
