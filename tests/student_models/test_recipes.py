"""Arms and recipes by name."""

import pytest

from contracts.errors import InputError
from student_models.recipes import ARMS, arm_named, light, recipe_named


def test_the_arms_are_those_of_the_design() -> None:
    assert [arm.name for arm in ARMS] == ["base", "kd", "loopfm", "kd_loopfm", "placebo"]
    assert {arm.name for arm in ARMS if arm.history} == {"loopfm", "kd_loopfm", "placebo"}
    assert {arm.name for arm in ARMS if arm.distil} == {"kd", "kd_loopfm", "placebo"}
    assert {arm.name for arm in ARMS if arm.shuffle} == {"placebo"}


def test_a_recipe_is_found_by_name() -> None:
    assert recipe_named("light") == light()


@pytest.mark.parametrize("find", [arm_named, recipe_named])
def test_an_unknown_name_lists_the_known_ones(find: object) -> None:
    with pytest.raises(InputError, match=r"no (arm|recipe) 'x'; the (arms|recipes) are \w+, "):
        find("x")  # type: ignore[operator]
