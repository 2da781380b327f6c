"""GDPA as batched matrix products: for any device and dtype, differentiated by autograd.

Legend: B examples, T query tokens, F key/value rows, H heads, d head width, N blocks of C queries, S = C + 2 w keys
that a block may see. Scales stand in the keys and values, which are fewer than the scores. An absent row is a row of
zeros: with a value of zero it adds nothing, whatever its activation is, so only the window needs a mask.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from foundation.kernels.activations import ACTIVATIONS
from foundation.kernels.spans import Spans, examples, key_spans, query_spans


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
    batch = examples(q, k, offsets, kv_offsets)
    keys = key_spans(k, kv_offsets, kv_lengths, batch)
    ragged = kv_offsets is not None or kv_lengths is not None
    k_BFHd, v_BFHd = (_padded(tensor, keys, batch, jagged=kv_offsets is not None) for tensor in (k, v))
    if ragged and kv_offsets is None:
        absent_BF = torch.arange(keys.longest, device=k.device) >= keys.length_B[:, None]
        k_BFHd, v_BFHd = (tensor.masked_fill(absent_BF[..., None, None], 0.0) for tensor in (k_BFHd, v_BFHd))
    k_BFHd = k_BFHd if pre_scale == 1.0 else k_BFHd * pre_scale
    v_BFHd = v_BFHd if post_scale == 1.0 else v_BFHd * post_scale
    if offsets is None:
        return _batched(q, k_BFHd, v_BFHd, activation, window)
    queries = query_spans(q, offsets, batch)
    out_BTHd = _batched(_padded(q, queries, batch, jagged=True), k_BFHd, v_BFHd, activation, window)
    return out_BTHd.flatten(0, 1).index_select(0, queries.slots())


def _padded(x: Tensor, spans: Spans, batch: int, *, jagged: bool) -> Tensor:
    """[B, longest, H, d], rows of zeros behind a jagged example."""
    if not jagged:
        return x if x.dim() == 4 else x.reshape(batch, spans.longest, *x.shape[1:])
    rows = x.new_zeros(batch * spans.longest, *x.shape[1:]).index_copy(0, spans.slots(), x)
    return rows.reshape(batch, spans.longest, *x.shape[1:])


def _batched(q_BTHd: Tensor, k_BFHd: Tensor, v_BFHd: Tensor, activation: Sequence[str], window: int | None) -> Tensor:
    tokens, rows = q_BTHd.shape[1], k_BFHd.shape[1]
    if window is not None and min(tokens, rows) > 0 and window < max(tokens, rows) - 1:
        return _windowed(q_BTHd, k_BFHd, v_BFHd, activation, window)
    weights_BHTF = _activated(q_BTHd.transpose(1, 2) @ k_BFHd.permute(0, 2, 3, 1), activation, axis=1)
    return (weights_BHTF @ v_BFHd.transpose(1, 2)).transpose(1, 2)


def _windowed(q_BTHd: Tensor, k_BFHd: Tensor, v_BFHd: Tensor, activation: Sequence[str], window: int) -> Tensor:
    """Blocks of C queries against their C + 2 w keys: linear in T, and 1.25 times the work of the band itself."""
    tokens = q_BTHd.shape[1]
    block = max(window // 2, 16)
    blocks = -(-tokens // block)
    q_BNCHd = functional.pad(q_BTHd, (0, 0, 0, 0, 0, blocks * block - tokens)).unflatten(1, (blocks, block))
    k_BNHdS, v_BNHdS = (_neighbours(tensor, window, block, blocks) for tensor in (k_BFHd, v_BFHd))
    weights_BNHCS = _activated(q_BNCHd.transpose(2, 3) @ k_BNHdS, activation, axis=2)
    # query c of a block has the rank of key c + w in the block's stretch of keys
    ahead_CS = (
        torch.arange(block + 2 * window, device=q_BTHd.device) - torch.arange(block, device=q_BTHd.device)[:, None]
    )
    weights_BNHCS = weights_BNHCS.masked_fill((ahead_CS < 0) | (ahead_CS > 2 * window), 0.0)
    out_BNHCd = weights_BNHCS @ v_BNHdS.transpose(3, 4)
    return out_BNHCd.transpose(2, 3).flatten(1, 2)[:, :tokens]


def _neighbours(x_BFHd: Tensor, window: int, block: int, blocks: int) -> Tensor:
    """The rows from w before to w behind each block of queries: [B, N, H, d, C + 2 w], zeros where there are none."""
    reach = blocks * block + window
    x_BFHd = x_BFHd[:, :reach]
    padded = functional.pad(x_BFHd, (0, 0, 0, 0, window, reach - x_BFHd.shape[1]))
    return padded.unfold(1, block + 2 * window, block)


def _activated(scores: Tensor, activation: Sequence[str], *, axis: int) -> Tensor:
    """Each head's activation; the heads lie on `axis`."""
    if len(set(activation)) <= 1:
        return ACTIVATIONS[activation[0]](scores) if activation else scores
    heads = [ACTIVATIONS[name](part) for name, part in zip(activation, scores.unbind(axis), strict=True)]
    return torch.stack(heads, dim=axis)
