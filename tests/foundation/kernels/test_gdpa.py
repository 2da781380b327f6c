"""One operator: the per-example FFN with block-diagonal weights, without the zeros, and its other instances."""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import foundation.kernels
from foundation.kernels import ACTIVATIONS, block_diagonal_ffn, gdpa, gdpa_reference

SHAPES = [(1, 1, 1, 1, 2), (2, 5, 3, 1, 4), (3, 7, 8, 4, 2), (4, 31, 17, 3, 5), (2, 4, 1, 2, 3), (2, 6, 9, 3, 3)]
EMPTY = [(0, 5, 3, 2, 4), (2, 0, 3, 2, 4), (2, 5, 0, 2, 4), (0, 0, 0, 1, 1)]


def exact(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


# ---- the personalised FFN ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_block_diagonal_ffn(shape: tuple[int, ...], padded: Callable) -> None:
    q, k, v = padded(*shape)
    exact(gdpa(q, k, v), block_diagonal_ffn(q, k, v))
    exact(gdpa(q, k, v, pre_scale=0.2), block_diagonal_ffn(q, k, v, pre_scale=0.2))


def test_equals_the_block_diagonal_ffn_with_an_activation_per_head(padded: Callable) -> None:
    q, k, v = padded(2, 5, 6, 3, 4)
    acts = ("gelu", "silu", "relu")
    exact(gdpa(q, k, v, activation=acts), block_diagonal_ffn(q, k, v, activation=acts))


def test_equals_the_block_diagonal_ffn_on_jagged_queries(padded: Callable, offsets_of: Callable) -> None:
    offsets = offsets_of([3, 0, 5, 1])
    _, k, v = padded(4, 1, 6, 2, 3)
    q = torch.randn(9, 2, 3, dtype=torch.float64)
    expected = block_diagonal_ffn(q, k, v, offsets)
    exact(gdpa(q, k, v, offsets), expected)
    exact(gdpa(q, k.flatten(0, 1), v.flatten(0, 1), offsets), expected)


def test_gelu_is_the_tanh_form() -> None:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    inner = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
    exact(ACTIVATIONS["gelu"](x), 0.5 * x * (1 + torch.tanh(inner)))


def test_the_scales_stand_inside_and_behind_the_activation(padded: Callable) -> None:
    q, k, v = padded(2, 5, 6, 2, 4)
    scores = torch.einsum("bthd,bfhd->bhtf", q, k)
    inside = torch.einsum("bhtf,bfhd->bthd", ACTIVATIONS["gelu"](scores / 5), v)
    behind = torch.einsum("bhtf,bfhd->bthd", ACTIVATIONS["gelu"](scores) / 5, v)
    exact(gdpa(q, k, v, pre_scale=1 / 5), inside)
    exact(gdpa(q, k / 5, v), inside)
    exact(gdpa(q, k, v, post_scale=1 / 5), behind)
    exact(gdpa_reference(q, k, v, pre_scale=1 / 5), inside)
    exact(gdpa_reference(q, k, v, post_scale=1 / 5), behind)
    assert (inside - behind).abs().max() > 0.1


def test_tokens_do_not_see_each_other(padded: Callable) -> None:
    q, k, v = padded(2, 5, 4, 2, 4)
    changed = q.clone()
    changed[:, 3:] = 7.0
    exact(gdpa(changed, k, v)[:, :3], gdpa(q, k, v)[:, :3])


# ---- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_gradients_of_every_activation(activation: str, padded: Callable) -> None:
    tensors = tuple(tensor.requires_grad_() for tensor in padded(2, 3, 4, 2, 3))
    assert torch.autograd.gradcheck(lambda q, k, v: gdpa(q, k, v, None, activation, 0.5, 2.0), tensors)


def test_gradients_within_a_window_on_jagged_sequences(offsets_of: Callable) -> None:
    offsets = offsets_of([20, 0, 3])
    tensors = tuple(torch.randn(23, 1, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(
        lambda q, k, v: gdpa(q, k, v, offsets, ("silu",), 0.7, 0.1, 2, kv_offsets=offsets), tensors
    )


def test_gradients_equal_those_of_the_block_diagonal_ffn(padded: Callable) -> None:
    q, k, v = tensors = tuple(tensor.requires_grad_() for tensor in padded(2, 5, 3, 2, 4))
    ours = torch.autograd.grad(gdpa(q, k, v).square().sum(), tensors)
    for own, expected in zip(
        ours, torch.autograd.grad(block_diagonal_ffn(q, k, v).square().sum(), tensors), strict=True
    ):
        exact(own, expected)


# ---- padded, jagged, empty --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 45), max_size=5),
    heads=st.integers(1, 3),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    window=st.sampled_from([None, 0, 1, 5, 40, 1000]),
)
def test_jagged_equals_padded_equals_the_reference(
    lengths: list[int], heads: int, activation: str, window: int | None
) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    q, k, v = (torch.randn(sum(lengths), heads, 3, dtype=torch.float64) for _ in range(3))
    jagged = gdpa(q, k, v, offsets, activation, 0.5, 0.1, window, kv_offsets=offsets)
    exact(jagged, gdpa_reference(q, k, v, offsets, activation, 0.5, 0.1, window, kv_offsets=offsets))
    longest = max(lengths, default=0)
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    dense = [torch.full((len(lengths), longest, heads, 3), 9.0, dtype=torch.float64) for _ in range(3)]
    for whole, part in zip(dense, (q, k, v), strict=True):
        whole[real] = part
    padded = gdpa(*dense, None, activation, 0.5, 0.1, window, kv_lengths=torch.tensor(lengths, dtype=torch.int64))
    exact(padded[real], jagged)


@pytest.mark.parametrize("shape", EMPTY)
@pytest.mark.parametrize("window", [None, 1])
def test_nothing_in_gives_nothing_or_zeros_with_gradients(
    shape: tuple[int, ...], window: int | None, padded: Callable
) -> None:
    q, k, v = tensors = tuple(tensor.requires_grad_() for tensor in padded(*shape))
    out = gdpa(q, k, v, window=window)
    assert out.shape == q.shape
    assert not out.any()
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), tensors))
    exact(gdpa_reference(q, k, v, window=window), out)


