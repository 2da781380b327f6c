"""A deterministic ads world whose true probabilities are known: who clicks, who converts, and when it becomes known.

Legend: T impressions, U users, K interest dimensions, C categories. The click logit is surface + device + hour + ad +
gap <u_t, v_ad> + b_user; plus loyalty to old clicks in a long-range world, crosses and habits in a rich one.
Interests u_t drift from day to day as an Ornstein-Uhlenbeck process. The teacher sees a profile that measures
(u_0, b_user, purchase propensity) with noise; a student sees neither. NE of the true probabilities is the best
attainable one.
"""

from dataclasses import replace

import numpy as np

from contracts.schema import HOUR_MS, HOURS, Feature, FeatureSchema, Task
from events.crosses import BRANDS, FORMATS, PRICE_BANDS, cross_logit
from events.habits import Habits
from events.log import UNKNOWN_LABEL, InteractionLog
from events.population import AGE_BANDS, DEVICES, OBJECTIVES, Ads, People, make_ads, make_people
from events.recipes import WorldConfig
from events.splits import DAY_MS, Calendar, day_calendar
from events.traffic import SURFACES, Traffic, make_traffic

SURFACE_LOGIT = np.array([-1.9, -1.5, -2.2, -2.7, -0.8])
DEVICE_LOGIT = np.array([0.0, 0.15, -0.3])
CONVERSION_LOGIT, INSTALL_LOGIT = -1.6, -1.3
INSTALL_ON_WEB = -1.0
AFFINITY_SHARE = 0.5
"""How much of the interest in an ad (and of habits) counts in its conversion and install."""
HOURS_OF_A_PART = 4
LATE_HOURS = (1, 36)
ARRIVAL_MS = 2_000


def make_world(config: WorldConfig) -> tuple[InteractionLog, dict[str, np.ndarray]]:
    """The world's log in order of arrival, and the true probability of each task given its parent, float64 [T].

    Labels are final: the log also holds what became known after its last day, with its label_ms, so that the rows of
    every period can be judged at `Calendar.judged_ms`. Histories and `InteractionLog.usable` read a label only when
    it was known, and `InteractionLog.trainable` only rows that had arrived.
    """
    rng = np.random.default_rng(config.seed)
    ads, people = make_ads(rng, config), make_people(rng, config)
    shown = make_traffic(rng, config, ads, people)
    truth, click, converted = _clicks(rng, config, ads, people, shown)
    labels, label_ms = _outcomes(rng, config, shown, truth, click, converted)
    event_id, rows = _distinct_ids(rng, len(click)), len(click)
    request_id = _distinct_ids(rng, int(shown.request[-1]) + 1)
    late = rng.random(rows) < config.late_share
    delay_ms = np.where(late, rng.uniform(*LATE_HOURS, rows) * HOUR_MS, rng.exponential(ARRIVAL_MS, rows))
    log = InteractionLog(
        schema=world_schema(config),
        user_ids=_names("u", np.arange(config.users)),
        ad_ids=_names("ad", np.arange(config.ads)),
        user_features=people.profile,
        ad_features={
            "category": ads.category + 1,
            "campaign_code": ads.campaign + 1,
            **{name: codes + 1 for name, codes in ads.attributes.items()},
        },
        campaign=_names("campaign", ads.campaign),
        objective=np.array(OBJECTIVES, dtype=object)[ads.objective],
        default_bid=ads.bid,
        offset=np.arange(rows, dtype=np.int64),
        event_id=event_id,
        request_id=request_id[shown.request],
        user=shown.user.astype(np.int32),
        ad=shown.ad.astype(np.int32),
        surface=shown.surface.astype(np.int16),
        event_ms=shown.event_ms,
        ingested_ms=shown.event_ms + 1 + delay_ms.astype(np.int64),
        bid=(ads.bid[shown.ad] * rng.lognormal(0, 0.1, rows)).astype(np.float32),
        context={"device": shown.device.astype(np.int32) + 1},
        labels=labels,
        label_ms=label_ms,
    )
    arrival = np.lexsort((event_id, log.ingested_ms))
    return replace(log.take(arrival), offset=log.offset), {task: p[arrival] for task, p in truth.items()}


def world_calendar(config: WorldConfig) -> Calendar:
    """Whole UTC days: the teacher's, the students', one of validation, those of test."""
    return day_calendar(
        config.start_ms,
        teacher_days=config.teacher_days,
        student_days=config.student_days,
        test_days=config.test_days,
    )


