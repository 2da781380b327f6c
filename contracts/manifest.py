"""The artifact manifest: what is true of an exported student, written last and verified on every load.

An artifact is a folder `<name>/<version>/` with model.onnx, golden.json and manifest.json. The manifest names the
sha256 of every other file, the embedding space that the student pins and the schema it was trained on.
"""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.errors import InputError
from contracts.features import InputSpec, TensorSpec
from contracts.keys import check_space, space_dim
from contracts.schema import FeatureSchema

MANIFEST, MODEL, GOLDEN = "manifest.json", "model.onnx", "golden.json"


class FileDigest(BaseModel):
    """Size and hash of one file of the artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sha256: str
    bytes: int


class Tensor(BaseModel):
    """One graph input or output."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    dtype: str
    shape: list[int | str]


class Manifest(BaseModel):
    """What is true of this artifact. `tasks` is the order of the output columns `probabilities` [N, tasks]."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[1] = 1
    name: str
    version: str
    created_at: str
    surfaces: list[str]
    tasks: list[str]
    space: str
    history_length: int
    dim: int
    inputs: list[Tensor]
    outputs: list[Tensor]
    feature_schema: dict[str, Any]
    schema_fingerprint: str
    opset: int
    max_candidates: int = 1000
    recipe: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    files: dict[str, FileDigest] = {}

    def input_spec(self) -> InputSpec:
        """The assembler's spec, checked against the fingerprint and the graph's inputs."""
        spec = InputSpec(FeatureSchema.from_json(self.feature_schema), self.history_length, self.dim)
        if spec.schema.fingerprint() != self.schema_fingerprint:
            raise InputError(f"artifact {self.name}/{self.version}: schema and fingerprint disagree; export it again")
        if [tensor_of(t) for t in spec.tensors()] != self.inputs:
            raise InputError(
                f"artifact {self.name}/{self.version}: its inputs are not the assembler's; export it again"
            )
        check_space(self.space)
        if space_dim(self.space) != self.dim:
            raise InputError(f"artifact {self.name}/{self.version}: space {self.space} is not {self.dim} wide")
        return spec


def tensor_of(spec: TensorSpec) -> Tensor:
    """The manifest's form of an assembler tensor."""
    return Tensor(name=spec.name, dtype=spec.dtype, shape=list(spec.shape))


def digest(path: Path) -> FileDigest:
    """Size and sha256 of a file."""
    content = path.read_bytes()
    return FileDigest(sha256=sha256(content).hexdigest(), bytes=len(content))


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write manifest.json with the digests of all other files of `folder`: last, and by an atomic rename."""
    files = {path.name: digest(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    complete = manifest.model_copy(update={"files": files})
    partial = folder / f".{MANIFEST}.tmp"
    partial.write_text(complete.model_dump_json(indent=2) + "\n")
    os.replace(partial, folder / MANIFEST)
    return complete


def load_manifest(folder: Path) -> Manifest:
    """The verified manifest of an artifact.

    Raises InputError when the folder, the manifest or a file is missing, a file is not named or lies elsewhere, or its
    bytes differ from the digest.
    """
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise InputError(
            f"{folder} is no artifact: it has no {MANIFEST}; write one with python -m student_models.export"
        )
    try:
        manifest = Manifest.model_validate(json.loads(path.read_text()))
    except (ValidationError, ValueError) as error:
        raise InputError(f"{path} is not a manifest of format 1: {error}") from error
    for needed in (MODEL, GOLDEN):
        if needed not in manifest.files:
            raise InputError(f"{path} does not name {needed}; export the artifact again")
    present = {entry.name for entry in folder.iterdir()} - {MANIFEST}
    if extra := present - set(manifest.files):
        raise InputError(f"{folder} holds files that its manifest does not name: {sorted(extra)}; remove them")
    for name, expected in manifest.files.items():
        file = folder / name
        if Path(name).name != name or file.is_symlink():
            raise InputError(f"{path} names {name!r}, which is not a plain file of the artifact; export it again")
        if not file.is_file():
            raise InputError(f"{folder} lacks {name}; export the artifact again")
        if digest(file) != expected:
            raise InputError(f"{file} differs from its sha256 in the manifest; copy or export the artifact again")
    return manifest
