"""Synthetic worlds: `tiny` for unit tests, `smoke` for a look in seconds, `demo` for the figures of `make demo`."""

from dataclasses import dataclass, replace

HOUR_MS, MINUTE_MS = 3_600_000, 60_000


@dataclass(frozen=True)
class WorldConfig:
    """What would change a world. Sizes are counts, *_sd standard deviations on the logit scale.

    gap and user_bias_sd control how much persistent user-level information the teacher sees and the student does not:
    by LoopFM's gain decomposition (2605.29280, theorem 1) that is what its transfer lives on.
    """

    name: str
    users: int
    ads: int
    campaigns: int
    categories: int
    impressions: int
    seed: int = 0
    start_ms: int = 1_704_067_200_000  # Monday, 1 January 2024, 00:00 UTC
    teacher_days: int = 7
    student_days: int = 5
    activity_shape: float = 1.3
    """Pareto tail of users' activity: the smaller, the more a few users make of the traffic."""
    activity_cap: float = 30.0
    """Activity of the busiest users, in multiples of the least active one's."""
    interest_dim: int = 4
    gap: float = 0.7
    """Standard deviation of the interest term <u_t, v_ad> in the click logit."""
    interest_day_correlation: float = 0.98
    """Of a user's interests on one day with those on the next: .75 after two weeks, a slow drift."""
    user_bias_sd: float = 0.6
    ad_effect_sd: float = 0.35
    profile_noise_sd: float = 0.5
    """Noise of the teacher's profile, whose columns have unit scale without it."""
    click_window_ms: int = 30_000
    """A click or its absence is known this long after the impression."""
    conversion_window_ms: int = 24 * HOUR_MS
    conversion_median_ms: int = 3 * HOUR_MS
    install_window_ms: int = 6 * HOUR_MS
    install_median_ms: int = 10 * MINUTE_MS
    late_share: float = 0.01
    """Share of impressions that arrive one to 36 hours late."""
    long_range_weight: float = 0.0
    """Weight of the user's loyalty to the category that they clicked most among events at least `long_range_events`
    impressions old; 0 leaves it out."""
    long_range_events: int = 100

    @property
    def days(self) -> int:
        """Teacher days, student days, one of validation, one of test."""
        return self.teacher_days + self.student_days + 2


def tiny() -> WorldConfig:
    """About 3,000 impressions: unit tests."""
    return WorldConfig("tiny", users=200, ads=60, campaigns=20, categories=6, impressions=3_000)


def smoke() -> WorldConfig:
    """About 12,000 impressions: every command in seconds, no figure worth quoting."""
    return WorldConfig("smoke", users=800, ads=120, campaigns=40, categories=8, impressions=12_000)


def demo() -> WorldConfig:
    """About 120,000 impressions of 6,000 users and 400 ads: differences between arms are measurable."""
    return WorldConfig("demo", users=6_000, ads=400, campaigns=120, categories=12, impressions=120_000)


def long_range(config: WorldConfig) -> WorldConfig:
    """The same world with loyalty to what was clicked long ago, and users active enough to have such a past:
    about 400 impressions each on average."""
    users = max(20, config.impressions // 400)
    return replace(config, name=f"{config.name}-long-range", users=users, long_range_weight=1.5)
