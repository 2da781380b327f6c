"""The fused kernels against the reference; `test_triton.py` runs this file, in Triton's interpreter where no GPU is.

A result may differ from the reference (float64 on the same inputs) by twice what the eager back end differs in the same
dtype, plus a few roundings of its largest value.
"""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from foundation.kernels import ACTIVATIONS, gdpa, gdpa_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")
"""A sigmoid far below zero is 1 / (1 + inf) = 0, as on a GPU; only numpy, which interprets it, warns."""
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""Added to twice the plain error: some 16 roundings of float32 (tf32x3 is a little coarser), 2 of the short types."""


def operands(q: tuple[int, ...], kv: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(DEVICE, dtype).requires_grad_() for shape in (q, kv, kv)]


def judge(tensors: list[Tensor], **arguments: object) -> None:
    """Output and gradients of the fused kernels against the reference."""
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact = gdpa_reference(*wide, **arguments)
    towards = torch.randn_like(exact).to(tensors[0].dtype)
    expected = [exact, *torch.autograd.grad(exact, wide, towards.double(), allow_unused=True)]
    found = {}
    for backend in ("eager", "triton"):
        out = gdpa(*tensors, backend=backend, **arguments)
        assert out.dtype == tensors[0].dtype
        found[backend] = [out, *torch.autograd.grad(out, tensors, towards)]
    for truth, plain, fused in zip(expected, found["eager"], found["triton"], strict=True):
        if truth is None or not truth.numel():
            assert not fused.any()
            continue
        allowed = 2 * (plain.double() - truth).abs().max() + ROUNDING[fused.dtype] * truth.abs().max()
        assert (fused.double() - truth).abs().max() <= allowed


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation(activation: str) -> None:
    judge(operands((2, 9, 2, 5), (2, 6, 2, 5)), activation=activation, pre_scale=0.4, post_scale=0.3)


@pytest.mark.parametrize(
    ("q", "kv"),
    [
        ((1, 1, 1, 1), (1, 1, 1, 1)),
        ((2, 70, 3, 3), (2, 17, 3, 3)),  # two tiles of queries, one of keys
        ((1, 20, 1, 4), (1, 150, 1, 4)),  # two tiles of keys: dQ by a kernel of its own
    ],
)
def test_shapes(q: tuple[int, ...], kv: tuple[int, ...]) -> None:
    judge(operands(q, kv), pre_scale=0.4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types(dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("the interpreter of Triton 3.7 multiplies the bit patterns of bfloat16; a GPU runs this case")
    judge(operands((2, 19, 2, 8), (2, 12, 2, 8), dtype), pre_scale=0.4, activation=("gelu", "silu"))


def test_an_activation_per_head() -> None:
    judge(operands((2, 9, 3, 4), (2, 6, 3, 4)), activation=("silu", "sigmoid", "silu"), pre_scale=0.4)


def test_jagged_queries_on_dense_keys() -> None:
    offsets = torch.tensor([0, 3, 3, 20], device=DEVICE)
    judge(operands((20, 2, 3), (3, 5, 2, 3)), offsets=offsets)
    judge(operands((20, 2, 3), (15, 2, 3)), offsets=offsets)


@pytest.mark.parametrize("window", [None, 0, 4])
def test_self_attention_on_jagged_sequences(window: int | None) -> None:
    offsets = torch.tensor([0, 3, 3, 40], device=DEVICE)
    judge(
        operands((40, 1, 4), (40, 1, 4)),
        offsets=offsets,
        kv_offsets=offsets,
        activation="sigmoid",
        post_scale=0.1,
        window=window,
    )


def test_a_window_skips_the_tiles_out_of_reach() -> None:
    judge(operands((1, 200, 1, 2), (1, 200, 1, 2)), activation="sigmoid", window=9)


def test_padding_behind_the_lengths_never_counts() -> None:
    q, k, v = operands((2, 9, 1, 4), (2, 6, 1, 4))
    lengths = torch.tensor([4, 0], device=DEVICE)
    judge([q, k, v], activation="sigmoid", kv_lengths=lengths)
    with torch.no_grad():
        k[0, 4:], v[0, 4:] = torch.nan, torch.nan
    assert gdpa(q, k, v, activation="sigmoid", kv_lengths=lengths, backend="triton").isfinite().all()


def test_one_set_of_seeds_for_all_examples() -> None:
    judge(operands((1, 5, 2, 4), (3, 7, 2, 4)), activation="raw", post_scale=0.2)


@pytest.mark.parametrize(
    ("q", "kv"), [((0, 5, 1, 4), (0, 3, 1, 4)), ((2, 0, 1, 4), (2, 3, 1, 4)), ((2, 5, 1, 4), (2, 0, 1, 4))]
)
def test_nothing_in(q: tuple[int, ...], kv: tuple[int, ...]) -> None:
    judge(operands(q, kv))


def test_strided_operands_and_gradients() -> None:
    packed = torch.randn(2, 9, 3, 2, 4, device=DEVICE, requires_grad=True)
    offered = packed.unbind(2)
    out = gdpa(*offered, backend="triton")
    expected = gdpa_reference(*offered)
    (ours,) = torch.autograd.grad(out.sum(), packed)
    (theirs,) = torch.autograd.grad(expected.sum(), packed)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_same_call_gives_the_same_bits() -> None:
    tensors = operands((2, 70, 2, 4), (2, 17, 2, 4))
    runs = [torch.autograd.grad(gdpa(*tensors, backend="triton").sum(), tensors) for _ in range(2)]
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def counted(tensors: list[Tensor], **arguments: object) -> list[int]:
    """FLOPs of forward and backward pass by torch's counter."""
    with FlopCounterMode(display=False) as forward:
        total = gdpa(*tensors, **arguments).sum()
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad(total, tensors)
    return [forward.get_total_flops(), backward.get_total_flops()]


@pytest.mark.parametrize(
    ("q", "kv", "arguments"),
    [
        ((2, 9, 3, 5), (2, 6, 3, 5), {"activation": ("silu", "sigmoid", "silu")}),
        ((1, 20, 1, 4), (1, 150, 1, 4), {}),
        ((20, 2, 4), (3, 5, 2, 4), {"offsets": torch.tensor([0, 3, 3, 20], device=DEVICE)}),
        ((1, 5, 2, 4), (3, 7, 2, 4), {"activation": "raw"}),
    ],
)
def test_counts_as_the_eager_products(q: tuple[int, ...], kv: tuple[int, ...], arguments: dict[str, object]) -> None:
    tensors = operands(q, kv)
    eager, fused = (counted(tensors, backend=backend, **arguments) for backend in ("eager", "triton"))
    assert min(eager) > 0
    assert fused == eager


def test_a_window_counts_as_its_band() -> None:
    tensors = operands((1, 100, 1, 4), (1, 100, 1, 4))
    forward, backward = counted(tensors, backend="triton", window=9)
    assert forward == 4 * 100 * 19 * 4
    assert backward == 2 * forward
