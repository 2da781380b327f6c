"""The training loss: binary cross-entropy of every task on the rows that count for it.

Legend: B batch, K tasks.
"""

from torch import Tensor
from torch.nn import functional


def task_loss(logits_BK: Tensor, label_BK: Tensor, counts_BK: Tensor) -> Tensor:
    """Sum over tasks of the mean over all B rows, rows that do not count adding zero: the log likelihood per row.

    A task with a parent is defined only below a positive parent label, so it weighs as often as it is defined.
    """
    losses_BK = functional.binary_cross_entropy_with_logits(logits_BK, label_BK, reduction="none")
    return (losses_BK * counts_BK).sum() / len(logits_BK)
