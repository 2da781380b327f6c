"""How a user's own past moves their clicks in a rich world, request by request.

Legend: U users, A ads, n rows of one day, K interest dimensions, C categories, S time scales, H hidden units.
Four habits, each a function of earlier requests (never of ads shown at the same time) that a model could work out, but
for the few events that arrive late and the clicks of the last half minute:
- interest: traces of clicked minus skipped ad vectors, fading over 4, 40 and 400 impressions, go through hidden units
  sin(w trace A) and meet the ad's vector. w runs from EASY to HARD: some units are nearly linear, some fold over and
  over. It takes long histories and capacity.
- sequence: the category of the last click pulls to some categories and away from others.
- fatigue: a campaign that was shown often of late is clicked less.
- satiation: after a conversion a user has enough of the category for some days, and wants its companion.
A conversion acts from the second day after the impression on, when its window has surely passed.
"""

from dataclasses import dataclass

import numpy as np

from events.population import Ads
from events.recipes import WorldConfig

HALF_LIVES = (4, 40, 400)
"""Impressions after which a trace has lost half."""
HIDDEN = 16
EASY, HARD = 0.4, 2.0
CLICK_RATE = 0.2
"""About the mean click rate: a trace counts a click as 1 - this, a skip as minus this."""
SAME_CATEGORY = 1.5
"""Pull of a category on itself, in standard deviations of the pull between two categories."""
FATIGUE_HALF_LIFE = 30
SATIATION_HALF_LIFE_DAYS = 4
COMPANION_SHARE = 0.5
_STREAM = 3
"""Second word of the seed: the habits' own stream of random numbers."""


@dataclass(frozen=True)
class Day:
    """What the habits did to one day's rows: their part of the click logit, float64 [n], and click and conversion
    (given a click), bool [n] each."""

    logit: np.ndarray
    click: np.ndarray
    conversion: np.ndarray


