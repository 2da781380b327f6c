"""Figures, differences and verdicts on rows that can be judged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from events.metrics import ne
from events.splits import DAY_MS, Period, day_calendar
from foundation.experiments.compare import difference, figures, judged, spread, verdict
from foundation.experiments.data import Dataset
from foundation.log_tensors import LogTensors
from tests.events.small_logs import small_log
from tests.foundation.experiments.made_judged import made_judged, noisy, outcome


def dataset_of(events: list[tuple[int, int]], **rest: Any) -> Dataset:
    log = small_log(events, **rest)
    return Dataset("small", Path(), log, day_calendar(0, teacher_days=2, student_days=1), LogTensors(log))


# ---- which rows -------------------------------------------------------------------------------------------------


def test_rows_that_cannot_be_judged_are_left_out() -> None:
    times = [(0, 100), (1, 50), (2, 150), (0, 199), (1, 200)]  # not in time order; the last lies outside
    data = dataset_of(times, clicks=[1, 0, 1, 1, 1], label_delay_ms=5)
    rows = judged(data, Period("window", 50, 200))
    # in time order: row 1 at 50, row 0 at 100, row 2 at 150, row 3 at 199, whose click is known only at 204
    assert rows["click"].counts.tolist() == [True, True, True, False]
    assert rows["click"].y.tolist() == [0, 1, 1]
    assert rows["click"].users.tolist() == [1, 0, 2]
    # conversions are defined where there was a click, and judged once their window has passed
    assert rows["conversion"].counts.tolist() == [False, True, True, True]
    assert rows["conversion"].y.tolist() == [0, 0, 0]
    assert rows["conversion"].column == 1


def test_predictions_are_taken_from_the_task_s_column_in_the_order_of_the_rows() -> None:
    data = dataset_of([(0, 100), (1, 50), (2, 150)], clicks=[1, 0, 1])
    rows = judged(data, Period("window", 0, 200))["conversion"]
    soft = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], dtype=np.float32)
    one = outcome(np.zeros(3))
    assert rows.of([type(one)(soft, {}), type(one)(1 - soft, {})]) == pytest.approx(np.array([[0.4, 0.6], [0.6, 0.4]]))


def test_a_surface_keeps_its_rows_and_their_predictions() -> None:
    rows, logit_T = made_judged()
    p = noisy(logit_T, 0.0, seeds=1)
    here = rows.on_surface(1)
    assert here.counts.sum() == len(here.y) == len(rows.y) // 2
    assert (here.of(p)[0] == rows.of(p)[0][1::2]).all()
    assert (here.y == rows.y[1::2]).all()
    assert (here.users == rows.users[1::2]).all()
    # of rows of which some did not count already
    few = here.on_surface(1)
    assert (few.counts == here.counts).all()
    assert not here.on_surface(0).counts.any()


# ---- figures ----------------------------------------------------------------------------------------------------


def test_figures_are_means_over_seeds_with_their_deviation() -> None:
    rows, logit_T = made_judged()
    some = noisy(logit_T, 0.5)
    told = figures(rows, some)
    scores = [ne(rows.y, p) for p in rows.of(some)]
    assert told["ne"]["mean"] == pytest.approx(np.mean([one.ne for one in scores]))
    assert told["ne"]["sd"] == pytest.approx(np.std([one.ne for one in scores], ddof=1))
    assert told["ne"]["seeds"] == [round(one.ne, 6) for one in scores]
    assert told["auc"]["low"] < told["auc"]["mean"] < told["auc"]["high"]
    assert told["auc"]["mean"] == pytest.approx(np.mean([one.auc for one in scores]))
    assert told["calibration"]["mean"] == pytest.approx(1, abs=0.1)
    assert (told["rows"], told["positives"]) == (len(rows.y), int(rows.y.sum()))
    assert told["entropy"] == scores[0].entropy


def test_one_seed_has_no_deviation() -> None:
    assert spread([0.5]) == {"mean": 0.5, "sd": None, "seeds": [0.5]}
    assert spread([1.0, 3.0])["sd"] == pytest.approx(2**0.5)


# ---- differences ------------------------------------------------------------------------------------------------


def test_a_better_model_is_resolved_and_a_model_equals_itself() -> None:
    rows, logit_T = made_judged()
    good, poor = noisy(logit_T, 0.0), noisy(logit_T, 1.5)
    better, reverse, same = difference(rows, good, poor), difference(rows, poor, good), difference(rows, good, good)
    assert verdict(better["ne"]) == "better"
    assert verdict(reverse["ne"]) == "worse"
    assert better["ne"]["value"] == pytest.approx(-reverse["ne"]["value"])
    means = [figures(rows, some)["ne"]["mean"] for some in (good, poor)]
    assert better["ne"]["value"] == pytest.approx(means[0] - means[1])
    assert better["auc"]["low"] > 0 > reverse["auc"]["high"]
    assert same["ne"] == {"value": 0, "low": 0, "high": 0}


@pytest.mark.parametrize(
    ("low", "high", "margin", "said"),
    [
        (-0.02, -0.01, None, "better"),
        (0.01, 0.02, None, "worse"),
        (-0.01, 0.02, None, "not resolved"),
        (0.0, 0.02, None, "not resolved"),
        (-0.0005, 0.0005, None, "not resolved"),
        (-0.0005, 0.0005, 0.001, "neutral"),
        (0.0002, 0.0009, 0.001, "neutral"),  # resolved, and too small to matter
        (-0.0009, -0.0002, 0.001, "neutral"),
        (-0.0005, 0.001, 0.001, "not resolved"),
        (-0.0015, 0.0005, 0.001, "not resolved"),
        (0.0005, 0.0015, 0.001, "worse"),
        (-0.0015, -0.0005, 0.001, "better"),
        (float("nan"), float("nan"), 0.001, "not resolved"),
    ],
)
def test_verdicts(low: float, high: float, margin: float | None, said: str) -> None:
    assert verdict({"low": low, "high": high}, margin=margin) == said


def test_a_task_of_one_class_has_figures_without_a_verdict() -> None:
    data = dataset_of([(0, 100), (1, 50), (2, 150)], clicks=[1, 0, 1])
    rows = judged(data, Period("window", 0, 200 * DAY_MS))["conversion"]
    one = outcome(np.full(3, 0.5))
    some = [type(one)(np.full((3, 2), 0.5, dtype=np.float32), {})]
    assert np.isnan(figures(rows, some)["ne"]["mean"])
    assert verdict(difference(rows, some, some)["ne"]) == "not resolved"
