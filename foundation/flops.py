"""What a forward pass costs, by formula and by torch's counter. Two FLOPs per multiply-add; matrix products alone.

Legend: T tokens of a sequence, N set tokens, J tokens that an expert sees, D width, F hidden width, R rank, h MLP. Per
example and layer, after a model of Kunlun's layer that readers of the paper use; (+) marks what that leaves out:

    WeightGen    2 N n_sum D + 4 n_sum F D          (+) gate and channel maps 6 n_sum D^2
    GDPA         4 T F D                            and 4 T D^2 with query and output projections
    attention    8 T D^2 + 4 c D                    c pairs of query and key; HSTU has 10 T D^2
    pooling      2 T D^2 keys + 2 T D^2 values + 4 n_seeds T D + k (2 n_tok n_seeds D + 2 n_tok D^2)
    interaction  M (4 J R D + 2 J R h + 2 h n_F D + 2 n_L J D)

c is what `attention.attend` computes: T^2, blocks, or, in a window, chunks that read some keys in vain ((2 w + 1) T are
seen). What happens once for a batch, as the queries of the seeds, is not counted.
"""

from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from foundation.aggregate_expert import AggregatePaths
from foundation.attention import Reach
from foundation.batch import GemBatch
from foundation.config import GemConfig, Tower
from foundation.gem import Gem
from foundation.kunlun import parts
from foundation.layout import InputLayout
from foundation.tokens import Tokens
from foundation.wukong import ATTENTIVE_TOKENS, split


@dataclass(frozen=True)
class LayerFlops:
    """FLOPs of one example in one layer, all towers together; 0 for a part that the layer does not have."""

    weight_gen: int
    pffn: int
    attention: int
    hsp: int
    interaction: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Flops:
    """FLOPs of one example's forward pass: `inputs` makes the tokens, `head` the logits; the compressor is left out,
    which no logit needs."""

    layers: tuple[LayerFlops, ...]
    inputs: int
    head: int

    @property
    def layers_total(self) -> int:
        """All layers: what CompSkip saves a share of."""
        return sum(layer.total for layer in self.layers)

    @property
    def total(self) -> int:
        return self.layers_total + self.inputs + self.head


def forward_flops(
    config: GemConfig, layout: InputLayout, length: int, *, tower_events: tuple[int, ...] | None = None
) -> Flops:
    """FLOPs of an example with `length` history events, at most `history_length` of which are read.

    `tower_events` says how many of them each tower of `personalisation` finds; otherwise all that its length allows.
    """
    events = min(length, config.history_length)
    with torch.device("meta"):
        tokens = Tokens(layout, config)
        paths = AggregatePaths(config, len(layout.schema.tasks)) if config.aggregates else None
    found = tower_events or (events,) * len(config.towers)
    reads = [min(tower.length, count) + 1 for tower, count in zip(config.towers, found, strict=True)]
    layers = tuple(
        _layer(config, list(zip(config.towers, reads, strict=True)), number, set_tokens=tokens.tokens)
        for number in range(config.layers)
    )
    weights = tokens.column_weight.numel() + tokens.floats.weight.numel() + (events + 1) * tokens.event.weight.numel()
    if tokens.aggregates is not None:
        weights += tokens.aggregates.weight.numel()
    weights += sum(
        read * config.dim * tower.dim
        for tower, read in zip(config.towers, reads, strict=True)
        if tower.dim != config.dim
    )
    head = _head(config, layout, set_tokens=tokens.tokens)
    if paths is not None:  # all of its matrices meet every example
        head += sum(p.numel() for name, p in paths.named_parameters() if not name.endswith(("bias", "level")))
    return Flops(layers, 2 * weights, 2 * head)


def _layer(config: GemConfig, towers: list[tuple[Tower, int]], number: int, *, set_tokens: int) -> LayerFlops:
    columns = [_tower(config, tower, number, tokens, set_tokens=set_tokens) for tower, tokens in towers]
    sums = {name: sum(column[name] for column in columns) for name in columns[0]}
    return LayerFlops(**sums, interaction=_interaction(config, set_tokens=set_tokens))


def _tower(config: GemConfig, tower: Tower, number: int, tokens: int, *, set_tokens: int) -> dict[str, int]:
    has, dim, hidden, summary = parts(config, tower, number), tower.dim, config.pffn_hidden, config.summary_tokens
    cost = dict.fromkeys(("weight_gen", "pffn", "attention", "hsp"), 0)
    if has.pffn:
        projections = config.gdpa_projections and config.pffn == "gdpa"
        cost["pffn"] = 4 * tokens * hidden * dim + 4 * tokens * dim**2 * projections
    if has.pffn and config.pffn == "gdpa":
        cost["weight_gen"] = 2 * set_tokens * summary * dim + 4 * summary * hidden * dim + 6 * summary * dim**2
        if dim != config.dim:
            cost["weight_gen"] += 2 * set_tokens * config.dim * dim
    if has.attention:
        reach, hstu = Reach(config.attention, tower.window, config.block), config.mixer == "hstu"
        pairs = _hstu_pairs(reach, tokens) if hstu else reach.pairs(tokens)
        cost["attention"] = (10 if hstu else 8) * tokens * dim**2 + 4 * pairs * dim
    if has.pooling:
        cost["hsp"] = _pooling(config, tower, tokens)
    return cost