def world_schema(config: WorldConfig) -> FeatureSchema:
    """A student reads ids, campaign, category, attributes of the ad, surface, clock and device; the user's profile is
    the teacher's alone."""
    sizes = {"brand": BRANDS, "format": FORMATS, "price_band": PRICE_BANDS} if config.ad_attributes else {}
    return FeatureSchema(
        name=f"synthetic-{config.name}",
        surfaces=SURFACES,
        tasks=(
            Task("click", window_ms=config.click_window_ms),
            Task("conversion", parent="click", window_ms=config.conversion_window_ms),
            Task("install", parent="click", window_ms=config.install_window_ms),
        ),
        features=(
            *(Feature(f"interest_{k}", "user", "float", teacher_only=True) for k in range(config.interest_dim)),
            Feature("engagement", "user", "float", teacher_only=True),
            Feature("purchase", "user", "float", teacher_only=True),
            Feature("segment", "user", cardinality=config.categories + 1, teacher_only=True),
            Feature("age_band", "user", cardinality=AGE_BANDS + 1, teacher_only=True),
            Feature("category", "ad", cardinality=config.categories + 1),
            Feature("campaign_code", "ad", cardinality=config.campaigns + 1),
            *(Feature(name, "ad", cardinality=size + 1) for name, size in sizes.items()),
            Feature("device", "context", cardinality=len(DEVICES) + 1),
        ),
        user_buckets=_buckets(4 * config.users),
        ad_buckets=_buckets(8 * config.ads),
    )


def _clicks(
    rng: np.random.Generator, config: WorldConfig, ads: Ads, people: People, shown: Traffic
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray | None]:
    """True probabilities by task, the clicks, and the conversions where habits drew them; day by day: interests drift
    overnight, loyalty follows old clicks, habits live through the day."""
    rows = len(shown.user)
    day = (shown.event_ms - config.start_ms) // DAY_MS
    hour = shown.event_ms // HOUR_MS % HOURS
    fixed = SURFACE_LOGIT[shown.surface] + DEVICE_LOGIT[shown.device] + ads.click_effect[shown.ad]
    fixed += 0.15 * np.cos((hour - 21) / HOURS * 2 * np.pi) + people.bias[shown.user]
    if config.cross_sd:
        fixed += config.cross_sd * _crosses(config, ads, people, shown)
    conversion = CONVERSION_LOGIT + ads.conversion_effect[shown.ad] + people.purchase[shown.user]
    install = INSTALL_LOGIT + ads.install_effect[shown.ad] + INSTALL_ON_WEB * (shown.device == DEVICES.index("web"))
    affinity, p_click, click = np.zeros(rows), np.zeros(rows), np.zeros(rows, dtype=np.int8)
    habits = Habits(config, ads) if config.has_habits else None
    converted = np.zeros(rows, dtype=bool) if habits is not None else None
    interest_UK, keep = people.interest, config.interest_day_correlation
    for number in range(config.days):
        interest_UK = keep * interest_UK + np.sqrt(1 - keep**2) * rng.normal(size=interest_UK.shape)
        today = np.flatnonzero(day == number)
        user, ad = shown.user[today], shown.ad[today]
        affinity[today] = (interest_UK[user] * ads.vector[ad]).sum(axis=1)
        logit = fixed[today] + config.gap * affinity[today]
        if config.long_range_weight:
            past = slice(0, today[0] if len(today) else 0)
            loyal_to = _loyalty(config, shown.user[past], ads.category[shown.ad[past]], click[past])
            logit += _loyalty_logit(config, loyal_to[user], ads.category[ad])
        draw = rng.random(len(today))
        if habits is not None and converted is not None:
            lived = habits.live(
                user=user,
                ad=ad,
                request=shown.request[today],
                click_logit=logit,
                conversion_logit=conversion[today] + AFFINITY_SHARE * affinity[today],
                draw=draw,
                share_in_conversion=AFFINITY_SHARE,
            )
            logit, converted[today] = logit + lived.logit, lived.conversion
            affinity[today] += lived.logit
        p_click[today] = _sigmoid(logit)
        click[today] = draw < p_click[today]
    conversion = conversion + AFFINITY_SHARE * affinity
    install = install + 0.5 * people.purchase[shown.user] + AFFINITY_SHARE * affinity
    return {"click": p_click, "conversion": _sigmoid(conversion), "install": _sigmoid(install)}, click, converted


