"""GEM: one model over all surfaces and all tasks, a stack of Kunlun layers between tokens and heads.

Legend: B batch, T sequence tokens, N set tokens, P pooled tokens, D width, K tasks, E activations for the compressor.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from foundation.batch import GemBatch
from foundation.compressor import Compressor
from foundation.config import GemConfig
from foundation.factorisation import pair_products
from foundation.first_order import FirstOrder
from foundation.kunlun import KunlunLayer, SequenceGeometry
from foundation.layout import InputLayout
from foundation.rote import log_age
from foundation.tokens import Tokens


@dataclass(frozen=True)
class GemOutput:
    """logits_BK of each task given its parent's positive label; activations_BE: all that the logits are made of.

    These are the head's first hidden layer, which still holds the inputs and already their crosses (LoopFM 1.1,
    "Hidden-0"), and the pair products that bypass it.
    """

    logits_BK: Tensor
    activations_BE: Tensor


class Gem(nn.Module):
    """Tokens -> Kunlun layers -> a head over [set tokens; last sequence summary]. Beside them first-order terms, a
    factorisation machine over the raw set tokens, and the compressor."""

    def __init__(self, layout: InputLayout, config: GemConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = Tokens(layout, config)
        self.layers = nn.ModuleList(
            KunlunLayer(config, set_tokens=self.tokens.tokens, last=number == config.layers - 1)
            for number in range(config.layers)
        )
        tasks, flat = len(layout.schema.tasks), (self.tokens.tokens + config.pooled_tokens) * config.dim
        self.first = _hidden(flat, config.head_hidden[0])
        self.rest = nn.Sequential(
            *[
                nn.Sequential(nn.Dropout(config.dropout), _hidden(before, after))
                for before, after in pairwise(config.head_hidden)
            ],
            nn.Dropout(config.dropout),
            nn.Linear(config.head_hidden[-1], tasks),
        )
        self.pair_logits = nn.Linear(config.dim, tasks, bias=False)
        nn.init.normal_(self.pair_logits.weight, std=0.1)
        self.first_order = FirstOrder(layout)
        self.compressor = Compressor(config.head_hidden[0] + config.dim)

    def forward(self, batch: GemBatch, *, user_dropout: float = 0.0, ad_dropout: float = 0.0) -> GemOutput:
        """Logits and activations; the dropouts are shares of ids that read as unknown (training)."""
        if user_dropout or ad_dropout:
            batch = self.tokens.forget_ids(batch, user_share=user_dropout, ad_share=ad_dropout)
        s_BTD, x_BND = self.tokens(batch)
        pairs_BD = pair_products(x_BND)
        geometry = SequenceGeometry.of(batch.mask_BT, log_age(batch.age_s_BT, batch.timed_BT), self.config)
        h_BPD = s_BTD
        for layer in self.layers:
            s_BTD, x_BND, h_BPD = layer(s_BTD, x_BND, geometry)
        hidden_BE = self.first(torch.cat([x_BND, h_BPD], dim=1).flatten(1))
        logits_BK = self.rest(hidden_BE) + self.pair_logits(pairs_BD)
        logits_BK = logits_BK + self.first_order(batch.set_codes_BC, batch.set_floats_BG)
        return GemOutput(logits_BK, torch.cat([hidden_BE, pairs_BD], dim=1))


def load_weights(model: Gem, weights: dict[str, Tensor]) -> None:
    """Set the weights; InputError when they belong to another version of the model."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            "the checkpoint's weights do not fit this version of GEM; train it again with foundation.train"
        ) from error


def _hidden(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(before, after), nn.GELU(approximate="tanh"))
