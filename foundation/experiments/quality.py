"""quality: GEM against the baselines and against trees, on KuaiRand (test 1-7 May) and MovieLens-1M.

Each neural model is tuned over one grid on 30 April; then it stands with two sets of inputs (`arms.py`), every seed
fitted on the whole training period and judged once on the test period.
"""

from pathlib import Path
from typing import Any

from events.metrics import ne
from events.splits import Calendar, Period
from foundation.experiments import pages
from foundation.experiments.arms import GRID, LARGE_BATCH, NEURAL, Model, neural_arm, tree_arm
from foundation.experiments.bench import Arm, Bench
from foundation.experiments.compare import Judged, difference, figures, verdict
from foundation.experiments.data import days
from foundation.experiments.jobs import Outcome

Tuning = dict[Model, list[dict[str, Any]]]
"""Model -> its points of the grid: batch_rows, rate, chosen, scores by task."""
GEM = "GEM all"
NON_INFERIOR = {"like": 0.005}
"""AUC that GEM may lose at most, by the lower bound of the difference, on tasks with few positives."""
SHOWN = {"kuairand": ("click", "long_view", "like"), "movielens": ("rating4", "rating5")}

INTRO = """
Lower NE is better. ± is the standard deviation over seeds; intervals are 95 %, from resampling users and, crossed with
them, seeds. {caveat}

`rows`: labelled rows and their histories alone. `all`: beside them pre-training on earlier untimed events (KuaiRand)
and strictly past aggregates, which an expert of their own reads, the same for GEM and the baseline; as tokens they
cost DIN .01 AUC of click on 30 April ([log](../log.md)). On KuaiRand GEM and the best baseline of 30 April stand
with both; comparisons of `GEM all` with another model of `rows` are of unequal inputs.

Every neural model has one grid of {grid} settings, judged on 30 April for each set of inputs; where the last one is
the best, a larger rate might be better still. Beyond the grid GEM's
parts and sizes were chosen on 30 April in the trials of [the log](../log.md), the baselines' in fewer. MovieLens-1M has
one setting for all, {large}; models train on its students' period (97,000 ratings), its validation period judges them.
DIEN stands without its auxiliary loss. Reference: an [independent harness](../kuairand_reference.md).
"""
REFERENCE = {
    "DIN rows": (0.7473, 0.7464, 0.8476),
    "DIEN rows": (0.7489, 0.7490, 0.8517),
    "BST rows": (0.7490, 0.7475, 0.8543),
    "LightGBM aggregates": (0.7553, 0.7572, 0.8889),
}
"""AUC of click, long_view and like in the reference harness on the same split (docs/kuairand_reference.md)."""


HEADINGS = ("model", "NE", "AUC", "95 % interval", "predicted / observed", "GEM all - model, NE", "AUC")


def run(bench: Bench) -> dict[str, Any]:
    """Tune on KuaiRand, fit and compare on both data sets; returns the paths of what was written."""
    tuning = {"rows": _tuned(bench, "rows", NEURAL)}
    best = _best_baseline(tuning["rows"])
    tuning["all"] = _tuned(bench, "all", ("GEM", best))
    figures_of: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for name in ("kuairand", "movielens"):  # written as they come
        figures_of[name] = _track(bench, name, tuning)
        sections = [_section(track, found, bench.root) for track, found in figures_of.items()]
        paths = bench.write(
            "quality",
            {**figures_of, "tuning": tuning},
            title="Quality: GEM against its baselines",
            intro=INTRO.format(
                caveat=pages.SEEDS_CAVEAT,
                grid=len(GRID),
                large=f"{LARGE_BATCH[0]} rows a step at a rate of {LARGE_BATCH[1]:g}",
            ),
            body="\n\n".join([*sections, *(_tuning_table(kind, trials) for kind, trials in tuning.items())]),
        )
    return paths


