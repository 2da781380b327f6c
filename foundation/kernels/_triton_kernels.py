# mypy: allow-untyped-defs
"""The Triton kernels of GDPA, for few keys and many queries (SM80 and later); `_triton.py` launches them.

Legend: T query tokens, F key/value rows, d head width (D rounded up to a power of two); TILE_T, TILE_F rows at a time.
A program owns one example and one head. Forward: it keeps K and V on chip and streams Q past them; more keys than one
tile are read tile by tile. Backward: it keeps a tile of K, V and their gradients and streams Q and dO; where one tile
holds all keys, dQ falls out of the same pass, else a second kernel makes it (no atomics: the sums have a fixed order).
The scores never reach memory; backward computes them again.

Rows beyond an example load as zeros. A zero row of V, dO, K or Q adds nothing to any of the sums, whatever act(0) is,
so only the window masks the weights, after the activation. Own work; the idea of the short-KV variant is that of
Meta's ads_model_kernel_library, whose kernels run on SM100 alone.
"""

import triton
import triton.language as tl


@triton.jit
def _activate(s, ACT: tl.constexpr):
    """act(s); the tanh form of GELU is s * sigmoid(2 u), since tanh(u) = 2 sigmoid(2 u) - 1."""
    a = s
    if ACT == "gelu":
        a = s * tl.sigmoid(1.5957691216057308 * (s + 0.044715 * s * s * s))
    elif ACT == "silu":
        a = s * tl.sigmoid(s)
    elif ACT == "relu":
        a = tl.maximum(s, 0.0)
    elif ACT == "squared_relu":
        a = tl.maximum(s, 0.0) * tl.maximum(s, 0.0)
    elif ACT == "sigmoid":
        a = tl.sigmoid(s)
    else:
        tl.static_assert(ACT == "raw")
    return a


@triton.jit
def _slope(s, ACT: tl.constexpr):
    """act'(s)."""
    slope = tl.full(s.shape, 1.0, tl.float32)
    if ACT == "gelu":
        gate = tl.sigmoid(1.5957691216057308 * (s + 0.044715 * s * s * s))
        slope = gate + s * gate * (1.0 - gate) * 1.5957691216057308 * (1.0 + 0.134145 * s * s)
    elif ACT == "silu":
        gate = tl.sigmoid(s)
        slope = gate + s * gate * (1.0 - gate)
    elif ACT == "relu":
        slope = tl.where(s > 0.0, 1.0, 0.0)
    elif ACT == "squared_relu":
        slope = 2.0 * tl.maximum(s, 0.0)
    elif ACT == "sigmoid":
        gate = tl.sigmoid(s)
        slope = gate * (1.0 - gate)
    return slope


