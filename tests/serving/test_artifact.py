"""Artifacts: what is not exactly what was exported is refused with one sentence, and the right version serves."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from contracts.errors import InputError
from contracts.features import InputSpec
from contracts.manifest import MANIFEST, Manifest, load_manifest, write_manifest
from contracts.quantiser import INT8, Quantiser, fit_centres
from serving.artifact import Model, find_artifacts, load_model, load_models
from serving.service import quantisers_of
from tests.serving.small_student import DIM, LENGTH, SCHEMA, SPACE, SPEC, build_graph, random_inputs, write_artifact


def load(folder: Path) -> Model:
    return load_model(folder, intra_op_threads=1, inline_rows=256, executor=None)


def routes(root: Path) -> dict[str, Model]:
    return load_models(root, intra_op_threads=1, inline_rows=256, executor=None)


def refusal(action: Callable[[Path], object], folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        action(folder)
    return str(caught.value)


def reseal(folder: Path, **changes: object) -> None:
    """Write the manifest again, so that its digests fit files which a test has changed."""
    manifest = json.loads((folder / MANIFEST).read_text()) | changes
    (folder / MANIFEST).unlink()
    write_manifest(folder, Manifest.model_validate(manifest))


def external(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../weights.bin"


def test_a_good_artifact_scores_any_number_of_candidates(tmp_path: Path):
    model = load(write_artifact(tmp_path))
    for rows in (0, 1, 37, 1000):
        assert model.scorer.run(random_inputs(SPEC, rows)).shape == (rows, 3)
    assert model.chains.tolist() == [[True, False, False], [True, True, False], [True, False, True]]


def test_an_artifact_without_history_has_no_history_inputs(tmp_path: Path):
    spec = InputSpec(SCHEMA, 0, DIM)
    model = load(write_artifact(tmp_path, spec=spec))
    assert not any(tensor.name.startswith("history") for tensor in model.spec.tensors())


def test_one_flipped_byte_is_refused(tmp_path: Path):
    folder = write_artifact(tmp_path)
    content = bytearray((folder / "model.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.onnx").write_bytes(content)
    assert "model.onnx differs from its sha256" in refusal(load, folder)


def test_a_missing_manifest_is_refused(tmp_path: Path):
    folder = write_artifact(tmp_path)
    (folder / MANIFEST).unlink()
    assert "is no artifact" in refusal(load, folder)
    assert "holds no artifact" in refusal(find_artifacts, tmp_path)
    assert "is no folder" in refusal(find_artifacts, tmp_path / "nowhere")


def test_external_data_is_refused_before_anything_is_read(tmp_path: Path):
    graph = build_graph(SPEC)
    folder = write_artifact(tmp_path, graph=graph)
    external(graph.graph.initializer[0])
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    reseal(folder)
    assert "lies outside the model" in refusal(load, folder)


def test_external_data_in_a_subgraph_is_refused(tmp_path: Path):
    graph = build_graph(SPEC)
    folder = write_artifact(tmp_path, graph=graph)
    hidden = helper.make_tensor("hidden", TensorProto.FLOAT, [1], [1.0])
    external(hidden)
    output = helper.make_tensor_value_info("same", TensorProto.FLOAT, [1])
    branch = helper.make_graph([helper.make_node("Identity", ["hidden"], ["same"])], "branch", [], [output], [hidden])
    graph.graph.node.append(helper.make_node("If", ["cond"], ["out"], then_branch=branch, else_branch=branch))
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    reseal(folder)
    assert "'hidden' lies outside the model" in refusal(load, folder)


def test_external_data_in_a_constant_node_is_refused(tmp_path: Path):
    graph = build_graph(SPEC)
    folder = write_artifact(tmp_path, graph=graph)
    value = helper.make_tensor("constant", TensorProto.FLOAT, [1], [1.0])
    external(value)
    graph.graph.node.append(helper.make_node("Constant", [], ["c"], value=value))
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    reseal(folder)
    assert "'constant' lies outside the model" in refusal(load, folder)


def test_a_file_that_is_no_onnx_model_is_refused(tmp_path: Path):
    folder = write_artifact(tmp_path)
    (folder / "model.onnx").write_bytes(b"hello")
    reseal(folder)
    assert "model.onnx" in refusal(load, folder)


def test_a_graph_with_other_inputs_than_the_manifest_is_refused(tmp_path: Path):
    folder = write_artifact(tmp_path)
    (folder / "model.onnx").write_bytes(build_graph(InputSpec(SCHEMA, 0, DIM)).SerializeToString())
    reseal(folder)
    assert "takes" in refusal(load, folder)


def test_another_opset_than_the_manifest_says_is_refused(tmp_path: Path):
    folder = write_artifact(tmp_path)
    reseal(folder, opset=21)
    assert "has opset 18, its manifest says 21" in refusal(load, folder)


@pytest.mark.parametrize("off", [1e-3, float("nan")])
def test_golden_answers_that_differ_are_refused(tmp_path: Path, off: float):
    folder = write_artifact(tmp_path)
    golden = json.loads((folder / "golden.json").read_text())
    golden["cases"][1]["probabilities"][2][0] += off
    (folder / "golden.json").write_text(json.dumps(golden))
    reseal(folder)
    assert "case 1 is off by" in refusal(load, folder)


@pytest.mark.parametrize("content", ['{"cases": []}', "{}", "[1]", "nonsense", '{"cases": [{"inputs": {}}]}'])
def test_golden_cases_that_say_nothing_are_refused(tmp_path: Path, content: str):
    folder = write_artifact(tmp_path)
    (folder / "golden.json").write_text(content)
    reseal(folder)
    assert "holds no golden cases" in refusal(load, folder)


def test_a_golden_difference_within_the_tolerance_passes(tmp_path: Path):
    folder = write_artifact(tmp_path)
    golden = json.loads((folder / "golden.json").read_text())
    golden["cases"][0]["probabilities"][0][0] += 5e-5
    (folder / "golden.json").write_text(json.dumps(golden))
    reseal(folder)
    load(folder)


def test_the_newest_version_of_each_name_serves(tmp_path: Path):
    write_artifact(tmp_path, version="9", created_at="2026-01-01T00:00:00+00:00", surfaces=("feed",))
    write_artifact(tmp_path, version="10", created_at="2026-01-02T00:00:00+05:00", surfaces=("feed",))
    write_artifact(tmp_path, version="11", created_at="2026-01-01T20:00:00+00:00", surfaces=("feed",))
    write_artifact(tmp_path, name="reels", version="3", surfaces=("reels", "other"))
    unfinished = write_artifact(tmp_path, version="12", created_at="2027-01-01T00:00:00+00:00")
    (unfinished / MANIFEST).unlink()
    found = {surface: model.label for surface, model in routes(tmp_path).items()}
    assert found == {"feed": "student/11", "reels": "reels/3", "other": "reels/3"}


def test_a_changed_time_makes_no_older_version_serve(tmp_path: Path):
    write_artifact(tmp_path, version="1", created_at="2026-01-01T00:00:00+00:00")
    newest = write_artifact(tmp_path, version="2", created_at="2026-01-02T00:00:00+00:00")
    text = (newest / MANIFEST).read_text()
    (newest / MANIFEST).write_text(text.replace("2026-01-02", "2024-01-02"))
    assert "differs from its manifest_sha256" in refusal(find_artifacts, tmp_path)


def test_the_folder_may_be_the_artifact_itself(tmp_path: Path):
    folder = write_artifact(tmp_path)
    assert find_artifacts(folder) == [folder]


def test_two_models_for_one_surface_are_refused(tmp_path: Path):
    write_artifact(tmp_path, name="one", surfaces=("feed",))
    write_artifact(tmp_path, name="two", surfaces=("reels", "feed"))
    assert "one and two both claim surface 'feed'" in refusal(routes, tmp_path)


def kint4_artifact(root: Path, name: str, quantiser: Quantiser, *, surface: str) -> Path:
    folder = write_artifact(root, name=name, surfaces=(surface,))
    reseal(folder, space=SPACE.replace("int8", "kint4"), quantiser=quantiser.to_json())
    return folder


def test_a_space_is_read_with_the_centres_of_its_models_manifest(tmp_path: Path):
    centres = fit_centres(np.linspace(-0.9, 0.8, 99))
    write_artifact(tmp_path, name="plain", surfaces=("other",))
    for name, surface in (("one", "feed"), ("two", "reels")):
        kint4_artifact(tmp_path, name, Quantiser("kint4", centres), surface=surface)
    expected = {SPACE: INT8, SPACE.replace("int8", "kint4"): Quantiser("kint4", centres)}
    assert quantisers_of(routes(tmp_path).values()) == expected


def test_two_models_that_read_one_space_with_other_centres_are_refused(tmp_path: Path):
    for name, surface, low in (("one", "feed", -1), ("two", "reels", -0.5)):
        kint4_artifact(tmp_path, name, Quantiser("kint4", fit_centres(np.linspace(low, 1, 99))), surface=surface)
    with pytest.raises(InputError, match=r"one/1 and two/1 read space .* with other centres"):
        quantisers_of(routes(tmp_path).values())


def test_centres_that_the_space_does_not_have_are_refused(tmp_path: Path):
    folder = write_artifact(tmp_path)
    reseal(folder, quantiser={"dtype": "int4", "centres": []})
    assert "its quantiser is int4" in refusal(load, folder)


def test_the_model_answers_as_onnx_runtime_does_alone(tmp_path: Path):
    folder = write_artifact(tmp_path)
    inputs = random_inputs(SPEC, 11)
    session = ort.InferenceSession((folder / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(load(folder).scorer.run(inputs), session.run(["probabilities"], inputs)[0])
    assert load_manifest(folder).input_spec() == InputSpec(SCHEMA, LENGTH, DIM)
