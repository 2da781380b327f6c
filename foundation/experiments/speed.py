"""speed: examples/s, MFU and peak memory of a training step, against an eager baseline of the same FLOPs and against
the length of the history.

Every case is a process of its own, so that its peak memory is its own; cases take turns for several rounds, and figures
are compared as ratios within this one run. On a GPU the same script times the Triton kernel in place of the eager one.
"""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from contracts.errors import GemError
from contracts.schema import HOUR_MS
from events.history import HistoryIndex
from events.metrics import ne
from events.splits import Period
from foundation.config import Attention, GemConfig
from foundation.experiments import pages
from foundation.experiments.bench import Arm, Bench
from foundation.experiments.data import Dataset
from foundation.experiments.timed_case import Case
from foundation.presets import small_model
from foundation.recipes import small

LENGTHS = (256, 512, 1024, 2048)
ATTENTIONS: tuple[Attention, ...] = ("full", "window", "block")
ROUNDS = 3
COLOURS = {"full": "tab:red", "window": "tab:blue", "block": "tab:green"}

INTRO = """
Median of {rounds} rounds, cases taking turns; one thread. A step is forward, backward and update on a synthetic batch
with full histories. MFU: three forward passes' FLOPs per second over the peak of a matmul measured in the same process.
The machine is shared: read the ratios. The unfused FFN goes head by head: on a CPU
its ratio measures batching, not fusion. `torch.compile` is timed on a GPU alone: on this CPU compiling the wide model
did not end in 25 minutes ([log](../log.md)).
"""


def run(bench: Bench) -> dict[str, Any]:
    """Time all cases in turns; returns the paths of what was written."""
    lengths = LENGTHS[:1] if bench.smoke else LENGTHS
    rounds = 1 if bench.smoke else ROUNDS
    cases = {**_operator_cases(bench), **_model_cases(bench), **_length_cases(lengths)}
    drawn: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            drawn[name].append(_timed(case))
    figures = {"cases": {name: _summary(cases[name], some) for name, some in drawn.items()}}
    figures["ratios"] = _ratios(drawn, lengths)
    figures["long_run"] = _long_run(bench)
    _plot(bench, figures["cases"], lengths)
    return bench.write(
        "speed",
        figures,
        title="Speed: training steps of GEM",
        intro=INTRO.format(rounds=rounds),
        body=_body(figures, lengths),
    )


def _wide() -> GemConfig:
    """Wide enough that matmuls and not calls decide; half of `base` would be less."""
    return replace(small_model(), dim=128, heads=2, pffn_hidden=128, layers=3, window=50, history_length=200)


def _operator_cases(bench: Bench) -> dict[str, Case]:
    """The personalised FFN alone: GDPA against one bmm per matrix with its own transposes, and against plain loops."""
    rows, length = (8, 32) if bench.smoke else (64, 200)
    return {f"PFFN {kind}": Case(f"pffn_{kind}", rows, length) for kind in ("gdpa", "unfused", "reference")}


def _model_cases(bench: Bench) -> dict[str, Case]:
    """A training step of the whole model by precision, compilation and CompSkip."""
    model = small_model() if bench.smoke else _wide()
    rows = 8 if bench.smoke else 32
    length = model.history_length
    cases = {
        "model fp32": Case("model", rows, length, asdict(model)),
        "model bf16": Case("model", rows, length, asdict(model), precision="bf16"),
        "model masked attention": Case("model", rows, length, asdict(model), masked=True),
        "model CompSkip": Case("model", rows, length, asdict(replace(model, compskip=True))),
    }
    if torch.cuda.is_available() and not bench.smoke:  # on a CPU it does not end in 25 minutes (docs/log.md)
        cases["model compiled"] = Case("model", rows, length, asdict(model), compiled=True)
    return cases


def _length_cases(lengths: tuple[int, ...]) -> dict[str, Case]:
    base = replace(small_model(), layers=3, window=50, block=64)
    return {
        f"{attention} {length}": Case(
            "model", 8, length, asdict(replace(base, attention=attention, history_length=length))
        )
        for attention in ATTENTIONS
        for length in lengths
    }


def _long_run(bench: Bench) -> dict[str, Any]:
    """Trains on the last day of the long-range world, whose busiest users have about 2,000 events by then, with room
    for 2,048 in blocks of 64; then judges an hour. Says how long the histories were."""
    length = 64 if bench.smoke else LENGTHS[-1]
    base = small()
    model = replace(base.model, dim=16, layers=3, attention="block", history_length=length)
    data = bench.data("long_range")
    end = data.calendar.test.end_ms
    fit, judge = Period("fit", end - 3 * HOUR_MS, end - HOUR_MS), Period("judge", end - HOUR_MS, end)
    train = replace(base.train, batch_rows=32, untimed_per_user=0)
    found = bench.fit([Arm("long", model, train)], data="long_range", fit=fit, judge=judge, seeds=(0,))["long"][0]
    rows = bench.rows("long_range", judge)["click"]
    cost = {name: found.cost[name] for name in ("examples", "examples_per_s", "seconds")}
    read = _events_read(data, data.rows(fit), length)
    return {
        "history_length": length,
        "events_read": read,
        **cost,
        "judged_rows": len(rows.y),
        "ne": ne(rows.y, rows.of([found])[0]).ne,
    }


