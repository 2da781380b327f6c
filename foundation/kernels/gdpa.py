"""Generalised dot-product attention: softmax(Q K^T) V with any activation in place of the softmax.

Legend: B examples, T query tokens, F key/value rows, H heads, d head width. Source: Kunlun (2602.10016), figure 1:
GDPA_h(Q, K, V) = act_h(Q K^T / tau) V. The paper scales inside the activation, Meta's public kernels after it, HSTU
after it by 1/N: both scales are arguments, since they are not the same function.

Instances: the personalised FFN (K, V are an example's two weight matrices, F its hidden width: `foundation/pffn.py`),
HSTU attention (K, V from the sequence, SiLU, 1/N after: `foundation/hstu.py`), pooling without softmax (one set of
seeds as Q for every example, K, V from the sequence).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from foundation.kernels import _eager
from foundation.kernels.activations import per_head
from foundation.kernels.spans import check_shapes

Backend = Literal["eager", "triton"]

WIDEST_BYTES = 512
"""Widest head of which the fused kernel's smallest tiles fit on any device of SM80 and later."""


def gdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor | None = None,
    activation: str | Sequence[str] = "gelu",
    pre_scale: float = 1.0,
    post_scale: float = 1.0,
    window: int | None = None,
    *,
    kv_offsets: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """out[t] = post_scale * sum_f act_h(pre_scale * q[t] . k[f]) v[f], for every example and head: the shape of `q`.

    Queries: padded [B, T, H, d], or jagged [total, H, d] with `offsets` [B + 1] (int, from 0 to total). One padded set
    [1, T, H, d] serves every example; the result is then [B, T, H, d].
    Keys and values: dense [B, F, H, d] or [B * F, H, d], or jagged [total, H, d] with `kv_offsets`. Dense rows from
    `kv_lengths` [B] on count as absent.
    `activation` is a name in ACTIVATIONS, for all heads or one a head. `window` w keeps the pairs |t - f| <= w of ranks
    within an example. A pair outside the window or beyond the example contributes nothing, whatever act(0) is.
    A padded query yields a value that nobody should read.

    Under autocast the three are cast as a matrix product would cast them. `backend` None means Triton for CUDA tensors
    that it takes, where triton is installed, else eager; eager is also the unfused baseline of the fused kernel.
    Raises ValueError for shapes, names or offsets that do not fit.
    """
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = (tensor.to(torch.get_autocast_dtype(q.device.type)) for tensor in (q, k, v))
    check_shapes(q, k, v, offsets, kv_offsets, kv_lengths, window)
    activations = per_head(activation, q.shape[-2])
    fits = q.dtype.itemsize <= 4 and q.shape[-1] * q.dtype.itemsize <= WIDEST_BYTES
    if backend == "triton" and not fits:
        raise ValueError(f"the fused kernel takes heads of up to {WIDEST_BYTES} bytes and no float64: use 'eager'")
    if backend is None:
        backend = "triton" if q.is_cuda and fits and find_spec("triton") is not None else "eager"
    if backend == "eager":
        run = _eager.gdpa
    else:
        from foundation.kernels import _triton  # here, not above: a CPU installation has no triton

        run = _triton.gdpa
    return run(
        q, k, v, offsets, activations, pre_scale, post_scale, window, kv_offsets=kv_offsets, kv_lengths=kv_lengths
    )
