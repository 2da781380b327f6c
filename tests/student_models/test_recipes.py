"""Arms and recipes by name."""

from dataclasses import replace

import pytest

from contracts.errors import InputError
from student_models.recipes import (
    ARMS,
    STUDY_ARMS,
    Arm,
    StudentRecipe,
    arm_named,
    arm_spec,
    light,
    recipe_and_arm,
    recipe_named,
    tiny,
)
from student_models.runs import recipe_json
from student_models.trainer import TrainingData


def test_the_arms_are_those_of_the_design() -> None:
    assert [arm.name for arm in ARMS] == ["base", "kd", "loopfm", "kd_loopfm", "placebo"]
    assert {arm.name for arm in ARMS if arm.history} == {"loopfm", "kd_loopfm", "placebo"}
    assert {arm.name for arm in ARMS if arm.distil} == {"kd", "kd_loopfm", "placebo"}
    assert {arm.name for arm in ARMS if arm.shuffle} == {"placebo"}


def test_the_studys_arms_stand_beside_them() -> None:
    names = [arm.name for arm in ARMS + STUDY_ARMS]
    assert len(set(names)) == len(names)
    assert all(arm_named(name).name == name for name in names)
    assert {arm.history for arm in STUDY_ARMS} == {False, True, "ids", "soft", "count", "user"}


@pytest.mark.parametrize("arm", ARMS + STUDY_ARMS, ids=lambda arm: arm.name)
def test_a_recipe_and_its_arm_come_back_from_run_json(arm: Arm) -> None:
    recipe = StudentRecipe("x", encoder="dmin", element_ad=True)
    assert recipe_and_arm(recipe_json(recipe, arm)) == (recipe, arm)


@pytest.mark.parametrize(
    ("history", "length", "dim", "elements"),
    [
        (False, 0, 16, ()),
        (True, 8, 16, ("outcome",)),
        ("ids", 8, 0, ("surface", "ad_hash", "outcome")),
        ("soft", 8, 3, ("outcome",)),
        ("count", 8, 0, ()),
        ("user", 1, 16, ()),
    ],
)
def test_an_arm_reads_what_stands_in_zs_place(
    data: TrainingData, history: object, length: int, dim: int, elements: tuple[str, ...]
) -> None:
    spec = arm_spec(data.student.spec, replace(tiny(), element_outcome=True), Arm("x", history=history))  # type: ignore[arg-type]
    assert (spec.history_length, spec.dim, spec.elements) == (length, dim, elements)


def test_a_recipe_is_found_by_name() -> None:
    assert recipe_named("light") == light()


@pytest.mark.parametrize("find", [arm_named, recipe_named])
def test_an_unknown_name_lists_the_known_ones(find: object) -> None:
    with pytest.raises(InputError, match=r"no (arm|recipe) 'x'; the (arms|recipes) are \w+, "):
        find("x")  # type: ignore[operator]
