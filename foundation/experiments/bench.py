"""What every experiment is given: where to work and write, how many seeds and processes."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from events.splits import Period
from foundation.experiments import pages
from foundation.experiments.compare import Judged, judged
from foundation.experiments.data import Dataset, dataset
from foundation.experiments.jobs import Job, Outcome, outcomes
from foundation.recipes import TrainRecipe


@dataclass(frozen=True)
class Arm:
    """A model and how it is trained, under the name that the tables use."""

    name: str
    model: Any
    train: TrainRecipe | None


@dataclass(frozen=True)
class Bench:
    """Runs arms over seeds and writes results. With `smoke` every step runs on few rows; nothing of it counts."""

    work: Path
    root: Path
    seeds: tuple[int, ...]
    workers: int
    smoke: bool
    command: str
    started: float = field(default_factory=time.monotonic)
    commits: set[str] = field(default_factory=set)
    """Commits that made the models used so far."""

    def data(self, name: str) -> Dataset:
        """The dataset, or a small world in its place in a smoke run."""
        return dataset(self.data_name(name), self.work)

    def data_name(self, name: str) -> str:
        return "smoke" if self.smoke else name

    def rows(self, name: str, period: Period) -> dict[str, Judged]:
        """Task -> judged rows of the period."""
        return judged(self.data(name), period)

    def fit(
        self,
        arms: list[Arm],
        *,
        data: str,
        fit: Period,
        judge: Period,
        seeds: tuple[int, ...] | None = None,
    ) -> dict[str, list[Outcome]]:
        """Name of the arm -> outcome of each seed; finished ones come from the work folder."""
        chosen = self.seeds if seeds is None else seeds
        stop = 512 if self.smoke else None
        jobs = {
            (arm.name, seed): Job(self.data_name(data), arm.model, arm.train, fit, judge, seed, stop_rows=stop)
            for arm in arms
            for seed in chosen
        }
        done = self._done(list(jobs.values()))
        return {arm.name: [done[jobs[arm.name, seed]] for seed in chosen] for arm in arms}

    def fit_jobs(self, jobs: dict[str, list[Job]]) -> dict[str, list[Outcome]]:
        """The same for jobs of the caller's own making, by name."""
        stop = 512 if self.smoke else None
        ready = {name: [replace(job, stop_rows=job.stop_rows or stop) for job in some] for name, some in jobs.items()}
        done = self._done([job for some in ready.values() for job in some])
        return {name: [done[job] for job in some] for name, some in ready.items()}

    def _done(self, jobs: list[Job]) -> dict[Job, Outcome]:
        done = outcomes(jobs, self.work, workers=self.workers)
        self.commits.update(str(outcome.cost.get("commit", "unknown")) for outcome in done.values())
        return done

    def write(self, name: str, figures: dict[str, Any], *, title: str, intro: str, body: str) -> dict[str, Any]:
        """The JSON and the page; returns what the command reports."""
        cost = {
            "seeds": len(self.seeds),
            "seconds_of_last_run": round(time.monotonic() - self.started, 1),
            "models_of_commits": sorted(self.commits),
        }
        held = pages.write(name, command=self.command, figures=figures, cost=cost, root=self.root)
        path = pages.page(name, title=title, intro=intro, body=body, held=held, root=self.root)
        return {"page": str(path), "raw": str(self.root / pages.RESULTS / f"gem_{name}.json")}
