"""`python -m foundation.align`: a linear map from a new teacher's space to an old one's, and how far apart they are.

Legend: n rows, Z = 64 the width of z. LoopFM (2605.29280) measures what another checkpoint does to the same row, and
names a linear alignment between versions as a remedy that it has not tried. Ridge regression in closed form, float64.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from contracts.command import report, run
from contracts.errors import InputError
from events.log import InteractionLog
from events.store import read_log
from foundation.checkpoint import check_free, check_schema, read_moments
from foundation.config import REPRESENTATION_DIM
from foundation.gem import Gem, load_weights
from foundation.layout import InputLayout
from foundation.teacher import Teacher

RIDGE = 1e-4
"""Penalty of a squared weight, in the mean squared units of z: a dimension that hardly moves gets no large weight."""
MAX_ROWS = 50_000
"""The newest common rows that are read: ample for 64 x 65 numbers, minutes of the teacher at most."""
MIN_ROWS = 2 * REPRESENTATION_DIM
HELD_OUT = 0.2
"""Share of the rows, the newest, that the map is judged on and not fitted to."""


@dataclass(frozen=True)
class Alignment:
    """z -> clip(W z + b, -1, 1): map_ZZ and shift_Z, float64."""

    map_ZZ: np.ndarray
    shift_Z: np.ndarray

    def __call__(self, z_nZ: np.ndarray) -> np.ndarray:
        return np.clip(z_nZ @ self.map_ZZ.T + self.shift_Z, -1, 1)


@dataclass(frozen=True)
class Closeness:
    """Of vectors to an old space's of the same rows. `r2`: 1 - squared error / the old vectors' squared distance to
    their centroid, all dimensions together. `cosine`: mean over rows. `centroid_drift`: distance of the two centroids
    over the root mean squared distance of the old vectors to theirs."""

    r2: float
    cosine: float
    centroid_drift: float


app = typer.Typer(add_completion=False)


@app.command()
def main(
    old: Annotated[Path, typer.Option(help="folder of the checkpoint whose space is kept")],
    new: Annotated[Path, typer.Option(help="folder of the checkpoint whose space is mapped to it")],
    log: Annotated[Path, typer.Option(help="folder of the interaction log that both learned from")],
    out: Annotated[
        Path | None, typer.Option(help="folder for a copy of --new with the map in it; without, only figures")
    ] = None,
) -> None:
    """Fit the map on the teachers' common training period and judge it on the newest fifth of the rows."""
    if out is not None:
        check_free(out)
    teachers, interactions = (Teacher.load(old), Teacher.load(new)), read_log(log)
    for teacher, folder in zip(teachers, (old, new), strict=True):
        check_schema(teacher.info, interactions.schema, source=str(folder))
    if teachers[1].model.config.aligned:
        raise InputError(
            f"{new} is aligned already; align the checkpoint that it was made from ({teachers[1].info.parent})"
        )
    rows = common_rows(*teachers, interactions)
    old_nZ, new_nZ = (teacher.represent(interactions, rows).z for teacher in teachers)
    fitted = len(rows) - int(HELD_OUT * len(rows))
    alignment = fit_alignment(new_nZ[:fitted], old_nZ[:fitted])
    result: dict[str, Any] = {
        "old": teachers[0].run,
        "new": teachers[1].run,
        "rows": {"fitted": fitted, "judged": len(rows) - fitted},
        "before": asdict(closeness(new_nZ[fitted:], old_nZ[fitted:])),
        "after": asdict(closeness(alignment(new_nZ[fitted:]), old_nZ[fitted:])),
    }
    if out is not None:
        moments = read_moments(new, teachers[1].info)
        result |= {"checkpoint": str(out), "run": aligned(teachers[1], alignment).write(out, moments).run}
    report(result)


def common_rows(old: Teacher, new: Teacher, log: InteractionLog) -> np.ndarray:
    """The newest rows of the log in both teachers' training periods, int64, in order of (event_ms, event_id).

    InputError where they are too few.
    """
    begin = max(old.info.trained_from_ms, new.info.trained_from_ms)
    end = min(old.trained_until_ms, new.trained_until_ms)
    rows = np.flatnonzero((log.event_ms >= begin) & (log.event_ms < end))
    if len(rows) < MIN_ROWS:
        raise InputError(
            f"the log has {len(rows)} rows in the training periods of both checkpoints, a map needs {MIN_ROWS}; choose "
            "checkpoints whose periods overlap, and the log that they learned from"
        )
    return log.in_time_order(rows)[-MAX_ROWS:]


def fit_alignment(new_nZ: np.ndarray, old_nZ: np.ndarray, *, ridge: float = RIDGE) -> Alignment:
    """Least squares of old on new with a penalty of `ridge` n on each squared weight, the shift free."""
    x_nZ, y_nZ = new_nZ.astype(np.float64), old_nZ.astype(np.float64)
    x_Z, y_Z = x_nZ.mean(axis=0), y_nZ.mean(axis=0)
    x_nZ, y_nZ = x_nZ - x_Z, y_nZ - y_Z
    gram_ZZ = x_nZ.T @ x_nZ + ridge * len(x_nZ) * np.eye(x_nZ.shape[1])
    map_ZZ = np.linalg.solve(gram_ZZ, x_nZ.T @ y_nZ).T
    return Alignment(map_ZZ, y_Z - map_ZZ @ x_Z)


def closeness(z_nZ: np.ndarray, old_nZ: np.ndarray) -> Closeness:
    """NaN where it is not defined: the old vectors are all the same, or a vector is zero."""
    z_nZ, old_nZ = z_nZ.astype(np.float64), old_nZ.astype(np.float64)
    spread = np.square(old_nZ - old_nZ.mean(axis=0)).sum()
    drift = np.linalg.norm(z_nZ.mean(axis=0) - old_nZ.mean(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine_n = (z_nZ * old_nZ).sum(axis=1) / (np.linalg.norm(z_nZ, axis=1) * np.linalg.norm(old_nZ, axis=1))
        r2, scaled = 1 - np.square(z_nZ - old_nZ).sum() / spread, drift / np.sqrt(spread / len(old_nZ))
    return Closeness(float(r2), float(cosine_n.mean()), float(scaled))


def aligned(teacher: Teacher, alignment: Alignment) -> Teacher:
    """The teacher whose z passes the map: another `run`, hence another space; its soft labels stay."""
    model = Gem(InputLayout(teacher.schema), replace(teacher.model.config, aligned=True))
    maps = {"map_ZZ": alignment.map_ZZ, "shift_Z": alignment.shift_Z}
    added = {f"compressor.{name}": torch.from_numpy(values).float() for name, values in maps.items()}
    load_weights(model, teacher.model.state_dict() | added)
    return teacher.with_model(model, seed=teacher.info.seed)


if __name__ == "__main__":
    run(app)
