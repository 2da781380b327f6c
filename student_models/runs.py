"""A student's run on disk: <out>/<arm>/seed<n>/{model.safetensors, predictions.parquet, run.json}, run.json last."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from contracts.errors import InputError
from contracts.features import InputSpec
from contracts.keys import space_dim
from contracts.schema import FeatureSchema
from student_models.model import Student
from student_models.recipes import Arm, StudentRecipe

MODEL, PREDICTIONS, RUN = "model.safetensors", "predictions.parquet", "run.json"


@dataclass(frozen=True)
class Run:
    """What is true of a finished run. metrics: {"ne": {task: v}, "auc": {task: v}} on the validation period, without a
    task that has one class there."""

    arm: str
    seed: int
    recipe: dict[str, Any]
    space: str
    schema: dict[str, Any]
    schema_fingerprint: str
    rows: int
    validation_rows: int
    metrics: dict[str, Any]

    def input_spec(self) -> InputSpec:
        """What the student reads; an arm without history reads none."""
        schema = FeatureSchema.from_json(self.schema)
        length = int(self.recipe["history_length"]) if self.recipe["arm"]["history"] else 0
        return InputSpec(schema, length, space_dim(self.space))

    def student(self, folder: Path) -> Student:
        """The trained student in evaluation mode; InputError when its weights are missing, damaged or do not fit."""
        fields = {name: value for name, value in self.recipe.items() if name != "arm"}
        try:
            student = Student(self.input_spec(), StudentRecipe(**{**fields, "hidden": tuple(fields["hidden"])}))
            student.load_state_dict(load_file(folder / MODEL))
        except (OSError, SafetensorError, RuntimeError, TypeError, KeyError) as error:
            raise InputError(
                f"{folder / MODEL} cannot be loaded ({error}); delete {folder} and train this arm again"
            ) from error
        return student.eval()


def run_folder(out: Path, arm: str, seed: int) -> Path:
    return out / arm / f"seed{seed}"


def recipe_json(recipe: StudentRecipe, arm: Arm) -> dict[str, Any]:
    """The recipe and the arm as they stand in run.json (lists where JSON has no tuples)."""
    return json.loads(json.dumps({**asdict(recipe), "arm": asdict(arm)}))


def finished(folder: Path, *, recipe: StudentRecipe, arm: Arm, space: str, fingerprint: str) -> bool:
    """Whether this very run stands in the folder. InputError when a different one does: runs are never mixed."""
    if not (folder / RUN).is_file():
        return False
    found = read_run(folder)
    asked = (recipe_json(recipe, arm), space, fingerprint)
    if (found.recipe, found.space, found.schema_fingerprint) != asked:
        raise InputError(
            f"{folder} holds a run of another recipe, space or schema; give another --out or delete that folder"
        )
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
        raise InputError(f"{path} is damaged ({error}); delete {folder} and train this arm again") from error


def write_run(
    folder: Path, *, run: Run, student: Student, event_id: np.ndarray, probabilities: np.ndarray, tasks: list[str]
) -> None:
    """Weights, validation predictions (event_id, p_<task> float32) and then run.json, by an atomic rename."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(student.state_dict(), folder / MODEL)
    columns = {f"p_{task}": probabilities[:, column] for column, task in enumerate(tasks)}
    pq.write_table(pa.table({"event_id": event_id, **columns}), folder / PREDICTIONS)
    partial = folder / f".{RUN}.tmp"
    partial.write_text(json.dumps(asdict(run), indent=2) + "\n")
    os.replace(partial, folder / RUN)


def read_predictions(path: Path, event_id: np.ndarray, tasks: list[str]) -> np.ndarray:
    """Predictions of these events in this order: float32 [T, K].

    Raises InputError when the file cannot be read, lacks a column, or has no prediction for one of the events.
    """
    try:
        table = pq.read_table(path, columns=["event_id", *(f"p_{task}" for task in tasks)])
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise InputError(
            f"{path} is no file of predictions with event_id and p_<task> for {', '.join(tasks)} ({error})"
        ) from error
    known = table["event_id"].to_numpy()
    order = np.argsort(known)
    found = np.searchsorted(known, event_id, sorter=order).clip(max=max(len(known) - 1, 0))
    if not len(known) or not (known[order[found]] == event_id).all():
        raise InputError(f"{path} lacks predictions for rows of the evaluated period; predict that period again")
    values = np.stack([table[f"p_{task}"].to_numpy() for task in tasks], axis=1)
    return values[order[found]].astype(np.float32)
