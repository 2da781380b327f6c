"""Synthetic worlds: `tiny` for unit tests, `smoke` for a look in seconds, `demo` for the figures of `make demo`,
`long_range` and `scaling` for studies that need long histories and many rows."""

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
    test_days: int = 1
    """Days of the test period; validation is always one day."""
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
    long_range_span: int = 0
    """Only the first so many events behind that distance count; 0: all of them."""
    long_range_shift: int = 0
    """Loyalty goes to the category so many places behind the one clicked most, in a circle. Above 0 it moves on
    whenever it is followed, so that a user's id cannot stand for it and recent clicks tell little of it."""
    ad_attributes: bool = False
    """Whether ads have a brand, a format and a price band (crosses.py), which every model may read."""
    cross_sd: float = 0.0
    """Crosses of two to four columns of ad, user segment and context (crosses.py); 0 leaves them out."""
    habit_sd: float = 0.0
    """Nonlinear interest in what was clicked and skipped over the last 4, 40 and 400 impressions (habits.py)."""
    sequence_sd: float = 0.0
    """Pull from the category of the last click to that of the ad (habits.py)."""
    fatigue: float = 0.0
    """Fall of the click logit with the log of how often the campaign was shown of late (habits.py)."""
    satiation: float = 0.0
    """Fall of the click logit on a category in which the user converted on the days before (habits.py)."""

    @property
    def days(self) -> int:
        """Teacher days, student days, one of validation, those of test."""
        return self.teacher_days + self.student_days + 1 + self.test_days

    @property
    def has_habits(self) -> bool:
        """Whether clicks follow from earlier events of the user, request by request."""
        return any((self.habit_sd, self.sequence_sd, self.fatigue, self.satiation))


def tiny() -> WorldConfig:
    """About 3,000 impressions: unit tests."""
    return WorldConfig("tiny", users=200, ads=60, campaigns=20, categories=6, impressions=3_000)


def smoke() -> WorldConfig:
    """About 12,000 impressions: every command in seconds, no figure worth quoting."""
    return WorldConfig("smoke", users=800, ads=120, campaigns=40, categories=8, impressions=12_000)


def demo() -> WorldConfig:
    """About 120,000 impressions of 6,000 users and 400 ads: differences between arms are measurable."""
    return WorldConfig("demo", users=6_000, ads=400, campaigns=120, categories=12, impressions=120_000)


def with_loyalty(config: WorldConfig) -> WorldConfig:
    """The same world with loyalty to what was clicked long ago, and users active enough to have such a past:
    about 400 impressions each on average."""
    users = max(20, config.impressions // 400)
    return replace(config, name=f"{config.name}-long-range", users=users, long_range_weight=1.5)


def long_range() -> WorldConfig:
    """About 920,000 impressions of 940 users, who see 400 to 2,000 each; a third of the rows, over 300,000, is test.

    What a user is loyal to follows from their clicks 100 to 400 impressions ago and moves on, so a model that reads
    less has to guess it. Interests weigh less than in other worlds.
    """
    return WorldConfig(
        "long_range",
        users=940,
        ads=400,
        campaigns=120,
        categories=12,
        impressions=920_000,
        teacher_days=7,
        student_days=1,
        test_days=5,
        activity_cap=4.2,
        gap=0.4,
        long_range_weight=2.5,
        long_range_span=300,
        long_range_shift=1,
    )


def scaling() -> WorldConfig:
    """About 1,400,000 impressions of 4,000 users, 1,000,000 of them in the teacher's period.

    Structure of every difficulty: low-order crosses and recent clicks that a small model finds, crosses of four columns
    and folded functions of 400 impressions that take capacity and rows, and much that a million rows do not tell. So
    the best attainable NE lies far below what any model reaches in one pass.
    """
    return WorldConfig(
        "scaling",
        users=4_000,
        ads=800,
        campaigns=200,
        categories=20,
        impressions=1_400_000,
        teacher_days=10,
        student_days=1,
        test_days=2,
        activity_cap=10.0,
        interest_dim=12,
        gap=0.8,
        interest_day_correlation=0.95,
        ad_attributes=True,
        cross_sd=1.0,
        habit_sd=0.9,
        sequence_sd=0.5,
        fatigue=0.3,
        satiation=0.8,
    )
