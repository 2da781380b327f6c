"""The loss counts a task on the rows that count for it, and nowhere else."""

import torch
from torch.nn import functional

from foundation.loss import task_loss


def test_rows_that_do_not_count_add_nothing() -> None:
    logits, labels = torch.randn(4, 2), torch.tensor([[1.0, 0], [0, 0], [1, 1], [0, 0]])
    counts = torch.tensor([[True, False], [True, False], [True, True], [True, False]])
    click = functional.binary_cross_entropy_with_logits(logits[:, 0], labels[:, 0], reduction="sum")
    conversion = functional.binary_cross_entropy_with_logits(logits[2, 1], labels[2, 1])
    torch.testing.assert_close(task_loss(logits, labels, counts), (click + conversion) / 4)


def test_no_gradient_where_nothing_counts() -> None:
    logits = torch.randn(4, 2, requires_grad=True)
    counts = torch.tensor([[True, False]] * 4)
    task_loss(logits, torch.ones(4, 2), counts).backward()
    assert logits.grad is not None
    assert (logits.grad[:, 1] == 0).all()
    assert (logits.grad[:, 0] != 0).all()
