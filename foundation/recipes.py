"""What would change GEM's numbers: the model and the settings of its training, as frozen dataclasses.

A recipe is a function that returns a complete `Recipe`; it is saved as JSON with every checkpoint.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from contracts.errors import InputError
from foundation.config import GemConfig
from foundation.presets import base_model, large_model, small_model, tiny_model

Schedule = Literal["linear", "cosine"]
TableOptimizer = Literal["lazy_adam", "rowwise_adagrad"]
Precision = Literal["fp32", "bf16"]
MixingCells = Literal["labels", "positives"]


@dataclass(frozen=True)
class TrainRecipe:
    """One pass in time order. Rates rise over `warmup_steps`, then fall to `final_rate` of their start; a run that
    continues a checkpoint takes `continued_rate` of them all.

    `user_dropout` and `ad_dropout` are the shares of rows whose id reads as unknown, so that the out-of-vocabulary
    rows are trained and ids are not memorised (docs/log.md). The newest `untimed_per_user`
    events before the log, where a source has such, train first.

    Switches, the default first:
      schedule: the fall, "linear" (it helped a student, docs/log.md; not tried against others on GEM) or "cosine"
        (common practice); both [I].
      table_optimizer: of the embedding table: "lazy_adam" [I], not tried against others on GEM (docs/log.md has hints
        against it, from students and from DCNv2), or "rowwise_adagrad", one accumulator per row, as production
        recommenders train their tables (FBGEMM, `EXACT_ROWWISE_ADAGRAD`) [P-code].
      precision: "fp32", or "bf16" autocast of the forward pass: it pays for wide models and on GPUs, and costs small
        models time, whose steps are calls rather than products.
      compile: torch.compile of the model: the first steps take minutes, the others are a little faster; dropout then
        draws other numbers.
      gradient_norm: the dense gradient is clipped to this norm; 0: never. Only outliers reach the default.
      mixing_temperature: 1, the data as they are; above 1 rare cells of surface x task are drawn more often
        (`mixing.py`). mixing_cells: what makes a row belong to a task, a "labels" that counts or a "positives" label.
        mixing_window: rows within which it draws.
      bucketing_batches: rows of similar history length share a batch, within windows of so many batches in time order
        (`bucketing.py`); 0: none.
      aggregates: whether training gives the model the log's history aggregates (`events/aggregates.py`) as inputs.
    """

    batch_rows: int
    dense_rate: float
    table_rate: float
    first_order_rate: float
    weight_decay: float
    user_dropout: float
    ad_dropout: float
    untimed_per_user: int
    warmup_steps: int
    final_rate: float
    continued_rate: float
    compressor_rate: float
    checkpoint_steps: int
    schedule: Schedule = "linear"
    table_optimizer: TableOptimizer = "lazy_adam"
    precision: Precision = "fp32"
    compile: bool = False
    gradient_norm: float = 5.0
    mixing_temperature: float = 1.0
    mixing_cells: MixingCells = "labels"
    mixing_window: int = 4096
    bucketing_batches: int = 0
    aggregates: bool = False

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"TrainRecipe.{name} is {getattr(self, name)!r}; choose one of {list(known)}")
        if self.batch_rows < 1 or self.mixing_window < 1 or self.bucketing_batches < 0 or self.gradient_norm < 0:
            raise InputError(
                "TrainRecipe: batch_rows and mixing_window are 1 or more, bucketing_batches and gradient_norm 0 or more"
            )
        if not self.mixing_temperature > 0:
            raise InputError(f"TrainRecipe.mixing_temperature is {self.mixing_temperature}; it must be above 0")


CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": get_args(Schedule),
    "table_optimizer": get_args(TableOptimizer),
    "precision": get_args(Precision),
    "mixing_cells": get_args(MixingCells),
}
"""Values of each switch that is neither a number nor a flag."""


@dataclass(frozen=True)
class Recipe:
    """Everything behind a checkpoint's numbers besides the data and the seed."""

    name: str
    model: GemConfig
    train: TrainRecipe

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Recipe":
        """Inverse of `to_json`; InputError when a field is missing or unknown."""
        try:
            return cls(raw["name"], GemConfig.from_json(raw["model"]), TrainRecipe(**raw["train"]))
        except (KeyError, TypeError) as error:
            raise InputError(f"not a recipe of this version ({error}); train the checkpoint again") from error


def tiny() -> Recipe:
    """For tests and smoke runs: seconds on one core."""
    train = TrainRecipe(
        batch_rows=64,
        dense_rate=3e-3,
        table_rate=3e-3,
        first_order_rate=0.1,
        weight_decay=0.0,
        user_dropout=0.3,
        ad_dropout=0.05,
        untimed_per_user=4,
        warmup_steps=5,
        final_rate=0.05,
        continued_rate=0.5,
        compressor_rate=3e-3,
        checkpoint_steps=10,
    )
    return Recipe("tiny", tiny_model(), train)


def small() -> Recipe:
    """For two CPU cores. Chosen on 30 April of KuaiRand and on the synthetic demo world (docs/log.md)."""
    train = TrainRecipe(
        batch_rows=64,
        dense_rate=2e-3,
        table_rate=2e-3,
        first_order_rate=0.1,
        weight_decay=1e-4,
        user_dropout=0.3,
        ad_dropout=0.05,
        untimed_per_user=4,
        warmup_steps=50,
        final_rate=0.02,
        continued_rate=0.5,
        compressor_rate=2e-3,
        checkpoint_steps=1000,
    )
    return Recipe("small", small_model(), train)


def quality() -> Recipe:
    """`small` with the log's history aggregates as inputs of an expert of their own: the GEM of the quality experiment.

    Chosen on 30 April of KuaiRand (docs/log.md)."""
    plain = small()
    return Recipe("quality", plain.model, replace(plain.train, aggregates=True))


def base() -> Recipe:
    """For a night on a CPU or minutes on a GPU: the parts that only pay at this size are on. Not tuned."""
    train = TrainRecipe(
        batch_rows=128,
        dense_rate=1.5e-3,
        table_rate=0.02,
        first_order_rate=0.1,
        weight_decay=1e-4,
        user_dropout=0.3,
        ad_dropout=0.05,
        untimed_per_user=4,
        warmup_steps=200,
        final_rate=0.02,
        continued_rate=0.5,
        compressor_rate=1.5e-3,
        checkpoint_steps=1000,
        schedule="cosine",
        table_optimizer="rowwise_adagrad",
        bucketing_batches=16,
    )
    return Recipe("base", base_model(), train)


def large() -> Recipe:
    """For one GPU, at Kunlun's published sizes; see `large_model`. Not tuned."""
    train = TrainRecipe(
        batch_rows=512,
        dense_rate=5e-4,
        table_rate=0.02,
        first_order_rate=0.05,
        weight_decay=1e-2,
        user_dropout=0.3,
        ad_dropout=0.05,
        untimed_per_user=16,
        warmup_steps=1000,
        final_rate=0.02,
        continued_rate=0.5,
        compressor_rate=5e-4,
        checkpoint_steps=1000,
        schedule="cosine",
        table_optimizer="rowwise_adagrad",
        precision="bf16",
        gradient_norm=1.0,
        bucketing_batches=32,
    )
    return Recipe("large", large_model(), train)


def recipe(name: str) -> Recipe:
    """The recipe of that name; InputError lists the names."""
    known: dict[str, Callable[[], Recipe]] = {
        "tiny": tiny,
        "small": small,
        "quality": quality,
        "base": base,
        "large": large,
    }
    if name not in known:
        raise InputError(f"no recipe {name!r}; choose one of {sorted(known)}")
    return known[name]()