def _periods(name: str, calendar: Calendar) -> tuple[Period, Period]:
    """(fit, test). KuaiRand: 25-30 April, 1-7 May. MovieLens: the students' period, the validation period after it."""
    if name == "kuairand":
        return days(calendar, 0, 6, "fit"), days(calendar, 6, 13, "test")
    return calendar.student, calendar.validation


def _track(bench: Bench, name: str, tuning: dict[str, Tuning]) -> dict[str, Any]:
    data = bench.data(name)
    fit, test = _periods(bench.data_name(name), data.calendar)
    width = 2 * data.aggregates(data.rows(fit)).shape[1]
    arms = []
    for kind, trials in tuning.items():
        for model, tried in trials.items():
            if name == "kuairand":
                one = next(trial for trial in tried if trial["chosen"])
                rows_, rate = one["batch_rows"], one["rate"]
            elif kind == "rows" or model == "GEM":
                rows_, rate = LARGE_BATCH
            else:
                continue
            arms.append(neural_arm(model, kind, aggregates=width, batch_rows=rows_, rate=rate))
    found = bench.fit([*arms, tree_arm()], data=name, fit=fit, judge=test)
    rows = bench.rows(name, test)
    tasks = [task for task in SHOWN[name] if task in rows] or list(rows)
    return {
        "models": {arm: {task: figures(rows[task], some) for task in rows} for arm, some in found.items()},
        "cost": {arm: [one.cost for one in some] for arm, some in found.items()},
        "differences": {task: _differences(rows[task], found) for task in rows},
        "targets": {task: _target(task, rows[task], found) for task in tasks},
        "columns_of_aggregates": width // 2,
    }


def _tuned(bench: Bench, kind: str, models: tuple[Model, ...]) -> Tuning:
    """Each model's points of the grid on 30 April, fitted on 25-29 April; chosen is the smallest sum of log losses."""
    data = bench.data("kuairand")
    fit, validation = data.calendar.teacher_fit, data.calendar.teacher_validation
    width = 2 * data.aggregates(data.rows(fit)).shape[1] if kind == "all" else 0
    arms = {
        (model, n): neural_arm(model, kind, aggregates=width, batch_rows=rows, rate=rate)
        for model in models
        for n, (rows, rate) in enumerate(GRID)
    }
    named = [Arm(f"{model}/{n}", arm.model, arm.train) for (model, n), arm in arms.items()]
    found = bench.fit(named, data="kuairand", fit=fit, judge=validation, seeds=(0,))
    rows = bench.rows("kuairand", validation)
    tuning: Tuning = {}
    for model in models:
        scores = [{task: _ne(rows[task], found[f"{model}/{n}"][0]) for task in rows} for n in range(len(GRID))]
        losses = [sum(one["log_loss"] for one in score.values()) for score in scores]
        best = losses.index(min(losses))
        tuning[model] = [
            {"batch_rows": rows_, "rate": rate, "chosen": n == best, "scores": scores[n]}
            for n, (rows_, rate) in enumerate(GRID)
        ]
    return tuning


def _best_baseline(tuning: Tuning) -> Model:
    """The baseline with the smallest sum of log losses on 30 April: it stands with all inputs too."""

    def loss(model: Model) -> float:
        chosen = next(trial for trial in tuning[model] if trial["chosen"])
        return float(sum(one["log_loss"] for one in chosen["scores"].values()))

    return min((model for model in NEURAL if model != "GEM"), key=loss)


def _ne(rows: Judged, outcome: Outcome) -> dict[str, float]:
    score = ne(rows.y, rows.of([outcome])[0])
    return {"ne": score.ne, "auc": score.auc, "log_loss": score.log_loss}


def _differences(rows: Judged, found: dict[str, list[Outcome]]) -> dict[str, Any]:
    """GEM with all inputs against every other model, and GEM from rows against every model from rows."""
    pairs = [(GEM, other) for other in found if other != GEM]
    pairs += [("GEM rows", other) for other in found if other.endswith(" rows") and other != "GEM rows"]
    return {f"{a} - {b}": difference(rows, found[a], found[b]) for a, b in pairs}