@pytest.mark.parametrize("width", [0, 1, 4, 30])
def test_a_window_reaches_as_far_to_either_side(width: int, padded: Callable) -> None:
    q, k, v = padded(2, 33, 33, 2, 3)
    distance = (torch.arange(33)[:, None] - torch.arange(33)).abs()
    weights = torch.sigmoid(torch.einsum("bthd,bfhd->bhtf", q, k)) * (distance <= width)
    expected = torch.einsum("bhtf,bfhd->bthd", weights, v)
    exact(gdpa(q, k, v, activation="sigmoid", window=width), expected)
    exact(gdpa_reference(q, k, v, activation="sigmoid", window=width), expected)


@pytest.mark.parametrize(("tokens", "rows"), [(40, 7), (7, 40), (33, 50)])
def test_a_window_between_sequences_of_unlike_length(tokens: int, rows: int, padded: Callable) -> None:
    q, k, v = padded(2, tokens, rows, 2, 3)
    exact(gdpa(q, k, v, window=3), gdpa_reference(q, k, v, window=3))


def test_the_cost_of_a_window_is_linear_in_the_length(padded: Callable) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def flops(tokens: int) -> int:
        with FlopCounterMode(display=False) as counter:
            gdpa(*padded(1, tokens, tokens, 1, 4), window=32)
        return counter.get_total_flops()

    assert flops(1024) == 2 * flops(512)
    assert flops(1024) <= 1.25 * 4 * 1024 * (2 * 32 + 1) * 4


def test_garbage_beyond_the_length_never_counts(padded: Callable) -> None:
    q, k, v = tensors = padded(2, 5, 6, 2, 3)
    lengths = torch.tensor([4, 0])
    spoilt = [tensor.clone() for tensor in (k, v)]
    for tensor in spoilt:
        tensor[0, 4:] = torch.nan
        tensor[1] = torch.inf
    out = gdpa(q, *spoilt, activation="sigmoid", kv_lengths=lengths)
    exact(out, gdpa_reference(*tensors, activation="sigmoid", kv_lengths=lengths))
    assert not out[1].any()


