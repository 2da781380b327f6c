"""A log as tensors: every event in one numbering, the tables of users and ads, and what each event's user did before.

Legend: E = T + H events: event e < T is row e of the log, event T + j is row j of its untimed events. U users, A ads,
K tasks.
"""

import numpy as np
import torch
from torch import Tensor

from contracts.schema import Kind, Side
from events.history import HistoryIndex
from events.log import UNKNOWN_LABEL, InteractionLog, UntimedEvents
from foundation.layout import Column, InputLayout
from foundation.sequences import UserSequences

NO_UNTIMED = UntimedEvents(
    user=np.zeros(0, dtype=np.int32), ad=np.zeros(0, dtype=np.int32), labels={}, before_ms=np.zeros(0, dtype=np.int64)
)

LONG_AGO_MS = int(np.iinfo(np.int64).min)


class LogTensors:
    """Columns by event: user, ad, surface (table row), now_ms (event time, or its upper bound), timed, labels_EK int8,
    label_ms_EK (when known; untimed: always), settled_ms_E (when the last label that is defined was known). Tables:
    user_codes [U, Cu], ad_codes [A, Ca] (rows of the embedding table), user_floats, ad_floats. `sequences` has the
    histories."""

    def __init__(self, log: InteractionLog, histories: HistoryIndex | None = None) -> None:
        self.log, self.layout = log, InputLayout(log.schema)
        untimed = log.untimed or NO_UNTIMED
        self.sequences = UserSequences(log, untimed, histories or HistoryIndex(log))
        late = len(untimed.user)
        unknown = np.full(late, UNKNOWN_LABEL, dtype=np.int8)
        names = [task.name for task in log.schema.tasks]
        surface = self.layout.column("surface")
        self.user = _joined(log.user.astype(np.int64), untimed.user)
        self.ad = _joined(log.ad.astype(np.int64), untimed.ad)
        self.surface = _joined(surface.rows(log.surface), surface.rows(np.full(late, surface.unknown)))
        self.now_ms = _joined(log.event_ms, untimed.before_ms)
        self.timed = _joined(np.ones(len(log), dtype=bool), np.zeros(late))
        self.labels_EK = torch.stack([_joined(log.labels[n], untimed.labels.get(n, unknown)) for n in names], dim=1)
        self.label_ms_EK = torch.stack([_joined(log.label_ms[n], np.zeros(late)) for n in names], dim=1)
        defined_ms_EK = torch.where(self.labels_EK != UNKNOWN_LABEL, self.label_ms_EK, LONG_AGO_MS)
        self.settled_ms_E = defined_ms_EK.amax(dim=1)
        users = [log.user_bucket_table(), *self.features("user", "categorical", log.user_features)]
        ads = [log.ad_table().cat[:, 0], *self.features("ad", "categorical", log.ad_features)]
        self.user_codes = codes(self.layout.side("user"), users)
        self.ad_codes = codes(self.layout.side("ad"), ads)
        self.user_floats = floats(len(log.user_ids), self.features("user", "float", log.user_features))
        self.ad_floats = floats(len(log.ad_ids), self.features("ad", "float", log.ad_features))

    def features(self, side: Side, kind: Kind, columns: object) -> list[np.ndarray]:
        """The columns of one side and kind in the schema's order, the teacher's own included."""
        wanted = self.log.schema.select(side, kind, teacher=True)
        return [columns[feature.name] for feature in wanted]  # type: ignore[index]


def codes(columns: tuple[Column, ...], values: list[np.ndarray]) -> Tensor:
    """Rows of the embedding table, int64 [n, C], of one array of codes per column."""
    return torch.from_numpy(np.stack([c.rows(v) for c, v in zip(columns, values, strict=True)], axis=1))


def floats(rows: int, values: list[np.ndarray]) -> Tensor:
    """float32 [rows, G] of G columns."""
    joined = np.stack(values, axis=1) if values else np.zeros((rows, 0))
    return torch.from_numpy(joined.astype(np.float32))


def _joined(timed: np.ndarray, untimed: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([timed, untimed.astype(timed.dtype)]))
