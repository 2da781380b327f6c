"""The artifact manifest: what is true of an exported student, written last and verified on every load.

An artifact is a folder `<name>/<version>/` with model.onnx, golden.json and manifest.json. The manifest names the
sha256 of every other file and of itself (`manifest_sha256`, over the canonical JSON of its other fields), the embedding
space that the student pins and the schema it was trained on.
"""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts.elements import ELEMENTS
from contracts.errors import InputError
from contracts.features import InputSpec, TensorSpec
from contracts.keys import check_space, space_dim, space_dtype
from contracts.quantiser import Quantiser
from contracts.schema import FeatureSchema

PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Name and version are folder names, and stand in labels, metrics and file names."""
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


class QuantiserFields(BaseModel):
    """What the codes of the space mean: its dtype, and the 16 centres of kint4."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    dtype: str
    centres: list[float] = []


class Manifest(BaseModel):
    """What is true of this artifact. `tasks` is the order of the output columns `probabilities` [N, tasks]."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[1] = 1
    name: str = Field(pattern=PLAIN_NAME)
    version: str = Field(pattern=PLAIN_NAME)
    created_at: str
    surfaces: list[str] = Field(min_length=1)
    tasks: list[str] = Field(min_length=1)
    space: str
    quantiser: QuantiserFields | None = None
    history_length: int = Field(ge=0)
    dim: int = Field(gt=0)
    inputs: list[Tensor]
    outputs: list[Tensor]
    feature_schema: dict[str, Any]
    schema_fingerprint: str
    opset: int
    max_candidates: int = Field(1000, gt=0)
    recipe: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    files: dict[str, FileDigest] = {}
    manifest_sha256: str = ""

    def input_spec(self) -> InputSpec:
        """The assembler's spec, checked against the fingerprint and the graph's inputs."""
        names = {tensor.name for tensor in self.inputs}
        elements = tuple(element for element in ELEMENTS if f"history_{element}" in names)
        spec = InputSpec(FeatureSchema.from_json(self.feature_schema), self.history_length, self.dim, elements)
        if spec.schema.fingerprint() != self.schema_fingerprint:
            raise InputError(f"artifact {self.name}/{self.version}: schema and fingerprint disagree; export it again")
        if [tensor_of(t) for t in spec.tensors()] != self.inputs:
            raise InputError(
                f"artifact {self.name}/{self.version}: its inputs are not the assembler's; export it again"
            )
        if unknown := set(self.surfaces) - set(spec.schema.surfaces):
            raise InputError(
                f"artifact {self.name}/{self.version}: its schema lacks the surfaces {sorted(unknown)}; export it again"
            )
        check_space(self.space)
        if space_dim(self.space) != self.dim:
            raise InputError(f"artifact {self.name}/{self.version}: space {self.space} is not {self.dim} wide")
        self.record_quantiser()
        return spec

    def record_quantiser(self) -> Quantiser:
        """What reads the records of the space. A manifest of before there were centres says nothing of it, and its
        space all. InputError when they contradict each other, or centres are missing."""
        dtype = space_dtype(self.space)
        fields = self.quantiser or QuantiserFields(dtype=dtype)
        if fields.dtype != dtype:
            raise InputError(
                f"artifact {self.name}/{self.version}: its quantiser is {fields.dtype}, its space is {self.space}; "
                "export it again"
            )
        try:
            return Quantiser(fields.dtype, tuple(fields.centres))
        except InputError as error:
            raise InputError(f"artifact {self.name}/{self.version}: {error}; export it again") from error


def tensor_of(spec: TensorSpec) -> Tensor:
    """The manifest's form of an assembler tensor."""
    return Tensor(name=spec.name, dtype=spec.dtype, shape=list(spec.shape))


def digest(path: Path) -> FileDigest:
    """Size and sha256 of a file."""
    content = path.read_bytes()
    return FileDigest(sha256=sha256(content).hexdigest(), bytes=len(content))


def fields_sha256(fields: dict[str, Any]) -> str:
    """sha256 over the canonical JSON (sorted keys, no blanks, ASCII) of all fields but `manifest_sha256`."""
    others = {name: value for name, value in fields.items() if name != "manifest_sha256"}
    return sha256(json.dumps(others, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write manifest.json with the digests of all other files of `folder` and its own: last, by an atomic rename."""
    files = {path.name: digest(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    complete = manifest.model_copy(update={"files": files})
    fields = json.loads(complete.model_dump_json())
    complete = complete.model_copy(update={"manifest_sha256": fields_sha256(fields)})
    partial = folder / f".{MANIFEST}.tmp"
    partial.write_text(complete.model_dump_json(indent=2) + "\n")
    os.replace(partial, folder / MANIFEST)
    return complete


def read_manifest(folder: Path) -> Manifest:
    """The manifest, checked against its own digest; the files that it names are not looked at. Errors as below."""
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise InputError(
            f"{folder} is no artifact: it has no {MANIFEST}; write one with python -m student_models.export"
        )
    try:
        fields = json.loads(path.read_text())
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{path} is not a manifest of format 1: {place}: {first['msg']}; export it again") from error
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path} is not a manifest of format 1: {error}; export it again") from error
    if manifest.manifest_sha256 != fields_sha256(fields):
        raise InputError(f"{path} differs from its manifest_sha256; copy or export the artifact again")
    return manifest


def load_manifest(folder: Path) -> Manifest:
    """The verified manifest of an artifact.

    Raises InputError when the folder, the manifest or a file is missing, a file is not named or lies elsewhere, or the
    bytes of a file or of the manifest differ from their digest.
    """
    path, manifest = folder / MANIFEST, read_manifest(folder)
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
