"""architecture: each part of Kunlun off in turn, at otherwise the same sizes, rows and rates.

The verdicts come from a synthetic world in which clicks depend on clicks long ago, with at least 300,000 judged rows
and a margin of 0.1 % NE; KuaiRand is too small for such a margin and stands beside it without a verdict.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from events.splits import Period
from foundation.config import GemConfig, Tower
from foundation.experiments import pages
from foundation.experiments.bench import Arm, Bench
from foundation.experiments.compare import difference, figures, verdict
from foundation.experiments.data import Dataset, days
from foundation.flops import forward_flops
from foundation.recipes import Recipe, small
from foundation.rote import TimeEncoding

MARGIN = 0.001
"""Neutral: the 95 % interval of the NE difference lies within this on both sides (0.1 %)."""
TASK = "click"
BATCH_ROWS = 128
FIT_DAYS = (4, 7)
"""Of the long-range world: the teacher's last three days, 198,000 impressions; histories reach back over all days."""
WHOLE = "Kunlun"
SHORT = "history of 16"
NO_TIME = TimeEncoding(rotary=False, age_even=False, age_log=False, gap_log=False, position=False)
CHANGES: dict[str, dict[str, Any]] = {
    "plain FFN instead of GDPA": {"pffn": "plain"},
    "PMA instead of HSP": {"pooling": "pma"},
    "linear instead of SumKron": {"compression": "linear"},
    "full attention": {"attention": "full"},
    "block attention": {"attention": "block"},
    "CompSkip": {"compskip": True},
    "one expert": {"experts": 1},
    "attentive FM projection": {"attentive_fm": True},
    "no time or position at all": {"time": NO_TIME},
    "no pair products": {"pair_products": False},
    "no first-order weights": {"first_order": False},
    SHORT: {"history_length": 16},
}
"""What each arm changes of the whole model; the base attends within a window."""
JUDGED_AT_LENGTH = ("full attention", "block attention", "CompSkip", SHORT)
"""Changes on the long-range world, which takes minutes a model: what is claimed to be neutral, and how much the long
history is worth there at all."""

INTRO = """
Base: Kunlun with a sliding window. One part changes at a time. NE difference = changed model minus whole model, so a
positive one says that the part helps; {seeds} seeds, 95 % intervals over users and, crossed with them, seeds.
`neutral`: the interval lies within ±{margin:g}; `not resolved`: it holds zero and reaches beyond. FLOPs: the forward
pass of all layers for one example with a full history. {caveat}
"""


def run(bench: Bench) -> dict[str, Any]:
    """The long-range world with verdicts, then KuaiRand without; both are written as they come."""
    found: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for name, base in (("long_range", _long_range_base()), ("kuairand", _kuairand_base())):
        found[name] = _track(bench, name, base)
        paths = bench.write(
            "architecture",
            found,
            title="Architecture: what each part of Kunlun brings",
            intro=INTRO.format(seeds=len(bench.seeds), margin=MARGIN, caveat=pages.SEEDS_CAVEAT),
            body="\n\n".join(_section(track, one, bench.root) for track, one in found.items()),
        )
    return paths


def _long_range_base() -> Recipe:
    """Three layers, so that under CompSkip an attention layer has a reader; histories reach past the loyalty's lag."""
    base = small()
    model = replace(
        base.model,
        dim=16,
        layers=3,
        pffn_hidden=16,
        history_length=128,
        attention="window",
        window=8,
        block=16,
        fm_hidden=32,
        head_hidden=(64, 32),
        dropout=0.0,
    )
    return replace(base, model=model, train=replace(base.train, batch_rows=BATCH_ROWS))


def _kuairand_base() -> Recipe:
    base = small()
    model = replace(base.model, layers=3, attention="window", window=8, block=8)
    return replace(base, model=model, train=replace(base.train, batch_rows=BATCH_ROWS, untimed_per_user=0))


