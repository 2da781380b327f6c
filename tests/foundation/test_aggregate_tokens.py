"""Aggregates as piecewise-linear functions: exact at the bins, apart where missing, trained in every part."""

import pytest
import torch

from foundation.aggregate_tokens import AggregateLogits, AggregateTokens, piecewise_linear


def with_flags(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values.nan_to_num(0.0), values.isnan().float()], dim=1)


def test_the_encoding_fills_bins_from_below() -> None:
    values = torch.tensor([[-1.0], [-0.75], [0.0], [1.0], [float("nan")]])
    encoded = piecewise_linear(with_flags(values), bins=4)[:, 0]
    assert encoded.tolist() == [
        [0, 0, 0, 0, 0],
        [0.5, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_the_logits_are_one_function_per_column_and_task() -> None:
    logits = AggregateLogits(values=4, tasks=2, bins=4)
    assert not logits(with_flags(torch.rand(3, 2))).any()
    with torch.no_grad():
        logits.weight.copy_(torch.randn_like(logits.weight))
    one, two = torch.tensor([[0.3, 0.0]]), torch.tensor([[0.0, -0.6]])
    zero, both = torch.zeros(1, 2), torch.tensor([[0.3, -0.6]])
    at = {name: logits(with_flags(v)) for name, v in {"1": one, "2": two, "0": zero, "b": both}.items()}
    torch.testing.assert_close(at["b"] - at["2"], at["1"] - at["0"])


@pytest.mark.parametrize(("columns", "tokens", "expected"), [(1, 4, 1), (5, 4, 3), (8, 4, 4), (250, 4, 4)])
def test_tokens_share_the_columns(columns: int, tokens: int, expected: int) -> None:
    module = AggregateTokens(2 * columns, 6, tokens=tokens, bins=3)
    assert module.tokens == expected
    values = torch.rand(7, columns)
    assert module(with_flags(values)).shape == (7, expected, 6)
    changed = values.clone()
    changed[:, 0] = -0.9
    moved = (module(with_flags(values)) != module(with_flags(changed))).any(dim=2).any(dim=0)
    assert moved.tolist() == [True] + [False] * (expected - 1)


def test_tokens_start_at_unit_scale() -> None:
    x = AggregateTokens(2 * 240, 32)(with_flags(torch.rand(64, 240) * 2 - 1))
    assert 0.3 < float(x.detach().std()) < 1.5


def test_gradients_reach_every_column() -> None:
    values = torch.rand(64, 5) * 2 - 1
    values[::7] = float("nan")
    tokens, logits = AggregateTokens(10, 8), AggregateLogits(10, 3)
    ((tokens(with_flags(values)) ** 2).sum() + (logits(with_flags(values)) - 1).pow(2).sum()).backward()
    for parameter in (*tokens.parameters(), *logits.parameters()):
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        padded = tokens.weight[0, :17].numel() if parameter is tokens.weight else 0  # 5 columns in 3 groups of 2
        assert parameter.grad.count_nonzero() == parameter.numel() - padded
