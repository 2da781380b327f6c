"""GEM: one model over all surfaces and all tasks, a stack of Kunlun layers between tokens and heads.

Legend: B batch, T sequence tokens, N set tokens, P pooled tokens, D width, K tasks, E activations for the compressor.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from foundation.aggregate_expert import AggregatePaths
from foundation.batch import GemBatch
from foundation.compressor import Compressor
from foundation.config import LATER, GemConfig
from foundation.domains import DomainExperts
from foundation.factorisation import pair_products
from foundation.first_order import FirstOrder
from foundation.kunlun import KunlunLayer, Stream, summaries
from foundation.layout import InputLayout
from foundation.tokens import Tokens
from foundation.towers import TowerInput


@dataclass(frozen=True)
class GemOutput:
    """logits_BK of each task given its parent's positive label; activations_BE, without a gradient: what the compressor
    reads, by `GemConfig.extraction`.

    By default all that the deep logits are made of: the head's first hidden layer, which still holds the inputs and
    already their crosses (LoopFM, 2605.29280, "Hidden-0"), and the pair products that bypass it, where the model has
    them. members_MBK, with an expert of the aggregates: logits of the deep model and of each of the expert's members,
    which learn apart.
    """

    logits_BK: Tensor
    activations_BE: Tensor
    members_MBK: Tensor | None = None


class Gem(nn.Module):
    """Tokens -> Kunlun layers -> a head over [set tokens; last sequence summary] and, where the configuration has them,
    an expert per surface. Beside them first-order terms, a factorisation machine over the raw set tokens, an expert or
    an additive model of the aggregates, and the compressor."""

    def __init__(self, layout: InputLayout, config: GemConfig) -> None:
        super().__init__()
        schema, dim = layout.schema, config.dim
        tasks = len(schema.tasks)
        self.config = config
        self._wanted = config.extracted
        self.tokens = Tokens(layout, config)
        self.towers = nn.ModuleList(TowerInput(config, tower, schema) for tower in config.towers)
        self.layers = nn.ModuleList(
            KunlunLayer(config, number=number, set_tokens=self.tokens.tokens) for number in range(config.layers)
        )
        flat, hidden = (self.tokens.tokens + config.summary_width) * dim, config.head_hidden
        self.first = _hidden(flat, hidden[0])
        self.rest = nn.Sequential(
            *[nn.Sequential(nn.Dropout(config.dropout), _hidden(before, after)) for before, after in pairwise(hidden)],
            nn.Dropout(config.dropout),
            nn.Linear(hidden[-1], tasks),
        )
        self.pair_logits = None
        if config.pair_products:
            self.pair_logits = nn.Linear(dim, tasks, bias=False)
            nn.init.normal_(self.pair_logits.weight, std=0.1)
        self.first_order = FirstOrder(layout) if config.first_order else None
        head = hidden[0] + (dim if config.pair_products else 0)
        self.compressor = Compressor(head, aligned=config.aligned)
        self.domains = None
        if config.domain_experts:
            self.domains = DomainExperts(hidden[0], len(schema.surfaces), config.domain_experts, tasks)
        self.aggregates = AggregatePaths(config, tasks) if config.aggregates else None
        if self._wanted != LATER["extraction"]:  # drawn last, so that all other weights start as they do without
            width = sum(activation_widths(config, set_tokens=self.tokens.tokens, tasks=tasks).values())
            self.compressor = Compressor(width, hidden=head, aligned=config.aligned)

    def forward(self, batch: GemBatch, *, user_dropout: float = 0.0, ad_dropout: float = 0.0) -> GemOutput:
        """Logits and activations; the dropouts are shares of ids that read as unknown (training)."""
        if user_dropout or ad_dropout:
            batch = self.tokens.forget_ids(batch, user_share=user_dropout, ad_share=ad_dropout)
        s_BTD, x_BND = self.tokens(batch)
        first_x_BND, wanted, activations = x_BND, self._wanted, []
        if "embedding" in wanted:
            activations.append(x_BND.flatten(1))
        streams = [Stream(*tower(s_BTD, batch)) for tower in self.towers]
        for number, layer in enumerate(self.layers):
            streams, x_BND = layer(streams, x_BND)
            if f"hidden-{number}" in wanted:
                activations += [x_BND.mean(dim=1), summaries(streams).mean(dim=1)]
        hidden_BE = self.first(torch.cat([x_BND, summaries(streams)], dim=1).flatten(1))
        logits_BK, head = self.rest(hidden_BE), [hidden_BE]
        if self.pair_logits is not None:
            head.append(pair_products(first_x_BND))
            logits_BK = logits_BK + self.pair_logits(head[1])
        if "head" in wanted:
            activations += head
        if self.first_order is not None:
            logits_BK = logits_BK + self.first_order(batch.set_codes_BC, batch.set_floats_BG)
        if self.domains is not None:
            logits_BK = logits_BK + self.domains(hidden_BE, batch.surface_B)
        members_MBK = None
        if self.aggregates is not None:
            logits_BK, members_MBK = self.aggregates(logits_BK, batch.aggregates_BA)
        if "score" in wanted:
            activations.append(logits_BK)
        return GemOutput(logits_BK, torch.cat([part.detach() for part in activations], dim=1), members_MBK)

    def auxiliary_loss(self, output: GemOutput) -> Tensor:
        """The compressor's loss, to be added to that of the tasks; it updates its running statistics."""
        return self.compressor.loss(output.activations_BE)


def activation_widths(config: GemConfig, *, set_tokens: int, tasks: int) -> dict[str, int]:
    """Width of each of the activations that the compressor reads, from shallow to deep.

    A layer's tokens are averaged, set tokens and summary apart: flattened, those of `large_model` are 26,000 numbers a
    layer on KuaiRand and 160,000 of six, averaged 768 a layer at any number of tokens. The inner width of the
    compressor is the head's whatever it reads, so its cost is linear in the sum, and sets are compared at one capacity.
    """
    widths = dict.fromkeys(config.extracted, 2 * config.dim)
    parts = {
        "embedding": set_tokens * config.dim,
        "head": config.head_hidden[0] + (config.dim if config.pair_products else 0),
        "score": tasks,
    }
    return widths | {name: width for name, width in parts.items() if name in widths}


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Set the weights; InputError when they belong to another version of the model."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            "the checkpoint's weights do not fit this version of GEM; train it again with foundation.train"
        ) from error


def _hidden(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(before, after), nn.GELU(approximate="tanh"))
