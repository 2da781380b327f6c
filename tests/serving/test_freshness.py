"""Ages and the words for them."""

import numpy as np
import pytest

from contracts.bodies import PairInfo
from contracts.embedding import PairRecord
from contracts.hashing import stable_hashes
from serving.freshness import MaxAges, cover_pairs, judge
from serving.store import CORRUPT, MISSING, NO_GENERATION, TIMEOUT, Live, Reading
from tests.serving.conftest import make_history
from tests.serving.small_student import DIM, GENERATION, NOW_MS, SPACE

AGES = MaxAges(fresh_s=100, stale_s=1000)
NO_PAIRS = PairInfo("missing", 0, 0)


def reading(age_s: float, watermark_age_s: float | None = None) -> Reading:
    watermark = None if watermark_age_s is None else NOW_MS - int(watermark_age_s * 1000)
    record = make_history(computed_ms=NOW_MS - int(age_s * 1000))
    return Reading(record, None, None, "valkey", Live(GENERATION, watermark))


def without(fault: str) -> Reading:
    return Reading(None, None, fault, "default", Live(GENERATION, None))


def judged(given: Reading):
    return judge(given, AGES, space=SPACE, now_ms=NOW_MS, pairs=NO_PAIRS)


@pytest.mark.parametrize(
    ("age_s", "watermark_age_s", "status"),
    [
        (0, None, "fresh"),
        (100, None, "fresh"),
        (100.5, None, "stale"),
        (1000, None, "stale"),
        (1000.5, None, "expired"),
        (10_000, 5, "fresh"),
        (5, 10_000, "fresh"),
        (10_000, 500, "stale"),
        (-50, None, "fresh"),
    ],
)
def test_age_is_now_minus_the_later_of_record_and_watermark(age_s, watermark_age_s, status):
    answer = judged(reading(age_s, watermark_age_s))
    assert answer.info.status == status
    assert answer.degraded == ([] if status == "fresh" else [f"embedding_{status}"])
    assert answer.info.age_s == max(min(age_s, watermark_age_s if watermark_age_s is not None else age_s), 0)


def test_an_expired_record_is_stated_and_not_used():
    answer = judged(reading(5000))
    assert answer.history is None
    assert (answer.info.status, answer.info.source) == ("expired", "default")
    assert answer.info.computed_at_ms == NOW_MS - 5_000_000


@pytest.mark.parametrize(
    ("fault", "status"),
    [(MISSING, "missing"), (NO_GENERATION, "missing"), (CORRUPT, "missing"), (TIMEOUT, "unavailable")],
)
def test_no_record_is_missing_or_unavailable_and_says_why(fault, status):
    answer = judged(without(fault))
    assert (answer.info.status, answer.info.source, answer.degraded) == (status, "default", [fault])
    assert (answer.info.computed_at_ms, answer.info.age_s) == (None, None)


def pair_reading(ages_s: list[float]) -> Reading:
    computed_ms = np.array([NOW_MS - int(age * 1000) for age in ages_s])
    hashes = stable_hashes(f"a{i}" for i in range(len(ages_s)))
    vectors = np.zeros((len(ages_s), DIM), np.float32)
    record = PairRecord(hashes, vectors, computed_ms, np.zeros(DIM, np.float32), NOW_MS, 1)
    return Reading(None, record, MISSING, "default", Live(GENERATION, None))


@pytest.mark.parametrize(
    ("ages_s", "ads", "expected"),
    [
        ([1, 2, 3], ["a0", "a2", "b"], PairInfo("fresh", 2, 3)),
        ([1, 500, 3], ["a0", "a1"], PairInfo("stale", 2, 2)),
        ([1, 5000, 3], ["a0", "a1"], PairInfo("fresh", 1, 2)),
        ([5000], ["a0"], PairInfo("expired", 0, 1)),
        ([1], ["b"], PairInfo("missing", 0, 1)),
        ([1], [], PairInfo("missing", 0, 0)),
    ],
)
def test_pairs_are_covered_one_by_one(ages_s, ads, expected):
    given = pair_reading(ages_s)
    assert cover_pairs(given, AGES, now_ms=NOW_MS, ad_hashes=stable_hashes(ads), total=len(ads)) == expected


def test_without_a_pair_record_nothing_is_covered():
    assert cover_pairs(without(MISSING), AGES, now_ms=NOW_MS, ad_hashes=None, total=4) == PairInfo("missing", 0, 4)
    unavailable = PairInfo("unavailable", 0, 4)
    assert cover_pairs(without(TIMEOUT), AGES, now_ms=NOW_MS, ad_hashes=None, total=4) == unavailable
