"""`python -m foundation.extract`: another compressor for a finished checkpoint, over activations of one's choice.

The compressor learns behind a stop-gradient (LoopFM, 2605.29280, 1.1), so it can be fitted after the model as well as
beside it: the two differ by the optimiser's path and by activations that no longer move. The model's own weights, and
its soft labels, stay bit for bit; z lies in a space of its own.
"""

import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from contracts.command import report, run, track
from contracts.errors import GemError, InputError
from events.log import InteractionLog
from events.store import read_log
from foundation.batch import BatchSource
from foundation.checkpoint import check_free, check_schema, read_moments
from foundation.config import REPRESENTATION_PREFIXES
from foundation.flops import LoggingFlops, logging_flops
from foundation.gem import Gem, load_weights
from foundation.layout import InputLayout
from foundation.optimizer import COMPRESSOR, rate_at
from foundation.predict import outputs
from foundation.recipes import TrainRecipe
from foundation.teacher import Teacher

REPORT_ROWS = 2048
"""The newest rows of the period, on which the command reports."""

app = typer.Typer(add_completion=False)


@app.command()
def main(
    checkpoint: Annotated[Path, typer.Option(help="folder of the finished checkpoint")],
    log: Annotated[Path, typer.Option(help="folder of the interaction log that it learned from")],
    layers: Annotated[
        str, typer.Option(help="activations, by commas: embedding, hidden-0, ..., head, score, or joint")
    ],
    out: Annotated[Path, typer.Option(help="folder of the new checkpoint; must not hold one")],
    seed: Annotated[int, typer.Option(min=0, help="seed of the compressor's weights")] = 0,
) -> None:
    """Fit a compressor of other activations on the checkpoint's own training period; GEM itself is not retrained."""
    check_free(out)
    started, teacher, interactions = time.monotonic(), Teacher.load(checkpoint), read_log(log)
    check_schema(teacher.info, interactions.schema, source=str(checkpoint))
    extraction = tuple(name.strip() for name in layers.split(","))
    replace(teacher.model.config, extraction=extraction)  # an unknown name shows before the folder is made
    moments = read_moments(checkpoint, teacher.info)
    out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written shows before the work
    torch.set_num_threads(1)  # as foundation.train: a second thread would change the last bits
    rows = period_rows(teacher, interactions)
    fitted = refit_compressor(teacher, interactions, rows, extraction=extraction, seed=seed)
    newest = rows[-REPORT_ROWS:]
    errors, flops = reconstruction(fitted, interactions, newest), logging_cost(fitted, interactions, newest)
    fitted.write(out, {name: moment for name, moment in moments.items() if f":{COMPRESSOR}" not in name})
    report(
        {
            "checkpoint": str(out),
            "run": fitted.run,
            "parent": teacher.run,
            "extraction": list(fitted.model.config.extracted),
            "activations": len(fitted.model.compressor.standardise.mean),
            "rows": len(rows),
            "reconstruction": errors,
            "reconstruction_rows": len(newest),
            "flops": {**asdict(flops), "ratio": flops.ratio},
            "seconds": round(time.monotonic() - started, 1),
        }
    )


def period_rows(teacher: Teacher, log: InteractionLog) -> np.ndarray:
    """Rows of the log in the teacher's training period, int64, in order of (event_ms, event_id)."""
    info = teacher.info
    return log.in_time_order(
        np.flatnonzero((log.event_ms >= info.trained_from_ms) & (log.event_ms < info.trained_until_ms))
    )


def refit_compressor(
    teacher: Teacher, log: InteractionLog, rows: np.ndarray, *, extraction: tuple[str, ...], seed: int
) -> Teacher:
    """The teacher with a fresh compressor of other activations, fitted in one pass over rows of the log in time order.

    Batches, rates and forgotten ids are those of the teacher's recipe; it has another `run`, hence another space.
    InputError for unknown activations, another schema, no rows, or rows outside of the teacher's training period.
    """
    recipe = teacher.info.recipe
    config = replace(recipe.model, extraction=extraction, aligned=False)
    check_schema(teacher.info, log.schema, source="refit_compressor")
    rows = _own(teacher, log, rows)
    own = {name: value for name, value in teacher.model.state_dict().items() if not name.startswith(COMPRESSOR)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Gem(InputLayout(log.schema), config).eval()
        load_weights(model, model.state_dict() | own)
        _fit(model, teacher.source(log, rows), recipe.train, seed=seed)
    return teacher.with_model(model, seed=seed)


def reconstruction(teacher: Teacher, log: InteractionLog, rows: np.ndarray) -> dict[int, float]:
    """Prefix of z -> mean squared error of its decoder per standardised dimension over these rows; NaN without any.

    Prefix 0 is the error of no decoder at all, the mean of training: others over it compare between compressors, whose
    standard scales differ.
    """
    compressor, total = teacher.model.compressor, torch.zeros(1 + len(REPRESENTATION_PREFIXES), dtype=torch.float64)
    for positions, output in outputs(teacher.model, teacher.source(log, rows)):
        without = compressor.standardise(output.activations_BE).square().mean()
        errors = torch.cat([without[None], compressor.reconstruction(output.activations_BE)])
        total += len(positions) * errors.double()
    return dict(zip((0, *REPRESENTATION_PREFIXES), (total / len(rows)).tolist(), strict=True))


def logging_cost(teacher: Teacher, log: InteractionLog, rows: np.ndarray) -> LoggingFlops:
    """What z costs beside the soft labels, on one batch from the middle of these rows, which must not be none."""
    source = teacher.source(log, rows)
    middle = torch.arange(len(source))[len(source) // 2 :][: teacher.info.recipe.train.batch_rows]
    return logging_flops(teacher.model, source.batch(middle))


def _fit(model: Gem, source: BatchSource, recipe: TrainRecipe, *, seed: int) -> None:
    """One pass in the source's order. Random numbers follow from (seed, step), as in `Trainer`."""
    optimiser = torch.optim.AdamW(model.compressor.parameters(), weight_decay=0.0, fused=True)
    size, steps = recipe.batch_rows, math.ceil(len(source) / recipe.batch_rows)
    for step in track(range(steps), title="compressor"):
        torch.manual_seed((seed << 32) + step + 1)
        batch = source.batch(torch.arange(step * size, min((step + 1) * size, len(source))))
        with torch.no_grad():
            output = model(batch, user_dropout=recipe.user_dropout, ad_dropout=recipe.ad_dropout)
        if not torch.isfinite(output.activations_BE).all():
            raise GemError(f"activations of step {step + 1} are not finite: look for features out of range")
        optimiser.zero_grad()
        model.auxiliary_loss(output).backward()
        rate = rate_at(step, steps=steps, warmup=recipe.warmup_steps, final=recipe.final_rate, schedule=recipe.schedule)
        optimiser.param_groups[0]["lr"] = rate * recipe.compressor_rate
        optimiser.step()


def _own(teacher: Teacher, log: InteractionLog, rows: np.ndarray) -> np.ndarray:
    """The rows in time order, all of the teacher's training period: what it represents later must not fit it either."""
    begin, end = teacher.info.trained_from_ms, teacher.trained_until_ms
    if not len(rows):
        raise InputError("a compressor needs rows to learn from; give rows of the teacher's training period")
    outside = int(np.sum((log.event_ms[rows] < begin) | (log.event_ms[rows] >= end)))
    if outside:
        raise InputError(
            f"{outside} of {len(rows)} rows lie outside of the teacher's training period [{begin}, {end}) ms; leave "
            "them out, as `period_rows` does"
        )
    return log.in_time_order(rows)


if __name__ == "__main__":
    run(app)