def _hstu_pairs(reach: Reach, tokens: int) -> int:
    """Pairs that the eager GDPA computes: it pads the last block, and cuts a window into blocks of queries."""
    if reach.attention == "block":
        return -(-tokens // reach.block) * reach.block**2
    if reach.attention == "full" or reach.window >= tokens - 1:
        return tokens**2
    block = max(reach.window // 2, 16)
    return -(-tokens // block) * block * (block + 2 * reach.window)


def _pooling(config: GemConfig, tower: Tower, tokens: int) -> int:
    dim, pooled = tower.dim, tower.pooled_tokens
    seeds = config.seeds if config.pooling == "hsp" else pooled
    cost = 2 * (1 + config.hsp_values) * tokens * dim**2 + 4 * seeds * tokens * dim
    if config.pooling == "hsp" and config.compression == "sumkron":
        cost += config.kron_rank * (2 * pooled * seeds * dim + 2 * pooled * dim**2)
    elif config.pooling == "hsp":
        cost += 2 * pooled * seeds * dim
    if dim != config.dim:
        cost += 2 * pooled * dim * config.dim
    return cost


def _interaction(config: GemConfig, *, set_tokens: int) -> int:
    dim, rank, hidden, pooled = config.dim, config.fm_rank, config.fm_hidden, config.summary_width
    read, cost = set_tokens, 0
    if config.global_input == "x_sum":
        read = config.summary_tokens
        cost = 2 * set_tokens * read * dim + 2 * read * dim**2
    for slots, share in zip(split(set_tokens, config.experts), split(read, config.experts), strict=True):
        seen = (read if config.expert_view == "full" else share) + pooled
        from_fm = slots // 2
        cost += 4 * seen * rank * dim + 2 * seen * rank * hidden + 2 * hidden * from_fm * dim
        cost += 2 * (slots - from_fm) * seen * dim
        if config.attentive_fm:
            cost += 2 * ATTENTIVE_TOKENS * (seen * dim + dim**2) + 2 * dim * seen * rank
    return cost


def _head(config: GemConfig, layout: InputLayout, *, set_tokens: int) -> int:
    """Multiply-adds from the last layer's tokens to the logits."""
    tasks, surfaces = len(layout.schema.tasks), len(layout.schema.surfaces)
    widths = ((set_tokens + config.summary_width) * config.dim, *config.head_hidden, tasks)
    cost = sum(before * after for before, after in pairwise(widths))
    cost += config.pair_products * config.dim * tasks + config.first_order * layout.set_floats * tasks
    if config.domain_experts:
        wide = surfaces * config.domain_experts
        cost += config.head_hidden[0] * (wide + surfaces) + (wide + surfaces) * tasks
    return cost


def count_flops(model: nn.Module, batch: GemBatch) -> int:
    """FLOPs of a forward pass over a batch, of any model, by torch's counter.

    The counter sees matrix products, fused attention and what fused kernels register, as GDPA's do: they count as the
    products that they replace, and of a window the band alone, not what the eager back end computes in vain.
    """
    return flops_by_module(model, batch)[""]


def flops_by_module(model: nn.Module, batch: GemBatch) -> dict[str, int]:
    """The same by the names of the model's modules, the whole model under the empty name."""
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter, torch.no_grad():
        model(batch)
    prefix = type(model).__name__ + "."
    counts = {name: sum(by_op.values()) for name, by_op in counter.get_flop_counts().items() if name.startswith(prefix)}
    return {"": counter.get_total_flops()} | {name.removeprefix(prefix): count for name, count in counts.items()}


@dataclass(frozen=True)
class LoggingFlops:
    """FLOPs of one example: `soft` of the forward pass that gives its soft labels, `z` of the compressor after it.

    The extraction itself has no products. `ratio`: logging soft labels and z over logging soft labels alone.
    """

    soft: float
    z: float

    @property
    def ratio(self) -> float:
        return (self.soft + self.z) / self.soft


def logging_flops(model: Gem, batch: GemBatch) -> LoggingFlops:
    """What the teacher's log costs over a batch, by torch's counter; the model in evaluation mode."""
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter, torch.no_grad():
        output = model(batch)
        soft = counter.get_total_flops()
        model.compressor(output.activations_BE)
    rows = len(batch.mask_BT)
    return LoggingFlops(soft / rows, (counter.get_total_flops() - soft) / rows)


def _attention_flops(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *_: object, **__: object) -> int:
    return int(sdpa_flop_count(q, k, v))


def _attention_backward_flops(
    grad: tuple[int, ...], q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *_: object, **__: object
) -> int:
    return int(sdpa_backward_flop_count(grad, q, k, v))


CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}
"""torch 2.13's counter knows the fused attention of CUDA alone, and would take that of the CPU as free."""
