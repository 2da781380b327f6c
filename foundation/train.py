"""`python -m foundation.train`: train GEM on one period of a log, in time order, and write a checkpoint."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from contracts.command import report, run, track
from contracts.errors import InputError
from events.log import InteractionLog
from events.splits import Calendar, Period
from events.store import read_calendar, read_log
from foundation.checkpoint import (
    INFO,
    PROGRESS,
    Checkpoint,
    check_schema,
    read_info,
    read_model,
    read_moments,
    read_progress,
    write_checkpoint,
    write_progress,
)
from foundation.curriculum import untimed_events
from foundation.gem import Gem
from foundation.inputs import fitted_quantiles, source_of
from foundation.log_tensors import LogTensors
from foundation.mfu import Speed, peak_flops
from foundation.quantiles import Quantiles
from foundation.recipes import Recipe, recipe
from foundation.targets import Targets
from foundation.trainer import Trainer

DEFAULT_RECIPE = "small"

app = typer.Typer(add_completion=False)


@app.command()
def main(
    log: Annotated[Path, typer.Option(help="folder of the interaction log")],
    out: Annotated[Path, typer.Option(help="folder of the checkpoint; must not hold a finished one")],
    recipe_name: Annotated[
        str | None, typer.Option("--recipe", help="tiny, small (default), quality, base or large")
    ] = None,
    period: Annotated[str, typer.Option(help="period of the log's calendar to train on")] = "teacher",
    parent: Annotated[Path | None, typer.Option("--from", help="checkpoint to continue; its recipe is kept")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of initialisation and dropout")] = 0,
    resume: Annotated[bool, typer.Option(help="go on with the run that an earlier call left in --out")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
) -> None:
    """Train GEM on one period, one pass in time order; a killed run goes on with --resume."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another --out")
    if (out / INFO).is_file():
        if not resume:
            raise InputError(f"{out} holds a finished checkpoint; choose another --out or delete it")
        report({"checkpoint": str(out), "run": read_info(out).run, "already_finished": True})
        return
    if (out / PROGRESS).is_file() and not resume:
        raise InputError(f"{out} holds an unfinished run; go on with --resume, delete it, or choose another --out")
    interactions, calendar = read_log(log), read_calendar(log)
    base = None if parent is None else read_info(parent)
    if base is not None:
        check_schema(base, interactions.schema, source=str(parent))
    chosen, where = _recipe(recipe_name, base), _device(device)
    trainer, plan = prepare(interactions, calendar, chosen, period=period, base=base, seed=seed, device=where)
    if parent is not None:
        assert base is not None
        trainer.load(read_model(parent), read_moments(parent, base))
    out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written shows before the work
    first = 0
    if resume and (kept := read_progress(out, run=plan.to_json())) is not None:
        weights, moments, first = kept
        trainer.load(weights, moments)
    # batches are small: a second thread gains little, loses a lot on a shared core, and would change the last bits
    torch.set_num_threads(1)
    precision = torch.float32 if plan.recipe.train.precision == "fp32" else torch.bfloat16
    speed = Speed(forward_flops=trainer.forward_flops(), peak=peak_flops(where, precision))
    tasks = [task.name for task in interactions.schema.tasks]

    def note() -> str:
        ne = " ".join(f"{task} {value:.4f}" for task, value in zip(tasks, trainer.running.ne(), strict=True))
        return f"loss {trainer.running.loss():.4f} NE {ne} {speed}"

    started = time.monotonic()
    for step in track(range(first, trainer.steps), title="training", note=note):
        trainer.step(step)
        speed.add(len(trainer.positions(step)))
        if (step + 1) % plan.recipe.train.checkpoint_steps == 0:
            write_progress(out, *trainer.state(), step=step + 1, run=plan.to_json())
    finished = write_checkpoint(out, *trainer.state(), plan)
    report(
        {
            "checkpoint": str(out),
            "run": finished.run,
            "recipe": plan.recipe.name,
            "period": period,
            "rows": plan.rows,
            "untimed_events": plan.untimed_events,
            "steps": trainer.steps,
            "resumed_at": first,
            "loss": trainer.running.loss(),
            "ne": dict(zip(tasks, trainer.running.ne(), strict=False)),
            "seconds": round(time.monotonic() - started, 1),
            **speed.to_json(),
            **({} if trainer.padding is None else {"padding": asdict(trainer.padding)}),
            **({} if trainer.mixing is None else {"mixing": trainer.mixing.to_json(interactions.schema)}),
            "trained_until_ms": finished.trained_until_ms,
        }
    )


