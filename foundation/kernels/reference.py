"""What GDPA means, in plain loops: the oracle that every back end is judged by. Slow, in float32 or float64."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from foundation.kernels.activations import ACTIVATIONS, per_head
from foundation.kernels.spans import check_shapes, examples


def gdpa_reference(
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
) -> Tensor:
    """The arguments and the result of `gdpa`, computed an example and a head at a time.

    Inputs of less than 32 bits are computed, and returned, in float32.
    """
    check_shapes(q, k, v, offsets, kv_offsets, kv_lengths, window)
    outputs = []
    for q_THd, k_FHd, v_FHd in _each(q, k, v, offsets, kv_offsets, kv_lengths):
        distance_TF = (torch.arange(len(q_THd))[:, None] - torch.arange(len(k_FHd))).abs().to(q.device)
        heads = []
        for head, name in enumerate(per_head(activation, q.shape[-2])):
            weights_TF = ACTIVATIONS[name](pre_scale * (q_THd[:, head] @ k_FHd[:, head].T))
            if window is not None:
                weights_TF = torch.where(distance_TF <= window, weights_TF, 0.0)
            heads.append(post_scale * (weights_TF @ v_FHd[:, head]))
        outputs.append(torch.stack(heads, dim=1))
    return _joined(outputs, q, offsets)


def block_diagonal_ffn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor | None = None,
    activation: str | Sequence[str] = "gelu",
    pre_scale: float = 1.0,
) -> Tensor:
    """One FFN per example, W1 = pre_scale * diag_h(K_h^T) [H d, H F] and W2 = diag_h(V_h) [H F, H d], built in full.

    This is what "personalised FFN" means, and what GDPA computes without the zeros. Arguments as in `gdpa`.
    """
    outputs = []
    for q_THd, k_FHd, v_FHd in _each(q, k, v, offsets, None, None):
        heads = q_THd.shape[1]
        first = pre_scale * torch.block_diag(*[k_FHd[:, head].T for head in range(heads)])
        second = torch.block_diag(*[v_FHd[:, head] for head in range(heads)])
        parts = (q_THd.flatten(1) @ first).chunk(heads, dim=1)
        names = per_head(activation, heads)
        hidden = torch.cat([ACTIVATIONS[name](part) for name, part in zip(names, parts, strict=True)], dim=1)
        outputs.append((hidden @ second).reshape(q_THd.shape))
    return _joined(outputs, q, offsets)


def _each(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor | None, kv_offsets: Tensor | None, kv_lengths: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """q [T, H, d], k and v [F, H, d] of each example, in float32 or float64."""
    q, k, v = (tensor.float() if tensor.dtype.itemsize < 4 else tensor for tensor in (q, k, v))
    batch = examples(q, k, offsets, kv_offsets)
    for b in range(batch):
        q_THd = q[b if len(q) == batch else 0] if offsets is None else q[int(offsets[b]) : int(offsets[b + 1])]
        if kv_offsets is not None:
            rows = slice(int(kv_offsets[b]), int(kv_offsets[b + 1]))
            yield q_THd, k[rows], v[rows]
        else:
            length = None if kv_lengths is None else int(kv_lengths[b])
            rows = slice(b * (len(k) // batch), (b + 1) * (len(k) // batch))
            k_FHd, v_FHd = (dense[b] if dense.dim() == 4 else dense[rows] for dense in (k, v))
            yield q_THd, k_FHd[:length], v_FHd[:length]


def _joined(outputs: list[Tensor], q: Tensor, offsets: Tensor | None) -> Tensor:
    if not outputs:
        return q[:0]
    return torch.stack(outputs) if offsets is None else torch.cat(outputs)
