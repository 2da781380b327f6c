"""The personalised FFN: generated weights with 1/tau folded in, two residuals, no affine; and its control."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from foundation.config import Tau
from foundation.kernels import gdpa
from foundation.pffn import SCORE_STD, PersonalisedFFN, PlainFFN, WeightGen

TAUS: list[Tau] = ["maxlen", "sqrt_d", "learned"]


def weight_gen(max_length: int = 51, tau: Tau = "maxlen") -> WeightGen:
    return WeightGen(tokens=9, summary=4, hidden=6, dim=8, heads=2, max_length=max_length, tau=tau)


def learns(module: nn.Module, *inputs: Tensor) -> bool:
    """Whether a few steps lower a loss, every gradient being finite and reaching every parameter."""
    target, losses = torch.randn(3, 5, 8), []
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        loss = functional.mse_loss(module(*inputs), target)
        loss.backward()
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] < losses[0]


class Personal(nn.Module):
    """WeightGen and the FFN that it feeds."""

    def __init__(self, generate: WeightGen, block: PersonalisedFFN) -> None:
        super().__init__()
        self.generate, self.block = generate, block

    def forward(self, s_BTD: Tensor, x_BND: Tensor) -> Tensor:
        out: Tensor = self.block(s_BTD, *self.generate(x_BND))
        return out


def test_weights_have_the_shape_of_keys_and_values() -> None:
    k, v = weight_gen()(torch.randn(3, 9, 8))
    assert k.shape == v.shape == (3, 6, 2, 4)


def test_weights_differ_between_examples_and_not_with_the_batch() -> None:
    generate, x = weight_gen(), torch.randn(3, 9, 8)
    k, v = generate(x)
    assert not torch.allclose(k[0], k[1])
    k_alone, v_alone = generate(x[1:2])
    torch.testing.assert_close(k_alone[0], k[1])
    torch.testing.assert_close(v_alone[0], v[1])


def test_tau_is_folded_into_the_keys() -> None:
    for tau in ("maxlen", "sqrt_d"):
        generate, x = weight_gen(tau=tau), torch.randn(2, 9, 8)
        k, v = generate(x)
        generate.tau *= 2
        halved, same = generate(x)
        torch.testing.assert_close(halved, k / 2)
        torch.testing.assert_close(same, v)


def test_a_learned_tau_scales_each_head() -> None:
    generate, x = weight_gen(tau="learned"), torch.randn(2, 9, 8)
    k, _ = generate(x)
    with torch.no_grad():
        generate.log_scale[1] += torch.tensor(3.0).log()
    torch.testing.assert_close(generate(x)[0], k * torch.tensor([1.0, 3.0])[:, None])


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("max_length", [17, 1001])
def test_scores_start_with_the_same_spread_whatever_tau_is(tau: Tau, max_length: int) -> None:
    generate = WeightGen(tokens=9, summary=8, hidden=64, dim=64, heads=4, max_length=max_length, tau=tau)
    k, _ = generate(torch.randn(16, 9, 64))
    q = functional.layer_norm(torch.randn(16, 20, 64), (64,)).unflatten(2, (4, 16))
    spread = torch.einsum("bthd,bfhd->bhtf", q, k).std().item()
    assert 0.5 * SCORE_STD < spread < 2 * SCORE_STD


def test_block_is_normed_gdpa_with_two_residuals() -> None:
    block, s = PersonalisedFFN(dim=8, heads=2), torch.randn(3, 5, 8)
    k, v = weight_gen()(torch.randn(3, 9, 8))
    q = functional.layer_norm(s, (8,))
    y = gdpa(q.unflatten(2, (2, 4)), k, v).flatten(2) + q
    expected = y / (y.square().mean(dim=2, keepdim=True) + 1e-5).sqrt() + s
    torch.testing.assert_close(block(s, k, v), expected)
    assert not list(block.parameters())


def test_projections_stand_around_gdpa_and_outside_the_residual() -> None:
    block, s = PersonalisedFFN(dim=8, heads=2, projections=True), torch.randn(3, 5, 8)
    k, v = weight_gen()(torch.randn(3, 9, 8))
    n = functional.layer_norm(s, (8,))
    y = gdpa(block.query(n).unflatten(2, (2, 4)), k, v).flatten(2)
    torch.testing.assert_close(block(s, k, v), block.norm_out(block.out(y) + n) + s)


def test_each_head_has_its_activation() -> None:
    s = torch.randn(3, 5, 8)
    k, v = weight_gen()(torch.randn(3, 9, 8))
    q = functional.layer_norm(s, (8,)).unflatten(2, (2, 4))
    block = PersonalisedFFN(dim=8, heads=2, activations=("gelu", "silu"))
    y = gdpa(q, k, v, activation=("gelu", "silu")).flatten(2)
    torch.testing.assert_close(block(s, k, v), block.norm_out(y + q.flatten(2)) + s)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("projections", [False, True])
@pytest.mark.parametrize("activations", [("gelu",), ("gelu", "silu")])
def test_every_variant_learns(tau: Tau, projections: bool, activations: tuple[str, ...]) -> None:
    block = PersonalisedFFN(dim=8, heads=2, activations=activations, projections=projections)
    assert learns(Personal(weight_gen(tau=tau), block), torch.randn(3, 5, 8), torch.randn(3, 9, 8))


def test_under_autocast_the_products_are_of_the_low_precision() -> None:
    model, s, x = Personal(weight_gen(), PersonalisedFFN(dim=8, heads=2)), torch.randn(3, 5, 8), torch.randn(3, 9, 8)
    exact = model(s, x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(s, x).float(), exact, atol=0.05, rtol=0.05)


def test_the_plain_ffn_has_the_flops_of_the_personalised_one() -> None:
    s, weights = torch.randn(3, 5, 8), [torch.randn(3, 6, 2, 4) for _ in range(2)]
    counts = []
    for block, inputs in ((PersonalisedFFN(dim=8, heads=2), (s, *weights)), (PlainFFN(dim=8, hidden=6), (s,))):
        with FlopCounterMode(display=False) as counter:
            block(*inputs)
        counts.append(counter.get_total_flops())
    assert counts == [4 * 3 * 5 * 6 * 8] * 2


def test_the_plain_ffn_learns_and_treats_examples_alike() -> None:
    block, s = PlainFFN(dim=8, hidden=6, activation="silu"), torch.randn(3, 5, 8)
    torch.testing.assert_close(block(s[1:2]), block(s)[1:2])
    n = functional.layer_norm(s, (8,))
    y = functional.silu(n @ block.first.weight.T) @ block.second.weight.T
    torch.testing.assert_close(block(s), block.norm_out(y + n) + s)
    assert learns(block, s)
