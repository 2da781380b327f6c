"""HSTU attention: SiLU in place of the softmax, one over the maximum length after it, and a gate per channel.

Legend: B batch, T tokens, D model width, H heads, d head width, n blocks of C tokens. Source: HSTU (2402.17152) and its
public code (`generative_recommenders`): U, V, Q, K = SiLU(W norm(x)); A = SiLU(Q K^T / sqrt(d)) / N;
out = x + W_o(norm(A V) * U). The scale 1/sqrt(d) is that of the code, not of the paper. Its relative position and time
bias is replaced by the rotary embedding that softmax attention has here; the norms have no affine, as in the research
code.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.attention import Reach
from foundation.kernels import gdpa
from foundation.rote import TimeEncoding, rotated


class HstuAttention(nn.Module):
    """The same place and call as `attention.SelfAttention`; `max_length` is N, configured and not the batch's."""

    def __init__(self, *, dim: int, heads: int, reach: Reach, time: TimeEncoding, max_length: int) -> None:
        super().__init__()
        self.heads, self.reach, self.time, self.max_length = heads, reach, time, max_length
        self.norm_in = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm_out = nn.LayerNorm(dim, elementwise_affine=False)
        self.uvqk = nn.Linear(dim, 4 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, p_BTD: Tensor, mask_BT: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """p [B, T, D], mask of the real tokens (padding on the right), table of `rote.rotary_table` -> [B, T, D]."""
        projected = functional.silu(self.uvqk(self.norm_in(p_BTD)))
        u, v, q, k = projected.unflatten(2, (4, self.heads, -1)).unbind(2)
        q, k, v = (x.to(u.dtype) for x in rotated(q, k, v, rotary, self.time))  # the table is float32
        seen_BTHd = self._attend(q, k, v, mask_BT.sum(dim=1))
        return p_BTD + self.out(self.norm_out(seen_BTHd.flatten(2)) * u.flatten(2))

    def _attend(self, q_BTHd: Tensor, k_BTHd: Tensor, v_BTHd: Tensor, length_B: Tensor) -> Tensor:
        tokens = q_BTHd.shape[1]
        window = self.reach.window if self.reach.attention == "window" else None
        if self.reach.attention == "block":  # blocks become examples, the last one padded
            block = self.reach.block
            blocks = -(-tokens // block)
            first_n = torch.arange(blocks, device=length_B.device) * block
            length_B = (length_B[:, None] - first_n).clamp(0, block).flatten()
            behind = (0, 0, 0, 0, 0, blocks * block - tokens)
            q_BTHd, k_BTHd, v_BTHd = (
                functional.pad(x, behind).unflatten(1, (blocks, block)).flatten(0, 1) for x in (q_BTHd, k_BTHd, v_BTHd)
            )
        seen = gdpa(
            q_BTHd,
            k_BTHd,
            v_BTHd,
            activation="silu",
            pre_scale=q_BTHd.shape[-1] ** -0.5,
            post_scale=1 / self.max_length,
            window=window,
            kv_lengths=length_B,
        )
        if self.reach.attention == "block":
            seen = seen.unflatten(0, (-1, blocks)).flatten(1, 2)[:, :tokens]
        return seen
