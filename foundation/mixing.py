"""Cost-free data mixing: cells of surface x task that are rare are drawn more often, at the same cost per step.

Legend: n rows of a source, S surfaces (the last one: not known), K tasks, C = K + 1 cells of a surface (the last one:
rows without a task). GEM's announcement names cost-free data mixing and no method. The method here is ours [I]:
temperature sampling as in multilingual language models (p ~ share ** (1 / T), Arivazhagan et al., 1907.05019), over
cells of surface x task, inside windows of the time-ordered pass, corrected for by importance weights.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.errors import InputError
from contracts.schema import FeatureSchema
from foundation.recipes import MixingCells

NO_TASK, UNKNOWN_SURFACE = "none", "unknown"


@dataclass(frozen=True)
class Cell:
    """One cell of surface x task codes: its `share` of the rows, the share `drawn`, and the mean importance `weight` of
    what was drawn (NaN if nothing was). A row stands for each of its tasks in equal parts."""

    surface: int
    task: int
    share: float
    drawn: float
    weight: float


@dataclass(frozen=True)
class Mixing:
    """A pass over n rows that takes n draws of them: as many steps, as many examples in each.

    position_n int64: the row of each draw, ascending, so that time order is kept. weight_n float32: what its loss
    counts, 1 / expected draws of the row, so that the expected loss of every row, and thus calibration, is the data's.
    `efficiency` in (0, 1]: the share of the draws that equally weighted rows would need to be worth as much.
    """

    position_n: Tensor
    weight_n: Tensor
    cells: tuple[Cell, ...]
    efficiency: float

    @classmethod
    def of(
        cls, surface_n: np.ndarray, belongs_nK: np.ndarray, *, temperature: float, window: int, seed: int
    ) -> "Mixing":
        """Draws from rows in time order, given their surface codes and, bool, the tasks that each belongs to.

        A row's mass, 1, is split evenly among its tasks; a cell's share of all mass is raised to 1 / temperature and
        scaled to the same sum; rows without a task keep their share. Every window of so many rows is replaced by as
        many draws from it, systematically: a row is drawn its expected number of times, rounded down or up. At
        temperature 1 that is every row once.
        """
        if not temperature > 0 or window < 1:
            raise InputError(f"mixing with temperature {temperature} and window {window}; both must be positive")
        mass_nC = np.concatenate([belongs_nK, ~belongs_nK.any(axis=1, keepdims=True)], axis=1).astype(np.float64)
        mass_nC /= mass_nC.sum(axis=1, keepdims=True)
        share_SC = _shares(surface_n, mass_nC, np.ones(len(mass_nC)))
        rate_n = (mass_nC * boosts(share_SC, temperature)[surface_n]).sum(axis=1)
        expected_n = _expected(rate_n, window)
        position_n = _drawn(expected_n, window, np.random.default_rng([seed, len(rate_n)]))
        weight_n = 1 / expected_n[position_n]
        surface, mass = surface_n[position_n], mass_nC[position_n]
        drawn_SC = _shares(surface, mass, np.ones(len(mass)), surfaces=len(share_SC))
        weighted_SC = _shares(surface, mass, weight_n, surfaces=len(share_SC))
        cells = []
        for s, c in zip(*np.nonzero(share_SC), strict=True):
            drawn = drawn_SC[s, c]
            mean = float(weighted_SC[s, c] / drawn) if drawn else float("nan")
            cells.append(Cell(int(s), int(c), float(share_SC[s, c]), float(drawn), mean))
        efficiency = float(weight_n.sum() ** 2 / np.square(weight_n).sum() / len(weight_n)) if len(weight_n) else 1.0
        weight = torch.from_numpy(weight_n.astype(np.float32))
        return cls(torch.from_numpy(position_n), weight, tuple(cells), efficiency)

    def to_json(self, schema: FeatureSchema) -> dict[str, Any]:
        """The report, with the schema's names."""
        surfaces = [*schema.surfaces, UNKNOWN_SURFACE]
        tasks = [*(task.name for task in schema.tasks), NO_TASK]
        cells = [{**vars(c), "surface": surfaces[c.surface], "task": tasks[c.task]} for c in self.cells]
        return {"efficiency": self.efficiency, "cells": cells}


def belonging(label_nK: np.ndarray, counts_nK: np.ndarray, cells: MixingCells) -> np.ndarray:
    """Tasks that each row belongs to, bool [n, K]: those that it counts for, or those of its positive labels alone."""
    return counts_nK & (label_nK == 1) if cells == "positives" else counts_nK


def boosts(share_SC: np.ndarray, temperature: float) -> np.ndarray:
    """How many times as often as they occur the rows of each cell are drawn: [S, C]; 1 for cells without a task."""
    filled_SC = share_SC > 0
    filled_SC[:, -1] = False
    boost_SC = np.ones_like(share_SC)
    share = share_SC[filled_SC]
    tempered = share ** (1 / temperature)
    boost_SC[filled_SC] = tempered / tempered.sum() * share.sum() / share
    return boost_SC


def _shares(surface_n: np.ndarray, mass_nC: np.ndarray, weight_n: np.ndarray, surfaces: int = 0) -> np.ndarray:
    columns = [np.bincount(surface_n, weights=weight_n * mass_n, minlength=surfaces) for mass_n in mass_nC.T]
    return np.stack(columns, axis=1) / max(1, len(surface_n))


def _expected(rate_n: np.ndarray, window: int) -> np.ndarray:
    """Expected draws of each row: its rate, scaled so that every window gets as many draws as it has rows."""
    starts = np.arange(0, len(rate_n), window)
    sums = np.add.reduceat(rate_n, starts) if len(starts) else np.zeros(0)
    rows = np.diff(np.append(starts, len(rate_n)))
    return rate_n * np.repeat(rows / sums, rows)


def _drawn(expected_n: np.ndarray, window: int, rng: np.random.Generator) -> np.ndarray:
    """Systematic sampling: one random offset per window, then every whole number on the running sum: int64 [n]."""
    positions = [np.zeros(0, dtype=np.int64)]
    for start in range(0, len(expected_n), window):
        edges = np.cumsum(expected_n[start : start + window])
        places = np.searchsorted(edges, rng.random() + np.arange(len(edges)), side="right")
        positions.append(start + np.minimum(places, len(edges) - 1))
    return np.concatenate(positions)
