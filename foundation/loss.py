"""The training loss: binary cross-entropy of every task on the rows that count for it.

Legend: B batch, K tasks.
"""

import torch
from torch import Tensor
from torch.nn import functional


def task_losses(logits_BK: Tensor, label_BK: Tensor, counts_BK: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """Cross-entropy of each row and task in nats, float32 [B, K]: zero where a row does not count.

    `weight_B` are the importance weights of rows that were drawn more or less often than they occur (`mixing.py`).
    """
    losses_BK = functional.binary_cross_entropy_with_logits(logits_BK.float(), label_BK, reduction="none") * counts_BK
    return losses_BK if weight_B is None else losses_BK * weight_B[:, None]


def task_loss(logits_BK: Tensor, label_BK: Tensor, counts_BK: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """Sum over tasks of the mean over all B rows, rows that do not count adding zero: the log likelihood per row.

    A task with a parent is defined only below a positive parent label, so it weighs as often as it is defined.
    """
    return task_losses(logits_BK, label_BK, counts_BK, weight_B).sum() / len(logits_BK)


def members_loss(members_MBK: Tensor, label_BK: Tensor, counts_BK: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """Sum of every member's own loss: members that learn apart err apart, which their mean profits from."""
    return torch.stack([task_loss(logits_BK, label_BK, counts_BK, weight_B) for logits_BK in members_MBK]).sum()