class Habits:
    """All users' state; `live` takes them through one day after another, in order."""

    def __init__(self, config: WorldConfig, ads: Ads) -> None:
        rng = np.random.default_rng([config.seed, _STREAM])
        dim, categories = config.interest_dim, config.categories
        self._config, self._ads, self._rng = config, ads, rng
        self._fade_S = 0.5 ** (1 / np.array(HALF_LIVES))
        # an impression's step in one dimension of the trace has this variance, if clicks came at random
        step = CLICK_RATE * (1 - CLICK_RATE) / dim
        self._scale_S = np.sqrt((1 - self._fade_S**2) / step)
        self._omega_H = np.geomspace(EASY, HARD, HIDDEN)
        self._in_SKH = rng.normal(0, 1 / np.sqrt(dim), (len(HALF_LIVES), dim, HIDDEN))
        out_SKH = rng.normal(0, np.sqrt(2 / HIDDEN / len(HALF_LIVES)), (len(HALF_LIVES), dim, HIDDEN))
        # ad vectors have unit length, so their product with unit normal directions has unit variance
        self._out_SAH = ads.vector @ out_SKH
        pull_CC = rng.normal(size=(categories, categories)) + SAME_CATEGORY * np.eye(categories)
        self._pull_CC = np.concatenate([pull_CC, np.zeros((1, categories))])  # the last row: no click yet
        self._companion_C = rng.permutation(categories)
        self._trace_USK = np.zeros((config.users, len(HALF_LIVES), dim))
        self._last_U = np.full(config.users, categories)
        self._seen_U = np.zeros(config.users)
        self._shown_UG = np.zeros((config.users, config.campaigns))
        self._shown_at_UG = np.zeros((config.users, config.campaigns))
        self._enough_UC = np.zeros((config.users, categories))
        self._bought: list[tuple[np.ndarray, np.ndarray]] = []

    def live(
        self,
        *,
        user: np.ndarray,
        ad: np.ndarray,
        request: np.ndarray,
        click_logit: np.ndarray,
        conversion_logit: np.ndarray,
        draw: np.ndarray,
        share_in_conversion: float,
    ) -> Day:
        """One day: rows in order of time, logits without the habits, and a uniform draw per row that decides on clicks.
        The habits' logit counts in the conversion's at `share_in_conversion`."""
        rows = len(user)
        day = Day(np.zeros(rows), np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool))
        self._new_day()
        second_draw = self._rng.random(rows)
        for at in _turns(user, request):
            habit = self._logit(user[at], ad[at])
            click = draw[at] < _sigmoid(click_logit[at] + habit)
            conversion = _sigmoid(conversion_logit[at] + share_in_conversion * habit)
            day.logit[at], day.click[at], day.conversion[at] = habit, click, click & (second_draw[at] < conversion)
            self._remember(user[at], ad[at], click)
        bought = np.flatnonzero(day.conversion)
        self._bought.append((user[bought], self._ads.category[ad[bought]]))
        return day

    def _new_day(self) -> None:
        self._enough_UC *= 0.5 ** (1 / SATIATION_HALF_LIFE_DAYS)
        if len(self._bought) > 1:
            user, category = self._bought[-2]
            np.add.at(self._enough_UC, (user, category), 1.0)

    def _logit(self, user: np.ndarray, ad: np.ndarray) -> np.ndarray:
        config, campaign, category = self._config, self._ads.campaign[ad], self._ads.category[ad]
        logit = config.sequence_sd * self._pull_CC[self._last_U[user], category]
        if config.habit_sd:
            for s, scale in enumerate(self._scale_S):
                hidden = np.sin(self._omega_H * (scale * self._trace_USK[user, s] @ self._in_SKH[s]))
                logit += config.habit_sd * (hidden * self._out_SAH[s, ad]).sum(axis=1)
        age = self._seen_U[user] - self._shown_at_UG[user, campaign]
        shown = self._shown_UG[user, campaign] * 0.5 ** (age / FATIGUE_HALF_LIFE)
        logit -= config.fatigue * np.log1p(shown)
        enough = np.minimum(self._enough_UC[user], 1.0)
        rows = np.arange(len(user))
        wanted = enough[rows, self._companion_C[category]]
        return logit - config.satiation * (enough[rows, category] - COMPANION_SHARE * wanted)

    def _remember(self, user: np.ndarray, ad: np.ndarray, click: np.ndarray) -> None:
        """Take one request of each user into their state; its ads count as one after another, in their order."""
        _, first, shown = np.unique(user, return_index=True, return_counts=True)
        for place in range(int(shown.max(initial=0))):
            at = first[shown > place] + place
            u, a, clicked = user[at], ad[at], click[at]
            step = (clicked - CLICK_RATE)[:, None] * self._ads.vector[a]
            self._trace_USK[u] = self._trace_USK[u] * self._fade_S[:, None] + step[:, None]
            self._last_U[u] = np.where(clicked, self._ads.category[a], self._last_U[u])
            campaign = self._ads.campaign[a]
            age = self._seen_U[u] - self._shown_at_UG[u, campaign]
            self._shown_UG[u, campaign] = 1 + self._shown_UG[u, campaign] * 0.5 ** (age / FATIGUE_HALF_LIFE)
            self._shown_at_UG[u, campaign] = self._seen_U[u]
            self._seen_U[u] += 1


def _turns(user: np.ndarray, request: np.ndarray) -> list[np.ndarray]:
    """Row numbers of every user's first request, then of every user's second, and so on; the rows of a request stand
    together, in their order. Rows come in order of time, those of a request next to each other."""
    starts = np.flatnonzero(np.diff(request, prepend=request[:1] - 1))
    size = np.diff(starts, append=len(request))
    of_user = user[starts]
    order = np.argsort(of_user, kind="stable")
    _, first, count = np.unique(of_user[order], return_index=True, return_counts=True)
    turn = np.empty(len(starts), dtype=np.int64)
    turn[order] = np.arange(len(starts)) - np.repeat(first, count)
    turn_of_row = np.repeat(turn, size)
    rows = np.argsort(turn_of_row, kind="stable")
    return np.split(rows, np.cumsum(np.bincount(turn_of_row))[:-1]) if len(rows) else []


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))
