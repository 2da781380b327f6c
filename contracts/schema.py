"""The feature schema: what a log holds and what a model may read, with a fingerprint that both sides compare.

A source (`events.synthetic`, `events.kuairand`) declares one schema. It stands beside the log, inside every checkpoint
and inside every artifact's manifest; two things that must fit each other compare fingerprints and refuse to guess.
"""

import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Literal

from contracts.errors import InputError

Side = Literal["user", "ad", "context"]
Kind = Literal["categorical", "float"]

HOUR_MS = 3_600_000
HOURS, WEEKDAYS = 24, 7
"""Every schema has hour and weekday as context features: they follow from the clock and the schema's UTC offset."""


@dataclass(frozen=True)
class Feature:
    """One input column besides the ids, the surface and the clock.

    A categorical value is a code in [0, cardinality), 0 meaning unknown; a float is finite and roughly of unit scale,
    0 standing for missing. `teacher_only` features reach GEM and never a student or a request.
    """

    name: str
    side: Side
    kind: Kind = "categorical"
    cardinality: int = 0
    teacher_only: bool = False


@dataclass(frozen=True)
class Task:
    """One label. A task with a parent is defined only on rows whose parent label is 1 (conversion given click).

    `window_ms` is the attribution window of a delayed label: a row counts for the task only when event_ms + window_ms
    lies in the past, positives included. 0 means that the label is known at label_ms at once.
    """

    name: str
    parent: str | None = None
    window_ms: int = 0


@dataclass(frozen=True)
class FeatureSchema:
    """Everything that model inputs depend on. `surfaces[0]` pools the surfaces without a code of their own."""

    name: str
    surfaces: tuple[str, ...]
    tasks: tuple[Task, ...]
    features: tuple[Feature, ...]
    user_buckets: int
    ad_buckets: int
    utc_offset_ms: int = 0

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if len(set(names)) != len(names):
            raise InputError(f"schema {self.name!r} names a feature twice; give each feature a name of its own")
        if not self.surfaces or min(self.user_buckets, self.ad_buckets) < 2:
            raise InputError(f"schema {self.name!r} needs a surface and at least 2 buckets for users and for ads")
        for feature in self.features:
            if (feature.kind == "categorical") != (feature.cardinality > 1):
                raise InputError(f"feature {feature.name!r}: a categorical needs cardinality > 1, a float 0")
        known: set[str] = set()
        for task in self.tasks:
            if task.parent is not None and task.parent not in known:
                raise InputError(f"task {task.name!r}: its parent {task.parent!r} must stand before it")
            known.add(task.name)

    def select(self, side: Side, kind: Kind, *, teacher: bool) -> tuple[Feature, ...]:
        """Features of one side and kind in schema order; without `teacher` the teacher-only ones are left out."""
        return tuple(f for f in self.features if f.side == side and f.kind == kind and (teacher or not f.teacher_only))

    def task(self, name: str) -> Task:
        """The task of that name; InputError if the schema has none."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise InputError(f"no task {name!r} in schema {self.name!r}; it has {[t.name for t in self.tasks]}")

    def task_chain(self, name: str) -> tuple[str, ...]:
        """The task and its ancestors: P(task) is the product of the probabilities of the chain."""
        chain = [name]
        while (parent := self.task(chain[-1]).parent) is not None:
            chain.append(parent)
        return tuple(chain)

    def surface_code(self, surface: str) -> int:
        """Index of a surface; 0, the pooled one, for a surface without a code."""
        return self.surfaces.index(surface) if surface in self.surfaces else 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "FeatureSchema":
        """Inverse of `to_json`; InputError when a field is missing or unknown."""
        try:
            return cls(
                **{
                    **raw,
                    "surfaces": tuple(raw["surfaces"]),
                    "tasks": tuple(Task(**task) for task in raw["tasks"]),
                    "features": tuple(Feature(**feature) for feature in raw["features"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"not a feature schema ({error}); write it with FeatureSchema.to_json") from error

    def fingerprint(self) -> str:
        """16 hex digits over the canonical JSON: equal fingerprints mean that inputs mean the same."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return blake2b(text.encode(), digest_size=8).hexdigest()
