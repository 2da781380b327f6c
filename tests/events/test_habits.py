"""Habits: each moves the click logit as its definition says, and nothing looks ahead or at its own request."""

from dataclasses import replace

import numpy as np
import pytest

from events import recipes
from events.habits import (
    COMPANION_SHARE,
    FATIGUE_HALF_LIFE,
    HALF_LIVES,
    SATIATION_HALF_LIFE_DAYS,
    Day,
    Habits,
)
from events.population import Ads, make_ads
from events.recipes import WorldConfig

NEVER, ALWAYS = 1.0, 0.0
"""Uniform draws that no click and that every click falls under."""


def world(
    *, habit_sd: float = 0.0, sequence_sd: float = 0.0, fatigue: float = 0.0, satiation: float = 0.0
) -> WorldConfig:
    small = replace(recipes.scaling(), users=3, ads=30, campaigns=10, categories=4)
    return replace(small, habit_sd=habit_sd, sequence_sd=sequence_sd, fatigue=fatigue, satiation=satiation)


@pytest.fixture
def ads() -> Ads:
    return make_ads(np.random.default_rng(0), world())


def live(
    habits: Habits,
    user: list[int],
    ad: list[int],
    request: list[int],
    *,
    draw: float | list[float],
    converts: int = -50,
) -> Day:
    return habits.live(
        user=np.array(user),
        ad=np.array(ad),
        request=np.array(request),
        click_logit=np.zeros(len(user)),
        conversion_logit=np.full(len(user), float(converts)),
        draw=np.broadcast_to(np.array(draw), (len(user),)),
        share_in_conversion=0.0,
    )


def test_a_user_without_a_past_has_no_habits(ads: Ads) -> None:
    config = world(habit_sd=1, sequence_sd=1, fatigue=1, satiation=1)
    day = live(Habits(config, ads), [0, 1, 2], [3, 4, 5], [0, 1, 2], draw=ALWAYS)
    np.testing.assert_array_equal(day.logit, 0)
    assert day.click.all()
    assert not day.conversion.any()


def test_ads_of_one_request_do_not_see_each_other_but_later_requests_do(ads: Ads) -> None:
    config = world(habit_sd=1, sequence_sd=1, fatigue=1)
    day = live(Habits(config, ads), [0, 0, 1, 0], [3, 3, 3, 3], [0, 0, 1, 2], draw=ALWAYS)
    np.testing.assert_array_equal(day.logit[:3], 0)
    assert day.logit[3] != 0


def test_no_row_depends_on_later_ones_or_on_other_users(ads: Ads) -> None:
    config = world(habit_sd=1, sequence_sd=1, fatigue=1)
    rng = np.random.default_rng(1)
    user, ad, draw = rng.integers(0, 3, 200), rng.integers(0, 30, 200), rng.random(200)
    request = np.arange(200)

    def logits(kept: np.ndarray, draws: np.ndarray) -> np.ndarray:
        rows = [column[kept].tolist() for column in (user, ad, request)]
        return live(Habits(config, ads), *rows, draw=draws[kept].tolist()).logit

    everything = logits(np.arange(200), draw)
    first = np.arange(100)
    np.testing.assert_array_equal(logits(first, draw), everything[:100])
    other_end = np.where(np.arange(200) < 150, draw, 1 - draw)
    np.testing.assert_array_equal(logits(np.arange(200), other_end)[:151], everything[:151])
    own = np.flatnonzero(user == 2)
    np.testing.assert_allclose(logits(own, draw), everything[own], atol=1e-12)


def test_fatigue_follows_from_how_often_the_campaign_was_shown(ads: Ads) -> None:
    other = int(np.flatnonzero(ads.campaign != ads.campaign[3])[0])
    day = live(Habits(world(fatigue=0.5), ads), [0] * 4, [3, 3, other, 3], [0, 1, 2, 3], draw=NEVER)
    fade = 0.5 ** (1 / FATIGUE_HALF_LIFE)
    np.testing.assert_allclose(day.logit, [0, -0.5 * np.log(1 + fade), 0, -0.5 * np.log(1 + fade**2 * (1 + fade))])


def test_the_last_click_and_not_the_last_skip_pulls(ads: Ads) -> None:
    habits = Habits(world(sequence_sd=1.0), ads)
    clicked = live(habits, [0] * 3, [3, 7, 9], [0, 1, 2], draw=[ALWAYS, NEVER, NEVER]).logit
    same = live(Habits(world(sequence_sd=1.0), ads), [0] * 2, [3, 9], [0, 1], draw=[ALWAYS, NEVER]).logit
    assert clicked[2] == same[1] != 0
    assert live(Habits(world(sequence_sd=1.0), ads), [0] * 2, [3, 9], [0, 1], draw=NEVER).logit[1] == 0


def test_a_conversion_counts_from_the_second_day_on(ads: Ads) -> None:
    """On the next day its window may not have passed, so a model could not know of it."""
    habits = Habits(world(satiation=1.0), ads)
    category = ads.category[3]
    every = list(range(30))
    bought = live(habits, [0], [3], [0], draw=ALWAYS, converts=50)
    assert bought.conversion.all()
    days = [live(habits, [0] * 30, every, every, draw=NEVER).logit for _ in range(3)]
    np.testing.assert_array_equal(days[0], 0)
    own = ads.category == category
    companion_of_itself = (days[1][own] > -1).any()
    np.testing.assert_allclose(days[1][own], COMPANION_SHARE - 1 if companion_of_itself else -1)
    assert set(np.round(days[1][~own], 9)) <= {0.0, COMPANION_SHARE}
    np.testing.assert_allclose(days[2], days[1] * 0.5 ** (1 / SATIATION_HALF_LIFE_DAYS))


def test_interest_reaches_as_far_back_as_its_slowest_trace(ads: Ads) -> None:
    """One click, then 300 skips: the trace of 400 impressions still holds it."""
    skips = 300
    rows = ([0] * (skips + 2), [3] + [7] * skips + [9], list(range(skips + 2)))
    clicked = live(Habits(world(habit_sd=1.0), ads), *rows, draw=[ALWAYS] + [NEVER] * (skips + 1)).logit[-1]
    skipped = live(Habits(world(habit_sd=1.0), ads), *rows, draw=NEVER).logit[-1]
    assert abs(clicked - skipped) > 1e-3
    assert max(HALF_LIVES) > skips
