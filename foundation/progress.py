"""Running figures of a pass: every row is predicted before it is learned from, so they need no held-out rows.

Legend: B batch, K tasks, W steps of the window.
"""

from collections import deque

import torch
from torch import Tensor

WINDOW_STEPS = 200


class Running:
    """Loss and NE over the newest steps, of the model as it trains: dropout and forgotten ids make both a little high.

    NE is log loss / entropy of the mean label, as in `events.metrics`, of the rows as the data have them (importance
    weights included).
    """

    def __init__(self) -> None:
        self._sums_W3K: deque[Tensor] = deque(maxlen=WINDOW_STEPS)
        self._rows_W: deque[int] = deque(maxlen=WINDOW_STEPS)

    def add(self, losses_BK: Tensor, label_BK: Tensor, counts_BK: Tensor, weight_B: Tensor | None) -> None:
        """Takes one step: losses as `loss.task_losses` gives them, labels 0 where a row does not count."""
        if weight_B is not None:
            label_BK, counts_BK = label_BK * weight_B[:, None], counts_BK * weight_B[:, None]
        self._sums_W3K.append(torch.stack([losses_BK.detach().sum(0), label_BK.sum(0), counts_BK.sum(0).float()]))
        self._rows_W.append(len(losses_BK))

    def loss(self) -> float:
        """Task loss per row, NaN before the first step."""
        if not self._rows_W:
            return float("nan")
        return float(torch.stack(list(self._sums_W3K))[:, 0].double().sum()) / sum(self._rows_W)

    def ne(self) -> list[float]:
        """NE of each task, NaN where the window has one class."""
        if not self._rows_W:
            return []
        loss_K, positives_K, rows_K = torch.stack(list(self._sums_W3K)).double().sum(dim=0)
        rate_K = positives_K / rows_K
        entropy_K = -(torch.xlogy(rate_K, rate_K) + torch.xlogy(1 - rate_K, 1 - rate_K))
        ne_K = torch.where(entropy_K > 0, loss_K / rows_K / entropy_K, torch.nan)
        return [float(value) for value in ne_K]
