"""The scaling law is found again in losses that were made from one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from events.metrics import entropy
from foundation.experiments import scaling_page
from foundation.experiments.compare import Judged
from foundation.experiments.jobs import Outcome
from foundation.experiments.scaling import RATES, _fits, carried_rate
from tests.foundation.experiments.made_judged import made_judged, outcome

DECADES = np.array([5.0, 5.5, 6.0, 6.5, 7.0])
FLOPS = (10**DECADES).tolist()
SLOPES = {"Kunlun": 0.02, "InterFormer": 0.01, "Wukong": 0.02}
INTERCEPT = 1.3


def with_ne(rows: Judged, wanted: float) -> np.ndarray:
    """A constant prediction above the mean label whose NE is the one wanted (1 or more), by bisection."""
    mean, spread = rows.y.mean(), entropy(rows.y)
    low, high = mean, 1 - 1e-6
    for _ in range(60):
        middle = (low + high) / 2
        found = -(mean * np.log(middle) + (1 - mean) * np.log1p(-middle)) / spread
        low, high = (middle, high) if found < wanted else (low, middle)
    return np.full(len(rows.y), low)


def made_outcomes(rows: Judged, *, seeds: int = 3, seed_sd: float = 0.0) -> dict[str, list[list[Outcome]]]:
    """Seeds of each size of each model, exactly on its line but for the seeds' noise."""
    rng = np.random.default_rng(0)
    return {
        family: [
            [outcome(with_ne(rows, INTERCEPT - slope * decade + seed_sd * rng.normal())) for _ in range(seeds)]
            for decade in DECADES
        ]
        for family, slope in SLOPES.items()
    }


@pytest.fixture(scope="module")
def rows() -> Judged:
    return made_judged()[0]


def test_known_slopes_intercepts_and_ratios_are_found(rows: Judged) -> None:
    found = _fits(rows, made_outcomes(rows), dict.fromkeys(SLOPES, FLOPS))
    for family, slope in SLOPES.items():
        assert found[family]["slope"]["value"] == pytest.approx(slope, abs=1e-4)
        assert found[family]["intercept"] == pytest.approx(INTERCEPT, abs=1e-3)
        assert found[family]["slope"]["low"] < slope < found[family]["slope"]["high"]
    assert set(found["ratio"]) == {"Kunlun / InterFormer", "Kunlun / Wukong"}
    assert found["ratio"]["Kunlun / InterFormer"]["value"] == pytest.approx(2, abs=0.02)
    assert found["ratio"]["Kunlun / Wukong"]["value"] == pytest.approx(1, abs=0.02)


def test_each_model_s_own_compute_counts(rows: Judged) -> None:
    wider = [10 ** (5 + 2 * (decade - 5)) for decade in DECADES]  # the same losses over twice the decades
    found = _fits(rows, made_outcomes(rows), {**dict.fromkeys(SLOPES, FLOPS), "Kunlun": wider})
    assert found["Kunlun"]["slope"]["value"] == pytest.approx(0.01, abs=1e-4)
    assert found["ratio"]["Kunlun / InterFormer"]["value"] == pytest.approx(1, abs=0.02)


def test_intervals_hold_the_truth_under_noise_and_grow_with_it(rows: Judged) -> None:
    plain = _fits(rows, made_outcomes(rows), dict.fromkeys(SLOPES, FLOPS))
    noisy = _fits(rows, made_outcomes(rows, seeds=8, seed_sd=0.004), dict.fromkeys(SLOPES, FLOPS))
    for family, slope in SLOPES.items():
        one = noisy[family]["slope"]
        assert one["low"] < slope < one["high"]
        assert one["high"] - one["low"] > plain[family]["slope"]["high"] - plain[family]["slope"]["low"]
    ratio = noisy["ratio"]["Kunlun / InterFormer"]
    assert 1 < ratio["low"] < 2 < ratio["high"]
    ratio = noisy["ratio"]["Kunlun / Wukong"]
    assert ratio["low"] < 1 < ratio["high"]


def test_users_are_drawn_whole(rows: Judged) -> None:
    """One user's rows alike: as many independent rows as users, so the interval is wider than with a user per row."""
    alike = replace(rows, y=np.repeat(rows.y[::4], 4))
    apart = replace(alike, users=np.arange(len(alike.y)))
    made = made_outcomes(alike)
    widths = []
    for one in (alike, apart):
        slope = _fits(one, made, dict.fromkeys(SLOPES, FLOPS))["Kunlun"]["slope"]
        widths.append(slope["high"] - slope["low"])
    assert widths[0] > 1.5 * widths[1]


def test_the_carried_rate_falls_with_the_root_of_the_width() -> None:
    assert carried_rate(2e-3, 64, 64) == 2e-3
    assert carried_rate(2e-3, 256, 64) == pytest.approx(1e-3)
    assert carried_rate(RATES[-1], 16, 64) == pytest.approx(2 * RATES[-1])


def test_a_ratio_over_a_slope_that_may_be_zero_has_no_interval(rows: Judged) -> None:
    exact = made_outcomes(rows)
    noisy = made_outcomes(rows, seeds=3, seed_sd=0.2)["Wukong"]
    found = _fits(rows, {**exact, "Wukong": noisy}, dict.fromkeys(SLOPES, FLOPS))
    assert found["Wukong"]["slope"]["low"] <= 0 < found["InterFormer"]["slope"]["low"]
    assert np.isnan(found["ratio"]["Kunlun / Wukong"]["low"])
    assert found["ratio"]["Kunlun / InterFormer"]["low"] > 0


def test_the_page_shows_residuals_room_and_a_best_rate_at_the_edge(rows: Judged, tmp_path: Path) -> None:
    fits = _fits(rows, made_outcomes(rows), dict.fromkeys(SLOPES, FLOPS))
    names = ("0.002", "0.004", "0.008")
    level = {"mean": 0.9, "sd": 0.001}
    size = {"width": 8, "layers": 2, "rate": 0.002, "ne": level, "auc": {"mean": 0.7}}
    found = {
        "curves": {family: [{"flops": flops, **size} for flops in FLOPS] for family in SLOPES},
        "fits": fits,
        "attainable": {"best_ne": 0.7, "room_in_spreads": 2.0, "hard_enough": False},
        "tuning": {"Kunlun": [dict(zip(names, one, strict=True)) for one in ((0.91, 0.9, 0.92), (0.9, 0.91, 0.92))]},
    }
    told = scaling_page.body(found, rates=(0.002, 0.004, 0.008))
    line = fits["Kunlun"]["intercept"] - fits["Kunlun"]["slope"]["value"] * 5
    assert f"{0.9 - line:+.5f}" in told
    assert "too easy" in told
    assert "| Kunlun | 1 | 0.91000 | **0.90000** | 0.92000 |  |" in told
    assert "| Kunlun | 2 | **0.90000** | 0.91000 | 0.92000 | yes |" in told
    scaling_page.plot(tmp_path, found, task="click")
    drawn = (tmp_path / "docs/results/gem_scaling.svg").read_text()
    assert all(colour in drawn for colour in ("#1f77b4", "#ff7f0e", "#2ca02c"))
