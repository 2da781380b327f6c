"""Events of a log -> the tensors that GEM reads. Everything is indexed once, so that a batch is a handful of gathers.

Legend: B batch, T sequence tokens (the request's own impression first, then its history, newest first, padding last),
C categorical columns, G float columns, K tasks, L history length, n events of the source.
The request's own impression stands at T = 0 as an event whose labels are unknown; a label of a past event is read only
where label_ms < t (leak guards 4 and 5).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contracts.schema import HOUR_MS
from events.log import UNKNOWN_LABEL
from foundation.log_tensors import LogTensors, codes, floats

RATE_SPANS = (3, 8, None)
"""Newest events over which the user's feedback rates are taken: the last 3, the last 8, the whole history."""
PRIOR_RATE = 0.2
"""Rate of a user without feedback, with the weight of one event; any constant does, the model rescales it."""
LOG_COUNT_SCALE = 0.25


@dataclass(frozen=True)
class GemBatch:
    """Inputs of B requests. `age_s` is zero and `timed` false where an event carries no time; floats in unit scale."""

    set_codes_BC: Tensor
    set_floats_BG: Tensor
    event_codes_BTC: Tensor
    event_floats_BTG: Tensor
    age_s_BT: Tensor
    timed_BT: Tensor
    mask_BT: Tensor


class BatchSource:
    """Serves batches of the chosen events (numbered as in LogTensors) by their position 0 .. n-1 among them."""

    def __init__(self, tensors: LogTensors, events: np.ndarray, *, history_length: int) -> None:
        self._tensors = tensors
        self._event_n = torch.from_numpy(events.astype(np.int64))
        self._history_nL, self.length_n = tensors.histories_of(events, history_length)
        log, layout = tensors.log, tensors.layout
        timed = events < len(log)
        row = np.where(timed, events, 0)
        local_hours = (log.event_ms[row] + log.schema.utc_offset_ms) // HOUR_MS
        weekday = (local_hours // 24 + 3) % 7  # 1 January 1970 was a Thursday; Monday is 0
        clock = {"surface": log.surface[row], "hour": local_hours % 24, "weekday": weekday}
        context = {name: values[row] for name, values in log.context.items()}
        row_codes = [np.where(timed, values, layout.column(name).unknown) for name, values in clock.items()]
        row_codes += [np.where(timed, v, 0) for v in tensors.features("context", "categorical", context)]
        row_floats = [np.where(timed, v, 0) for v in tensors.features("context", "float", context)]
        self._row_codes = codes(layout.side("row"), row_codes)
        self._row_floats = floats(len(events), row_floats)

    def __len__(self) -> int:
        return len(self._event_n)

    def batch(self, positions: Tensor) -> GemBatch:
        """Inputs of the events at these positions, int64 [B], padded to the longest history among them."""
        tensors, length_B = self._tensors, self.length_n[positions]
        width = int(length_B.max()) if len(length_B) else 0
        own_B = self._event_n[positions]
        event_BT = torch.cat([own_B[:, None], self._history_nL[positions, :width].long()], dim=1)
        mask_BT = torch.arange(width + 1) <= length_B[:, None]
        now_B, user_B, ad_BT = tensors.now_ms[own_B], tensors.user[own_B], tensors.ad[event_BT]
        timed_BT = tensors.timed[event_BT] & mask_BT
        age_s_BT = (now_B[:, None] - tensors.now_ms[event_BT]).clamp(min=0) / 1000.0
        labels_BTK = tensors.labels_EK[event_BT]
        known_BTK = (tensors.label_ms_EK[event_BT] < now_B[:, None, None]) & (labels_BTK != UNKNOWN_LABEL)
        known_BTK &= mask_BT[..., None]
        known_BTK[:, 0] = False  # the request's own outcome, also where a source says that it was known at once
        positive_BTK = known_BTK & (labels_BTK == 1)
        set_codes = [tensors.user_codes[user_B], tensors.ad_codes[ad_BT[:, 0]], self._row_codes[positions]]
        set_floats = [tensors.user_floats[user_B], tensors.ad_floats[ad_BT[:, 0]], self._row_floats[positions]]
        counts = torch.log1p(length_B.float())[:, None] * LOG_COUNT_SCALE
        return GemBatch(
            set_codes_BC=torch.cat(set_codes, dim=1),
            set_floats_BG=torch.cat([*set_floats, counts, feedback_rates(known_BTK, positive_BTK)], dim=1),
            event_codes_BTC=torch.cat([tensors.ad_codes[ad_BT], tensors.surface[event_BT][..., None]], dim=2),
            event_floats_BTG=torch.cat([known_BTK, positive_BTK, tensors.ad_floats[ad_BT]], dim=2),
            age_s_BT=torch.where(timed_BT, age_s_BT, 0.0),
            timed_BT=timed_BT,
            mask_BT=mask_BT,
        )


def feedback_rates(known_BTK: Tensor, positive_BTK: Tensor) -> Tensor:
    """The user's own rates of each task over the newest events whose label is known, and how many those are.

    float32 [B, 4 K]: pooling by softmax loses counts, which matter (LoopFM, table 3: sum beats mean by far).
    """
    columns = []
    for span in RATE_SPANS:
        newest = slice(None if span is None else span + 1)
        known_BK, positive_BK = known_BTK[:, newest].sum(dim=1), positive_BTK[:, newest].sum(dim=1)
        columns.append((positive_BK + PRIOR_RATE) / (known_BK + 1))
    columns.append(torch.log1p(known_BTK.sum(dim=1).float()) * LOG_COUNT_SCALE)
    return torch.cat(columns, dim=1)
