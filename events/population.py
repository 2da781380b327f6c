"""Who lives in a synthetic world: ads with campaigns, bids and objectives; people with interests and a noisy profile.

Legend: U users, A ads, K interest dimensions, C categories. All logit effects are on the scale of the click logit.
"""

from dataclasses import dataclass, field

import numpy as np

from events.crosses import make_attributes
from events.recipes import WorldConfig

DEVICES = ("android", "ios", "web")
DEVICE_SHARE = np.array([0.55, 0.35, 0.10])
OBJECTIVES = ("click", "conversion", "install")
OBJECTIVE_SHARE = np.array([0.30, 0.45, 0.25])
OBJECTIVE_BID = np.array([0.5, 8.0, 3.0])
AGE_BANDS = 6
PURCHASE_SD = 0.7
NEW_AD_SHARE = 0.25
UNPROFILED_SHARE = 0.03


@dataclass(frozen=True)
class Ads:
    """Columns [A]; vector [A, K] of unit length. An ad is shown from day `first_day` on. attributes: codes from 0."""

    campaign: np.ndarray
    category: np.ndarray
    objective: np.ndarray
    vector: np.ndarray
    click_effect: np.ndarray
    conversion_effect: np.ndarray
    install_effect: np.ndarray
    popularity: np.ndarray
    first_day: np.ndarray
    bid: np.ndarray
    attributes: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class People:
    """Columns [U]; interest [U, K] is that of the day before the first, and so is the profile that measures it."""

    interest: np.ndarray
    bias: np.ndarray
    purchase: np.ndarray
    activity: np.ndarray
    device: np.ndarray
    profile: dict[str, np.ndarray]


def make_ads(rng: np.random.Generator, config: WorldConfig) -> Ads:
    """A campaign has one category and one objective; an ad's vector lies near its category's centre."""
    centre_CK = _unit(rng.normal(size=(config.categories, config.interest_dim)))
    category_of = rng.integers(0, config.categories, config.campaigns)
    objective_of = rng.choice(len(OBJECTIVES), size=config.campaigns, p=OBJECTIVE_SHARE)
    campaign_effect = rng.normal(0, 0.2, config.campaigns)
    campaign = rng.integers(0, config.campaigns, config.ads)
    category, objective = category_of[campaign], objective_of[campaign]
    own_AK = _unit(rng.normal(size=(config.ads, config.interest_dim)))
    starts_later = rng.random(config.ads) < NEW_AD_SHARE
    return Ads(
        campaign=campaign,
        category=category,
        objective=objective,
        vector=_unit(centre_CK[category] + 0.5 * own_AK),
        click_effect=campaign_effect[campaign] + rng.normal(0, config.ad_effect_sd, config.ads),
        conversion_effect=rng.normal(0, 0.5, config.ads) + 0.4 * (objective == OBJECTIVES.index("conversion")),
        install_effect=rng.normal(0, 0.5, config.ads) - 1.2 * (objective != OBJECTIVES.index("install")),
        popularity=rng.normal(0, 1, config.ads),
        first_day=np.where(starts_later, rng.integers(0, config.days, config.ads), 0),
        bid=(OBJECTIVE_BID[objective] * rng.lognormal(0, 0.4, config.ads)).astype(np.float32),
        attributes=make_attributes(config.seed, campaign) if config.ad_attributes else {},
    )


def make_people(rng: np.random.Generator, config: WorldConfig) -> People:
    """Interests, click bias and purchase propensity are hidden; the profile measures each with noise."""
    interest_UK = rng.normal(size=(config.users, config.interest_dim))
    bias = rng.normal(0, config.user_bias_sd, config.users)
    purchase = rng.normal(0, PURCHASE_SD, config.users)
    return People(
        interest=interest_UK,
        bias=bias,
        purchase=purchase,
        activity=np.minimum(1 + rng.pareto(config.activity_shape, config.users), config.activity_cap),
        device=rng.choice(len(DEVICES), size=config.users, p=DEVICE_SHARE),
        profile=_profile(rng, config, interest_UK, bias / config.user_bias_sd, purchase / PURCHASE_SD),
    )


def _profile(
    rng: np.random.Generator, config: WorldConfig, interest_UK: np.ndarray, bias: np.ndarray, purchase: np.ndarray
) -> dict[str, np.ndarray]:
    """Feature columns of unit scale plus noise; zeros for the few users without a profile."""

    def measured(values: np.ndarray) -> np.ndarray:
        return values + rng.normal(0, config.profile_noise_sd, values.shape)

    seen_UK, engagement = measured(interest_UK), measured(bias)
    directions = _unit(rng.normal(size=(config.categories, config.interest_dim)))
    age = engagement + rng.normal(0, 1, config.users)
    age_band = np.digitize(age, np.quantile(age, np.arange(1, AGE_BANDS) / AGE_BANDS))
    known = rng.random(config.users) >= UNPROFILED_SHARE
    floats = {f"interest_{k}": seen_UK[:, k] for k in range(config.interest_dim)}
    floats |= {"engagement": engagement, "purchase": measured(purchase)}
    codes = {"segment": 1 + np.argmax(seen_UK @ directions.T, axis=1), "age_band": 1 + age_band}
    return {name: (values * known).astype(np.float32) for name, values in floats.items()} | {
        name: (values * known).astype(np.int32) for name, values in codes.items()
    }


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
