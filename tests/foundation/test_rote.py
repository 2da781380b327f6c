"""Rotation makes attention scores depend on differences of rank and of log age alone."""

import pytest
import torch

from foundation.rote import HORIZON_S, TIME_SCALE_S, TimeEncoding, log_age, rotary_table, rotate, rotated


def scores(log_age_T: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    table = rotary_table(log_age_T[None], q.shape[-1])
    return torch.einsum("bthd,bshd->bhts", rotate(q, *table), rotate(k, *table))


def test_scores_depend_on_differences() -> None:
    q = torch.randn(1, 1, 2, 8).expand(1, 6, 2, 8)
    k = torch.randn(1, 1, 2, 8).expand(1, 6, 2, 8)
    ages = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    one = scores(ages, q, k)
    torch.testing.assert_close(one[0, :, 1, 0], one[0, :, 4, 3])  # one rank and half a nat of age apart
    assert not torch.allclose(one[0, :, 1, 0], one[0, :, 0, 1])
    torch.testing.assert_close(scores(ages + 3.0, q, k), one, atol=1e-5, rtol=1e-5)


def test_ages_change_scores() -> None:
    q, k = torch.randn(1, 3, 2, 8), torch.randn(1, 3, 2, 8)
    assert not torch.allclose(scores(torch.zeros(3), q, k), scores(torch.tensor([0.0, 1.0, 5.0]), q, k))


def test_rotation_keeps_lengths() -> None:
    x = torch.randn(2, 4, 3, 8)
    turned = rotate(x, *rotary_table(torch.rand(2, 4), 8))
    torch.testing.assert_close(turned.norm(dim=3), x.norm(dim=3))


def test_odd_numbers_of_pairs_and_one_pair_work() -> None:
    for width in (2, 6):
        assert rotary_table(torch.rand(2, 4), width)[0].shape == (2, 4, 1, width // 2)


def test_untimed_events_stand_at_the_horizon() -> None:
    age = log_age(torch.tensor([[0.0, 60.0, 0.0]]), torch.tensor([[True, True, False]]))
    expected = torch.log1p(torch.tensor([[0.0, 60.0, HORIZON_S]]) / TIME_SCALE_S)
    torch.testing.assert_close(age, expected)


def test_ranks_may_be_given() -> None:
    age = torch.rand(2, 5)
    torch.testing.assert_close(rotary_table(age, 8, torch.arange(5).expand(2, 5)), rotary_table(age, 8))
    picked = torch.tensor([[0, 3], [0, 4]])
    some = rotary_table(age.gather(1, picked), 8, picked)
    for part, whole in zip(some, rotary_table(age, 8), strict=True):
        torch.testing.assert_close(part[1, :, 0], whole[1, [0, 4], 0])


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("values", [True, False])
def test_switches_turn_queries_and_keys_and_values(rotary: bool, values: bool) -> None:
    q, k, v = torch.randn(3, 2, 4, 3, 8)
    table = rotary_table(torch.rand(2, 4), 8)
    turned = rotated(q, k, v, table, TimeEncoding(rotary=rotary, rotary_values=values))
    expected = [rotate(x, *table) if on else x for x, on in ((q, rotary), (k, rotary), (v, values))]
    for one, other in zip(turned, expected, strict=True):
        assert torch.equal(one, other)