def _crosses(config: WorldConfig, ads: Ads, people: People, shown: Traffic) -> np.ndarray:
    """All that a model may read as a code takes part: float64 [T], standard deviation 1."""
    return cross_logit(
        config.seed,
        ad={
            "category": ads.category[shown.ad],
            "campaign": ads.campaign[shown.ad],
            **{name: codes[shown.ad] for name, codes in ads.attributes.items()},
        },
        others={
            "segment": people.profile["segment"][shown.user],
            "age_band": people.profile["age_band"][shown.user],
            "surface": shown.surface,
            "device": shown.device,
            "part_of_day": shown.event_ms // HOUR_MS % HOURS // HOURS_OF_A_PART,
        },
    )


def _loyalty(config: WorldConfig, user: np.ndarray, category: np.ndarray, click: np.ndarray) -> np.ndarray:
    """The category that each user clicked most among their impressions with at least `long_range_events` - 1 later
    ones so far (the newest `long_range_span` of those, if set), moved on by `long_range_shift`; -1 for users without
    such a click: int64 [U]. Columns are in order of time."""
    order = np.argsort(user, kind="stable")
    count_U = np.bincount(user, minlength=config.users)
    rank = np.arange(len(user)) - (np.cumsum(count_U) - count_U)[user[order]]
    behind = count_U[user[order]] - config.long_range_events - rank
    old = order[(behind >= 0) & (behind < config.long_range_span if config.long_range_span else True)]
    old = old[click[old] == 1]
    cell = user[old] * config.categories + category[old]
    clicks_UC = np.bincount(cell, minlength=config.users * config.categories).reshape(config.users, config.categories)
    favourite_U = (clicks_UC.argmax(axis=1) + config.long_range_shift) % config.categories
    return np.where(clicks_UC.any(axis=1), favourite_U, -1)


def _loyalty_logit(config: WorldConfig, loyal_to: np.ndarray, category: np.ndarray) -> np.ndarray:
    """Up on ads of the loyal category, a little down on all others; nothing for users without one."""
    return np.where(loyal_to < 0, 0.0, config.long_range_weight * ((loyal_to == category) - 1 / config.categories))


def _outcomes(
    rng: np.random.Generator,
    config: WorldConfig,
    shown: Traffic,
    truth: dict[str, np.ndarray],
    click: np.ndarray,
    converted: np.ndarray | None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Labels and when each became known. A positive is known when it happens, a negative when its window has passed;
    delays are exponential, cut off at the window. Conversions are drawn here unless habits already did."""
    labels = {"click": click}
    label_ms = {"click": shown.event_ms + config.click_window_ms}
    medians = {
        "conversion": (config.conversion_median_ms, config.conversion_window_ms),
        "install": (config.install_median_ms, config.install_window_ms),
    }
    for task, (median_ms, window_ms) in medians.items():
        done = rng.random(len(click)) < truth[task]
        if task == "conversion" and converted is not None:
            done = converted
        scale = median_ms / np.log(2)
        # inverse distribution function of the exponential, truncated to the window
        share = rng.random(len(click)) * -np.expm1(-window_ms / scale)
        delay_ms = np.ceil(-scale * np.log1p(-share)).astype(np.int64)
        delay_ms = np.clip(delay_ms, config.click_window_ms, window_ms)
        labels[task] = np.where(click == 1, done, UNKNOWN_LABEL).astype(np.int8)
        label_ms[task] = shown.event_ms + np.where(labels[task] == 1, delay_ms, window_ms)
    return labels, label_ms


def _names(prefix: str, numbers: np.ndarray) -> np.ndarray:
    return np.array([f"{prefix}{number}" for number in numbers], dtype=object)


def _distinct_ids(rng: np.random.Generator, count: int) -> np.ndarray:
    """Distinct random 64-bit ids (a collision among 2^64 would need billions of rows; it is drawn again)."""
    while True:
        ids = rng.integers(0, 2**64, size=count, dtype=np.uint64)
        if len(np.unique(ids)) == count:
            return ids


def _buckets(wanted: int) -> int:
    """The next power of two, at least 1,024."""
    return max(1_024, 1 << (wanted - 1).bit_length())


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))
