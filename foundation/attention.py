"""Self attention of the sequence: full, within a sliding window, or in blocks aligned to its start.

Legend: B batch, T tokens, D model width, H heads, d head width, Q queries and C keys of a chunk. Kunlun 1.6: within a
window token t attends |i - t| <= w, in both directions; every event precedes the request, so nothing of the future is
seen. Blocks follow Meta's block attention: each sees itself alone, the last one is shorter. Window and blocks cost time
and memory linear in T: there is no T x T mask; `masked_attention` is the reference of all three.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.config import Attention
from foundation.rote import TimeEncoding, rotated

CHUNK = 16
"""Least queries that share one slice of keys: a chunk reads w keys on either side beyond what each query needs."""


@dataclass(frozen=True)
class Reach:
    """Who sees whom: `attention` names the kind, `window` (tokens to either side) or `block` is its size."""

    attention: Attention
    window: int
    block: int

    def pairs(self, tokens: int) -> int:
        """Query-key pairs that `attend` computes for T tokens, 4 D FLOPs each; those that a chunk masks are counted."""
        if self.attention == "block":
            return tokens // self.block * self.block**2 + (tokens % self.block) ** 2
        if self.attention == "full" or self._short(tokens):
            return tokens**2
        spans = _chunks(tokens, self.window)
        return sum((query.stop - query.start) * (key.stop - key.start) for query, key in spans)

    def visible(self, tokens: int, device: torch.device | None = None) -> Tensor:
        """The same as a mask, bool [T, T]: for the reference, and for sequences shorter than a chunk and its window."""
        rank = torch.arange(tokens, device=device)
        if self.attention == "full":
            return torch.ones(tokens, tokens, dtype=torch.bool, device=device)
        if self.attention == "block":
            return rank[:, None] // self.block == rank // self.block
        return (rank[:, None] - rank).abs() <= self.window

    def _short(self, tokens: int) -> bool:
        return self.attention == "window" and tokens <= _step(self.window) + 2 * self.window


def masked_attention(q_BHTd: Tensor, k_BHTd: Tensor, v_BHTd: Tensor, mask_BT: Tensor, reach: Reach) -> Tensor:
    """Reference of `attend`, same arguments: softmax attention with a mask over all pairs of tokens."""
    tokens = mask_BT.shape[1]
    itself_TT = torch.eye(tokens, dtype=torch.bool, device=mask_BT.device)
    visible_BTT = (reach.visible(tokens, mask_BT.device) & mask_BT[:, None, :]) | itself_TT
    return functional.scaled_dot_product_attention(q_BHTd, k_BHTd, v_BHTd, attn_mask=visible_BTT[:, None])


def attend(q_BHTd: Tensor, k_BHTd: Tensor, v_BHTd: Tensor, mask_BT: Tensor, reach: Reach) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V over the keys that a query may see: [B, H, T, d].

    Padding is never a key for a real token; what a padded query yields is finite and read by nobody.
    """
    if reach.attention == "full":
        return functional.scaled_dot_product_attention(q_BHTd, k_BHTd, v_BHTd, attn_mask=mask_BT[:, None, None, :])
    if reach.attention == "block":
        return _in_blocks(q_BHTd, k_BHTd, v_BHTd, mask_BT, reach.block)
    if reach._short(mask_BT.shape[1]):
        return masked_attention(q_BHTd, k_BHTd, v_BHTd, mask_BT, reach)
    windowed: Tensor = WindowedAttention.apply(q_BHTd, k_BHTd, v_BHTd, mask_BT, reach.window)
    return windowed


def _in_blocks(q_BHTd: Tensor, k_BHTd: Tensor, v_BHTd: Tensor, mask_BT: Tensor, block: int) -> Tensor:
    """Attention within disjoint blocks, the last of which holds what is left."""
    whole = mask_BT.shape[1] // block * block
    parts = []
    for start, stop, width in ((0, whole, block), (whole, mask_BT.shape[1], mask_BT.shape[1] - whole)):
        if start == stop:
            continue
        # blocks become examples: [B, H, n width, d] -> [B n, H, width, d]
        q, k, v = (
            x[:, :, start:stop].unflatten(2, (-1, width)).transpose(1, 2).flatten(0, 1)
            for x in (q_BHTd, k_BHTd, v_BHTd)
        )
        mask = mask_BT[:, start:stop].unflatten(1, (-1, width)).flatten(0, 1)
        mask = mask | ~mask.any(dim=1, keepdim=True)  # a block of padding sees itself: softmax over nothing is NaN
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        parts.append(seen.unflatten(0, (len(mask_BT), -1)).transpose(1, 2).flatten(2, 3))
    return torch.cat(parts, dim=2)


