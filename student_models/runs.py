"""A student's run on disk: <out>/<arm>/seed<n>/{model.safetensors, predictions.parquet, run.json}, run.json last.

run.json names the sha256 of the other two, compared whenever one is read.
"""

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from contracts.errors import InputError
from contracts.features import InputSpec
from contracts.keys import space_dim, space_dtype
from contracts.manifest import digest
from contracts.quantiser import Quantiser
from contracts.schema import FeatureSchema
from events.log import InteractionLog
from events.representations import RepresentationLog
from student_models.model import Student
from student_models.recipes import Arm, StudentRecipe, arm_spec, recipe_and_arm

MODEL, PREDICTIONS, RUN = "model.safetensors", "predictions.parquet", "run.json"


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What a run learned from. Two runs are comparable when these are equal: epoch and end_offset change with the
    representation log, log_rows with the interaction log. centres: of the space's quantiser, where it is kint4."""

    space: str
    schema_fingerprint: str
    epoch: int
    end_offset: int
    log_rows: int
    centres: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, log: InteractionLog, records: RepresentationLog) -> "Sources":
        return cls(
            space=records.space,
            schema_fingerprint=log.schema.fingerprint(),
            epoch=records.epoch,
            end_offset=records.end_offset,
            log_rows=len(log),
            centres=list(records.quantiser.centres),
        )


@dataclass(frozen=True, kw_only=True)
class Run(Sources):
    """What is true of a finished run. metrics: {"ne": {task: v}, "auc": {task: v}} on the validation period, without a
    task that has one class there. soft_label_share: of the training rows. sha256: of the other files of the folder."""

    arm: str
    seed: int
    recipe: dict[str, Any]
    schema: dict[str, Any]
    rows: int
    validation_rows: int
    soft_label_share: float
    metrics: dict[str, Any]
    sha256: dict[str, str]

    def sources(self) -> Sources:
        return Sources(**{each.name: getattr(self, each.name) for each in fields(Sources)})

    def quantiser(self) -> Quantiser:
        """What the codes mean that the student read decoded."""
        return Quantiser(space_dtype(self.space), tuple(self.centres))

    def verified(self, folder: Path, name: str) -> Path:
        """The path of one of the run's files; InputError when its bytes are not those that were written."""
        path = folder / name
        if path.is_file() and digest(path).sha256 != self.sha256.get(name):
            raise InputError(
                f"{path} is damaged: its sha256 is not the one in {RUN}; delete {folder} and train this arm again"
            )
        return path

    def input_spec(self) -> InputSpec:
        """What the student reads; an arm without history reads none."""
        recipe, arm = recipe_and_arm(self.recipe)
        return arm_spec(InputSpec(FeatureSchema.from_json(self.schema), 0, space_dim(self.space)), recipe, arm)

    def check_servable(self, folder: Path) -> None:
        """InputError for a student that reads what no server gives it: it would be served other inputs than it learned
        from."""
        arm = recipe_and_arm(self.recipe)[1]
        if not isinstance(arm.history, bool):
            raise InputError(
                f"{folder} is of the study arm {arm.name}, whose history no server assembles; export an arm on z"
            )
        if missing := self.input_spec().elements:
            raise InputError(
                f"{folder} reads {', '.join(missing)} of each history element, which the cache's records do not carry "
                "yet; export a student without these inputs"
            )

    def student(self, folder: Path) -> Student:
        """The trained student in evaluation mode; InputError when its weights are missing, damaged or do not fit."""
        try:
            student = Student(self.input_spec(), recipe_and_arm(self.recipe)[0])
            student.load_state_dict(load_file(self.verified(folder, MODEL)))
        except (OSError, SafetensorError, RuntimeError, TypeError, KeyError) as error:
            raise InputError(
                f"{folder / MODEL} cannot be loaded ({error}); delete {folder} and train this arm again"
            ) from error
        return student.eval()


def run_folder(out: Path, arm: str, seed: int) -> Path:
    return out / arm / f"seed{seed}"


def writable_folder(path: Path, option: str) -> Path:
    """The folder, made if need be; InputError names the option when nothing can be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise InputError(
            f"{option} {path} is no folder that can be written ({error.strerror}); give another"
        ) from error


def recipe_json(recipe: StudentRecipe, arm: Arm) -> dict[str, Any]:
    """The recipe and the arm as they stand in run.json (lists where JSON has no tuples)."""
    return json.loads(json.dumps({**asdict(recipe), "arm": asdict(arm)}))


def finished(folder: Path, *, recipe: StudentRecipe, arm: Arm, sources: Sources) -> bool:
    """Whether this very run stands in the folder. InputError when a different one does: runs are never mixed."""
    if not (folder / RUN).is_file():
        return False
    found = read_run(folder)
    if found.recipe != recipe_json(recipe, arm):
        raise InputError(f"{folder} holds a run of another recipe; give another --out or delete that folder")
    if found.sources() != sources:
        before, now = asdict(found.sources()), asdict(sources)
        changed = ", ".join(f"{name} {before[name]} (now {now[name]})" for name in now if before[name] != now[name])
        raise InputError(f"{folder} holds a run of another log: {changed}; give another --out or delete that folder")
    return True


def read_run(folder: Path) -> Run:
    """run.json of a finished run; InputError when there is none or it is damaged."""
    path = folder / RUN
    try:
        return Run(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(
            f"{folder} holds no finished student (no {RUN}); train one with python -m student_models.train"
        ) from None
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} is damaged or of another version ({error}); delete {folder} and train this arm again"
        ) from error


def write_run(
    folder: Path, *, run: Run, student: Student, event_id: np.ndarray, probabilities: np.ndarray, tasks: list[str]
) -> None:
    """Weights, validation predictions (event_id, p_<task> float32) and then run.json with the sha256 of both, by an
    atomic rename."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(student.state_dict(), folder / MODEL)
    columns = {f"p_{task}": probabilities[:, column] for column, task in enumerate(tasks)}
    pq.write_table(pa.table({"event_id": event_id, **columns}), folder / PREDICTIONS)
    partial = folder / f".{RUN}.tmp"
    whole = replace(run, sha256={name: digest(folder / name).sha256 for name in (MODEL, PREDICTIONS)})
    partial.write_text(json.dumps(asdict(whole), indent=2) + "\n")
    os.replace(partial, folder / RUN)


def read_predictions(path: Path, event_id: np.ndarray, tasks: list[str]) -> np.ndarray:
    """Predictions of these events in this order: float32 [T, K].

    Raises InputError when the file cannot be read, lacks a column, or has no prediction for one of the events.
    """
    try:
        table = pq.read_table(path, columns=["event_id", *(f"p_{task}" for task in tasks)])
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise InputError(
            f"{path} is no file of predictions with event_id and p_<task> for {', '.join(tasks)} "
            f"({str(error).strip().splitlines()[0]}); write it with --predictions of python -m foundation.evaluate"
        ) from error
    known = table["event_id"].to_numpy()
    order = np.argsort(known)
    found = np.searchsorted(known, event_id, sorter=order).clip(max=max(len(known) - 1, 0))
    if not len(known) or not (known[order[found]] == event_id).all():
        raise InputError(f"{path} lacks predictions for rows of the evaluated period; predict that period again")
    values = np.stack([table[f"p_{task}"].to_numpy() for task in tasks], axis=1)
    return values[order[found]].astype(np.float32)