def _events_read(data: Dataset, rows: np.ndarray, length: int) -> dict[str, float]:
    """Mean and most past events that these rows' histories hold, of at most `length`."""
    lengths = HistoryIndex(data.log).before(rows, length).length
    return {"mean": float(lengths.mean()), "most": int(lengths.max())}


def _timed(case: Case) -> dict[str, float]:
    """Run one case in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "foundation.experiments.timed_case", json.dumps(asdict(case))],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise GemError(f"a timed case failed: {done.stderr.strip().splitlines()[-1:]}; run it alone to see why")
    timed: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return timed


def _summary(case: Case, some: list[dict[str, float]]) -> dict[str, Any]:
    def median(name: str) -> float:
        return sorted(one[name] for one in some)[len(some) // 2]

    told = {name: median(name) for name in ("step_ms", "examples_per_s", "mfu", "peak_mb", "forward_flops")}
    return {**told, "rows": case.rows, "length": case.length, "step_ms_all": [one["step_ms"] for one in some]}


def _ratios(drawn: dict[str, list[dict[str, float]]], lengths: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Speed-ups within each round: median, smallest and largest over the rounds."""
    pairs = {
        "GDPA over unfused PFFN": ("PFFN gdpa", "PFFN unfused"),
        "GDPA over reference loops": ("PFFN gdpa", "PFFN reference"),
        "bf16 over fp32": ("model bf16", "model fp32"),
        "compiled over eager": ("model compiled", "model fp32"),
        "linear over masked attention": ("model fp32", "model masked attention"),
        "CompSkip over whole": ("model CompSkip", "model fp32"),
        **{f"window over full at {n}": (f"window {n}", f"full {n}") for n in lengths},
        **{f"block over full at {n}": (f"block {n}", f"full {n}") for n in lengths},
    }
    found = {}
    for name, (fast, slow) in pairs.items():
        if fast not in drawn or slow not in drawn:
            continue
        ratios = sorted(b["step_ms"] / a["step_ms"] for a, b in zip(drawn[fast], drawn[slow], strict=True))
        found[name] = {"median": ratios[len(ratios) // 2], "low": ratios[0], "high": ratios[-1]}
    return found


def _plot(bench: Bench, cases: dict[str, Any], lengths: tuple[int, ...]) -> None:
    drawn, axes, path = pages.figure("gem_speed", root=bench.root)
    for attention in ATTENTIONS:
        times = [cases[f"{attention} {n}"]["step_ms"] / cases[f"{attention} {n}"]["rows"] for n in lengths]
        axes.plot(lengths, times, marker="o", color=COLOURS[attention], label=attention)
    axes.set(xlabel="events in the history", ylabel="training step, ms per example", xscale="log", yscale="log")
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    axes.legend(title="attention", frameon=False)
    pages.save(drawn, path)


def _body(figures: dict[str, Any], lengths: tuple[int, ...]) -> str:
    rows = [
        (
            name,
            str(one["rows"]),
            str(one["length"]),
            f"{one['step_ms']:.1f}",
            f"{one['examples_per_s']:,.0f}",
            f"{one['forward_flops'] / 1e6:.2f}",
            f"{100 * one['mfu']:.0f} %",
            f"{one['peak_mb']:,.0f}",
        )
        for name, one in figures["cases"].items()
    ]
    headings = ("case", "rows", "history", "step, ms", "examples/s", "forward MFLOP", "MFU", "peak, MB")
    ratios = [
        (name, f"{one['median']:.2f}", f"{one['low']:.2f} to {one['high']:.2f}")
        for name, one in figures["ratios"].items()
    ]
    long = figures["long_run"]
    read = long["events_read"]
    told = (
        f"A run on whole sequences: {long['examples']:,} examples of the long-range world, {read['mean']:,.0f} past "
        f"events on average and {read['most']:,} at most, room for {long['history_length']:,}; "
        f"{long['examples_per_s']:,.0f} examples/s, NE {long['ne']:.4f} on {long['judged_rows']:,} later rows."
    )
    return "\n\n".join(
        [
            pages.table(("speed-up", "median", "smallest to largest of the rounds"), ratios),
            "![cost against history length](gem_speed.svg)",
            pages.table(headings, rows),
            told,
        ]
    )
