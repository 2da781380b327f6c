"""The page and the plot of the scaling experiment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foundation.experiments import pages

COLOURS = {"Kunlun": "tab:blue", "InterFormer": "tab:orange", "Wukong": "tab:green"}


def plot(root: Path, found: dict[str, Any], *, task: str) -> None:
    """docs/results/gem_scaling.svg below `root`: NE with deviations over seeds, and each model's fitted line."""
    drawn, axes, path = pages.figure("gem_scaling", root=root)
    for family, some in found["curves"].items():
        flops, levels = [one["flops"] / 1e6 for one in some], [one["ne"]["mean"] for one in some]
        deviations = [one["ne"]["sd"] or 0.0 for one in some]
        colour = COLOURS[family]
        slope = found["fits"][family]["slope"]
        label = f"{family}: {slope['value']:.4f} per decade ({slope['low']:.4f} to {slope['high']:.4f})"
        axes.errorbar(flops, levels, yerr=deviations, fmt="o", color=colour, capsize=3, label=label)
        ends = np.array([min(flops), max(flops)])
        fitted = found["fits"][family]["intercept"] - slope["value"] * np.log10(ends * 1e6)
        axes.plot(ends, fitted, color=colour, linewidth=1)
    axes.set(xscale="log", xlabel="forward MFLOP per example", ylabel=f"NE of {task} (lower is better)")
    axes.legend(frameon=False)
    pages.save(drawn, path)


def _told_ratio(ratio: dict[str, float]) -> str:
    if np.isnan(ratio["low"]):
        return f"{ratio['value']:.2f}, not resolved: the interval of the slope below holds zero"
    return pages.bounds(ratio, 2)


def body(found: dict[str, Any], *, rates: Sequence[float]) -> str:
    """The page behind its facts: plot, sizes, slopes, room, tuning."""
    parts = ["![NE against compute](gem_scaling.svg)"]
    rows = [
        (
            family,
            f"{one['flops'] / 1e6:.2f}",
            str(one["width"]),
            str(one["layers"]),
            f"{one['rate']:.2g}",
            pages.mean_sd(one["ne"], 5),
            f"{one['ne']['mean'] - _on_line(found['fits'][family], one['flops']):+.5f}",
            f"{one['auc']['mean']:.4f}",
        )
        for family, some in found["curves"].items()
        for one in some
    ]
    headings = ("model", "MFLOP", "width", "layers", "rate", "NE", "NE - fitted line", "AUC")
    parts.append(pages.table(headings, rows))
    fits = found["fits"]
    told = [(f"b of {family}, NE per decade", pages.bounds(fits[family]["slope"], 5)) for family in found["curves"]]
    told += [(f"b of {pair}", pages.bounds(gap, 5)) for pair, gap in fits["difference"].items()]
    told += [(f"b of {pair}", _told_ratio(ratio)) for pair, ratio in fits["ratio"].items()]
    room = found["attainable"]
    told.append(("best attainable NE", f"{room['best_ne']:.4f}"))
    asked = "3 asked, so the world is hard enough" if room["hard_enough"] else "3 asked, so the world is too easy"
    told.append(("room below the lowest curve, in spreads of the sizes", f"{room['room_in_spreads']:.1f} ({asked})"))
    note = (
        "The best attainable NE is that of the true probabilities, which also follow from hidden interests and from "
        "habits over 400 impressions; models read 32. Much of the room is open to no model here."
    )
    parts.append(pages.table(("", "value (95 % interval)"), told))
    return "\n\n".join([*parts, note, "## Tuning", _tuning_table(found["tuning"], [str(rate) for rate in rates])])


def _on_line(fit: dict[str, Any], flops: float) -> float:
    return float(fit["intercept"] - fit["slope"]["value"] * np.log10(flops))


def _tuning_table(tuning: dict[str, list[dict[str, float]]], rates: list[str]) -> str:
    """NE of every rate tried; the best is bold, and said where it is the last of the grid."""
    rows = []
    for family, sizes in tuning.items():
        for number, scores in enumerate(sizes):
            best = min(rates, key=lambda rate: scores[rate])
            edge = best in (rates[0], rates[-1])
            cells = [f"**{scores[rate]:.5f}**" if rate == best else f"{scores[rate]:.5f}" for rate in rates]
            rows.append((family, str(number + 1), *cells, "yes" if edge else ""))
    return pages.table(("model", "size", *rates, "best at the edge of the grid"), rows)
