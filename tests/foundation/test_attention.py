"""Self attention: full, in a window, in blocks; padding never read; equal to plain attention of each example alone."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foundation.attention import CHUNK, Reach, SelfAttention, WindowedAttention, attend, masked_attention
from foundation.rote import TimeEncoding, rotary_table, rotate

LENGTHS = [1, 4, 7]
REACHES = [Reach("full", 0, 1), *[Reach("window", window, 1) for window in (0, 2, 9)]]
REACHES += [Reach("block", 0, block) for block in (1, 3, 7, 64)]
LONG = [Reach("full", 0, 1), *[Reach("window", window, 1) for window in (0, 1, 5, 20, 200)], Reach("block", 0, 64)]


def mask(lengths: Sequence[int]) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def reference(module: SelfAttention, p_TD: torch.Tensor, age_T: torch.Tensor) -> torch.Tensor:
    """One unpadded example, by the formula, token by token."""
    q, k, v = module.qkv(module.norm(p_TD)).unflatten(1, (3, module.heads, -1)).unbind(1)
    table, reach = rotary_table(age_T[None], q.shape[-1]), module.reach
    if module.time.rotary:
        q, k = rotate(q[None], *table)[0], rotate(k[None], *table)[0]
    if module.time.rotary_values:
        v = rotate(v[None], *table)[0]
    sees = {
        "full": lambda t, s: True,
        "window": lambda t, s: abs(s - t) <= reach.window,
        "block": lambda t, s: s // reach.block == t // reach.block,
    }[reach.attention]
    rows = []
    for t in range(len(p_TD)):
        near = [s for s in range(len(p_TD)) if sees(t, s)]
        weights = torch.softmax(torch.einsum("hd,shd->hs", q[t], k[near]) / q.shape[-1] ** 0.5, dim=1)
        rows.append(torch.einsum("hs,shd->hd", weights, v[near]).flatten())
    return p_TD + module.out(torch.stack(rows))


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("time", [TimeEncoding(), TimeEncoding(rotary=False), TimeEncoding(rotary_values=True)])
def test_equals_the_formula_without_padding(reach: Reach, time: TimeEncoding) -> None:
    module = SelfAttention(dim=8, heads=2, reach=reach, time=time)
    p, age = torch.randn(3, 7, 8), torch.rand(3, 7) * 5
    out = module(p, mask(LENGTHS), rotary_table(age, 4))
    for b, length in enumerate(LENGTHS):
        alone = reference(module, p[b, :length], age[b, :length])
        torch.testing.assert_close(out[b, :length], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("reach", LONG)
def test_equals_the_masked_reference_on_long_sequences(reach: Reach) -> None:
    present = mask([1, 40, 64, 65, 130])
    q, k, v = (torch.randn(5, 2, 130, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    weight = torch.randn(5, 2, 130, 4, dtype=torch.float64) * present[:, None, :, None]  # padding is read by nobody
    results = []
    for form in (attend, masked_attention):
        out = form(q, k, v, present, reach)
        assert torch.isfinite(out).all()
        results.append([out * weight, *torch.autograd.grad((out * weight).sum(), (q, k, v))])
    for fast, plain in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, atol=1e-10, rtol=1e-10)


def test_gradients_of_the_window() -> None:
    q, k, v = (torch.randn(2, 1, 20, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(lambda *qkv: WindowedAttention.apply(*qkv, mask([9, 20]), 1), (q, k, v))


def test_the_window_keeps_the_precision_of_its_inputs() -> None:
    q, k, v = (torch.randn(1, 2, 60, 4, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    present, reach = mask([60]), Reach("window", 3, 1)
    out = attend(q, k, v, present, reach)
    out.float().sum().backward()
    assert out.dtype == q.dtype
    assert q.grad is not None
    assert q.grad.dtype == q.dtype
    exact = masked_attention(q.float(), k.float(), v.float(), present, reach)
    torch.testing.assert_close(out.float(), exact, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("reach", LONG)
def test_padding_is_finite_and_never_read(reach: Reach) -> None:
    module, p = SelfAttention(dim=8, heads=2, reach=reach, time=TimeEncoding()), torch.randn(2, 150, 8)
    other = p.clone()
    other[0, 3:] = 100.0
    table = rotary_table(torch.zeros(2, 150), 4)
    out, changed = module(p, mask([3, 150]), table), module(other, mask([3, 150]), table)
    assert torch.isfinite(changed).all()
    torch.testing.assert_close(changed[0, :3], out[0, :3], rtol=0, atol=0)


def test_who_sees_whom() -> None:
    band = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert Reach("window", 1, 64).visible(4).int().tolist() == band
    blocks = [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert Reach("block", 9, 2).visible(3).int().tolist() == blocks
    assert Reach("full", 0, 1).visible(3).all()


def test_pairs_are_quadratic_only_with_full_attention() -> None:
    assert Reach("full", 8, 64).pairs(2048) == 2048**2
    for reach in (Reach("window", 8, 64), Reach("window", 100, 64), Reach("block", 8, 64)):
        assert reach.pairs(4096) / reach.pairs(2048) == pytest.approx(2, rel=0.1)
    assert Reach("block", 8, 64).pairs(2048 + 1) == 32 * 64**2 + 1
    seen = int(Reach("window", 100, 64).visible(2048).sum())
    assert seen <= Reach("window", 100, 64).pairs(2048) <= 1.08 * seen


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operator returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("reach", [Reach("window", 16, 64), Reach("block", 16, 64)])
def test_no_tensor_grows_with_the_square_of_the_length(reach: Reach) -> None:
    largest = []
    for tokens in (256, 512):
        q, k, v = (torch.randn(1, 1, tokens, 8, requires_grad=True) for _ in range(3))
        with Largest() as seen:
            attend(q, k, v, mask([tokens]), reach).sum().backward()
        largest.append(seen.elements)
    assert largest[1] <= 2 * largest[0] <= 2 * 256 * 8


def test_a_sequence_shorter_than_a_chunk_and_its_window_takes_one_product() -> None:
    assert Reach("window", 8, 64).pairs(CHUNK + 16) == (CHUNK + 16) ** 2
    assert Reach("window", 8, 64).pairs(CHUNK + 17) < (CHUNK + 17) ** 2