def prepare(
    interactions: InteractionLog,
    calendar: Calendar,
    chosen: Recipe,
    *,
    period: str,
    base: Checkpoint | None,
    seed: int,
    device: torch.device,
) -> tuple[Trainer, Checkpoint]:
    """A trainer at its first step, and the description of the checkpoint that it will leave (`run` still empty)."""
    rows, days = calendar.rows(interactions, period), calendar.period(period)
    if not len(rows):
        raise InputError(f"the log has no impressions in its period {period!r}; choose another --period")
    per_user = chosen.train.untimed_per_user if base is None else 0
    untimed = untimed_events(interactions, per_user=per_user, before_ms=days.start_ms, seed=seed)
    events, tensors = np.concatenate([untimed, rows]), LogTensors(interactions)
    quantiles = _quantiles(chosen, base, tensors, events)
    if quantiles is not None:
        chosen = replace(chosen, model=replace(chosen.model, aggregates=quantiles.width))
    source = source_of(tensors, events, history_length=chosen.model.history_length, quantiles=quantiles)
    targets = Targets.of(tensors, events, as_of_ms=days.end_ms)
    torch.manual_seed(seed)
    model, continued = Gem(tensors.layout, chosen.model).to(device), base is not None
    trainer = Trainer(model, chosen.train, source, targets, seed=seed, continued=continued)
    plan = Checkpoint(
        run="",
        recipe=chosen,
        schema=interactions.schema,
        fingerprint=interactions.schema.fingerprint(),
        seed=seed,
        period=period,
        rows=len(rows),
        untimed_events=len(untimed),
        steps=trainer.steps,
        trained_from_ms=_begin(days, base),
        trained_until_ms=days.end_ms,
        parent=None if base is None else base.run,
        quantiles=None if quantiles is None else quantiles.to_json(),
    )
    return trainer, plan


def _quantiles(chosen: Recipe, base: Checkpoint | None, tensors: LogTensors, events: np.ndarray) -> Quantiles | None:
    """Of a recipe with aggregates; a continued checkpoint keeps its own, which its weights belong to."""
    if not chosen.train.aggregates:
        return None
    if base is not None:
        return Quantiles.from_json(base.quantiles or {})
    return fitted_quantiles(tensors, events)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda, and this machine's torch finds no GPU; leave it out")
    if name not in ("cpu", "cuda"):
        raise InputError(f"--device {name} is neither cpu nor cuda; choose one")
    return torch.device(name)


def _recipe(name: str | None, base: Checkpoint | None) -> Recipe:
    """The recipe asked for; a continued checkpoint keeps its own."""
    if base is None:
        return recipe(name or DEFAULT_RECIPE)
    if name not in (None, base.recipe.name):
        raise InputError(f"--recipe {name} differs from {base.recipe.name!r} of the checkpoint; leave --recipe out")
    return base.recipe


def _begin(days: Period, base: Checkpoint | None) -> int:
    """Start of everything learned; a continued checkpoint must not go back in time."""
    if base is None:
        return days.start_ms
    if days.start_ms < base.trained_until_ms:
        raise InputError(f"--period {days.name} begins before the checkpoint's training ended; choose a later period")
    return base.trained_from_ms


if __name__ == "__main__":
    run(app)
