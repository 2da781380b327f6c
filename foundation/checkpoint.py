"""A checkpoint is a folder: model.safetensors, optimizer.safetensors and, written last, checkpoint.json.

While a run goes on, the folder holds progress.safetensors alone: weights, moments and the step in one file that is
replaced atomically, so that a killed run resumes from the last complete state. No pickle.
"""

import json
import os
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from contracts.errors import InputError
from contracts.schema import FeatureSchema
from foundation.recipes import Recipe

MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
INFO, PROGRESS = "checkpoint.json", "progress.safetensors"
WEIGHT, MOMENT = "weight|", "moment|"
FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """What is true of a finished run. `run` is the sha256 of model.safetensors, `moments` that of
    optimizer.safetensors, `parent` the run of the checkpoint it continues; it learned from `rows` of the log in
    [trained_from_ms, trained_until_ms), after `untimed_events`. `quantiles` scale the aggregates that the model reads,
    in the form of `Quantiles.to_json`; None for a model without."""

    run: str
    recipe: Recipe
    schema: FeatureSchema
    fingerprint: str
    seed: int
    period: str
    rows: int
    untimed_events: int
    steps: int
    trained_from_ms: int
    trained_until_ms: int
    parent: str | None = None
    moments: str = ""
    quantiles: dict[str, Any] | None = None
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write_checkpoint(
    folder: Path, model: dict[str, Tensor], moments: dict[str, Tensor], info: Checkpoint
) -> Checkpoint:
    """Writes the folder, checkpoint.json last, and removes the run's progress; the digests in `info` are filled in."""
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / MODEL, model)
    _save(folder / OPTIMIZER, moments)
    finished = Checkpoint(**{**vars(info), "run": _digest(folder / MODEL), "moments": _digest(folder / OPTIMIZER)})
    temporary = folder / f"{INFO}.tmp"
    temporary.write_text(json.dumps(finished.to_json(), indent=1))
    os.replace(temporary, folder / INFO)
    (folder / PROGRESS).unlink(missing_ok=True)
    return finished


def check_free(folder: Path) -> None:
    """InputError when a folder cannot take a new checkpoint: it is a file, or holds a run, finished or not."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose another --out")
    if (folder / INFO).is_file() or (folder / PROGRESS).is_file():
        raise InputError(f"{folder} holds a checkpoint; choose another --out or delete it")


def read_info(folder: Path) -> Checkpoint:
    """checkpoint.json of a finished checkpoint, its weights verified; InputError names the file and the mend."""
    path = folder / INFO
    if not path.is_file():
        unfinished = (folder / PROGRESS).is_file()
        mend = "finish its run with foundation.train --resume" if unfinished else "train one with foundation.train"
        raise InputError(f"{folder} is no finished checkpoint, it lacks {INFO}; {mend}")
    try:
        raw = json.loads(path.read_text())
        if raw["format"] != FORMAT:
            raise InputError(f"{path} has format {raw['format']}, this version reads {FORMAT}; train it again")
        schema = FeatureSchema.from_json(raw["schema"])
        info = Checkpoint(**{**raw, "recipe": Recipe.from_json(raw["recipe"]), "schema": schema})
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a checkpoint's description ({error}); train the checkpoint again") from error
    if not (folder / MODEL).is_file() or _digest(folder / MODEL) != info.run:
        raise InputError(f"{folder / MODEL} is missing or differs from its sha256 in {INFO}; copy it again")
    return info


def read_model(folder: Path) -> dict[str, Tensor]:
    """Weights by parameter name."""
    return _load(folder / MODEL)


def read_moments(folder: Path, info: Checkpoint) -> dict[str, Tensor]:
    """The optimiser's state, to continue training; InputError when it is not the one that `info` describes."""
    if not (folder / OPTIMIZER).is_file() or _digest(folder / OPTIMIZER) != info.moments:
        raise InputError(f"{folder / OPTIMIZER} is missing or differs from its sha256 in {INFO}; copy it again")
    return _load(folder / OPTIMIZER)


def check_schema(info: Checkpoint, schema: FeatureSchema, *, source: str) -> None:
    """InputError when a log's schema is not the one that the checkpoint was trained on."""
    if info.fingerprint != schema.fingerprint():
        raise InputError(
            f"{source}: the checkpoint was trained on schema {info.schema.name!r} ({info.fingerprint}), the log has "
            f"{schema.name!r} ({schema.fingerprint()}); use the log it belongs to or train a checkpoint on this one"
        )


def write_progress(
    folder: Path, model: dict[str, Tensor], moments: dict[str, Tensor], *, step: int, run: dict[str, Any]
) -> None:
    """The state after `step` steps of the run that `run` describes, replacing the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {WEIGHT + name: value for name, value in model.items()}
    tensors |= {MOMENT + name: value for name, value in moments.items()}
    _save(folder / PROGRESS, tensors, {"step": str(step), "run": json.dumps(run, sort_keys=True)})


def read_progress(folder: Path, *, run: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor], int] | None:
    """(weights, moments, step), None if no step was kept; InputError if another run left the state."""
    path = folder / PROGRESS
    if not path.is_file():
        return None
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); delete it and train from the start") from error
    if metadata.get("run") != json.dumps(run, sort_keys=True):
        raise InputError(f"{path} belongs to a run with other options; repeat those or choose another --out")
    tensors = _load(path)
    weights = {name.removeprefix(WEIGHT): value for name, value in tensors.items() if name.startswith(WEIGHT)}
    moments = {name.removeprefix(MOMENT): value for name, value in tensors.items() if name.startswith(MOMENT)}
    return weights, moments, int(metadata["step"])


def _save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    temporary = path.with_name(path.name + ".tmp")
    save_file({name: value.contiguous() for name, value in tensors.items()}, str(temporary), metadata)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); copy it again or train the checkpoint again") from error
    return tensors


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