# ---- the other instances ----------------------------------------------------------------------------------------


def test_pooling_without_softmax_shares_its_seeds(padded: Callable) -> None:
    _, k, v = padded(3, 1, 7, 2, 4)
    seeds = torch.randn(1, 5, 2, 4, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([7, 2, 4])
    real = torch.arange(7) < lengths[:, None]
    expected = torch.einsum("shd,bfhd,bf,bfhe->bshe", seeds[0], k, real.double(), v) / 7
    pooled = gdpa(seeds, k, v, activation="raw", post_scale=1 / 7, kv_lengths=lengths)
    exact(pooled, expected)
    (ours,) = torch.autograd.grad(pooled.square().sum(), seeds)
    (theirs,) = torch.autograd.grad(expected.square().sum(), seeds)
    exact(ours, theirs)


def test_hstu_attention_by_its_formula(padded: Callable) -> None:
    q, k, v = padded(2, 6, 6, 2, 4)
    expected = torch.einsum("bhtf,bfhd->bthd", functional.silu(torch.einsum("bthd,bfhd->bhtf", q, k) / 2) / 50, v)
    exact(gdpa(q, k, v, activation="silu", pre_scale=4**-0.5, post_scale=1 / 50), expected)


# ---- the interface ----------------------------------------------------------------------------------------------


def test_the_reference_has_the_signature_of_the_operator() -> None:
    public, reference = (dict(inspect.signature(op).parameters) for op in (gdpa, gdpa_reference))
    del public["backend"]
    assert list(public.values()) == list(reference.values())


def test_a_low_precision_reference_is_computed_in_float32(padded: Callable) -> None:
    q, k, v = padded(1, 3, 4, 1, 2, dtype=torch.bfloat16)
    assert gdpa_reference(q, k, v).dtype == torch.float32
    assert gdpa(q, k, v).dtype == torch.bfloat16


def test_autocast_lowers_the_precision_as_it_does_for_products(padded: Callable) -> None:
    q, k, v = padded(1, 3, 4, 1, 2, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = gdpa(q, k.bfloat16(), v)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "softmax"}, "no activation 'softmax'"),
        ({"activation": ("gelu", "relu", "raw")}, "3 activations for 2 heads"),
        ({"q": torch.ones(3, 2, 4)}, "q has 3 axes"),
        ({"q": torch.ones(3, 5, 2, 4)}, "q holds 3 examples"),
        ({"q": torch.ones(2, 5, 1, 4)}, "heads and width differ"),
        ({"q": torch.ones(2, 5, 2, 4).double()}, "one dtype"),
        ({"v": torch.ones(2, 5, 2, 4)}, "one shape"),
        ({"window": -1}, "window must be 0 or more"),
        ({"kv_lengths": torch.ones(3)}, "kv_lengths"),
        ({"q": torch.ones(5, 2, 4), "offsets": torch.tensor([0, 3, 6])}, "from 0 to 5"),
        ({"q": torch.ones(5, 2, 4), "offsets": torch.tensor([0, 6, 5])}, "never fall"),
        ({"q": torch.ones(5, 2, 4), "offsets": torch.tensor([0, 5])}, "must hold 1 examples"),
    ],
)
def test_what_does_not_fit_is_named(change: dict, message: str) -> None:
    arguments = {"q": torch.ones(2, 5, 2, 4), "k": torch.ones(2, 6, 2, 4), "v": torch.ones(2, 6, 2, 4), **change}
    with pytest.raises(ValueError, match=message):
        gdpa(**arguments)


def test_the_kernels_import_torch_triton_and_numpy_alone() -> None:
    allowed = {"torch", "triton", "numpy", "collections", "dataclasses", "importlib", "math", "typing"}
    for path in Path(foundation.kernels.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            own = [name for name in names if name.startswith("foundation.kernels")]
            assert {name.split(".")[0] for name in names if name not in own} <= allowed, path
