"""Artifacts from disk: found, verified (sha256, no external data, inputs, golden answers), warmed, ready to score."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from contracts.errors import InputError
from contracts.features import InputSpec
from contracts.manifest import GOLDEN, MANIFEST, MODEL, Manifest, load_manifest, read_manifest
from contracts.quantiser import Quantiser
from contracts.schema import Feature
from serving.scorer import OUTPUT, Scorer

GOLDEN_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Model:
    """A student that may serve. `quantiser` reads the records of its space. `chains` [schema tasks, output columns]
    bool: the columns whose product is P(task); a task that the model does not predict has none. `default_objective` (a
    schema task) is that of unknown ads."""

    manifest: Manifest
    spec: InputSpec
    scorer: Scorer
    quantiser: Quantiser
    chains: np.ndarray
    default_objective: int
    context_features: Mapping[str, Feature]

    @property
    def label(self) -> str:
        """Name and version as a person reads them."""
        return f"{self.manifest.name}/{self.manifest.version}"


def find_artifacts(root: Path) -> list[Path]:
    """The artifact at `root` itself, or the newest version (by created_at) of each `<name>/<version>/` below it.

    A version without a manifest is still being written, and is passed over.
    """
    if (root / MANIFEST).is_file():
        return [root]
    if not root.is_dir():
        raise InputError(f"GEM_MODELS: {root} is no folder; export a student with python -m student_models.export")
    newest: dict[str, tuple[datetime, Path]] = {}
    for path in sorted(root.glob(f"*/*/{MANIFEST}")):
        name, created = path.parent.parent.name, _created_at(path)
        if name not in newest or created > newest[name][0]:
            newest[name] = created, path.parent
    if not newest:
        raise InputError(
            f"GEM_MODELS: {root} holds no artifact <name>/<version>/{MANIFEST}; write one with "
            "python -m student_models.export"
        )
    return [folder for _, folder in newest.values()]


def load_models(root: Path, *, intra_op_threads: int, inline_rows: int, executor: Executor | None) -> dict[str, Model]:
    """The model of each surface. InputError when an artifact fails a check or two claim one surface."""
    routes: dict[str, Model] = {}
    for folder in find_artifacts(root):
        model = load_model(folder, intra_op_threads=intra_op_threads, inline_rows=inline_rows, executor=executor)
        for surface in model.manifest.surfaces:
            if surface in routes:
                names = f"{routes[surface].manifest.name} and {model.manifest.name}"
                raise InputError(f"GEM_MODELS: {names} both claim surface {surface!r}; keep one of them in {root}")
            routes[surface] = model
    return routes


def load_model(folder: Path, *, intra_op_threads: int, inline_rows: int, executor: Executor | None) -> Model:
    """A verified, warmed model; InputError names the artifact, the check that failed and the mend."""
    manifest = load_manifest(folder)
    spec = manifest.input_spec()
    content = (folder / MODEL).read_bytes()
    if sha256(content).hexdigest() != manifest.files[MODEL].sha256:
        raise InputError(f"{folder / MODEL} changed while it was read; copy the artifact again")
    check_graph(content, manifest, folder)
    try:
        scorer = Scorer(content, intra_op_threads=intra_op_threads, inline_rows=inline_rows, executor=executor)
    except Exception as error:  # onnxruntime's exceptions share no public base class
        raise InputError(f"{folder / MODEL}: ONNX Runtime refuses it ({error}); export the artifact again") from error
    example = check_golden(folder / GOLDEN, manifest, scorer)
    scorer.warm_up(example)
    context = [f for f in spec.schema.features if f.side == "context" and not f.teacher_only]
    return Model(
        manifest=manifest,
        spec=spec,
        scorer=scorer,
        quantiser=manifest.record_quantiser(),
        chains=_chains(manifest, spec),
        default_objective=[task.name for task in spec.schema.tasks].index(manifest.tasks[0]),
        context_features={feature.name: feature for feature in context},
    )


def check_graph(content: bytes, manifest: Manifest, folder: Path) -> None:
    """Refuse a graph that reads other files, or whose inputs, output or opset are not the manifest's."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's DecodeError lives in a private module
        raise InputError(f"{folder / MODEL} is no ONNX model ({error}); export the artifact again") from error
    if name := next(_external_tensors(model), None):
        raise InputError(f"{folder / MODEL}: tensor {name!r} lies outside the model; export without external data")
    graph_inputs = [value.name for value in model.graph.input]
    expected = [tensor.name for tensor in manifest.inputs]
    if sorted(graph_inputs) != sorted(expected):
        raise InputError(f"{folder / MODEL} takes {graph_inputs}, its manifest says {expected}; export it again")
    if OUTPUT not in [value.name for value in model.graph.output]:
        raise InputError(f"{folder / MODEL} has no output {OUTPUT!r}; export the artifact again")
    opsets = {imported.domain: imported.version for imported in model.opset_import}
    if opsets.get("") != manifest.opset:
        raise InputError(f"{folder / MODEL} has opset {opsets.get('')}, its manifest says {manifest.opset}")


