"""Sizes and switches of GEM as one frozen dataclass; a recipe holds it, a checkpoint saves it.

Grades of sources: [P] primary text, [P-fig] read off figure 1 of Kunlun (arXiv 2602.10016), [P-code] read in Meta's
public kernels, [S] two or more readers of the paper agree, [S1] a single one, [I] this project's choice.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from contracts.errors import InputError
from foundation.kernels.activations import ACTIVATIONS
from foundation.rote import TimeEncoding

REPRESENTATION_DIM = 64
REPRESENTATION_PREFIXES = (8, 16, 32, 64)
"""Width of z and its prefixes that are usable alone (LoopFM, Matryoshka); the representation log relies on both."""

Attention = Literal["full", "window", "block"]
Mixer = Literal["softmax", "hstu"]
FeedForward = Literal["gdpa", "plain", "none"]
Pooling = Literal["hsp", "pma"]
Compression = Literal["sumkron", "linear"]
PoolingInput = Literal["pffn_out", "seq_in"]
GlobalInput = Literal["raw", "x_sum"]
Tau = Literal["maxlen", "sqrt_d", "learned"]
ExpertView = Literal["full", "partition"]
AggregatePath = Literal["expert", "tokens"]

ALL_TYPES = "all"
"""Name of all event types together, for a tower."""
JOINT = "joint"
"""Name of all activations together, for the compressor."""
LATER: dict[str, Any] = {"extraction": ("head",), "aligned": False}
"""Fields that checkpoints may lack, which were made before there were others than these values."""


@dataclass(frozen=True)
class Tower:
    """Event-level personalisation: one sequence tower for the events of some types, with sizes of its own [S1].

    `types` are event types of `GemBatch.event_type_BT`: 0 or "impression" for events without a known positive label, a
    task's name or its number + 1 for events whose deepest known positive is that task, or "all". Events that no tower
    names are not read. `length` counts a tower's newest events, the request's own token comes on top; `window` is read
    when `GemConfig.attention` is "window". What is not named here is taken from the `GemConfig`. A tower with fewer
    layers than the stack keeps serving its last summary [I].
    """

    types: tuple[int | str, ...]
    dim: int
    heads: int
    layers: int
    pooled_tokens: int
    window: int
    length: int

    def __post_init__(self) -> None:
        _positive(self, "dim", "heads", "layers", "pooled_tokens", "length")
        _heads_fit(self.dim, self.heads)
        if not self.types or self.window < 0:
            raise InputError("a tower needs at least one event type and a window of 0 or more")


@dataclass(frozen=True)
class GemConfig:
    """Sizes of the model and one switch for each part of it.

    Sizes: `dim` is the token width D, split over `heads`; embeddings are `embedding_dim` wide. `history_length` is the
    configured maximum length. `pffn_hidden` is F, `summary_tokens` n_sum of WeightGen, `seeds` > `pooled_tokens` those
    of HSP, `kron_rank` k of SumKronLinear, `experts` M parallel Wukong blocks with an FM of rank `fm_rank` and an MLP
    of width `fm_hidden`. `dropout` acts on set tokens and in the head.

    Switches, the default first (docs/adr/0006 has the reasons):
      attention: who sees whom in the sequence: "window", `window` tokens to either side [S]; "full"; or "block",
        disjoint blocks of `block` tokens from the start of the sequence (64 in Meta's block attention [P]).
      mixer: "softmax", or "hstu": SiLU attention with 1/N after it and a gate (HSTU, 2402.17152) [P-code].
      pffn: "gdpa", a personalised FFN [P-fig]; "plain", one FFN for all examples with the same width and FLOPs; "none".
      pooling: "hsp", over-complete seeds, then `compression` [S]; "pma", P learned queries and no compression.
      compression: "sumkron", k terms of a Kronecker sum [S]; "linear", one map S -> P on the token axis. A full map
        S D -> P D is out of the question: 1.2e9 weights at `presets.large_model`.
      compskip: even layers run WeightGen, PFFN and a fresh pooling, odd layers self attention and keep the last
        summary [S]; global interaction runs in all [S1].
      personalisation: towers per event type; empty: one tower for all events [S1].
      hsp_input: "pffn_out" [P-fig] or the layer's input "seq_in", as the one public re-implementation has it.
      global_input: "raw" set tokens [P-fig], or "x_sum", a compressed summary of them as in that re-implementation.
      tau: scale of GDPA's scores: the configured maximum length with a learned gain [P-fig, I], the root of the head
        width, or one learned scalar per head [I].
      gdpa_projections: query and output projections around GDPA; off, since K and V hold both matrices of the FFN [I].
      hsp_values: value projection of the pooling, kept [I]; off: values are the normalised events, as the weights of
        Meta's low-precision PMA suggest.
      attentive_fm: the projection of the factorisation machine depends on the example (Wukong, 2403.02545) [S].
      expert_view: every expert sees all tokens [P-fig], or "partition": the set tokens of its own slots and the summary
        [S1].
      activations: of GDPA, one for all heads or one per head [P-code].
      time: ROTE and the bucketed time tables [S, P-code].
      pair_products, first_order: shallow paths beside the deep model, a factorisation machine over the raw set tokens
        and first-order weights [I].
      domain_experts: width of each surface's own expert beside the shared head; 0: none [I].
      aggregates: width of `GemBatch.aggregates_BA`; 0: none. aggregate_path: "expert", a small ensemble that reads them
        alone, whose logits are averaged with the deep model's; "tokens", set tokens and an additive path [I].
      extraction: the activations that the compressor reads (LoopFM, 2605.29280, 1.1), one or more of `extractable`, or
        "joint", all of them. They change z and nothing else of the model.
      aligned: z passes a linear map to an older space, which `foundation.align` fits.
    """

    dim: int
    heads: int
    layers: int
    embedding_dim: int
    history_length: int
    pffn_hidden: int
    summary_tokens: int
    seeds: int
    pooled_tokens: int
    kron_rank: int
    window: int
    experts: int
    fm_rank: int
    fm_hidden: int
    head_hidden: tuple[int, ...]
    dropout: float = 0.0
    attention: Attention = "window"
    block: int = 64
    mixer: Mixer = "softmax"
    pffn: FeedForward = "gdpa"
    pooling: Pooling = "hsp"
    compression: Compression = "sumkron"
    compskip: bool = False
    personalisation: tuple[Tower, ...] = ()
    hsp_input: PoolingInput = "pffn_out"
    global_input: GlobalInput = "raw"
    tau: Tau = "maxlen"
    gdpa_projections: bool = False
    hsp_values: bool = True
    attentive_fm: bool = False
    expert_view: ExpertView = "full"
    activations: tuple[str, ...] = ("gelu",)
    time: TimeEncoding = field(default_factory=TimeEncoding)
    pair_products: bool = True
    first_order: bool = True
    domain_experts: int = 0
    aggregates: int = 0
    aggregate_path: AggregatePath = "expert"
    extraction: tuple[str, ...] = ("head",)
    aligned: bool = False

    def __post_init__(self) -> None:
        _positive(self, "dim", "heads", "layers", "embedding_dim", "history_length", "pffn_hidden", "summary_tokens")
        _positive(self, "seeds", "pooled_tokens", "kron_rank", "experts", "fm_rank", "fm_hidden", "block")
        _heads_fit(self.dim, self.heads)
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"GemConfig.{name} is {getattr(self, name)!r}; choose one of {list(known)}")
        if min(self.window, self.domain_experts, self.aggregates) < 0 or not 0 <= self.dropout < 1:
            raise InputError("GemConfig: window, domain_experts and aggregates are 0 or more, dropout is in [0, 1)")
        if not self.head_hidden or min(self.head_hidden) < 1:
            raise InputError(
                f"GemConfig.head_hidden is {self.head_hidden}; give the width of at least one hidden layer"
            )
        if not set(self.activations) <= set(ACTIVATIONS):
            raise InputError(f"GemConfig.activations is {self.activations}; choose from {sorted(ACTIVATIONS)}")
        known = (*self.extractable, JOINT)
        if not self.extraction or not set(self.extraction) <= set(known):
            raise InputError(f"GemConfig.extraction is {self.extraction}; choose one or more of {list(known)}")
        for part in self.towers:
            if self.pooling == "hsp" and self.seeds <= part.pooled_tokens:
                raise InputError(
                    f"GemConfig.seeds is {self.seeds}: HSP needs more seeds than its {part.pooled_tokens} pooled tokens"
                )
            if len(self.activations) not in (1, part.heads):
                raise InputError(f"GemConfig.activations has {len(self.activations)} names for {part.heads} heads")
            if part.layers > self.layers:
                raise InputError(f"a tower has {part.layers} layers, more than the {self.layers} of the stack")

    @property
    def towers(self) -> tuple[Tower, ...]:
        """The towers of `personalisation`, or the one of all events."""
        whole = (self.dim, self.heads, self.layers, self.pooled_tokens, self.window, self.history_length)
        return self.personalisation or (Tower((ALL_TYPES,), *whole),)

    @property
    def summary_width(self) -> int:
        """Tokens of the sequence summary that global interaction and the head see."""
        return sum(tower.pooled_tokens for tower in self.towers)

    @property
    def extractable(self) -> tuple[str, ...]:
        """Names of the activations that the compressor can read, from shallow to deep.

        "embedding": the set tokens before the first layer; "hidden-0", ...: set tokens and summary after each layer,
        pooled; "head": the head's first hidden layer and the pair products; "score": the logits (`Gem`).
        """
        return ("embedding", *(f"hidden-{number}" for number in range(self.layers)), "head", "score")

    @property
    def extracted(self) -> tuple[str, ...]:
        """What `extraction` names, from shallow to deep, whatever the order of the names."""
        return tuple(name for name in self.extractable if name in self.extraction or JOINT in self.extraction)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "GemConfig":
        """Inverse of `to_json`; InputError when a field is unknown, or missing and not one of `LATER`."""
        raw = LATER | raw
        differing = set(raw) ^ {field.name for field in fields(cls)}
        if differing:
            raise InputError(f"not a GemConfig of this version ({sorted(differing)}); train the checkpoint again")
        try:
            towers = [Tower(**{**tower, "types": tuple(tower["types"])}) for tower in raw["personalisation"]]
            tuples = {name: tuple(raw[name]) for name in ("head_hidden", "activations", "extraction")}
            time = TimeEncoding(**raw["time"])
            return cls(**{**raw, **tuples, "personalisation": tuple(towers), "time": time})
        except (KeyError, TypeError) as error:
            raise InputError(f"not a GemConfig of this version ({error}); train the checkpoint again") from error

    @classmethod
    def from_depth(cls, depth: int, *, aspect: int = 64, history_length: int = 512) -> "GemConfig":
        """One dial: all sizes from the number of layers. At an aspect of 64, depth 6 has the sizes of `large_model`.

        The width is aspect * depth and a head is about 2 * aspect wide. F is a third of the width and n_sum a 24th;
        two thirds of the width are seeds, 8 for every pooled token, and a quarter of the pooled tokens is the Kronecker
        rank. One expert, and one more for every two layers; their FM has a quarter of the width as its rank, and its
        MLP is 2 depth times the width. The ratios are those of Kunlun's published sizes where there are any (d, H, F,
        seeds, tokens, k), the others are this project's [I]. The history's length is the data's, not the dial's. At an
        aspect of 8 and 32 events, depths 1 to 5 cost 0.1 to 8 MFLOP on the synthetic world.
        """
        if depth < 1 or aspect < 8 or aspect % 8:
            raise InputError(
                f"from_depth({depth}, aspect={aspect}): give 1 layer or more and a multiple of 8 as aspect"
            )
        dim = aspect * depth
        heads = next(heads for heads in range(max(1, depth // 2), 0, -1) if dim % (2 * heads) == 0)
        pooled = max(2, round(dim / 12))
        return cls(
            dim=dim,
            heads=heads,
            layers=depth,
            embedding_dim=min(64, max(8, dim // 2)),
            history_length=history_length,
            pffn_hidden=max(8, round(dim / 24) * 8),
            summary_tokens=max(4, round(dim / 24)),
            seeds=8 * pooled,
            pooled_tokens=pooled,
            kron_rank=max(2, pooled // 4),
            attention="block",
            window=64,
            experts=1 + depth // 2,
            fm_rank=max(4, dim // 4),
            fm_hidden=2 * depth * dim,
            head_hidden=(4 * dim, 2 * dim),
        )


CHOICES: dict[str, tuple[str, ...]] = {
    "attention": get_args(Attention),
    "mixer": get_args(Mixer),
    "pffn": get_args(FeedForward),
    "pooling": get_args(Pooling),
    "compression": get_args(Compression),
    "hsp_input": get_args(PoolingInput),
    "global_input": get_args(GlobalInput),
    "tau": get_args(Tau),
    "expert_view": get_args(ExpertView),
    "aggregate_path": get_args(AggregatePath),
}
"""Values of each switch that is not a number, a flag or a record."""


def _positive(record: GemConfig | Tower, *names: str) -> None:
    for name in names:
        if getattr(record, name) < 1:
            raise InputError(f"{type(record).__name__}.{name} is {getattr(record, name)}; it must be at least 1")


def _heads_fit(dim: int, heads: int) -> None:
    if dim % (2 * heads):
        raise InputError(f"a width of {dim} does not split into {heads} heads of an even width, which rotation needs")