def _step(window: int) -> int:
    # a sixth of the window: the keys that a chunk reads in vain stay below a twelfth
    return max(CHUNK, window // 6)


def _chunks(tokens: int, window: int) -> Iterator[tuple[slice, slice]]:
    """Queries, and the keys that at least one of them may see."""
    step = _step(window)
    for start in range(0, tokens, step):
        stop = min(start + step, tokens)
        yield slice(start, stop), slice(max(0, start - window), min(tokens, stop + window))


class WindowedAttention(torch.autograd.Function):
    """Attention within |i - t| <= w, chunk by chunk; backward computes the weights again.

    Autograd through the chunks would fill a gradient of all T keys for each of them, which is quadratic, or keep
    copies of overlapping keys.
    """

    @staticmethod
    def forward(ctx: Any, q_BHTd: Tensor, k_BHTd: Tensor, v_BHTd: Tensor, mask_BT: Tensor, window: int) -> Tensor:
        q_BHTd = q_BHTd * q_BHTd.shape[3] ** -0.5
        ctx.save_for_backward(q_BHTd, k_BHTd, v_BHTd, mask_BT)
        ctx.window = window
        seen = [
            _weights(q_BHTd, k_BHTd, mask_BT, query, key, window).to(v_BHTd.dtype) @ v_BHTd[:, :, key]
            for query, key in _chunks(mask_BT.shape[1], window)
        ]
        return torch.cat(seen, dim=2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_BHTd, k_BHTd, v_BHTd, mask_BT = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q_BHTd, k_BHTd, v_BHTd))
        for query, key in _chunks(mask_BT.shape[1], ctx.window):
            weights_BHQC = _weights(q_BHTd, k_BHTd, mask_BT, query, key, ctx.window)
            towards_BHQd = grads[0][:, :, query]
            grad_v[:, :, key] += weights_BHQC.to(v_BHTd.dtype).transpose(2, 3) @ towards_BHQd
            by_weight_BHQC = (towards_BHQd @ v_BHTd[:, :, key].transpose(2, 3)).to(weights_BHQC.dtype)
            by_score_BHQC = torch.ops.aten._softmax_backward_data(by_weight_BHQC, weights_BHQC, 3, weights_BHQC.dtype)
            by_score_BHQC = by_score_BHQC.to(q_BHTd.dtype)
            grad_q[:, :, query] = by_score_BHQC @ k_BHTd[:, :, key]
            grad_k[:, :, key] += by_score_BHQC.transpose(2, 3) @ q_BHTd[:, :, query]
        return grad_q * q_BHTd.shape[3] ** -0.5, grad_k, grad_v, None, None


def _weights(q_BHTd: Tensor, k_BHTd: Tensor, mask_BT: Tensor, query: slice, key: slice, window: int) -> Tensor:
    """Softmax weights of a chunk, at least float32 [B, H, Q, C]; zero where a key is hidden. A query sees itself."""
    rank_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    distance_QC = (rank_T[query, None] - rank_T[key]).abs()
    hidden_BQC = (distance_QC > window) | (~mask_BT[:, None, key] & (distance_QC != 0))
    scores_BHQC = q_BHTd[:, :, query] @ k_BHTd[:, :, key].transpose(2, 3)
    scores_BHQC = scores_BHQC.masked_fill_(hidden_BQC[:, None], -torch.inf)
    return scores_BHQC.softmax(dim=3, dtype=torch.promote_types(scores_BHQC.dtype, torch.float32))


class SelfAttention(nn.Module):
    """Pre-norm multi-head self attention with residual; queries and keys carry rank and age by rotation."""

    def __init__(self, *, dim: int, heads: int, reach: Reach, time: TimeEncoding) -> None:
        super().__init__()
        self.heads, self.reach, self.time = heads, reach, time
        self.norm = nn.RMSNorm(dim, elementwise_affine=False)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, p_BTD: Tensor, mask_BT: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """p [B, T, D], mask of the real tokens, table of `rote.rotary_table` -> [B, T, D]."""
        q, k, v = self.qkv(self.norm(p_BTD)).unflatten(2, (3, self.heads, -1)).unbind(2)
        turned = rotated(q, k, v, rotary, self.time)
        # the table is float32: under autocast the products are to stay in the lower precision
        q, k, v = (x.to(v.dtype).transpose(1, 2) for x in turned)
        seen_BHTd = attend(q, k, v, mask_BT, self.reach)
        return p_BTD + self.out(seen_BHTd.transpose(1, 2).flatten(2))
