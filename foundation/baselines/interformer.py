"""InterFormer (2411.09852): set and sequence learn from each other's summaries in every layer.

Legend: B batch, T sequence tokens, N set tokens, M summary tokens, S summary tokens of the sequence, D width, K tasks.
Grades: the arches, their order, the numbers of summary tokens and the head are the paper's; pre-norm and residuals of
the sequence, the multiplied gate and the low-rank forms of the interaction are choices where the paper prints none.
"""

import torch
from torch import Tensor, nn

from foundation.baselines.baseline import Baseline, tower
from foundation.baselines.configs import InterFormerConfig
from foundation.baselines.cross_arch import SequenceSummary, SetSummary
from foundation.baselines.interaction_arch import InteractionArch
from foundation.baselines.sequence_arch import MaskNet, SequenceArch
from foundation.layout import InputLayout


class InterFormerLayer(nn.Module):
    """Cross Arch first; the Interaction and the Sequence Arch then read the same layer's summaries, never each other.

    Summarising the Sequence Arch's new output instead is a common mistake of public code (paper, algorithm 1).
    """

    def __init__(self, config: InterFormerConfig, *, set_tokens: int) -> None:
        super().__init__()
        self.set_summary = SetSummary(config, tokens=set_tokens)
        self.sequence_summary = SequenceSummary(config)
        self.interaction = InteractionArch(config, set_tokens=set_tokens, summary_tokens=self.sequence_summary.tokens)
        self.sequence = SequenceArch(config)

    def forward(self, s_BTD: Tensor, x_BND: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """(s, x) of the next layer; s holds the CLS tokens in front."""
        x_sum_BMD, s_sum_BSD = self.set_summary(x_BND), self.sequence_summary(s_BTD, mask_BT)
        return self.sequence(s_BTD, x_sum_BMD, mask_BT), self.interaction(x_BND, s_sum_BSD)


class InterFormer(Baseline):
    """Tokens -> layers -> a head over the summaries of what the last layer left.

    The paper's head reads X_sum and S_sum of layer L, which layer L computes before its other arches run; here a
    last Cross Arch follows the layers, so that no arch computes in vain.
    """

    def __init__(self, layout: InputLayout, config: InterFormerConfig) -> None:
        super().__init__(layout, config)
        if config.mask_hidden:
            channels = self.tokens.event.in_features
            mask = MaskNet(channels, hidden=config.mask_hidden, dim=config.dim)
            self.tokens.event = mask  # type: ignore[assignment]  # in the place of the one linear map
        self.layers = nn.ModuleList(InterFormerLayer(config, set_tokens=self.set_tokens) for _ in range(config.layers))
        self.set_summary = SetSummary(config, tokens=self.set_tokens)
        self.sequence_summary = SequenceSummary(config)
        flat = (config.summary_tokens + self.sequence_summary.tokens) * config.dim
        self.head = tower(flat, config.head_hidden, len(layout.schema.tasks), dropout=config.dropout)

    def logits(self, s_BTD: Tensor, x_BND: Tensor, mask_BT: Tensor) -> Tensor:
        """Logits [B, K]."""
        first = self.layers[0]
        assert isinstance(first, InterFormerLayer)
        cls_BMD = first.set_summary(x_BND)  # the first layer's X_sum, prepended once
        s_BTD = torch.cat([cls_BMD, s_BTD], dim=1)
        mask_BT = torch.cat([mask_BT.new_ones(cls_BMD.shape[:2]), mask_BT], dim=1)
        for layer in self.layers:
            s_BTD, x_BND = layer(s_BTD, x_BND, mask_BT)
        summaries_BJD = torch.cat([self.set_summary(x_BND), self.sequence_summary(s_BTD, mask_BT)], dim=1)
        logits_BK: Tensor = self.head(summaries_BJD.flatten(1))
        return logits_BK
