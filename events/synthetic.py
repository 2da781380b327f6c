"""`python -m events.synthetic`: write the log of a synthetic ads world, whose best attainable NE is known."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from contracts.command import report, run
from contracts.errors import InputError
from events import recipes
from events.log import InteractionLog
from events.metrics import ne
from events.splits import Calendar
from events.store import write_log
from events.world import make_world, world_calendar

app = typer.Typer(add_completion=False)


class World(StrEnum):
    tiny = "tiny"
    smoke = "smoke"
    demo = "demo"
    long_range = "long_range"
    scaling = "scaling"


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="folder of the log; must not exist")],
    world: Annotated[
        World, typer.Option(help="tiny: 3 k, smoke: 12 k, demo: 120 k, long_range: 920 k, scaling: 1.4 M impressions")
    ] = World.demo,
    seed: Annotated[int, typer.Option(min=0, help="another seed, another world")] = 0,
    impressions: Annotated[int | None, typer.Option(help="number of impressions in place of the world's own")] = None,
    long_range: Annotated[bool, typer.Option(help="clicks also depend on clicks 100 and more impressions ago")] = False,
    replace_log: Annotated[bool, typer.Option("--replace", help="replace a log that stands at --out")] = False,
) -> None:
    """Make a world, write its log and report what was made and the best attainable NE of the validation day."""
    if impressions is not None and impressions < 100:
        raise InputError(f"--impressions {impressions} is too few for a world of 14 days; ask for at least 100")
    config = replace(getattr(recipes, world.value)(), seed=seed)
    if impressions is not None:
        config = replace(config, impressions=impressions)
    if long_range:
        config = recipes.with_loyalty(config)
    log, truth = make_world(config)
    calendar = world_calendar(config)
    write_log(out, log, calendar=calendar, truth=truth, replace=replace_log)
    report({"log": str(out), "world": config.name, "seed": seed, **summary(log, calendar, truth)})


def summary(log: InteractionLog, calendar: Calendar, truth: dict[str, np.ndarray]) -> dict[str, Any]:
    """Rows by period, label rates, and the true probabilities' NE on the validation day."""
    rows = calendar.rows(log, "validation")
    best = {}
    for task in log.schema.tasks:
        usable = log.usable(task.name, as_of_ms=calendar.judged_ms("validation", task))
        judged = rows[usable[rows]]
        best[task.name] = ne(log.labels[task.name][judged], truth[task.name][judged]).to_json()
    return {
        "rows": len(log),
        "users": len(np.unique(log.user)),
        "periods": {name: len(calendar.rows(log, name)) for name in ("teacher", "student", "validation", "test")},
        "rates": {name: float(np.mean(labels[labels >= 0])) for name, labels in log.labels.items()},
        "best_ne": best,
    }


if __name__ == "__main__":
    run(app)
