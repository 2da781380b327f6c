"""Dense AdamW and lazy Adam for the table, as one optimiser whose state can be stored."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from contracts.errors import InputError
from foundation.optimizer import GemOptimizer, linear_rate
from foundation.recipes import tiny


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.ModuleDict({"table": nn.Embedding(50, 4, sparse=True)})
        self.first_order = nn.ModuleDict({"table": nn.Embedding(50, 1, sparse=True)})
        self.dense = nn.Linear(4, 1)
        self.compressor = nn.Linear(4, 1)

    def loss(self, codes: list[int]) -> torch.Tensor:
        rows = self.tokens["table"](torch.tensor(codes))
        logits = self.dense(rows) + self.first_order["table"](torch.tensor(codes))
        return (logits - 1).square().mean() + (self.compressor(rows.detach()) + 1).square().mean()


def test_touches_only_the_rows_of_the_batch() -> None:
    net = Net()
    tables = [*net.tokens.parameters(), *net.first_order.parameters()]
    before = [table.detach().clone() for table in tables]
    GemOptimizer(net, tiny().train).step(net.loss([3, 3, 7]), rate=1.0)
    for table, old in zip(tables, before, strict=True):
        assert torch.ne(table, old).any(dim=1).nonzero().flatten().tolist() == [3, 7]


def test_a_rate_of_zero_moves_nothing() -> None:
    net = Net()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    GemOptimizer(net, tiny().train).step(net.loss([3]), rate=0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_a_restored_state_takes_the_same_steps() -> None:
    torch.manual_seed(1)
    net = Net()
    optimiser = GemOptimizer(net, replace(tiny().train, weight_decay=0.1))
    for codes in ([1, 2], [2, 3]):
        optimiser.step(net.loss(codes), rate=1.0)
    other = Net()
    other.load_state_dict(net.state_dict())
    restored = GemOptimizer(other, replace(tiny().train, weight_decay=0.1))
    restored.load({name: value.clone() for name, value in optimiser.state().items()})
    for codes in ([1, 4], [2, 2]):
        optimiser.step(net.loss(codes), rate=0.5)
        restored.step(other.loss(codes), rate=0.5)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_a_state_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="elsewhere"):
        GemOptimizer(Net(), tiny().train).load({"exp_avg:elsewhere.weight": torch.zeros(1)})


def test_rate_rises_then_falls_to_its_final_value() -> None:
    rates = [linear_rate(step, steps=100, warmup=10, final=0.1) for step in range(100)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert abs(rates[-1] - 0.1) < 0.02
    assert linear_rate(0, steps=1, warmup=5, final=0.1) > 0
