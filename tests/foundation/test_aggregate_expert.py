"""The expert of the aggregates: members that learn apart, and the two paths that join them to a deep model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from events.log import InteractionLog
from foundation.aggregate_expert import AggregateExpert, AggregatePaths
from foundation.config import AggregatePath
from foundation.gem import Gem
from foundation.layout import InputLayout
from foundation.loss import members_loss, task_loss
from foundation.presets import tiny_model
from tests.foundation.fake_batches import fake_batch

VALUES, TASKS = 10, 3


def aggregates(rows: int) -> torch.Tensor:
    values = torch.rand(rows, VALUES // 2) * 2 - 1
    missing = (torch.rand(rows, VALUES // 2) < 0.2).float()
    return torch.cat([values * (1 - missing), missing], dim=1)


def test_members_start_apart_and_every_parameter_learns() -> None:
    torch.manual_seed(0)
    expert = AggregateExpert(VALUES, TASKS)
    logits_MBK = expert(aggregates(32))
    assert logits_MBK.shape == (expert.members, 32, TASKS)
    assert not torch.allclose(logits_MBK[0], logits_MBK[1])
    logits_MBK.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in expert.parameters())


def test_a_members_gradient_ignores_the_other_members() -> None:
    torch.manual_seed(0)
    expert = AggregateExpert(VALUES, TASKS).eval()
    labels, counts = torch.randint(0, 2, (16, TASKS)).float(), torch.ones(16, TASKS, dtype=torch.bool)
    inputs = aggregates(16)
    members_loss(expert(inputs), labels, counts).backward()
    together = expert.first.grad[1].clone()
    expert.zero_grad()
    task_loss(expert(inputs)[1], labels, counts).backward()
    assert torch.allclose(together, expert.first.grad[1])
    assert expert.first.grad[0].abs().sum() == 0


@pytest.mark.parametrize("path", ["expert", "tokens"])
def test_gem_joins_the_aggregates(path: AggregatePath, tiny_log: InteractionLog) -> None:
    torch.manual_seed(0)
    layout = InputLayout(tiny_log.schema)
    model = Gem(layout, replace(tiny_model(), aggregates=VALUES, aggregate_path=path)).eval()
    batch = fake_batch(layout, [3, 0, 5], aggregates=VALUES)
    output = model(batch)
    assert output.logits_BK.shape == (3, len(layout.schema.tasks))
    if path == "tokens":
        assert output.members_MBK is None
        return
    deep, members = output.members_MBK[0], output.members_MBK[1:]
    assert torch.allclose(output.logits_BK, (deep + members.mean(dim=0)) / 2)
    assert output.activations_BE.shape[1] == model.compressor.standardise.mean.shape[0]


def test_a_row_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    paths = AggregatePaths(replace(tiny_model(), aggregates=VALUES), TASKS).eval()
    inputs, deep = aggregates(8), torch.randn(8, TASKS)
    whole, _ = paths(deep, inputs)
    alone = torch.cat([paths(deep[i : i + 1], inputs[i : i + 1])[0] for i in range(8)])
    assert np.allclose(whole.detach(), alone.detach(), atol=1e-5)
