"""unification: one model for all surfaces and tasks against one model for each; domain experts; mixing temperatures.

KuaiRand is judged on 1-7 May, the synthetic world on the week after the teacher's. Each comparison changes one thing
and keeps rows, features, sizes and rates; a negative difference says that the joint model is better.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from events.splits import Period
from foundation.experiments import pages
from foundation.experiments.bench import Bench
from foundation.experiments.compare import Judged, difference, figures, verdict
from foundation.experiments.data import Dataset, days
from foundation.experiments.jobs import Job, Outcome
from foundation.recipes import Recipe, small

POOR = {"kuairand": ("like", "profile_enter"), "demo": ("conversion", "install")}
"""Data-poor tasks; all others of the source are the data-rich ones that are left out of training."""
TEMPERATURES = (2.0,)
EXPERT_WIDTH = 16
POOR_ONLY = "without data-rich tasks"

INTRO = """
Recipe `small` with 128 rows a step and without untimed events, {seeds} seeds. Differences are NE(joint) - NE(other):
negative says that joint training is better; 95 % intervals from resampling users and, crossed with them, seeds.
{caveat} A model of one surface trains with the joint model's settings on that surface's rows alone: on small surfaces
it makes few steps. A surface without training rows is judged by the joint model in both columns.
"""


def run(bench: Bench) -> dict[str, Any]:
    """Both data sets; returns the paths of what was written."""
    found = {name: _track(bench, name) for name in ("kuairand", "demo")}
    return bench.write(
        "unification",
        found,
        title="Unification: one central model",
        intro=INTRO.format(seeds=len(bench.seeds), caveat=pages.SEEDS_CAVEAT),
        body="\n\n".join(_section(name, one, bench.root) for name, one in found.items()),
    )


def _track(bench: Bench, name: str) -> dict[str, Any]:
    data, chosen = bench.data(name), _recipe()
    if bench.data_name(name) == "kuairand":
        fit, judge = days(data.calendar, 0, 6, "fit"), days(data.calendar, 6, 13, "test")
    else:
        fit, judge = data.calendar.teacher, data.calendar.log
    tasks, surfaces = [task.name for task in data.log.schema.tasks], data.log.schema.surfaces
    poor = tuple(task for task in POOR[name] if task in tasks) or tuple(tasks[1:])

    def jobs(recipe: Recipe, **rest: Any) -> list[Job]:
        made = (bench.data_name(name), recipe.model, recipe.train, fit, judge)
        return [Job(*made, seed, **rest) for seed in bench.seeds]

    experts = replace(chosen, model=replace(chosen.model, domain_experts=EXPERT_WIDTH))
    mixed = {
        f"temperature {t:g}": replace(
            chosen, train=replace(chosen.train, mixing_temperature=t, mixing_cells="positives")
        )
        for t in TEMPERATURES
    }
    work = {"joint": jobs(chosen), "domain experts": jobs(experts), POOR_ONLY: jobs(chosen, tasks=poor)}
    work |= {key: jobs(recipe) for key, recipe in mixed.items()}
    work |= {f"task {task}": jobs(chosen, tasks=(task,)) for task in tasks}
    present = [s for code, s in enumerate(surfaces) if (data.log.surface[data.rows(fit)] == code).any()]
    work |= {f"surface {surface}": jobs(chosen, surface=surface) for surface in present}
    done = bench.fit_jobs(work)
    done["one per task"] = _stitched_tasks(done, tasks)
    done["one per surface"] = _stitched_surfaces(done, data, judge, present)
    rows = bench.rows(name, judge)
    return {
        "models": {
            arm: {task: figures(rows[task], done[arm]) for task in rows if arm != POOR_ONLY or task in poor}
            for arm in ("joint", "domain experts", *mixed, "one per task", "one per surface", POOR_ONLY)
        },
        "joint_minus": {
            arm: {task: difference(rows[task], done["joint"], done[arm]) for task in rows}
            for arm in ("one per task", "one per surface", "domain experts", *mixed)
        },
        "joint_minus_poor_only": {task: difference(rows[task], done["joint"], done[POOR_ONLY]) for task in poor},
        "by_surface": {
            surface: {task: _on_surface(rows[task], code, done) for task in rows}
            for code, surface in enumerate(surfaces)
            if surface in present
        },
        "mixing_weights": {arm: done[arm][0].cost.get("mixing") for arm in mixed},
        "cost": {arm: [one.cost for one in some] for arm, some in done.items()},
    }


def _recipe() -> Recipe:
    """`small` without untimed events, which know no surface, and with larger batches: 30 models are fitted a seed."""
    base = small()
    return replace(base, train=replace(base.train, batch_rows=128, untimed_per_user=0))


def _stitched_tasks(done: dict[str, list[Outcome]], tasks: list[str]) -> list[Outcome]:
    """Each task's column from its own model."""
    seeds = range(len(done["joint"]))
    columns = [[done[f"task {task}"][s].soft[:, k] for k, task in enumerate(tasks)] for s in seeds]
    return [Outcome(np.stack(some, axis=1), {}) for some in columns]


