"""Recipes of the students: every number that would change the results, saved as JSON with each run."""

from dataclasses import dataclass

from contracts.errors import InputError


@dataclass(frozen=True)
class Arm:
    """One way to train the same student: with history inputs, with the teacher's soft labels, or with a placebo.

    The placebo (`shuffle`) reads histories whose vectors are permuted over all logged impressions: counts, ages and
    masks are kept, so what it gains over kd is capacity and counts, not transferred knowledge (LoopFM pilot, arm
    "placebo").
    """

    name: str
    history: bool = False
    distil: bool = False
    shuffle: bool = False


ARMS = (
    Arm("base"),
    Arm("kd", distil=True),
    Arm("loopfm", history=True),
    Arm("kd_loopfm", history=True, distil=True),
    Arm("placebo", history=True, distil=True, shuffle=True),
)


def arm_named(name: str) -> Arm:
    """The arm of that name; InputError names the arms there are."""
    for arm in ARMS:
        if arm.name == name:
            return arm
    raise InputError(f"no arm {name!r}; the arms are {', '.join(arm.name for arm in ARMS)}")


@dataclass(frozen=True)
class StudentRecipe:
    """Architecture and training of a student.

    history_length: newest impressions read. id_width / feature_width: embedding widths of hashed ids and of other
    codes. sequence_width: width of the history encoder. product_width: width of the user x ad product. hidden: MLP.
    learning_rate falls linearly to final_rate of itself; id_learning_rate is Adagrad's for the hashed tables.
    kd_weight / kd_alpha / kd_beta: w, alpha and beta of ExFM's auxiliary head (ExFM, section 3; alpha = beta = 1 at
    base rates of .3-.4). drop_ad, drop_history: probabilities of hiding an input in training, so that an ad outside
    the catalogue and a missing history are inputs that the student has seen; drop_vector: dropout on z.
    """

    name: str
    history_length: int = 50
    id_width: int = 8
    feature_width: int = 8
    sequence_width: int = 16
    product_width: int = 8
    hidden: tuple[int, int] = (32, 16)
    batch: int = 256
    learning_rate: float = 8e-3
    final_rate: float = 0.1
    id_learning_rate: float = 0.2
    kd_weight: float = 5.0
    kd_alpha: float = 1.0
    kd_beta: float = 1.0
    drop_ad: float = 0.05
    drop_history: float = 0.05
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
