"""DHEN of dot products and a low-rank cross: formulas, number of tokens."""

import torch

from foundation.baselines.configs import InterFormerConfig
from foundation.baselines.interaction_arch import DotProducts, InteractionArch, LowRankCross

CONFIG = InterFormerConfig(dim=4, dot_rank=3, cross_rank=2, interaction_hidden=8)


def test_dot_products_are_those_of_all_pairs_compressed() -> None:
    dot, x = DotProducts(CONFIG, tokens=5, slots=2), torch.randn(2, 5, 4)
    pairs = torch.einsum("bid,bjd,rj->bir", x, x, dot.compress.weight)
    torch.testing.assert_close(dot(x), dot.mlp(dot.norm(pairs.flatten(1))).unflatten(1, (2, 4)))


def test_the_cross_is_dcn_of_low_rank() -> None:
    cross, x = LowRankCross(CONFIG, tokens=3, slots=3), torch.randn(2, 3, 4)
    flat = x.flatten(1)
    weight = cross.up.weight @ cross.down.weight
    crossed = (flat * (flat @ weight.T + cross.up.bias) + flat).unflatten(1, (3, 4))
    torch.testing.assert_close(cross(x), torch.einsum("sj,bjd->bsd", cross.compress.weight, crossed) + _tokens(cross))


def test_as_many_set_tokens_leave_as_enter() -> None:
    for tokens in (4, 7):
        arch = InteractionArch(CONFIG, set_tokens=tokens, summary_tokens=3)
        assert arch(torch.randn(2, tokens, 4), torch.randn(2, 3, 4)).shape == (2, tokens, 4)


def _tokens(cross: LowRankCross) -> torch.Tensor:
    return cross.compress.bias[:, None]