def _stitched_surfaces(
    done: dict[str, list[Outcome]], data: Dataset, judge: Period, present: list[str]
) -> list[Outcome]:
    """Each row's prediction from its surface's own model."""
    surface = data.log.surface[data.rows(judge)]
    stitched = []
    for s, joint in enumerate(done["joint"]):
        soft = joint.soft.copy()
        for name in present:
            here = surface == data.log.schema.surfaces.index(name)
            soft[here] = done[f"surface {name}"][s].soft[here]
        stitched.append(Outcome(soft, {}))
    return stitched


def _on_surface(rows: Judged, code: int, done: dict[str, list[Outcome]]) -> dict[str, Any]:
    """Differences on one surface's rows; empty where the task has one class there."""
    here = rows.on_surface(code)
    if len(np.unique(here.y)) < 2:
        return {"rows": len(here.y), "positives": int(here.y.sum())}
    return {
        "rows": len(here.y),
        "positives": int(here.y.sum()),
        "joint": figures(here, done["joint"])["ne"],
        **{
            f"joint_minus_{arm.replace(' ', '_')}": difference(here, done["joint"], done[arm])["ne"]
            for arm in ("one per surface", "one per task", "domain experts")
        },
    }


def _section(name: str, found: dict[str, Any], root: Path) -> str:
    tasks = list(found["models"]["joint"])
    parts = [f"## {'KuaiRand, 1 to 7 May' if name == 'kuairand' else 'Synthetic world, the week after training'}"]
    parts.append(
        pages.table(
            ("NE", *tasks),
            [
                (arm, *(pages.mean_sd(by[task]["ne"]) if task in by else "" for task in tasks))
                for arm, by in found["models"].items()
            ],
        )
    )
    rows = [
        (arm, *(f"{pages.bounds(by[task]['ne'])}, {verdict(by[task]['ne'])}" for task in tasks))
        for arm, by in found["joint_minus"].items()
    ]
    poor = found["joint_minus_poor_only"]
    rows.append(
        (
            "data-poor tasks alone",
            *(f"{pages.bounds(poor[t]['ne'])}, {verdict(poor[t]['ne'])}" if t in poor else "" for t in tasks),
        )
    )
    panels: dict[str, dict[str, Any]] = {task: {} for task in tasks}
    for arm, by in [*found["joint_minus"].items(), ("data-poor tasks alone", poor)]:
        for task, one in by.items():
            panels[task][arm] = one["ne"]
    label = "NE of joint minus NE of the other: left of zero joint is better"
    parts.append(pages.forest(f"gem_unification_{name}", panels, label=label, root=root))
    parts.append(pages.table(("NE of joint minus NE of", *tasks), rows))
    parts.append("### By surface: NE of joint minus NE of one model per surface")
    parts.append(
        pages.table(
            ("surface", "rows", *tasks),
            [
                (surface, f"{by[tasks[0]]['rows']:,}", *(_cell(by[task]) for task in tasks))
                for surface, by in found["by_surface"].items()
            ],
        )
    )
    return "\n\n".join(parts)


def _cell(one: dict[str, Any]) -> str:
    found = one.get("joint_minus_one_per_surface")
    return f"{one['positives']} positives" if found is None else f"{pages.bounds(found)}, {verdict(found)}"
