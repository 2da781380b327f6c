"""The student adapter: the teacher's soft labels, fitted to the newest labels (ExFM, section 3).

The teacher is frozen while the world drifts. A small network on its logits learns from the labels of the student
period's first rows, which the teacher never trained on; behind them its output takes the soft label's place as the
distillation target, without a gradient. Legend: T rows in time order, K tasks.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from student_models.dataset import StudentRows
from student_models.logged import LEAST_SOFT

WIDTH, STEPS, RATE, DECAY, SEED = 16, 300, 1e-2, 1e-2, 0
"""Hidden width; steps of AdamW over all fitted rows at once; its rate and weight decay; one seed for all students."""


class Adapter(nn.Module):
    """Logits [T, K] -> logits [T, K]; before it is fitted, the identity: so it stays for a task without labels."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(tasks, WIDTH), nn.Linear(WIDTH, tasks)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, logits: Tensor) -> Tensor:
        return logits + self.second(torch.tanh(self.first(logits)))


def adapted(rows: StudentRows, share: float) -> StudentRows:
    """The rows with adapted soft labels from the end of their first `share` on; those before keep the teacher's.

    The adapter learns from rows strictly before that time whose labels were trainable strictly before it.
    """
    cut_ms = rows.event_ms[min(int(share * len(rows)), len(rows) - 1)]
    later, logits = rows.event_ms >= cut_ms, torch.logit(torch.from_numpy(rows.soft), eps=LEAST_SOFT)
    fitted = ~later & rows.has_soft
    known = rows.usable[fitted] & (rows.known_ms[fitted] < cut_ms)
    adapter = fit_adapter(logits[fitted], rows.labels[fitted], known)
    with torch.no_grad():
        soft = torch.sigmoid(adapter(logits)).numpy()
    return replace(rows, soft=np.where(later[:, None] & rows.has_soft[:, None], soft, rows.soft))


def fit_adapter(logits: Tensor, labels: np.ndarray, known: np.ndarray) -> Adapter:
    """An adapter fitted to labels float32 [T, K] where known bool [T, K]; equal arguments give equal weights."""
    weights, targets = torch.from_numpy(known.astype(np.float32)), torch.from_numpy(labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        adapter = Adapter(logits.shape[1])
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(STEPS if known.any() else 0):
        losses = nn.functional.binary_cross_entropy_with_logits(adapter(logits), targets, reduction="none")
        optimizer.zero_grad()
        ((losses * weights).sum(dim=0) / weights.sum(dim=0).clamp(min=1)).sum().backward()
        optimizer.step()
    return adapter
