"""Second-order interactions of the raw set tokens, for a shallow path to the logits.

Legend: B batch, N set tokens, D width. The factorisation machine of Rendle (2010), beside a deep model as in DeepFM
(1703.04247). Wukong blocks reach the same pairs only through norms and MLPs, which one pass over little data does not
teach them (docs/log.md has what this path brought).
"""

from torch import Tensor


def pair_products(x_BND: Tensor) -> Tensor:
    """Sum over pairs i < j of x_i * x_j, in time linear in N: [B, D]. Tokens carry biases: first order is included."""
    return (x_BND.sum(dim=1).square() - x_BND.square().sum(dim=1)) / 2
