"""Recipes of the students: every number that would change the results, saved as JSON with each run."""

from dataclasses import dataclass
from typing import Any, Literal

from contracts.errors import InputError
from contracts.features import InputSpec

Encoder = Literal["decayed", "mean", "sum", "decayed_mean", "din", "dmin"]
"""How a history is read: pooled with weights that decay by rank, plainly, summed, by the first two at once; with
attention from the candidate's ad (din); or that behind a block of causal self-attention (dmin). See encoders.py."""

History = Literal["ids", "soft", "count", "user"]
"""What a study arm reads where z would stand: ids of ad and surface; the teacher's past soft labels, as K logits; only
how many impressions there were and how old the newest is; one mean of the user's first z, never refreshed."""


@dataclass(frozen=True)
class Arm:
    """One way to train the same student: with history inputs, with the teacher's soft labels, or with a placebo.

    history: False none, True the logged z, else what stands in their place. The placebo (`shuffle`) reads histories
    whose vectors are permuted over all logged impressions: counts, ages and masks are kept, so what it gains over kd is
    capacity and counts, not transferred knowledge (LoopFM pilot, arm "placebo"). kd_weight overrides the recipe's.
    adapter: distil from soft labels that were fitted to the newest labels (ExFM's student adapter, adapter.py).
    fitnet: the trunk must also predict the row's own z, in training alone (FitNets).
    """

    name: str
    history: bool | History = False
    distil: bool = False
    shuffle: bool = False
    kd_weight: float | None = None
    adapter: bool = False
    fitnet: bool = False


ARMS = (
    Arm("base"),
    Arm("kd", distil=True),
    Arm("loopfm", history=True),
    Arm("kd_loopfm", history=True, distil=True),
    Arm("placebo", history=True, distil=True, shuffle=True),
)

STUDY_ARMS = (
    *(Arm(f"kd_w{weight:g}", distil=True, kd_weight=weight) for weight in (0.3, 1.0, 3.0, 10.0)),
    *(Arm(f"kd_loopfm_w{w:g}", history=True, distil=True, kd_weight=w) for w in (0.3, 1.0, 3.0, 10.0)),
    Arm("kd_ids", history="ids", distil=True),
    Arm("kd_soft", history="soft", distil=True),
    Arm("kd_count", history="count", distil=True),
    Arm("kd_user", history="user", distil=True),
    Arm("kd_fitnet", distil=True, fitnet=True),
    Arm("kd_adapter", distil=True, adapter=True),
    Arm("kd_loopfm_adapter", history=True, distil=True, adapter=True),
)
"""What the claim about transfer is held against: the sweep of the distillation weight, cheaper histories, and the other
ways to distil."""


def arm_named(name: str) -> Arm:
    """The arm of that name; InputError names the arms there are."""
    arms = ARMS + STUDY_ARMS
    for arm in arms:
        if arm.name == name:
            return arm
    raise InputError(f"no arm {name!r}; the arms are {', '.join(arm.name for arm in arms)}")


@dataclass(frozen=True)
class StudentRecipe:
    """Architecture and training of a student.

    history_length: newest impressions read. id_width / feature_width: embedding widths of hashed ids and of other
    codes. sequence_width: width of the history encoder. product_width: width of the user x ad product. hidden: MLP.
    encoder: see Encoder. element_*: what an element has beside z: its age, surface, ad, outcome as known at the row's
    time. learning_rate falls linearly to final_rate of itself; id_learning_rate is Adagrad's for the hashed tables.
    kd_weight / kd_alpha / kd_beta: w, alpha and beta of ExFM's auxiliary head (ExFM, section 3; alpha = beta = 1 at
    base rates of .3-.4). decoupled: the distillation head stands on a tower of its own and shares the embeddings alone
    (Rec-Distill). adapter_share: first part of the rows, by time, to whose labels an arm's adapter is fitted.
    fitnet_weight: of an arm's FitNets loss. drop_ad, drop_history: probabilities of hiding an input in training, so
    that an ad outside the catalogue and a missing history are inputs that the student has seen; drop_recent: that of
    hiding what is younger than a random age up to recent_hours (TransAct's time mask), so that a stale history is one;
    drop_vector: dropout on z.
    """

    name: str
    history_length: int = 50
    id_width: int = 8
    feature_width: int = 8
    sequence_width: int = 16
    product_width: int = 8
    hidden: tuple[int, int] = (32, 16)
    encoder: Encoder = "decayed_mean"
    element_age: bool = False
    element_surface: bool = False
    element_ad: bool = False
    element_outcome: bool = False
    batch: int = 256
    learning_rate: float = 8e-3
    final_rate: float = 0.1
    id_learning_rate: float = 0.2
    kd_weight: float = 5.0
    kd_alpha: float = 1.0
    kd_beta: float = 1.0
    decoupled: bool = False
    adapter_share: float = 0.2
    fitnet_weight: float = 1.0
    drop_ad: float = 0.05
    drop_history: float = 0.05
    drop_recent: float = 0.0
    recent_hours: float = 24.0
    drop_vector: float = 0.1


def light() -> StudentRecipe:
    """The default: chosen on KuaiRand's validation day; what was tried stands in docs/log.md."""
    return StudentRecipe("light", id_width=16, feature_width=16, id_learning_rate=0.14)


def tiny() -> StudentRecipe:
    """For tests: seconds on the tiny world."""
    return StudentRecipe("tiny", history_length=8, sequence_width=8, hidden=(16, 8), batch=64)


def recipe_named(name: str) -> StudentRecipe:
    """The recipe of that name; InputError names the recipes there are."""
    recipes = (light(), tiny())
    for recipe in recipes:
        if recipe.name == name:
            return recipe
    raise InputError(f"no recipe {name!r}; the recipes are {', '.join(recipe.name for recipe in recipes)}")


def recipe_and_arm(raw: dict[str, Any]) -> tuple[StudentRecipe, Arm]:
    """Both from run.json's "recipe": the recipe's fields with the arm's under "arm"; KeyError or TypeError if not."""
    fields = {name: value for name, value in raw.items() if name != "arm"}
    return StudentRecipe(**{**fields, "hidden": tuple(fields["hidden"])}), Arm(**raw["arm"])


def arm_spec(spec: InputSpec, recipe: StudentRecipe, arm: Arm) -> InputSpec:
    """What an arm's student reads, from the schema and the width of z in `spec`."""
    length = {False: 0, "user": 1}.get(arm.history, recipe.history_length)
    dim = {"ids": 0, "count": 0, "soft": len(spec.schema.tasks)}.get(str(arm.history), spec.dim)
    wanted = {
        "surface": recipe.element_surface or arm.history == "ids",
        "ad_hash": recipe.element_ad or arm.history == "ids",
        "outcome": recipe.element_outcome,
    }
    bare = arm.history in (False, "count", "user")  # no history, or no elements that have surfaces and ads
    return InputSpec(spec.schema, length, dim, () if bare else tuple(name for name in wanted if wanted[name]))