def check_golden(path: Path, manifest: Manifest, scorer: Scorer) -> dict[str, np.ndarray]:
    """Answer the golden cases within 1e-4, and return the inputs of the first."""
    try:
        cases = json.loads(path.read_text())["cases"]
        parsed = [({n: _array(raw) for n, raw in c["inputs"].items()}, np.array(c["probabilities"])) for c in cases]
        first = parsed[0][0]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"{path} holds no golden cases ({error!r}); export the artifact again") from error
    for number, (inputs, expected) in enumerate(parsed):
        try:
            got = scorer.run(inputs)
        except Exception as error:
            raise InputError(f"{path}: case {number} does not run ({error}); export the artifact again") from error
        if got.ndim != 2 or got.shape != expected.shape or got.shape[1] != len(manifest.tasks):
            raise InputError(f"{path}: case {number} gives {got.shape}, not {expected.shape}; export it again")
        worst = float(np.abs(got - expected).max(initial=0))
        if not worst <= GOLDEN_TOLERANCE:
            raise InputError(f"{path}: case {number} is off by {worst:.2g} (> {GOLDEN_TOLERANCE}); export it again")
    return first


def _created_at(path: Path) -> datetime:
    try:
        created = datetime.fromisoformat(read_manifest(path.parent).created_at)
    except ValueError as error:
        raise InputError(f"{path}: created_at is no time ({error}); remove the folder or export it again") from error
    return created if created.tzinfo else created.replace(tzinfo=UTC)


def _array(raw: Mapping[str, Any]) -> np.ndarray:
    return np.array(raw["data"], dtype=raw["dtype"]).reshape(raw["shape"])


def _chains(manifest: Manifest, spec: InputSpec) -> np.ndarray:
    known = [task.name for task in spec.schema.tasks]
    if unknown := set(manifest.tasks) - set(known):
        raise InputError(f"artifact {manifest.name}: its schema lacks the tasks {sorted(unknown)}; export it again")
    chains = np.zeros((len(known), len(manifest.tasks)), dtype=bool)
    for row, name in enumerate(known):
        chain = spec.schema.task_chain(name)
        if set(chain) <= set(manifest.tasks):
            chains[row, [manifest.tasks.index(task) for task in chain]] = True
    return chains


def _external_tensors(model: onnx.ModelProto) -> Iterator[str]:
    """Names of tensors whose bytes lie outside the model, in every subgraph and function."""
    graphs = [model.graph, *(training.initialization for training in model.training_info)]
    nodes = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        tensors = []
        if graphs:
            graph = graphs.pop()
            nodes += graph.node
            tensors += graph.initializer
            tensors += [each for sparse in graph.sparse_initializer for each in (sparse.values, sparse.indices)]
        for node in nodes:
            for attribute in node.attribute:
                tensors += [attribute.t, *attribute.tensors]
                sparse_tensors = [attribute.sparse_tensor, *attribute.sparse_tensors]
                tensors += [each for sparse in sparse_tensors for each in (sparse.values, sparse.indices)]
                graphs += [attribute.g, *attribute.graphs] if attribute.g.node or attribute.graphs else []
        nodes = []
        for tensor in tensors:
            if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
                yield tensor.name
