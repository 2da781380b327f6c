"""A small causal GRU over the untimed history, whose logits are features of later rows.

Legend: A ads, B batch, T events, C columns of an item, K tasks that the untimed history has labels for, D state width,
n queried events. It is fitted on the untimed history alone, which precedes the log, so no timed label can leak into it;
its scores of a timed row read that row's own past, timed events included (docs/kuairand_reference.md, 1).
An untimed event has no score: its label took part in the fit.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contracts.errors import InputError
from events.aggregates import AggregateTable
from events.log import UNKNOWN_LABEL, InteractionLog
from events.moments import EventColumns, Pasts, timed_moments

WIDTH, STATE, HEAD, DROPOUT = 16, 64, 64, 0.2
LEARNING_RATE, USERS, EPOCHS = 3e-3, 256, 2
"""Settings of the source; its figures are flat after two epochs."""
LENGTH = 40
BLOCK = 2_048


class HistoryGru(nn.Module):
    """Item: 16 numbers for each of its columns. Event: item and feedback. The head reads the state before an item, the
    item and their product, beside a bias per value."""

    def __init__(self, sizes: tuple[int, ...], tasks: tuple[str, ...]) -> None:
        super().__init__()
        self.tasks = tasks
        self.items = nn.ModuleList(nn.Embedding(size, WIDTH) for size in sizes)
        self.biases = nn.ModuleList(nn.Embedding(size, len(tasks)) for size in sizes)
        for table in (*self.items, *self.biases):
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, std=0.05 if table.embedding_dim == WIDTH else 0.0)
        self.feedback = nn.Embedding(3 ** len(tasks), WIDTH)
        self.gru = nn.GRU((len(sizes) + 1) * WIDTH, STATE, batch_first=True)
        self.project = nn.Linear(len(sizes) * WIDTH, STATE)
        self.head = nn.Sequential(
            nn.Linear(3 * STATE, HEAD), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HEAD, len(tasks))
        )
        self.dropout = nn.Dropout(DROPOUT)

    def states(self, codes_BTC: Tensor, feedback_BT: Tensor) -> Tensor:
        """State after each event: float32 [B, T, D]."""
        event_BTD = torch.cat([self._items(codes_BTC), self.feedback(feedback_BT)], dim=-1)
        return self.gru(self.dropout(event_BTD))[0]

    def logits(self, state: Tensor, codes: Tensor) -> Tensor:
        """Logits float32 [..., K] of items, codes [..., C], after states [..., D]."""
        item = self.project(self.dropout(self._items(codes)))
        state = self.dropout(state)
        bias = torch.stack([table(codes[..., c]) for c, table in enumerate(self.biases)]).sum(dim=0)
        return self.head(torch.cat([state, item, state * item], dim=-1)) + bias

    def _items(self, codes: Tensor) -> Tensor:
        return torch.cat([table(codes[..., c]) for c, table in enumerate(self.items)], dim=-1)


def fit_history_gru(log: InteractionLog, *, seed: int, epochs: int = EPOCHS) -> HistoryGru:
    """Fit on the whole untimed history, each event predicted from those before it. InputError without one."""
    untimed = log.untimed
    known = {} if untimed is None else {t: y for t, y in untimed.labels.items() if (y != UNKNOWN_LABEL).any()}
    if untimed is None or not known:
        raise InputError(f"log {log.schema.name!r} has no labelled untimed history; leave its scores out")
    codes_AC = torch.from_numpy(_ad_codes(log))
    label_HK = np.stack(list(known.values()), axis=1)
    feedback_H = torch.from_numpy(_feedback(label_HK != UNKNOWN_LABEL, label_HK == 1))
    label = torch.from_numpy(label_HK)
    first_U, length_U = (
        torch.from_numpy(x) for x in np.unique(untimed.user, return_index=True, return_counts=True)[1:]
    )
    ad = torch.from_numpy(untimed.ad.astype(np.int64))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = HistoryGru(_sizes(log), tuple(known))
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        steps = epochs * -(-len(first_U) // USERS)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        model.train()
        for _ in range(epochs):
            for users in torch.randperm(len(first_U)).split(USERS):
                place_BT = torch.arange(int(length_U[users].max()))
                mask_BT = place_BT < length_U[users, None]
                event_BT = torch.where(mask_BT, first_U[users, None] + place_BT, 0)
                codes_BTC = codes_AC[ad[event_BT]]
                after_BTD = model.states(codes_BTC[:, :-1], feedback_H[event_BT[:, :-1]])
                before_BTD = F.pad(after_BTD, (0, 0, 1, 0))
                counts = mask_BT[..., None] & (label[event_BT] != UNKNOWN_LABEL)
                target = label[event_BT][counts].float()
                loss = F.binary_cross_entropy_with_logits(model.logits(before_BTD, codes_BTC)[counts], target)
                optimizer.zero_grad()
                (loss * len(model.tasks)).backward()
                optimizer.step()
                schedule.step()
    return model.eval()


@torch.no_grad()
def history_scores(
    model: HistoryGru, log: InteractionLog, events: np.ndarray, *, frozen_ms: int | None = None
) -> AggregateTable:
    """The model's logits of these events (numbered as for `aggregate_features`) on their last 40 past events: one
    column per task, NaN for untimed events. `frozen_ms`: with every history as of that time."""
    events = np.asarray(events, dtype=np.int64)
    timed = np.flatnonzero(events < len(log))
    values = np.full((len(events), len(model.tasks)), np.nan, dtype=np.float32)
    for rows, scores in _scored(model, log, events[timed], frozen_ms):
        values[timed[rows]] = scores
    return AggregateTable(tuple(f"history_gru.{task}" for task in model.tasks), values)


def _scored(
    model: HistoryGru, log: InteractionLog, rows: np.ndarray, frozen_ms: int | None
) -> Iterator[tuple[slice, np.ndarray]]:
    columns = EventColumns.of(log)
    pasts, moments = Pasts(log, columns), timed_moments(log, rows, frozen_ms=frozen_ms)
    codes_AC = torch.from_numpy(_ad_codes(log))
    number = {task.name: k for k, task in enumerate(log.schema.tasks)}
    chosen = [number[task] for task in model.tasks]
    for start in range(0, len(rows), BLOCK):
        part = slice(start, min(start + BLOCK, len(rows)))
        past, present, known = pasts.before(moments, part, LENGTH)
        positive = known & (columns.label_KE[:, past] == 1)
        feedback_BT = _feedback(np.moveaxis(known[chosen], 0, -1), np.moveaxis(positive[chosen], 0, -1))
        length_B = present.sum(axis=1)
        # oldest first and left-aligned: the state after the last event is the one that the row sees
        back = np.maximum(length_B[:, None] - 1 - np.arange(LENGTH), 0)
        past, feedback_BT = (np.take_along_axis(x, back, axis=1) for x in (past, feedback_BT))
        after_BTD = model.states(codes_AC[columns.ad[past]], torch.from_numpy(feedback_BT))
        state_BD = after_BTD[torch.arange(len(length_B)), torch.from_numpy(np.maximum(length_B - 1, 0))]
        state_BD = torch.where(torch.from_numpy(length_B > 0)[:, None], state_BD, 0.0)
        yield part, model.logits(state_BD, codes_AC[columns.ad[rows[part]]]).numpy()


def _feedback(known: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """One code for what is known of an event's K outcomes, [..., K] -> int64 [...]: unknown, no, yes in base 3."""
    digits = known.astype(np.int64) + positive
    return (digits * 3 ** np.arange(digits.shape[-1])).sum(axis=-1)


def _ad_codes(log: InteractionLog) -> np.ndarray:
    features = log.schema.select("ad", "categorical", teacher=True)
    columns = [np.arange(len(log.ad_ids)), *(log.ad_features[f.name] for f in features)]
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


def _sizes(log: InteractionLog) -> tuple[int, ...]:
    return len(log.ad_ids), *(f.cardinality for f in log.schema.select("ad", "categorical", teacher=True))
