"""Result files: raw JSON with provenance, a Markdown page with tables, and plots."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.provenance import record

RESULTS, PAGES = Path("results"), Path("docs/results")
SEEDS_CAVEAT = """Of three seeds, resampled, the seeds' part of an interval comes out about a fifth too short: an
interval that barely leaves zero is weaker evidence than it looks."""
"""Stands on every page whose intervals resample seeds."""


def write(name: str, *, command: str, figures: dict[str, Any], cost: dict[str, Any], root: Path) -> dict[str, Any]:
    """results/gem_<name>.json below `root`: figures with command, commit, machine and date; returns what it holds."""
    path = root / RESULTS / f"gem_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record(path, command=command, figures=figures, cost=cost)
    held: dict[str, Any] = json.loads(path.read_text())
    return held


def page(name: str, *, title: str, intro: str, body: str, held: dict[str, Any], root: Path) -> Path:
    """docs/results/gem_<name>.md: title, provenance and the body that the experiment wrote."""
    machine = held["machine"]
    facts = table(
        ("", ""),
        [
            ("command", f"`{held['command']}`"),
            ("commit", held["commit"]),
            ("models trained at", ", ".join(one[:12] for one in held.get("models_of_commits", [])) or "the same"),
            ("date", held["date"]),
            (
                "machine",
                f"{machine['cores']} cores, {machine['processor']}, {machine['system']}, "
                f"Python {machine['python'].split()[0]}, torch {machine['torch']}",
            ),
            ("raw data", f"[`results/gem_{name}.json`](../../results/gem_{name}.json)"),
        ],
    )
    path = root / PAGES / f"gem_{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(f"# {title}\n\n{intro.strip()}\n\n{facts}\n\n{body.strip()}\n")
    os.replace(partial, path)
    return path


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; headings all empty give the two-column table of facts."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def mean_sd(figure: dict[str, Any], digits: int = 4) -> str:
    """`mean ± sd` of a figure over seeds."""
    deviation = "" if figure["sd"] is None else f" ± {figure['sd']:.{digits}f}"
    return f"{figure['mean']:.{digits}f}{deviation}"


def bounds(interval: dict[str, float], digits: int = 4) -> str:
    """`value (low to high)`."""
    return f"{interval['value']:+.{digits}f} ({interval['low']:+.{digits}f} to {interval['high']:+.{digits}f})"


def figure(name: str, *, root: Path) -> tuple[Any, Any, Path]:
    """(figure, axes, path) for a plot docs/results/<name>.svg, drawn without a display and the same at each run."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "gem", "font.size": 9, "figure.figsize": (6.4, 3.8)})
    drawn, axes = plt.subplots(layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    return drawn, axes, root / PAGES / f"{name}.svg"


def forest(
    name: str, panels: Mapping[str, Mapping[str, dict[str, float]]], *, label: str, root: Path, margin: float = 0.0
) -> str:
    """A panel per task with a dot and its interval for each row, docs/results/<name>.svg; returns its Markdown.

    `panels`: task -> row -> {value, low, high}; `margin` > 0 shades the band in which a difference counts as none.
    """
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "gem", "font.size": 9})
    rows = list(dict.fromkeys(row for panel in panels.values() for row in panel))
    size = (2.2 + 2.2 * len(panels), 1.0 + 0.26 * len(rows))
    drawn, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for axis, (task, panel) in zip(axes[0], panels.items(), strict=True):
        axis.axvline(0, color="black", linewidth=0.8)
        if margin:
            axis.axvspan(-margin, margin, color="tab:green", alpha=0.15)
        for place, row in enumerate(reversed(rows)):
            if row in panel:
                one = panel[row]
                clear = one["low"] > 0 or one["high"] < 0
                colour = "tab:blue" if clear else "tab:gray"
                axis.plot((one["low"], one["high"]), (place, place), color=colour)
                axis.plot(one["value"], place, marker="o", markersize=4, color=colour)
        axis.set(title=task, yticks=range(len(rows)))
        axis.set_yticklabels(list(reversed(rows)))
        axis.locator_params(axis="x", nbins=4)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    drawn.supxlabel(label, fontsize=9)
    save(drawn, root / PAGES / f"{name}.svg")
    return f"![{label}]({name}.svg)"


def save(drawn: Any, path: Path) -> None:
    """Write the plot; the date stays out, so that the same data gives the same bytes."""
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    drawn.savefig(partial, format="svg", metadata={"Date": None})
    os.replace(partial, path)
    plt.close(drawn)
