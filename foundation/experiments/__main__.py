"""`python -m foundation.experiments NAME`: run one experiment, or list them with --list."""

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from contracts.command import report, run
from contracts.errors import InputError

EXPERIMENTS = {
    "quality": "GEM against every baseline and against trees, on KuaiRand and MovieLens-1M",
    "unification": "one model for all surfaces and tasks against one for each; experts; mixing",
    "architecture": "each part of Kunlun off in turn, on a world with long-range dependence and on KuaiRand",
    "scaling": "NE against compute for Kunlun, InterFormer and Wukong at five sizes",
    "speed": "examples/s, MFU and memory against the eager baseline and the length of the history",
}

app = typer.Typer(add_completion=False)


@app.command()
def main(
    name: Annotated[str | None, typer.Argument(help=f"one of {', '.join(EXPERIMENTS)}")] = None,
    list_: Annotated[bool, typer.Option("--list", help="say what each experiment compares, and stop")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="seeds of each model; the published figures have 3 or more")] = 3,
    work: Annotated[Path, typer.Option(help="logs and finished models; a killed run goes on from here")] = Path(
        "runs/experiments"
    ),
    out: Annotated[
        Path | None,
        typer.Option(help="where results/ and docs/results/ are written; default: here, of a smoke run WORK/smoke"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes, one thread each")] = 2,
    smoke: Annotated[bool, typer.Option(help="a few rows of a small world: does every step run?")] = False,
) -> None:
    """Run one experiment: its table and plots go to docs/results/, its figures to results/gem_NAME.json."""
    if list_:
        for known, what in EXPERIMENTS.items():
            sys.stdout.write(f"{known:14} {what}\n")
        report({"experiments": list(EXPERIMENTS)})
        return
    known_names = ", ".join(EXPERIMENTS)
    if name is None:
        raise InputError(f"name an experiment: one of {known_names}")
    if name not in EXPERIMENTS:
        raise InputError(f"no experiment {name!r}; choose one of {known_names}")
    from foundation.experiments.bench import Bench  # imports torch: seconds that a misspelt name need not wait for

    options = "" if seeds == 3 else f" --seeds {seeds}"
    bench = Bench(
        work=work,
        root=out or (work / "smoke" if smoke else Path(".")),
        seeds=tuple(range(seeds)),
        workers=workers,
        smoke=smoke,
        command=f"python -m foundation.experiments {name}{options}{' --smoke' if smoke else ''}",
    )
    module = importlib.import_module(f"foundation.experiments.{name}")
    report({"experiment": name, **module.run(bench)})


if __name__ == "__main__":
    run(app)
