"""One job: a model fitted on one period and its predictions on another, done once and kept in the work folder.

Legend: n judged rows, K tasks. A job's key is the hash of its settings, so a killed experiment goes on where it was,
and two experiments that need the same model share it. Code and data are not in the key: every outcome keeps the
commit that made it, pages list them, and a change that matters asks for a fresh work folder.
"""

import hashlib
import json
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contracts.command import track
from contracts.provenance import commit
from events.splits import Period
from foundation.batch import BatchSource
from foundation.curriculum import untimed_events
from foundation.experiments.data import Dataset, dataset
from foundation.experiments.tree_job import TreesArm, run_trees
from foundation.models import build
from foundation.predict import predict
from foundation.quantiles import Quantiles
from foundation.recipes import TrainRecipe
from foundation.targets import Targets
from foundation.trainer import Trainer


@dataclass(frozen=True)
class Job:
    """A model, its training, the periods that fit and judge it, and a seed.

    `tasks` trains only those tasks (all others are masked); `surface` fits and judges only rows of that surface, whose
    other predictions are NaN.
    `stop_rows` limits training to the first so many rows, for smoke runs.
    """

    data: str
    model: Any
    train: TrainRecipe | None
    fit: Period
    judge: Period
    seed: int
    tasks: tuple[str, ...] | None = None
    surface: str | None = None
    stop_rows: int | None = None

    @property
    def key(self) -> str:
        raw = {"kind": type(self.model).__name__, **asdict(self)}
        return hashlib.sha256(json.dumps(raw, sort_keys=True, default=str).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Outcome:
    """soft float32 [n, K] of the judged rows, in the order of `Dataset.rows`; cost as measured while others may run."""

    soft: np.ndarray
    cost: dict[str, Any]


def outcomes(jobs: list[Job], work: Path, *, workers: int) -> dict[Job, Outcome]:
    """Every job's outcome: from the work folder, or computed now by `workers` processes, one thread each."""
    missing = [job for job in dict.fromkeys(jobs) if not _path(job, work).exists()]
    if missing:
        for name in dict.fromkeys(job.data for job in missing):
            dataset(name, work)  # once, before the processes race for it
        context = get_context("spawn")
        with ProcessPoolExecutor(workers, context, initializer=_end_with, initargs=(os.getpid(),)) as pool:
            running = [pool.submit(_run_and_keep, job, work) for job in missing]
            try:
                for done in track(as_completed(running), total=len(running), title="models"):
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # say what failed now, not after hours of other models
                raise
    return {job: _read(_path(job, work)) for job in jobs}


def run_job(job: Job, data: Dataset) -> Outcome:
    """Fit and predict, in this process and on one thread."""
    torch.set_num_threads(1)
    fit, judge = data.rows(job.fit), data.rows(job.judge)
    judged_rows = np.ones(len(judge), dtype=bool)
    if job.surface is not None:
        code = data.log.schema.surfaces.index(job.surface)
        fit, judged_rows = fit[data.log.surface[fit] == code], data.log.surface[judge] == code
    fit = fit[: job.stop_rows]
    if isinstance(job.model, TreesArm):
        started = time.perf_counter()
        soft = run_trees(job.model, data, job.fit, job.judge, seed=job.seed)
        return Outcome(soft, {"seconds": time.perf_counter() - started})
    assert job.train is not None
    untimed = untimed_events(data.log, per_user=job.train.untimed_per_user, before_ms=job.fit.start_ms, seed=job.seed)
    events = np.concatenate([untimed, fit])
    source, judged = _sources(job, data, events, judge[judged_rows])
    targets = _restricted(Targets.of(data.tensors, events, as_of_ms=job.fit.end_ms), job, data)
    torch.manual_seed(job.seed)
    model = build(data.tensors.layout, job.model)
    trainer = Trainer(model, job.train, source, targets, seed=job.seed)
    started = time.perf_counter()
    losses = [trainer.step(step) for step in range(trainer.steps)]
    seconds = time.perf_counter() - started
    cost: dict[str, Any] = {
        "seconds": round(seconds, 2),
        "examples_per_s": round(len(events) / seconds, 1),
        "steps": trainer.steps,
        "examples": len(events),
        "parameters": sum(p.numel() for name, p in model.named_parameters() if "table.weight" not in name),
        "mixing": None if trainer.mixing is None else trainer.mixing.to_json(data.log.schema),
        "loss": float(np.mean(losses[-max(1, len(losses) // 10) :])),
    }
    soft = np.full((len(judge), len(data.log.schema.tasks)), np.nan, dtype=np.float32)
    soft[judged_rows] = predict(model, judged)
    return Outcome(soft, cost)


def _sources(job: Job, data: Dataset, events: np.ndarray, judge: np.ndarray) -> tuple[BatchSource, BatchSource]:
    """Training and judged batches; aggregates are scaled by the quantiles of the training rows alone."""
    fitted = judged = None
    if job.model.aggregates:
        raw = data.aggregates(events)
        quantiles = Quantiles.fit(raw)
        fitted, judged = quantiles.transform(raw), quantiles.transform(data.aggregates(judge))
    length = job.model.history_length
    return (
        BatchSource(data.tensors, events, history_length=length, aggregates=fitted),
        BatchSource(data.tensors, judge, history_length=length, aggregates=judged),
    )


def _restricted(targets: Targets, job: Job, data: Dataset) -> Targets:
    if job.tasks is None:
        return targets
    kept = torch.tensor([task.name in job.tasks for task in data.log.schema.tasks])
    return Targets(targets.label_nK * kept, targets.counts_nK & kept)


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: a killed experiment must not go on training behind its back."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_and_keep(job: Job, work: Path) -> None:
    path = _path(job, work)
    if path.exists():
        return
    outcome = run_job(job, dataset(job.data, work))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.npz")
    np.savez(partial, soft=outcome.soft, cost=json.dumps({**outcome.cost, "commit": commit()}))
    os.replace(partial, path)


def _read(path: Path) -> Outcome:
    with np.load(path) as kept:
        return Outcome(kept["soft"], json.loads(str(kept["cost"])))


def _path(job: Job, work: Path) -> Path:
    return work / "jobs" / f"{job.key}.npz"
