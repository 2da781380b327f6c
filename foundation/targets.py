"""What training learns from: the labels that count at the end of the training period.

Legend: n events (numbered as in LogTensors), K tasks.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from events.log import UNKNOWN_LABEL
from foundation.log_tensors import LogTensors


@dataclass(frozen=True)
class Targets:
    """label_nK float32 (0 where it does not count), counts_nK bool."""

    label_nK: Tensor
    counts_nK: Tensor

    @classmethod
    def of(cls, tensors: LogTensors, events: np.ndarray, *, as_of_ms: int) -> "Targets":
        """A row counts for a task if its label is defined, known and, if delayed, past its window at `as_of_ms`.
        An untimed event lies in the past altogether: it counts for the tasks that its source has a label for."""
        log = tensors.log
        usable_KT = np.stack([log.trainable(task.name, as_of_ms=as_of_ms) for task in log.schema.tasks])
        counts_EK = tensors.labels_EK != UNKNOWN_LABEL
        counts_EK[: len(log)] &= torch.from_numpy(usable_KT.T)
        event_n = torch.from_numpy(events.astype(np.int64))
        counts_nK = counts_EK[event_n]
        return cls((tensors.labels_EK[event_n] * counts_nK).float(), counts_nK)
