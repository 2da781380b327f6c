"""Running loss and NE are those of the metrics over the newest steps."""

import math

import numpy as np
import pytest
import torch

from events.metrics import ne
from foundation.loss import task_losses
from foundation.progress import WINDOW_STEPS, Running


def test_ne_is_that_of_the_metrics() -> None:
    running, generator = Running(), torch.Generator().manual_seed(0)
    logits = torch.randn(5, 64, 2, generator=generator)
    labels = (torch.rand(5, 64, 2, generator=generator) < 0.3).float()
    counts = torch.rand(5, 64, 2, generator=generator) < 0.7
    for step in range(5):
        label = labels[step] * counts[step]
        running.add(task_losses(logits[step], label, counts[step]), label, counts[step], None)
    for task, value in enumerate(running.ne()):
        here = counts[..., task].numpy()
        expected = ne(labels[..., task].numpy()[here], torch.sigmoid(logits[..., task]).numpy()[here])
        assert value == pytest.approx(expected.ne, rel=1e-5)


def test_only_the_newest_steps_count() -> None:
    running, counts = Running(), torch.ones(4, 1, dtype=torch.bool)
    labels = torch.tensor([[1.0], [0.0], [0.0], [1.0]])
    for _ in range(3):
        running.add(torch.full((4, 1), 9.0), labels, counts, None)
    for _ in range(WINDOW_STEPS):
        running.add(torch.full((4, 1), 0.5), labels, counts, None)
    assert running.loss() == pytest.approx(0.5)


def test_weighted_rows_count_as_often_as_they_occur() -> None:
    running, counts = Running(), torch.ones(3, 1, dtype=torch.bool)
    labels, logits = torch.tensor([[1.0], [0.0], [0.0]]), torch.zeros(3, 1)
    weight = torch.tensor([1.0, 2.0, 1.0])
    running.add(task_losses(logits, labels, counts, weight), labels, counts, weight)
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert running.ne()[0] == pytest.approx(np.log(2) / entropy)


def test_there_is_no_figure_before_the_first_step_or_with_one_class() -> None:
    running = Running()
    assert math.isnan(running.loss())
    assert running.ne() == []
    running.add(torch.ones(2, 1), torch.zeros(2, 1), torch.ones(2, 1, dtype=torch.bool), None)
    assert math.isnan(running.ne()[0])
