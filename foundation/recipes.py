"""What would change GEM's numbers: the model and the settings of its training, as frozen dataclasses.

A recipe is a function that returns a complete `Recipe`; it is saved as JSON with every checkpoint.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from contracts.errors import InputError
from foundation.config import GemConfig


@dataclass(frozen=True)
class TrainRecipe:
    """One pass in time order. Rates fall linearly to `final_rate` of their start after `warmup_steps`; a run that
    continues a checkpoint takes `continued_rate` of them all.

    `user_dropout` and `ad_dropout` are the shares of rows whose id reads as unknown, so that the out-of-vocabulary
    rows are trained and ids are not memorised (docs/log.md). The newest `untimed_per_user`
    events before the log, where a source has such, train first.
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
            model = {**raw["model"], "head_hidden": tuple(raw["model"]["head_hidden"])}
            return cls(raw["name"], GemConfig(**model), TrainRecipe(**raw["train"]))
        except (KeyError, TypeError) as error:
            raise InputError(f"not a recipe of this version ({error}); train the checkpoint again") from error


def tiny() -> Recipe:
    """For tests and smoke runs: seconds on one core."""
    model = GemConfig(
        dim=16,
        heads=2,
        layers=2,
        embedding_dim=8,
        history_length=16,
        pffn_hidden=8,
        summary_tokens=4,
        seeds=8,
        pooled_tokens=4,
        kron_rank=2,
        window=4,
        experts=2,
        fm_rank=4,
        fm_hidden=32,
        head_hidden=(64, 32),
    )
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
    return Recipe("tiny", model, train)


def small() -> Recipe:
    """For two CPU cores. Chosen on 30 April of KuaiRand and on the synthetic demo world (docs/log.md)."""
    model = GemConfig(
        dim=32,
        heads=2,
        layers=2,
        embedding_dim=16,
        history_length=30,
        pffn_hidden=32,
        summary_tokens=8,
        seeds=16,
        pooled_tokens=8,
        kron_rank=4,
        window=8,
        experts=2,
        fm_rank=8,
        fm_hidden=64,
        head_hidden=(128, 64),
        dropout=0.1,
    )
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
    return Recipe("small", model, train)


def recipe(name: str) -> Recipe:
    """The recipe of that name; InputError lists the names."""
    known: dict[str, Callable[[], Recipe]] = {"tiny": tiny, "small": small}
    if name not in known:
        raise InputError(f"no recipe {name!r}; choose one of {sorted(known)}")
    return known[name]()
