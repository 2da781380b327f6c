"""Models of a given compute: one rule per family derives everything from a width, and a search finds the width.

The number of layers follows from the target, the same for all families; the history's length is common.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from foundation.baselines.configs import InterFormerConfig, WukongConfig
from foundation.batch import GemBatch
from foundation.config import GemConfig
from foundation.flops import count_flops
from foundation.layout import InputLayout
from foundation.models import build

HISTORY_LENGTH = 32
WIDTHS = (4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320)
LAYERS = {1e5: 2, 3.2e5: 2, 1e6: 2, 3.2e6: 3, 1e7: 4}
"""Depth at each target: it grows with compute, as all three papers scale it. Two layers at least: a stack's last
layer has no reader for its attention, so that one layer would have none."""


@dataclass(frozen=True)
class Sized:
    """A model near a target: its config, counted forward FLOPs per example, width and layers."""

    config: Any
    target: float
    flops: float
    width: int
    layers: int

    def described(self) -> dict[str, int]:
        return {"width": self.width, "layers": self.layers}


def _heads(width: int) -> int:
    return 1 if width < 64 else 2 if width < 128 else 4


def _embedding(width: int) -> int:
    return 8 if width <= 16 else 16


def kunlun(width: int, layers: int) -> GemConfig:
    """Close to the ratios of `GemConfig.from_depth`: F a third of the width, two thirds of it seeds, an expert per two
    layers. Without the factorisation machine on raw tokens, which the other families do not have."""
    pooled = max(2, round(width / 12))
    return GemConfig(
        dim=width,
        heads=_heads(width),
        layers=layers,
        embedding_dim=_embedding(width),
        history_length=HISTORY_LENGTH,
        pffn_hidden=max(8, round(width / 24) * 8),
        summary_tokens=max(4, round(width / 24)),
        seeds=8 * pooled,
        pooled_tokens=pooled,
        kron_rank=max(2, pooled // 4),
        window=8,
        pair_products=False,
        experts=1 + layers // 2,
        fm_rank=max(4, width // 4),
        fm_hidden=4 * width,
        head_hidden=(4 * width, 2 * width),
    )


def interformer(width: int, layers: int) -> InterFormerConfig:
    """The paper's token counts (CLS 4, PMA 2, recent 2); ranks and hidden layers grow with the width."""
    return InterFormerConfig(
        dim=width,
        heads=_heads(width),
        layers=layers,
        embedding_dim=_embedding(width),
        history_length=HISTORY_LENGTH,
        dot_rank=max(4, width // 4),
        cross_rank=max(4, width // 2),
        interaction_hidden=2 * width,
        mask_hidden=width,
        head_hidden=(4 * width, 2 * width),
        dropout=0.0,
    )


def wukong(width: int, layers: int) -> WukongConfig:
    """Layers of 16 + 16 tokens as the paper's middle sizes; rank and hidden layer grow with the width."""
    return WukongConfig(
        dim=width,
        heads=_heads(width),
        layers=layers,
        embedding_dim=_embedding(width),
        history_length=HISTORY_LENGTH,
        fm_rank=max(4, width // 4),
        fm_hidden=4 * width,
        head_hidden=(4 * width, 2 * width),
        dropout=0.0,
    )


FAMILIES: dict[str, Callable[[int, int], Any]] = {"Kunlun": kunlun, "InterFormer": interformer, "Wukong": wukong}


def _counted(family: str, width: int, layers: int, layout: InputLayout, batch: GemBatch) -> tuple[Any, float]:
    config = FAMILIES[family](width, layers)
    torch.manual_seed(0)
    return config, count_flops(build(layout, config).eval(), batch) / len(batch.mask_BT)


def sized(family: str, target: float, layout: InputLayout, batch: GemBatch) -> Sized:
    """The family's member whose counted FLOPs at full history lie nearest to the target; `batch` has full histories."""
    layers = LAYERS[target]
    best: Sized | None = None
    for width in WIDTHS:
        config, flops = _counted(family, width, layers, layout, batch)
        one = Sized(config, target, flops, width, layers)
        if best is None or abs(flops / target - 1) < abs(best.flops / target - 1):
            best = one
        if flops > 2 * target:
            break
    assert best is not None
    return best