def _towers(model: GemConfig, tasks: list[str]) -> tuple[Tower, ...]:
    """Half of the history each: events with a known positive at the stack's own sizes; impressions at half of its
    width, heads, tokens and window, one layer less."""
    sizes = {"dim": model.dim, "heads": model.heads, "layers": model.layers, "pooled_tokens": model.pooled_tokens}
    half = {"dim": model.dim // 2, "heads": max(1, model.heads // 2), "layers": max(1, model.layers - 1)}
    rich = Tower(types=tuple(tasks), window=model.window, length=model.history_length // 2, **sizes)
    poor = Tower(
        types=("impression",),
        window=max(1, model.window // 2),
        length=model.history_length // 2,
        pooled_tokens=max(1, model.pooled_tokens // 2),
        **half,
    )
    return (rich, poor)


def _track(bench: Bench, name: str, base: Recipe) -> dict[str, Any]:
    data = bench.data(name)
    fit, judge = _periods(bench, name, data)
    changes = {
        **CHANGES,
        "event personalisation": {
            "personalisation": _towers(base.model, [task.name for task in data.log.schema.tasks])
        },
    }
    arms = [Arm(WHOLE, base.model, base.train)]
    chosen = [change for change in changes if name == "kuairand" or change in JUDGED_AT_LENGTH]
    arms += [Arm(change, replace(base.model, **changes[change]), base.train) for change in chosen]
    found = bench.fit(arms, data=name, fit=fit, judge=judge)
    rows = bench.rows(name, judge)[TASK]
    flops = {arm.name: forward_flops(arm.model, data.tensors.layout, arm.model.history_length) for arm in arms}
    whole = flops[WHOLE]
    return {
        "history_length": base.model.history_length,
        "margin": MARGIN if name == "long_range" else None,
        "arms": {
            arm.name: {
                **figures(rows, found[arm.name]),
                "minus_whole": difference(rows, found[arm.name], found[WHOLE]),
                "layer_flops": flops[arm.name].layers_total,
                "layer_flops_ratio": flops[arm.name].layers_total / whole.layers_total,
                "examples_per_s": [one.cost["examples_per_s"] for one in found[arm.name]],
                "parameters": found[arm.name][0].cost["parameters"],
            }
            for arm in arms
        },
    }


def _periods(bench: Bench, name: str, data: Dataset) -> tuple[Period, Period]:
    """KuaiRand: fit 25-29 April, judge 30 April, so that no test day serves a choice of parts."""
    calendar = data.calendar
    if bench.smoke:
        return calendar.teacher, calendar.log
    if name == "long_range":
        return days(calendar, *FIT_DAYS, "fit"), calendar.test
    return calendar.teacher_fit, calendar.teacher_validation


def _section(name: str, found: dict[str, Any], root: Path) -> str:
    long = name == "long_range"
    whole = found["arms"][WHOLE]
    place = "Synthetic world with long-range dependence" if long else "KuaiRand, 30 April (no verdict: too few rows)"
    parts = [
        f"## {place}",
        f"{whole['rows']:,} rows, {whole['positives']:,} positives, history {found['history_length']}.",
    ]
    heading = ("part changed", "NE", "difference", *(("verdict",) if long else ()), "layer FLOPs", "examples/s")
    cells = []
    for arm, one in found["arms"].items():
        against = one["minus_whole"]["ne"]
        told = (verdict(against, margin=found["margin"]),) if long else ()
        cells.append(
            (
                arm,
                pages.mean_sd(one["ne"], 5),
                *(("",) * (1 + long) if arm == WHOLE else (pages.bounds(against, 5), *told)),
                f"{one['layer_flops'] / 1e6:.2f} M ({one['layer_flops_ratio']:.2f})",
                f"{sum(one['examples_per_s']) / len(one['examples_per_s']):,.0f}",
            )
        )
    differences = {arm: one["minus_whole"]["ne"] for arm, one in found["arms"].items() if arm != WHOLE}
    label = "NE of the changed model minus NE of the whole: right of zero the part helps"
    margin = found["margin"] or 0.0
    plot = pages.forest(f"gem_architecture_{name}", {TASK: differences}, label=label, root=root, margin=margin)
    parts += [plot, pages.table(heading, cells)]
    return "\n\n".join(parts)
