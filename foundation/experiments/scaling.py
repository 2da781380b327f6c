"""scaling: NE against compute for Kunlun, InterFormer and Wukong at five sizes of .1 to 10 MFLOP forward per example.

Legend: A models, Z sizes, S seeds, U users, R resamples. The law is Kunlun's (2602.10016): NE = a - b log10(C); the
scaling efficiency of one model over another is the ratio of their b. Widths follow from each target by search (the
counter of torch counts the FLOPs); the learning rate is tuned at the two smallest sizes and carried by `carried_rate`.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from events.metrics import ne
from events.splits import Period
from foundation.experiments import pages, scaling_page
from foundation.experiments.bench import Arm, Bench
from foundation.experiments.compare import Judged, figures
from foundation.experiments.data import Dataset, days
from foundation.experiments.jobs import Outcome
from foundation.experiments.sizes import FAMILIES, HISTORY_LENGTH, Sized, sized
from foundation.experiments.timed_case import random_batch
from foundation.recipes import TrainRecipe, small

TARGETS = (1e5, 3.2e5, 1e6, 3.2e6, 1e7)
"""Forward FLOPs per example, half a decade apart."""
RATES = (2e-3, 4e-3, 8e-3)
BATCH_ROWS = 128
RESAMPLES = 500
TASK = "click"
FIT_DAYS, TUNING_FIT, TUNING_JUDGE = (7, 10), (7, 8), (8, 9)
"""Days of the world, 100,000 impressions each. Models train on the teacher's last three and read histories from all
ten: what one core does in one to two hours; a GPU can take more days and sizes by these numbers alone. One day is too
little: no model gained from its size on it (docs/log.md)."""

INTRO = """
Synthetic world `scaling`; one pass over {rows:,} impressions, judged on 100,000 of a later day; {seeds} seeds. C:
forward FLOPs per example as torch's counter counts them. Fit: NE = a - b log10(C), b in NE per decade; intervals from
resampling users and, crossed with them, seeds. {caveat}

The learning rate of the two smallest sizes is the best of {rates} by one seed each, fitted on one earlier day and
judged on the next; larger models take that of the second size times the root of (its width / their width).
"""


def run(bench: Bench) -> dict[str, Any]:
    """Size, tune, fit, compare; returns the paths of what was written."""
    data = bench.data("scaling")
    targets = TARGETS[:3] if bench.smoke else TARGETS
    batch = random_batch(data.tensors.layout, 8, HISTORY_LENGTH, torch.device("cpu"))
    sizes = {family: [sized(family, target, data.tensors.layout, batch) for target in targets] for family in FAMILIES}
    rates, tuning = _tuned(bench, sizes)
    fit, judge = _periods(bench)
    arms = {
        family: [Arm(_name(family, n), one.config, _train(rates[family][n])) for n, one in enumerate(some)]
        for family, some in sizes.items()
    }
    by_size = [arm for one_size in zip(*arms.values(), strict=True) for arm in one_size]  # the costly ones last
    found = bench.fit(by_size, data="scaling", fit=fit, judge=judge)
    rows = bench.rows("scaling", judge)[TASK]
    curves = {
        family: [
            {
                "flops": one.flops,
                "target": one.target,
                "rate": rates[family][n],
                **one.described(),
                **figures(rows, found[_name(family, n)]),
                "cost": [outcome.cost for outcome in found[_name(family, n)]],
            }
            for n, one in enumerate(some)
        ]
        for family, some in sizes.items()
    }
    losses = {family: [found[_name(family, n)] for n in range(len(some))] for family, some in sizes.items()}
    figures_ = {
        "curves": curves,
        "fits": _fits(rows, losses, {family: [one.flops for one in some] for family, some in sizes.items()}),
        "tuning": tuning,
        "attainable": _attainable(data, judge, rows, curves),
    }
    scaling_page.plot(bench.root, figures_, task=TASK)
    return bench.write(
        "scaling",
        figures_,
        title="Scaling: NE against compute",
        intro=INTRO.format(
            seeds=len(bench.seeds),
            rows=len(data.rows(fit)),
            caveat=pages.SEEDS_CAVEAT,
            rates=", ".join(f"{rate:g}" for rate in RATES),
        ),
        body=scaling_page.body(figures_, rates=RATES),
    )


def carried_rate(rate: float, width: int, tuned_width: int) -> float:
    """The rule that carries a tuned rate to a wider model: it falls with the root of the width."""
    return float(rate * (tuned_width / width) ** 0.5)


def _periods(bench: Bench) -> tuple[Period, Period]:
    """(fit, judge): the teacher's last days, and the validation day two days later."""
    calendar = bench.data("scaling").calendar
    if bench.smoke:
        return calendar.teacher, calendar.validation
    return days(calendar, *FIT_DAYS, "fit"), calendar.validation


def _name(family: str, number: int) -> str:
    return f"{family} {number}"


def _train(rate: float) -> TrainRecipe:
    """`small`'s training with larger batches and no untimed events; both rates are `rate`."""
    return replace(small().train, batch_rows=BATCH_ROWS, dense_rate=rate, table_rate=rate, untimed_per_user=0)


