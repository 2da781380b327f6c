"""Static structure of a rich world: what a column adds to the click logit depends on one to three others.

Legend: T impressions, A ads, M crosses. Each cross reads two to four columns, at least one of the ad and one of user
or context. Its columns' codes have random values that add up to z; the cross is sin(w z + phase), of unit power. With
w small it is close to a sum of effects, which any model learns; the larger w, the more it is a table of its own for
every combination of codes, which takes capacity and rows. w runs from EASY to HARD, so models find the crosses one
after another as they grow. They come from a generator of their own, so that worlds without them are what they were.
"""

from collections.abc import Mapping

import numpy as np

CROSSES = 48
COLUMNS_OF_A_CROSS = (2, 3, 4)
EASY, HARD = 0.7, 3.0
BRANDS, FORMATS, PRICE_BANDS = 64, 8, 10
_ATTRIBUTE_STREAM, _CROSS_STREAM = 1, 2
"""Second word of the seed: streams of their own."""


def make_attributes(seed: int, campaign: np.ndarray) -> dict[str, np.ndarray]:
    """Codes from 0 of each ad [A]: a campaign has one brand; format and price band are the ad's own."""
    rng = np.random.default_rng([seed, _ATTRIBUTE_STREAM])
    brand_of = rng.integers(0, BRANDS, int(campaign.max(initial=0)) + 1)
    return {
        "brand": brand_of[campaign],
        "format": rng.integers(0, FORMATS, len(campaign)),
        "price_band": rng.integers(0, PRICE_BANDS, len(campaign)),
    }


def cross_logit(seed: int, *, ad: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> np.ndarray:
    """Sum of all crosses at standard deviation 1: float64 [T]. Columns hold codes from 0: those of the ad, [T] each,
    and those of user and context."""
    rng = np.random.default_rng([seed, _CROSS_STREAM])
    columns = {**ad, **others}
    total = np.zeros(len(next(iter(columns.values()))))
    for omega in np.geomspace(EASY, HARD, CROSSES):
        chosen = [rng.choice(list(ad)), rng.choice(list(others))]
        rest = [name for name in columns if name not in chosen]
        chosen += list(rng.choice(rest, size=int(rng.choice(COLUMNS_OF_A_CROSS)) - 2, replace=False))
        z = np.zeros(len(total))
        for name in chosen:
            values = rng.normal(0, 1 / np.sqrt(len(chosen)), int(columns[name].max(initial=0)) + 1)
            z += values[columns[name]]
        total += np.sin(omega * z + rng.uniform(0, 2 * np.pi))
    spread = total.std()
    return (total - total.mean()) / (spread if spread > 0 else 1.0)
