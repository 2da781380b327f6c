"""AdamW for what is dense, row optimisers for the tables, as one optimiser whose state can be stored."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from contracts.errors import InputError
from foundation.optimizer import GemOptimizer, rate_at
from foundation.recipes import Schedule, TableOptimizer, tiny


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


@pytest.mark.parametrize("table", ["lazy_adam", "rowwise_adagrad"])
def test_a_restored_state_takes_the_same_steps(table: TableOptimizer) -> None:
    torch.manual_seed(1)
    net, recipe = Net(), replace(tiny().train, weight_decay=0.1, table_optimizer=table)
    optimiser = GemOptimizer(net, recipe)
    for codes in ([1, 2], [2, 3]):
        optimiser.step(net.loss(codes), rate=1.0)
    other = Net()
    other.load_state_dict(net.state_dict())
    restored = GemOptimizer(other, recipe)
    restored.load({name: value.clone() for name, value in optimiser.state().items()})
    for codes in ([1, 4], [2, 2]):
        optimiser.step(net.loss(codes), rate=0.5)
        restored.step(other.loss(codes), rate=0.5)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_a_state_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="elsewhere"):
        GemOptimizer(Net(), tiny().train).load({"exp_avg:elsewhere.weight": torch.zeros(1)})


@pytest.mark.parametrize("limit", [0.0, 0.01])
def test_the_dense_update_is_adamw_s_with_a_clipped_gradient(limit: float) -> None:
    recipe = replace(tiny().train, gradient_norm=limit, weight_decay=0.1)
    torch.manual_seed(1)
    ours, theirs = Net(), Net()
    theirs.load_state_dict(ours.state_dict())
    dense = list(theirs.dense.parameters())
    groups = [
        {"params": dense, "lr": recipe.dense_rate, "weight_decay": 0.1},
        {"params": list(theirs.compressor.parameters()), "lr": recipe.compressor_rate, "weight_decay": 0.0},
    ]
    optimiser, reference = GemOptimizer(ours, recipe), torch.optim.AdamW(groups)
    for codes in ([1, 2], [2, 3], [4]):
        with torch.no_grad():  # the tables go their own way
            for mine, other in zip(ours.tokens.parameters(), theirs.tokens.parameters(), strict=True):
                other.copy_(mine)
            for mine, other in zip(ours.first_order.parameters(), theirs.first_order.parameters(), strict=True):
                other.copy_(mine)
        theirs.zero_grad()
        theirs.loss(codes).backward()
        if limit:
            nn.utils.clip_grad_norm_(dense, limit)
        reference.step()
        optimiser.step(ours.loss(codes), rate=1.0)
    for name in ("dense", "compressor"):
        mine, other = (dict(getattr(net, name).named_parameters()) for net in (ours, theirs))
        for parameter in mine:
            torch.testing.assert_close(mine[parameter], other[parameter], atol=1e-6, rtol=1e-5)


def test_a_model_may_lack_tables_and_a_compressor() -> None:
    net = nn.Linear(3, 1)
    before = net.weight.detach().clone()
    optimiser = GemOptimizer(net, tiny().train)
    optimiser.step(net(torch.ones(2, 3)).square().mean(), rate=1.0)
    assert torch.ne(net.weight, before).all()
    assert set(optimiser.state()) == {f"{m}:{p}" for m in ("step", "exp_avg", "exp_avg_sq") for p in ("weight", "bias")}


def test_another_table_optimiser_cannot_take_the_state() -> None:
    optimiser = GemOptimizer(net := Net(), tiny().train)
    optimiser.step(net.loss([1]), rate=1.0)
    other = GemOptimizer(Net(), replace(tiny().train, table_optimizer="rowwise_adagrad"))
    with pytest.raises(InputError, match="recipe that made it"):
        other.load(optimiser.state())


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_rate_rises_then_falls_to_its_final_value(schedule: Schedule) -> None:
    def rate(step: int, *, steps: int = 100, warmup: int = 10) -> float:
        return rate_at(step, steps=steps, warmup=warmup, final=0.1, schedule=schedule)

    rates = [rate(step) for step in range(100)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.55)  # both pass the middle half way down
    assert abs(rates[-1] - 0.1) < 0.02
    assert rate(0, steps=1, warmup=5) > 0
