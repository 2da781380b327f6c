"""What a synthetic world shows: requests of users over the days, each with several ads at the same time.

Legend: T impressions, in order of time.
"""

from dataclasses import dataclass

import numpy as np

from contracts.schema import HOUR_MS, HOURS
from events.population import DEVICES, Ads, People
from events.recipes import WorldConfig
from events.splits import DAY_MS

SURFACES = ("other", "feed", "reels", "stories", "marketplace")
SURFACE_SHARE = np.array([0.01, 0.45, 0.26, 0.18, 0.10])
SURFACE_SLOTS = np.array([1, 3, 2, 1, 4])
"""Ads that one request of the surface shows at the same time."""
OWN_DEVICE_SHARE = 0.85
REQUESTS_AT_ONCE = 20_000
"""Requests whose ads are drawn together: bounds the memory of the [requests, ads] scores."""


@dataclass(frozen=True)
class Traffic:
    """Impressions in order of time, columns [T]; `request` numbers the requests."""

    request: np.ndarray
    user: np.ndarray
    ad: np.ndarray
    surface: np.ndarray
    device: np.ndarray
    event_ms: np.ndarray


def make_traffic(rng: np.random.Generator, config: WorldConfig, ads: Ads, people: People) -> Traffic:
    """About `config.impressions` impressions: users by their activity, times by a daily curve, ads by popularity."""
    wanted = int(np.ceil(config.impressions / (SURFACE_SHARE @ SURFACE_SLOTS)))
    event_ms = np.sort(_times(rng, config, wanted))
    user = rng.choice(config.users, size=wanted, p=people.activity / people.activity.sum())
    surface = rng.choice(len(SURFACES), size=wanted, p=SURFACE_SHARE)
    own = rng.random(wanted) < OWN_DEVICE_SHARE
    device = np.where(own, people.device[user], rng.integers(0, len(DEVICES), wanted))
    slots = np.minimum(SURFACE_SLOTS[surface], config.ads)
    day = (event_ms - config.start_ms) // DAY_MS
    chunks = range(0, wanted, REQUESTS_AT_ONCE)
    ad = [_shown(rng, ads, day[i : i + REQUESTS_AT_ONCE], slots[i : i + REQUESTS_AT_ONCE]) for i in chunks]
    request = np.repeat(np.arange(wanted), slots)
    return Traffic(
        request=request,
        user=user[request],
        ad=np.concatenate(ad),
        surface=surface[request],
        device=device[request],
        event_ms=event_ms[request],
    )


def _times(rng: np.random.Generator, config: WorldConfig, count: int) -> np.ndarray:
    """Times with a low at 04:00 and a high at 20:00."""
    hour = np.arange(HOURS)
    curve = 1.1 + np.cos((hour - 20) / HOURS * 2 * np.pi)
    chosen = rng.choice(HOURS, size=count, p=curve / curve.sum())
    day = rng.integers(0, config.days, count)
    return config.start_ms + day * DAY_MS + chosen * HOUR_MS + rng.integers(0, HOUR_MS, count)


def _shown(rng: np.random.Generator, ads: Ads, day: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Distinct ads of each request, drawn by popularity among those that run (Gumbel top-k), request after request."""
    score = ads.popularity + rng.gumbel(size=(len(day), len(ads.popularity)))
    # an ad that does not run yet comes last: it is shown only where too few others run
    score = np.where(ads.first_day <= day[:, None], score, score - 1e3)
    most = int(slots.max())
    best = np.argsort(-score, axis=1)[:, :most]
    return best[np.arange(most) < slots[:, None]]
