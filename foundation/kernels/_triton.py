"""GDPA by the fused kernels of `_triton_kernels.py`: layouts in, one launch a kind of head, gradients out.

Legend: B examples, T query tokens, F key/value rows, H heads, d head width (D rounded up to a power of two).
Heads with different activations are launched apart, so that each kernel is compiled for one. Tile sizes follow from
the shapes and the device, not from a timing run: the same call gives the same bits. Launches are operators of torch, so
that its FLOP counter sees them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from foundation.kernels import _triton_kernels as kernels
from foundation.kernels.spans import Spans, examples, key_spans, query_spans

PROGRAMS = 1024
"""Programs to aim for in the forward pass, some eight for each of an H200's 132 processors: below it Q is split."""
SHARED_BYTES = 99 * 1024
"""Shared memory of a block on SM86, the smallest of SM80 and later; what the interpreter takes as well."""
ACCUMULATED = 8192
"""Most elements of a tile of K in the backward pass (half of it in float32): beyond, ptxas spills its gradients."""


def gdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor | None,
    activation: Sequence[str],
    pre_scale: float,
    post_scale: float,
    window: int | None,
    *,
    kv_offsets: Tensor | None,
    kv_lengths: Tensor | None,
) -> Tensor:
    """The arguments of `gdpa.gdpa`, checked, with one activation a head."""
    if not q.is_cuda and not triton.knobs.runtime.interpret:
        raise ValueError("the Triton back end needs CUDA tensors, or TRITON_INTERPRET=1 set before Python starts")
    batch = examples(q, k, offsets, kv_offsets)
    call = _Call(
        queries=query_spans(q, offsets, batch),
        keys=key_spans(k, kv_offsets, kv_lengths, batch),
        activation=tuple(activation),
        pre_scale=pre_scale,
        post_scale=post_scale,
        window=window,
        shared=offsets is None and len(q) != batch,
    )
    flat = [tensor.flatten(0, 1) if tensor.dim() == 4 else tensor for tensor in (q, k, v)]
    out: Tensor = _Gdpa.apply(*flat, call)
    return out if offsets is not None else out.unflatten(0, (batch, q.shape[1]))


@dataclass(frozen=True)
class _Call:
    """Everything but the tensors; `shared`: one set of queries serves every example."""

    queries: Spans
    keys: Spans
    activation: tuple[str, ...]
    pre_scale: float
    post_scale: float
    window: int | None
    shared: bool

    @property
    def batch(self) -> int:
        return len(self.queries.start_B)

    def outputs(self) -> tuple[Tensor, int | None]:
        """(first output row of each example, number of output rows; None: as many as there are queries)."""
        if not self.shared:
            return self.queries.start_B, None
        rows = self.queries.longest
        return torch.arange(self.batch, device=self.queries.start_B.device) * rows, self.batch * rows

    def groups(self) -> list[tuple[str, Tensor]]:
        """The heads of each activation, int32."""
        names = sorted(set(self.activation))
        members = [[head for head, its in enumerate(self.activation) if its == name] for name in names]
        device = self.keys.start_B.device
        return [
            (name, torch.tensor(m, dtype=torch.int32, device=device)) for name, m in zip(names, members, strict=True)
        ]

    def bounds(self) -> Tensor:
        """Start and length of queries and keys, int64 [4 B]."""
        return torch.cat([self.queries.start_B, self.queries.length_B, self.keys.start_B, self.keys.length_B])

    def sizes(self) -> tuple[int, int, int | None, float, float]:
        """(queries, keys, window, pre-scale, post-scale), the last arguments of the operators."""
        return self.queries.longest, self.keys.longest, self.window, float(self.pre_scale), float(self.post_scale)