@triton.jit
def _rows(base, rows, length, stride, WIDTH: tl.constexpr, D: tl.constexpr):
    """Rows [rows, D] of a tensor whose last axis is dense; zeros beyond the example and beyond the width."""
    columns = tl.arange(0, D)
    inside = (rows[:, None] < length) & (columns[None, :] < WIDTH)
    return tl.load(base + rows[:, None].to(tl.int64) * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _store(base, rows, length, stride, values, WIDTH: tl.constexpr, D: tl.constexpr):
    columns = tl.arange(0, D)
    inside = (rows[:, None] < length) & (columns[None, :] < WIDTH)
    target = base + rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(target, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _example(program, starts_lengths, heads, batch, count):
    """(head, first query row, queries, first key row, keys) of a program that owns an example and a head."""
    b = program // count
    head = tl.load(heads + program % count)
    q_start, q_length = tl.load(starts_lengths + b), tl.load(starts_lengths + batch + b)
    f_start, f_length = tl.load(starts_lengths + 2 * batch + b), tl.load(starts_lengths + 3 * batch + b)
    return head, q_start, q_length, f_start, f_length


@triton.jit
def forward_kernel(
    q, k, v, out, starts_lengths, out_starts, heads, batch, count, splits, pre, post, window,
    q_row, q_head, k_row, k_head, v_row, v_head, o_row, o_head,
    ACT: tl.constexpr, WINDOWED: tl.constexpr, RESIDENT: tl.constexpr, PRECISION: tl.constexpr,
    WIDTH: tl.constexpr, D: tl.constexpr, TILE_T: tl.constexpr, TILE_F: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    head, q_start, q_length, f_start, f_length = _example(program // splits, starts_lengths, heads, batch, count)
    q += q_start * q_row + head * q_head
    k += f_start * k_row + head * k_head
    v += f_start * v_row + head * v_head
    out += tl.load(out_starts + program // splits // count) * o_row + head * o_head
    ranks_F = tl.arange(0, TILE_F)
    if RESIDENT:
        k_FD = _rows(k, ranks_F, f_length, k_row, WIDTH, D)
        v_FD = _rows(v, ranks_F, f_length, v_row, WIDTH, D)
    for first in range((program % splits) * TILE_T, q_length, splits * TILE_T):
        ranks_T = first + tl.arange(0, TILE_T)
        q_TD = _rows(q, ranks_T, q_length, q_row, WIDTH, D)
        total_TD = tl.zeros([TILE_T, D], dtype=tl.float32)
        if RESIDENT:
            weights_TF = _activate(tl.dot(q_TD, tl.trans(k_FD), input_precision=PRECISION) * pre, ACT)
            if WINDOWED:
                weights_TF = tl.where(tl.abs(ranks_T[:, None] - ranks_F[None, :]) <= window, weights_TF, 0.0)
            total_TD = tl.dot(weights_TF.to(v_FD.dtype), v_FD, total_TD, input_precision=PRECISION)
        else:
            low, high = 0 * f_length, f_length
            if WINDOWED:
                low = tl.maximum(first - window, 0) // TILE_F * TILE_F
                high = tl.minimum(first + TILE_T + window, f_length)
            for start in range(low, high, TILE_F):
                near_F = start + ranks_F
                k_FD = _rows(k, near_F, f_length, k_row, WIDTH, D)
                v_FD = _rows(v, near_F, f_length, v_row, WIDTH, D)
                weights_TF = _activate(tl.dot(q_TD, tl.trans(k_FD), input_precision=PRECISION) * pre, ACT)
                if WINDOWED:
                    weights_TF = tl.where(tl.abs(ranks_T[:, None] - near_F[None, :]) <= window, weights_TF, 0.0)
                total_TD = tl.dot(weights_TF.to(v_FD.dtype), v_FD, total_TD, input_precision=PRECISION)
        _store(out, ranks_T, q_length, o_row, total_TD * post, WIDTH, D)


@triton.jit
def _score_gradient(
    q_TD, k_FD, v_FD, g_TD, ranks_T, ranks_F, pre, window, ACT: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """(weights, gradient of the scaled scores), both [T, F] float32, for the output's gradient without post."""
    s_TF = tl.dot(q_TD, tl.trans(k_FD), input_precision=PRECISION) * pre
    weights_TF = _activate(s_TF, ACT)
    g_TF = tl.dot(g_TD, tl.trans(v_FD), input_precision=PRECISION) * _slope(s_TF, ACT)
    if WINDOWED:
        near_TF = tl.abs(ranks_T[:, None] - ranks_F[None, :]) <= window
        weights_TF = tl.where(near_TF, weights_TF, 0.0)
        g_TF = tl.where(near_TF, g_TF, 0.0)
    return weights_TF, g_TF


@triton.jit
def backward_kv_kernel(
    q, k, v, g, dq, dk, dv, starts_lengths, out_starts, heads, batch, count, tiles, pre, post, window,
    q_row, q_head, k_row, k_head, v_row, v_head, g_row, g_head, dq_row, dq_head, dk_row, dk_head,
    ACT: tl.constexpr, WINDOWED: tl.constexpr, WITH_DQ: tl.constexpr, PRECISION: tl.constexpr,
    WIDTH: tl.constexpr, D: tl.constexpr, TILE_T: tl.constexpr, TILE_F: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    head, q_start, q_length, f_start, f_length = _example(program // tiles, starts_lengths, heads, batch, count)
    out_start = tl.load(out_starts + program // tiles // count)
    q += q_start * q_row + head * q_head
    k += f_start * k_row + head * k_head
    v += f_start * v_row + head * v_head
    g += out_start * g_row + head * g_head
    dq += out_start * dq_row + head * dq_head
    dk += f_start * dk_row + head * dk_head
    dv += f_start * dk_row + head * dk_head
    first_F = (program % tiles) * TILE_F
    ranks_F = first_F + tl.arange(0, TILE_F)
    k_FD = _rows(k, ranks_F, f_length, k_row, WIDTH, D)
    v_FD = _rows(v, ranks_F, f_length, v_row, WIDTH, D)
    dk_FD = tl.zeros([TILE_F, D], dtype=tl.float32)
    dv_FD = tl.zeros([TILE_F, D], dtype=tl.float32)
    low, high = 0 * q_length, q_length
    if WINDOWED and not WITH_DQ:  # with dq every query must be visited, to write its zeros
        low = tl.maximum(first_F - window, 0) // TILE_T * TILE_T
        high = tl.minimum(first_F + TILE_F + window, q_length)
    for first in range(low, high, TILE_T):
        ranks_T = first + tl.arange(0, TILE_T)
        q_TD = _rows(q, ranks_T, q_length, q_row, WIDTH, D)
        g_TD = _rows(g, ranks_T, q_length, g_row, WIDTH, D)
        weights_TF, g_TF = _score_gradient(
            q_TD, k_FD, v_FD, g_TD, ranks_T, ranks_F, pre, window, ACT, WINDOWED, PRECISION
        )
        dv_FD = tl.dot(tl.trans(weights_TF.to(g_TD.dtype)), g_TD, dv_FD, input_precision=PRECISION)
        g_TF = g_TF.to(q_TD.dtype)
        dk_FD = tl.dot(tl.trans(g_TF), q_TD, dk_FD, input_precision=PRECISION)
        if WITH_DQ:
            dq_TD = tl.dot(g_TF, k_FD, input_precision=PRECISION)
            _store(dq, ranks_T, q_length, dq_row, dq_TD * (pre * post), WIDTH, D)
    _store(dk, ranks_F, f_length, dk_row, dk_FD * (pre * post), WIDTH, D)
    _store(dv, ranks_F, f_length, dk_row, dv_FD * post, WIDTH, D)


@triton.jit
def backward_q_kernel(
    q, k, v, g, dq, starts_lengths, out_starts, heads, batch, count, tiles, pre, post, window,
    q_row, q_head, k_row, k_head, v_row, v_head, g_row, g_head, dq_row, dq_head,
    ACT: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
    WIDTH: tl.constexpr, D: tl.constexpr, TILE_T: tl.constexpr, TILE_F: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    head, q_start, q_length, f_start, f_length = _example(program // tiles, starts_lengths, heads, batch, count)
    out_start = tl.load(out_starts + program // tiles // count)
    q += q_start * q_row + head * q_head
    k += f_start * k_row + head * k_head
    v += f_start * v_row + head * v_head
    g += out_start * g_row + head * g_head
    dq += out_start * dq_row + head * dq_head
    first = (program % tiles) * TILE_T
    ranks_T = first + tl.arange(0, TILE_T)
    q_TD = _rows(q, ranks_T, q_length, q_row, WIDTH, D)
    g_TD = _rows(g, ranks_T, q_length, g_row, WIDTH, D)
    dq_TD = tl.zeros([TILE_T, D], dtype=tl.float32)
    low, high = 0 * f_length, f_length
    if WINDOWED:
        low = tl.maximum(first - window, 0) // TILE_F * TILE_F
        high = tl.minimum(first + TILE_T + window, f_length)
    for start in range(low, high, TILE_F):
        ranks_F = start + tl.arange(0, TILE_F)
        k_FD = _rows(k, ranks_F, f_length, k_row, WIDTH, D)
        v_FD = _rows(v, ranks_F, f_length, v_row, WIDTH, D)
        _, g_TF = _score_gradient(q_TD, k_FD, v_FD, g_TD, ranks_T, ranks_F, pre, window, ACT, WINDOWED, PRECISION)
        dq_TD = tl.dot(g_TF.to(k_FD.dtype), k_FD, dq_TD, input_precision=PRECISION)
    _store(dq, ranks_T, q_length, dq_row, dq_TD * (pre * post), WIDTH, D)
