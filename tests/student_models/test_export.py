"""The artifact: equal to eager, the user part computed once, everything inside it, and nothing left by a failure."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from contracts.errors import GemError, InputError
from contracts.features import InputSpec
from contracts.manifest import Manifest, load_manifest
from events.log import InteractionLog
from student_models import export as command
from student_models.export import TOLERANCE, Case, eager, largest_difference, parity_cases, write_artifact
from student_models.export import main as export
from student_models.model import Served
from student_models.runs import RUN, read_run


@pytest.fixture(scope="module")
def artifact(runs_dir: Path, tiny_log_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artifacts")
    export(runs_dir / "kd_loopfm" / "seed0", tiny_log_dir, out)
    (folder,) = (out / "student").iterdir()
    return folder


def served_of(runs_dir: Path, arm: str = "kd_loopfm") -> Served:
    folder = runs_dir / arm / "seed0"
    return Served(read_run(folder).student(folder)).eval()


def test_the_artifact_passes_its_own_manifest(artifact: Path, runs_dir: Path) -> None:
    manifest, run = load_manifest(artifact), read_run(runs_dir / "kd_loopfm" / "seed0")
    assert {path.name for path in artifact.iterdir()} == {"model.onnx", "golden.json", "manifest.json"}
    assert manifest.input_spec() == run.input_spec()
    assert (manifest.name, manifest.version) == ("student", artifact.name)
    assert (manifest.space, manifest.schema_fingerprint) == (run.space, run.schema_fingerprint)
    assert manifest.record_quantiser() == run.quantiser()
    assert manifest.metrics == run.metrics
    assert manifest.recipe["arm"]["name"] == "kd_loopfm"
    assert manifest.opset >= 18


@pytest.mark.parametrize("arm", ["base", "kd_loopfm"])
def test_onnx_equals_eager_for_all_kinds_of_requests(
    runs_dir: Path, tiny_log: InteractionLog, tmp_path: Path, arm: str
) -> None:
    served, run = served_of(runs_dir, arm), read_run(runs_dir / arm / "seed0")
    spec = run.input_spec()
    cases = parity_cases(tiny_log, spec, candidates=(2, 1, 37, 1000, 5), seed=3)
    path = tmp_path / "model.onnx"
    command.export_onnx(served, spec, cases[-1], path)
    assert largest_difference(path, cases, [eager(served, case) for case in cases]) <= TOLERANCE
    names = [value.name for value in onnxruntime.InferenceSession(path).get_inputs()]
    assert names == [tensor.name for tensor in spec.tensors()]


def test_parity_requests_cover_histories_and_unknown_ads(runs_dir: Path, tiny_log: InteractionLog) -> None:
    spec = read_run(runs_dir / "kd_loopfm" / "seed0").input_spec()
    cases = parity_cases(tiny_log, spec, candidates=(1, 37))
    assert {int(case.inputs["history_mask"].sum()) for case in cases} == {0, 1, spec.history_length}
    assert [len(case.inputs["ad_cat"]) for case in cases] == [1, 1, 1, 37, 37, 37]
    assert any((case.inputs["ad_cat"] == 0).all(axis=1).any() for case in cases)
    assert any((case.inputs["ad_cat"][:, 0] > 0).all() for case in cases)


def test_golden_requests_replay(artifact: Path) -> None:
    session = onnxruntime.InferenceSession(artifact / "model.onnx")
    cases = json.loads((artifact / "golden.json").read_text())["cases"]
    assert {len(case["probabilities"]) for case in cases} == {1, 2, 37}
    for case in cases:
        inputs = {
            name: np.array(value["data"], dtype=value["dtype"]).reshape(value["shape"])
            for name, value in case["inputs"].items()
        }
        (found,) = session.run(["probabilities"], inputs)
        assert np.abs(found - np.array(case["probabilities"])).max() <= TOLERANCE


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def descendants(graph: onnx.GraphProto, prefixes: tuple[str, ...]) -> Iterator[onnx.NodeProto]:
    """Nodes that some input with one of these prefixes reaches, in order."""
    reached = {value.name for value in graph.input if value.name.startswith(prefixes)}
    for node in graph.node:
        if reached & set(node.input):
            reached |= set(node.output)
            yield node


def test_the_user_part_is_computed_once(artifact: Path) -> None:
    model = onnx.shape_inference.infer_shapes(onnx.load(artifact / "model.onnx"))
    graph = model.graph
    assert {value.name: dims(value)[0] for value in graph.input} == {
        **dict.fromkeys(["user_cat", "history_z", "history_age_s", "history_mask", "history_stats"], 1),
        "ad_cat": "N",
    }
    shape_of = {value.name: dims(value) for value in [*graph.value_info, *graph.output]}
    of_ads = [node.output[0] for node in descendants(graph, ("ad_",))]
    of_user = [node.output[0] for node in descendants(graph, ("user_", "history_"))]
    user_alone = [name for name in of_user if name not in of_ads]
    assert len(user_alone) > 15
    assert not [name for name in user_alone if "N" in shape_of[name]]
    assert all(shape_of[name][0] == "N" for name in of_ads)
    # the two meet in few places, each an addition or product of one user row with N ad rows
    meeting = [n for n in graph.node if set(n.input) & set(user_alone) and set(n.input) & set(of_ads)]
    assert {node.op_type for node in meeting} <= {"Add", "Mul"}


def test_nothing_lies_outside_the_graph(artifact: Path) -> None:
    model = onnx.load(artifact / "model.onnx", load_external_data=False)
    assert not [w.name for w in model.graph.initializer if w.data_location == onnx.TensorProto.EXTERNAL]
    weights = {w.name for w in model.graph.initializer}
    assert not [name for name in weights if "distilled" in name]


@pytest.fixture
def exported_before(runs_dir: Path, tiny_log: InteractionLog, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the graph of `artifact` wherever one is exported: torch.export takes seconds."""

    def copy(served: Served, spec: InputSpec, example: Case, path: Path) -> None:
        shutil.copy(artifact / "model.onnx", path)
        command._check_graph(path, [tensor.name for tensor in spec.tensors()])

    monkeypatch.setattr(command, "export_onnx", copy)