def _target(task: str, rows: Judged, found: dict[str, list[Outcome]]) -> dict[str, Any]:
    """Whether GEM beats trees and every baseline on this task, or is non-inferior where that is what is asked."""
    others = [other for other in found if not other.startswith("GEM")]
    against = {other: difference(rows, found[GEM], found[other])["auc"] for other in others}
    margin = NON_INFERIOR.get(task)
    met = {other: one["low"] > (0.0 if margin is None else -margin) for other, one in against.items()}
    asked = "AUC above every model, interval without zero" if margin is None else f"AUC lower bound above -{margin}"
    return {
        "asked": asked,
        "met": all(met.values()),
        "missed_against": [other for other, yes in met.items() if not yes],
    }


def _section(name: str, found: dict[str, Any], root: Path) -> str:
    """Tables of one data set: models, GEM's differences, targets, tuning."""
    parts = [f"## {'KuaiRand, 1 to 7 May' if name == 'kuairand' else 'MovieLens-1M'}"]
    panels = {
        task: {
            pair.removeprefix(f"{GEM} - "): one["auc"]
            for pair, one in found["differences"][task].items()
            if GEM in pair
        }
        for task in found["targets"]
    }
    label = f"AUC of {GEM} minus AUC of the model: right of zero GEM is better"
    parts.append(pages.forest(f"gem_quality_{name}", panels, label=label, root=root))
    tasks, reference = list(next(iter(found["models"].values()))), name == "kuairand"
    for task in tasks:
        models = {arm: by[task] for arm, by in found["models"].items()}
        one = next(iter(models.values()))
        ordered = sorted(models, key=lambda arm: models[arm]["ne"]["mean"])
        parts.append(f"### {task}\n\n{one['rows']:,} rows, {one['positives']:,} positives, H = {one['entropy']:.4f}.")
        parts.append(
            pages.table(
                (*HEADINGS, "reference AUC") if reference else HEADINGS,
                [
                    _row(arm, models[arm], found["differences"][task], _reference(arm, task) if reference else ())
                    for arm in ordered
                ],
            )
        )
    parts.append(
        pages.table(
            ("task", "asked of GEM all", "met", "not against"),
            [
                (task, one["asked"], "yes" if one["met"] else "no", ", ".join(one["missed_against"]))
                for task, one in found["targets"].items()
            ],
        )
    )
    return "\n\n".join(parts)


def _tuning_table(kind: str, tuning: Tuning) -> str:
    first = next(iter(tuning.values()))[0]["scores"]
    task = next(iter(first))
    table = pages.table(
        ("model", *(f"{rows} rows, {rate:g}" for rows, rate in GRID)),
        [(model, *(_trial(one, task) for one in trials)) for model, trials in tuning.items()],
    )
    told = f"NE of {task} on 30 April, fitted on 25-29 April, one seed; chosen in bold."
    return f"## Tuning with `{kind}`\n\n{told}\n\n{table}"


def _row(arm: str, one: dict[str, Any], differences: dict[str, Any], reference: tuple[str, ...]) -> tuple[str, ...]:
    against = differences.get(f"{GEM} - {arm}")
    said = ["", ""]
    if against is not None:
        said = [f"{pages.bounds(against['ne'])}, {verdict(against['ne'])}", pages.bounds(against["auc"])]
    return (
        arm,
        pages.mean_sd(one["ne"]),
        pages.mean_sd(one["auc"]),
        f"{one['auc']['low']:.4f} to {one['auc']['high']:.4f}",
        f"{one['calibration']['mean']:.3f}",
        *said,
        *reference,
    )


def _reference(arm: str, task: str) -> tuple[str]:
    shown = SHOWN["kuairand"]
    if arm not in REFERENCE or task not in shown:
        return ("",)
    return (f"{REFERENCE[arm][shown.index(task)]:.4f}",)


def _trial(one: dict[str, Any], task: str) -> str:
    score = f"{one['scores'][task]['ne']:.4f}"
    return f"**{score}**" if one["chosen"] else score