def _tuned(bench: Bench, sizes: dict[str, list[Sized]]) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Rates of every size: the best of RATES at the two smallest on the teacher's validation day, then the rule."""
    calendar = bench.data("scaling").calendar
    arms = [
        Arm(f"{family} {n} {rate}", some[n].config, _train(rate))
        for family, some in sizes.items()
        for n in (0, 1)
        for rate in RATES
    ]
    fit, judge = days(calendar, *TUNING_FIT, "tuning fit"), days(calendar, *TUNING_JUDGE, "tuning")
    if bench.smoke:
        fit, judge = calendar.teacher_fit, calendar.teacher_validation
    found = bench.fit(arms, data="scaling", fit=fit, judge=judge, seeds=(0,))
    rows = bench.rows("scaling", judge)[TASK]
    rates, tuning = {}, {}
    for family, some in sizes.items():
        scores = [{rate: _ne(rows, found[f"{family} {n} {rate}"]) for rate in RATES} for n in (0, 1)]
        best = [min(score, key=lambda rate: score[rate]) for score in scores]
        rates[family] = best + [carried_rate(best[1], one.width, some[1].width) for one in some[2:]]
        tuning[family] = [{str(rate): value for rate, value in score.items()} for score in scores]
    return rates, tuning


def _ne(rows: Judged, outcomes: list[Outcome]) -> float:
    return ne(rows.y, rows.of(outcomes)[0]).ne


def _fits(rows: Judged, outcomes: dict[str, list[list[Outcome]]], flops: dict[str, list[float]]) -> dict[str, Any]:
    """Slope and intercept of each model, and the ratio of Kunlun's slope to each other's, with intervals."""
    _, code_T = np.unique(rows.users, return_inverse=True)
    users = int(code_T.max()) + 1
    count_U, positive_U = np.bincount(code_T), np.bincount(code_T, weights=rows.y)
    loss_SU = {
        family: np.stack([np.stack([_loss_U(rows.y, p, code_T) for p in rows.of(some)]) for some in sizes])
        for family, sizes in outcomes.items()
    }  # [Z, S, U]
    decades = {family: np.log10(some) for family, some in flops.items()}
    rng = np.random.default_rng(0)
    drawn: dict[str, list[tuple[float, float]]] = {family: [] for family in outcomes}
    for number in range(RESAMPLES + 1):
        weight_U = np.bincount(rng.integers(0, users, users), minlength=users) if number else np.ones(users)
        mean = weight_U @ positive_U / (weight_U @ count_U)
        spread_ = -mean * np.log(mean) - (1 - mean) * np.log1p(-mean)
        for family, loss in loss_SU.items():
            sizes, runs = loss.shape[:2]
            # each size was trained on its own, so each draws its own seeds
            seed_ZS = rng.integers(0, runs, (sizes, runs)) if number else np.tile(np.arange(runs), (sizes, 1))
            loss_ZS = np.take_along_axis(loss @ weight_U, seed_ZS, axis=1)
            ne_Z = loss_ZS.mean(axis=1) / (weight_U @ count_U) / spread_
            slope, level = np.polyfit(decades[family], ne_Z, 1)
            drawn[family].append((-float(slope), float(level)))
    slopes = {family: np.array([slope for slope, _ in some]) for family, some in drawn.items()}
    found: dict[str, Any] = {
        family: {"slope": _interval(slopes[family]), "intercept": drawn[family][0][1]} for family in outcomes
    }
    others = [other for other in outcomes if other != "Kunlun"]
    found["ratio"] = {f"Kunlun / {other}": _ratio(slopes["Kunlun"], slopes[other]) for other in others}
    found["difference"] = {f"Kunlun - {other}": _interval(slopes["Kunlun"] - slopes[other]) for other in others}
    return found


def _ratio(of: np.ndarray, over: np.ndarray) -> dict[str, float]:
    """Ratio of two slopes; no interval where the denominator's own holds zero, since the ratio then has none."""
    if _interval(over)["low"] <= 0:
        return {"value": float(of[0] / over[0]), "low": float("nan"), "high": float("nan")}
    return _interval(of / over)


def _loss_U(y: np.ndarray, p: np.ndarray, code_T: np.ndarray) -> np.ndarray:
    p = np.clip(p, 1e-7, 1 - 1e-7)
    return np.bincount(code_T, weights=-np.where(y == 1, np.log(p), np.log1p(-p)))


def _interval(drawn: np.ndarray) -> dict[str, float]:
    """The first figure is that of the data itself; the others are resamples."""
    low, high = np.quantile(drawn[1:], (0.025, 0.975))
    return {"value": float(drawn[0]), "low": float(low), "high": float(high)}


def _attainable(data: Dataset, judge: Period, rows: Judged, curves: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Is the world hard enough? Its best NE must lie at least three times the spread of the sizes below the largest."""
    truth = data.truth(TASK)[data.rows(judge)][rows.counts]
    best = ne(rows.y, truth).ne
    levels = {family: [one["ne"]["mean"] for one in some] for family, some in curves.items()}
    widest = max(max(some) - min(some) for some in levels.values())
    lowest = min(some[-1] for some in levels.values())
    room = (lowest - best) / widest if widest else float("inf")
    return {"best_ne": best, "largest_spread": widest, "room_in_spreads": room, "hard_enough": bool(room >= 3)}
