"""`python -m student_models.export`: a trained student -> ONNX artifact, proved equal to eager before anyone serves it.

<out>/<name>/<version>/{model.onnx, golden.json, manifest.json} is built in a temporary folder and renamed into place,
so a failed export leaves nothing. The number of candidates N is dynamic and B is 1: the user part of the graph is
computed once and broadcast.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import torch
import typer

from contracts.command import report, run
from contracts.errors import GemError, InputError
from contracts.features import UNKNOWN_AD, HistoryBatch, InputSpec, in_order, user_inputs
from contracts.manifest import GOLDEN, MODEL, Manifest, QuantiserFields, Tensor, digest, tensor_of, write_manifest
from events.log import InteractionLog
from events.store import read_log
from student_models.model import Served
from student_models.runs import Run, read_run, writable_folder

app = typer.Typer(add_completion=False)

OPSET = 18
PARITY_CANDIDATES = (1, 2, 37, 1000)
GOLDEN_CANDIDATES = (1, 2, 37)
TOLERANCE = 1e-5
"""Largest difference between eager and ONNX Runtime probabilities that an artifact may have."""


@dataclass(frozen=True)
class Case:
    """One request's graph inputs, by name."""

    inputs: dict[str, np.ndarray]


@app.command()
def main(
    run_folder: Annotated[Path, typer.Option("--run", help="Folder of a finished run: <runs>/<arm>/seed<n>.")],
    log: Annotated[Path, typer.Option(help="Folder of the interaction log: ads and times of the parity requests.")],
    out: Annotated[Path, typer.Option(help="Folder of artifacts; <name>/<version>/ is made in it.")],
    name: Annotated[str, typer.Option(help="Name of the model.")] = "student",
) -> None:
    """Export, prove equal to eager, and write the artifact."""
    trained = read_run(run_folder)
    events = read_log(log)
    if events.schema.fingerprint() != trained.schema_fingerprint:
        raise InputError(f"{run_folder} was trained on another schema than {log}; give the log it was trained on")
    trained.check_servable(run_folder)
    writable_folder(out / name, "--out")
    served = Served(trained.student(run_folder)).eval()
    cases = parity_cases(events, trained.input_spec(), candidates=PARITY_CANDIDATES)
    folder, difference = write_artifact(
        out, name=name, trained=trained, served=served, cases=cases, created_at=datetime.now(UTC)
    )
    size = sum(path.stat().st_size for path in folder.iterdir())
    report({"artifact": str(folder), "bytes": size, "largest_difference": difference, "cases": len(cases)})


def parity_cases(log: InteractionLog, spec: InputSpec, *, candidates: tuple[int, ...], seed: int = 0) -> list[Case]:
    """Requests through the assembler: each number of candidates with a full, a short and no history, ads of the log
    and unknown ones. A student without history inputs has one case per number."""
    rng = np.random.default_rng(seed)
    lengths = (spec.history_length, 1, 0) if spec.history_length else (0,)
    return [_case(log, spec, rng, candidates=n, elements=length) for n in candidates for length in lengths]


def _case(log: InteractionLog, spec: InputSpec, rng: np.random.Generator, *, candidates: int, elements: int) -> Case:
    row = rng.integers(len(log))
    now_ms = log.event_ms[[row]]
    ages_ms = np.sort(rng.integers(1, 7 * 86_400_000, elements))
    vectors = (rng.integers(-127, 128, (elements + 1, spec.dim)) / 127).astype(np.float32)
    index = np.full((1, spec.history_length), -1)
    index[0, :elements] = np.arange(elements)
    times = np.append(now_ms - ages_ms, now_ms)  # the last row stands for nothing; it keeps the table from being empty
    user = user_inputs(
        spec,
        user_buckets=log.user_bucket_table()[log.user[[row]]],
        surfaces=log.surface[[row]].astype(np.int64),
        now_ms=now_ms,
        context={name: values[[row]] for name, values in log.context.items()},
        history=HistoryBatch.from_index(vectors, times, index, np.array([elements])),
    )
    ads = np.where(rng.random(candidates) < 0.1, UNKNOWN_AD, rng.integers(0, len(log.ad_ids), candidates))
    return Case(in_order(spec, {**user, **log.ad_table().rows(ads)}))


