"""Generalised dot-product attention: softmax(QK^T)V with any activation in place of the softmax.

Legend: B batch, T query tokens, F key/value length (the hidden width of the personalised FFN), H heads, d head width.
Kunlun, figure 1: GDPA_h(Q, K, V) = act_h(Q K^T / tau) V. As in Meta's public kernels the operator has no scale of its
own: whoever generates K folds 1/tau into it (docs/adr/0006), which is the same mathematics.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

Activation = Callable[[Tensor], Tensor]


def gelu(scores: Tensor) -> Tensor:
    """GELU by its tanh form, the default of Meta's kernels (`fast_gelu`)."""
    return functional.gelu(scores, approximate="tanh")


def gdpa(q_BTHd: Tensor, k_BFHd: Tensor, v_BFHd: Tensor, activations: Sequence[Activation] = (gelu,)) -> Tensor:
    """act_h(Q_h K_h^T) V_h for every example and head: [B, T, H, d].

    `activations` holds one function for all heads or one per head. A padded query token yields a value that nobody
    reads; tokens do not see each other, so no mask is needed.
    """
    scores_BHTF = q_BTHd.transpose(1, 2) @ k_BFHd.permute(0, 2, 3, 1)
    if len(activations) == 1:
        weights_BHTF = activations[0](scores_BHTF)
    else:
        heads = [act(scores_BHTF[:, head]) for head, act in enumerate(activations)]
        weights_BHTF = torch.stack(heads, dim=1)
    return (weights_BHTF @ v_BFHd.transpose(1, 2)).transpose(1, 2)


def block_diagonal_ffn(
    q_BTHd: Tensor, k_BFHd: Tensor, v_BFHd: Tensor, activations: Sequence[Activation] = (gelu,)
) -> Tensor:
    """The reference of `gdpa`, same arguments: one FFN per example, W1 = diag_h(K_h^T), W2 = diag_h(V_h).

    W1 is [H d, H F] and W2 [H F, H d], both block-diagonal, built in full: this is what "per-example FFN" means and
    what GDPA computes without the zeros.
    """
    batch, tokens, heads, width = q_BTHd.shape
    acts = list(activations) * (heads if len(activations) == 1 else 1)
    outputs = []
    for b in range(batch):
        first = torch.block_diag(*[k_BFHd[b, :, head].T for head in range(heads)])
        second = torch.block_diag(*[v_BFHd[b, :, head] for head in range(heads)])
        hidden = q_BTHd[b].reshape(tokens, heads * width) @ first
        hidden = torch.cat([act(part) for act, part in zip(acts, hidden.chunk(heads, dim=1), strict=True)], dim=1)
        outputs.append((hidden @ second).reshape(tokens, heads, width))
    return torch.stack(outputs)