class _Gdpa(torch.autograd.Function):
    """Flat tensors [rows, H, d] and their `_Call` -> flat output."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: _Call) -> Tensor:
        q, k, v = (_dense_rows(tensor) for tensor in (q, k, v))
        ctx.save_for_backward(q, k, v)
        ctx.call = call
        starts_B, rows = call.outputs()
        out = q.new_zeros(len(q) if rows is None else rows, *q.shape[1:])
        if not out.numel():
            return out
        bounds = call.bounds()
        for name, heads in call.groups():
            _forward(q, k, v, out, bounds, starts_B, heads, name, *call.sizes())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (q, k, v), call = ctx.saved_tensors, ctx.call
        g = _dense_rows(g)
        starts_B, _ = call.outputs()
        dq, dk, dv = (torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in (g, k, v))
        if g.numel() and k.numel():
            bounds = call.bounds()
            for name, heads in call.groups():
                _backward(q, k, v, g, dq, dk, dv, bounds, starts_B, heads, name, *call.sizes())
        if call.shared:
            dq = dq.unflatten(0, (call.batch, len(q))).sum(dim=0)
        return dq, dk, dv, None


@torch.library.custom_op("gem::gdpa", mutates_args=("out",))
def _forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, bounds: Tensor, starts_B: Tensor, heads: Tensor, activation: str,
    queries: int, keys: int, window: int | None, pre_scale: float, post_scale: float,
) -> None:  # fmt: skip
    """Writes these heads of `out`."""
    meta = _meta(q, queries, keys, window, backward=False)
    pairs = len(starts_B) * len(heads)
    splits = min(triton.cdiv(queries, meta["TILE_T"]), triton.cdiv(PROGRAMS, pairs))
    with torch.cuda.device_of(q):
        kernels.forward_kernel[(pairs * splits,)](
            q, k, v, out, bounds, starts_B, heads, len(starts_B), len(heads), splits, pre_scale, post_scale,
            window or 0, *_strides(q, k, v, out), ACT=activation, RESIDENT=keys <= meta["TILE_F"], **meta,
        )  # fmt: skip


@torch.library.custom_op("gem::gdpa_backward", mutates_args=("dq", "dk", "dv"))
def _backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, bounds: Tensor, starts_B: Tensor,
    heads: Tensor, activation: str, queries: int, keys: int, window: int | None, pre_scale: float, post_scale: float,
) -> None:  # fmt: skip
    """Writes these heads of the gradients, that of the queries for each example apart."""
    meta = _meta(q, queries, keys, window, backward=True)
    blocks_T, blocks_F = triton.cdiv(queries, meta["TILE_T"]), triton.cdiv(keys, meta["TILE_F"])
    pairs = len(starts_B) * len(heads)
    shared, scalars = (bounds, starts_B, heads, len(starts_B), len(heads)), (pre_scale, post_scale, window or 0)
    with torch.cuda.device_of(q):
        kernels.backward_kv_kernel[(pairs * blocks_F,)](
            q, k, v, g, dq, dk, dv, *shared, blocks_F, *scalars, *_strides(q, k, v, g, dq, dk),
            ACT=activation, WITH_DQ=blocks_F == 1, **meta,
        )  # fmt: skip
        if blocks_F > 1:
            kernels.backward_q_kernel[(pairs * blocks_T,)](
                q, k, v, g, dq, *shared, blocks_T, *scalars, *_strides(q, k, v, g, dq), ACT=activation, **meta,
            )  # fmt: skip


@register_flop_formula(torch.ops.gem.gdpa)
def _forward_flops(
    q: list[int], k: list[int], v: list[int], out: list[int], bounds: list[int], starts_B: list[int], heads: list[int],
    activation: str, queries: int, keys: int, window: int | None, *_: Any, **__: Any,
) -> int:  # fmt: skip
    """Scores and weighted values, padding included as in the eager products; of a window the band alone."""
    seen = keys if window is None else min(keys, 2 * window + 1)
    return 4 * starts_B[0] * heads[0] * queries * seen * q[-1]


@register_flop_formula(torch.ops.gem.gdpa_backward)
def _backward_flops(
    q: list[int], k: list[int], v: list[int], g: list[int], dq: list[int], dk: list[int], dv: list[int], *rest: Any,
    **__: Any,
) -> int:  # fmt: skip
    """Four products, as the eager backward pass has them; that the scores are made again is not counted."""
    return 2 * _forward_flops(q, k, v, g, *rest)


def _dense_rows(x: Tensor) -> Tensor:
    """The kernels read the last axis as dense; rows and heads may have any stride."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _meta(q: Tensor, queries: int, keys: int, window: int | None, *, backward: bool) -> dict[str, Any]:
    """What the kernels are compiled for."""
    shared = SHARED_BYTES
    if q.is_cuda:
        shared = triton.runtime.driver.active.utils.get_device_properties(q.device.index)["max_shared_mem"]
    width, size = q.shape[-1], q.dtype.itemsize
    # tf32x3: three passes on the tensor cores, as exact as float32; plain float32 products spill badly and crawl
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "WINDOWED": window is not None,
        "PRECISION": "tf32x3" if exact else "tf32",
        "WIDTH": width,
        **tiles(width, size, queries, keys, shared_bytes=shared, backward=backward),
    }


def tiles(width: int, itemsize: int, queries: int, keys: int, *, shared_bytes: int, backward: bool) -> dict[str, int]:
    """Tile sizes (powers of two, 16 at least, as tl.dot asks) whose operands fit into a block's shared memory.

    Streamed tiles count twice, since the next one loads meanwhile, and float32 twice, for the halves of tf32x3; the
    counts were checked against what the compiler takes for SM80 and SM90. Heads of up to 512 bytes fit everywhere.
    """
    wide = _power(width)
    tile_t = min(64 if itemsize <= 2 and wide <= 128 else 32, _power(queries))
    tile_f = min(128, _power(keys))
    size = itemsize if itemsize <= 2 else 2 * itemsize
    accumulated = ACCUMULATED * 2 // max(itemsize, 2)
    while max(tile_t, tile_f) > 16:
        rows = 2 * tile_f + 4 * tile_t if backward else 2 * tile_f + 2 * tile_t
        if keys > tile_f:  # K and V are streamed too, in the forward pass and for dQ
            rows = max(rows, 4 * tile_f + (2 if backward else 1) * tile_t)
        scores = (2 if backward else 1) * tile_t * tile_f
        if size * (rows * wide + scores) <= shared_bytes and not (backward and tile_f * wide > accumulated):
            break
        if tile_f >= tile_t or (backward and tile_f * wide > accumulated):
            tile_f //= 2
        else:
            tile_t //= 2
    warps = 8 if tile_f * wide >= 4096 * 4 // max(itemsize, 2) else 4
    return {"D": wide, "TILE_T": tile_t, "TILE_F": tile_f, "num_warps": warps, "num_stages": 2}


def _power(rows: int) -> int:
    return int(max(triton.next_power_of_2(rows), 16))