def make(out: Path, runs_dir: Path, log: InteractionLog, *, second: int = 0) -> Path:
    run = read_run(runs_dir / "kd_loopfm" / "seed0")
    cases = parity_cases(log, run.input_spec(), candidates=(1, 2, 3))
    folder, _ = write_artifact(
        out,
        name="student",
        trained=run,
        served=served_of(runs_dir),
        cases=cases,
        created_at=datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC),
    )
    return folder


@pytest.mark.usefixtures("exported_before")
def test_the_newest_version_sorts_last(runs_dir: Path, tiny_log: InteractionLog, tmp_path: Path) -> None:
    folders = [make(tmp_path, runs_dir, tiny_log, second=second) for second in (9, 10)]
    assert sorted(path.name for path in (tmp_path / "student").iterdir()) == [folder.name for folder in folders]
    created = [load_manifest(folder).created_at for folder in folders]
    assert created == sorted(created)


@pytest.mark.usefixtures("exported_before")
@pytest.mark.parametrize("moment", ["parity", "checker", "golden"])
def test_a_failed_export_leaves_nothing(
    runs_dir: Path, tiny_log: InteractionLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def fail(*_: object, **__: object) -> Manifest:
        raise GemError("failed")

    if moment == "parity":
        monkeypatch.setattr(command, "TOLERANCE", -1.0)
    else:
        monkeypatch.setattr(command, {"checker": "_check_graph", "golden": "_golden_json"}[moment], fail)
    with pytest.raises(GemError, match="differs from eager" if moment == "parity" else "failed"):
        make(tmp_path, runs_dir, tiny_log)
    assert list((tmp_path / "student").iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), 3.0])
@pytest.mark.usefixtures("exported_before")
def test_a_graph_that_differs_from_its_student_is_no_artifact(
    runs_dir: Path, tiny_log: InteractionLog, tmp_path: Path, value: float
) -> None:
    run, served = read_run(runs_dir / "kd_loopfm" / "seed0"), served_of(runs_dir)
    with torch.no_grad():
        served.student.served.trunk.bias.fill_(value)
    cases = parity_cases(tiny_log, run.input_spec(), candidates=(2,))
    with pytest.raises(GemError, match=r"differs from eager by (nan|\d)"):
        write_artifact(tmp_path, name="s", trained=run, served=served, cases=cases, created_at=datetime.now(UTC))
    assert list((tmp_path / "s").iterdir()) == []


def test_a_student_of_another_schema_is_refused(runs_dir: Path, tiny_log_dir: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs_dir / "base" / "seed0", tmp_path / "run"))
    raw = json.loads((folder / RUN).read_text())
    (folder / RUN).write_text(json.dumps({**raw, "schema_fingerprint": "0" * 16}))
    with pytest.raises(InputError, match="trained on another schema"):
        export(folder, tiny_log_dir, tmp_path / "artifacts")
    assert not (tmp_path / "artifacts").exists()


def test_damaged_weights_are_not_exported(runs_dir: Path, tiny_log_dir: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs_dir / "base" / "seed0", tmp_path / "run"))
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"model.safetensors is damaged: .*train this arm again"):
        export(folder, tiny_log_dir, tmp_path / "artifacts")
    assert not list((tmp_path / "artifacts").rglob("*.onnx"))


@pytest.mark.usefixtures("exported_before")
def test_a_place_that_is_no_folder_is_refused_before_the_export(
    runs_dir: Path, tiny_log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "parity_cases", lambda *_, **__: pytest.fail("the export began"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--out .*file.* is no folder that can be written"):
        export(runs_dir / "kd_loopfm" / "seed0", tiny_log_dir, tmp_path / "file")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"arm": {"history": "user"}}, "study arm kd_loopfm, whose history no server assembles"),
        ({"arm": {"history": "count"}}, "study arm kd_loopfm"),
        ({"element_surface": True}, "reads surface of each history element"),
    ],
)
def test_a_student_that_no_server_can_feed_is_not_exported(
    changed: dict[str, Any], said: str, runs_dir: Path, tiny_log_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs_dir / "kd_loopfm" / "seed0", folder)
    fields = json.loads((folder / RUN).read_text())
    arm = fields["recipe"]["arm"] | changed.get("arm", {})
    fields["recipe"] |= {**changed, "arm": arm}
    (folder / RUN).write_text(json.dumps(fields))
    with pytest.raises(InputError, match=said):
        export(folder, tiny_log_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()