def write_artifact(
    out: Path, *, name: str, trained: Run, served: Served, cases: list[Case], created_at: datetime
) -> tuple[Path, float]:
    """The artifact's folder and the largest difference between eager and ONNX Runtime over the cases.

    Raises GemError, and leaves nothing, when that difference is over TOLERANCE or the graph is not what the manifest
    says of it.
    """
    (out / name).mkdir(parents=True, exist_ok=True)
    partial = out / name / f".{created_at:%Y%m%d%H%M%S%f}.partial"
    partial.mkdir()
    try:
        spec = trained.input_spec()
        export_onnx(served, spec, cases[-1], partial / MODEL)
        expected = [eager(served, case) for case in cases]
        difference = largest_difference(partial / MODEL, cases, expected)
        if not difference <= TOLERANCE:
            raise GemError(
                f"ONNX Runtime differs from eager by {difference:.2e} (limit {TOLERANCE}); no artifact written"
            )
        golden = [(c, p) for c, p in zip(cases, expected, strict=True) if len(p) in GOLDEN_CANDIDATES]
        (partial / GOLDEN).write_text(json.dumps({"cases": [_golden_json(c, p) for c, p in golden]}) + "\n")
        version = f"{created_at:%Y%m%d-%H%M%S-%f}-{digest(partial / MODEL).sha256[:8]}"  # newest sorts last
        manifest = _manifest(trained, spec, name=name, version=version, created_at=created_at.isoformat())
        write_manifest(partial, manifest)
        partial.rename(out / name / version)
    except BaseException:
        shutil.rmtree(partial)
        raise
    return out / name / version, difference


def export_onnx(served: Served, spec: InputSpec, example: Case, path: Path) -> None:
    """Write the graph: named inputs in the spec's order, N dynamic, B = 1, weights inside the file.

    `example` needs at least two candidates: torch.export would take a 1 for a constant.
    """
    inputs = {tensor.name: torch.from_numpy(example.inputs[tensor.name]) for tensor in spec.tensors()}
    candidates = torch.export.Dim("N", min=1)
    shapes = {name: {0: candidates} if name.startswith("ad_") else {} for name in inputs}
    with torch.no_grad(), _known_warnings():
        program = torch.export.export(served, (inputs,), dynamic_shapes=(shapes,))
        onnx_program = torch.onnx.export(
            program,
            (inputs,),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=["probabilities"],
            dynamic_shapes=(shapes,),
            external_data=False,
            verbose=False,
        )
    assert onnx_program is not None
    onnx_program.save(path, external_data=False)
    _check_graph(path, list(inputs))


def eager(served: Served, case: Case) -> np.ndarray:
    """Probabilities [N, K] by PyTorch."""
    with torch.inference_mode():
        return served({name: torch.from_numpy(values) for name, values in case.inputs.items()}).numpy()


def largest_difference(path: Path, cases: list[Case], expected: list[np.ndarray]) -> float:
    """Largest absolute difference between the graph's probabilities and the expected ones; NaN if any is NaN."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    differences = []
    for case, probabilities_NK in zip(cases, expected, strict=True):
        (found_NK,) = session.run(["probabilities"], case.inputs)
        if found_NK.shape != probabilities_NK.shape:
            raise GemError(f"the graph gives shape {found_NK.shape} for {probabilities_NK.shape}; no artifact written")
        differences.append(np.abs(found_NK - probabilities_NK).max())
    return float(np.max(differences))


def _check_graph(path: Path, names: list[str]) -> None:
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise GemError("the exporter put weights outside model.onnx; no artifact written")
    found = [value.name for value in model.graph.input], [value.name for value in model.graph.output]
    if found != (names, ["probabilities"]):
        raise GemError(f"the exporter renamed inputs or outputs: {found}; no artifact written")


def _manifest(trained: Run, spec: InputSpec, *, name: str, version: str, created_at: str) -> Manifest:
    schema = spec.schema
    tasks = [task.name for task in schema.tasks]
    return Manifest(
        name=name,
        version=version,
        created_at=created_at,
        surfaces=list(schema.surfaces),
        tasks=tasks,
        space=trained.space,
        quantiser=QuantiserFields.model_validate(trained.quantiser().to_json()),
        history_length=spec.history_length,
        dim=spec.dim,
        inputs=[tensor_of(tensor) for tensor in spec.tensors()],
        outputs=[Tensor(name="probabilities", dtype="float32", shape=["N", len(tasks)])],
        feature_schema=json.loads(json.dumps(schema.to_json())),
        schema_fingerprint=trained.schema_fingerprint,
        opset=OPSET,
        max_candidates=max(PARITY_CANDIDATES),
        recipe=trained.recipe,
        metrics=trained.metrics,
    )


def _golden_json(case: Case, probabilities: np.ndarray) -> dict[str, Any]:
    """float32 values as JSON numbers: their shortest decimal form of a double reads back to the same float32."""
    return {
        "inputs": {
            name: {"dtype": str(values.dtype), "shape": list(values.shape), "data": values.ravel().tolist()}
            for name, values in case.inputs.items()
        },
        "probabilities": probabilities.tolist(),
    }


@contextmanager
def _known_warnings() -> Iterator[None]:
    """Silences what the exporter of torch 2.11-2.13 says about itself: a deprecated call of its own, two axes that are
    both named N on purpose, and torchvision's absence."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*LeafSpec.* is deprecated", FutureWarning)
            warnings.filterwarnings("ignore", r"# The axis name: N will not be used", UserWarning)
            yield
    finally:
        registration.setLevel(level)


if __name__ == "__main__":
    run(app)
