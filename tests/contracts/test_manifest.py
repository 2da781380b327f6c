"""The artifact manifest: written last, and nothing loads that it does not vouch for."""

import json
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import InputError
from contracts.features import InputSpec
from contracts.manifest import (
    MANIFEST,
    MODEL,
    Manifest,
    fields_sha256,
    load_manifest,
    read_manifest,
    tensor_of,
    write_manifest,
)
from contracts.quantiser import INT8, Quantiser, fit_centres
from contracts.schema import FeatureSchema, Task

SPEC = InputSpec(FeatureSchema("test", ("other",), (Task("click"),), (), 16, 16), 2, 32)

CENTRES = list(fit_centres(np.linspace(-0.9, 0.7, 333)))


def manifest(**changes: object) -> Manifest:
    fields: dict[str, object] = {
        "name": "student",
        "version": "1",
        "created_at": "2026-01-01T00:00:00Z",
        "surfaces": ["other"],
        "tasks": ["click"],
        "space": "gem-3f9a1c-d32-int8",
        "history_length": SPEC.history_length,
        "dim": SPEC.dim,
        "inputs": [tensor_of(tensor) for tensor in SPEC.tensors()],
        "outputs": [],
        "feature_schema": SPEC.schema.to_json(),
        "schema_fingerprint": SPEC.schema.fingerprint(),
        "opset": 20,
    }
    return Manifest.model_validate(fields | changes)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    folder = tmp_path / "student" / "1"
    folder.mkdir(parents=True)
    (folder / MODEL).write_bytes(b"model bytes")
    (folder / "golden.json").write_text('{"cases": []}')
    write_manifest(folder, manifest())
    return folder


def edit(folder: Path, **changes: object) -> None:
    """Change fields of the stored manifest, and its digest with them."""
    path = folder / MANIFEST
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(fields | {"manifest_sha256": fields_sha256(fields)}))


def test_what_was_written_loads_and_names_every_file(artifact: Path) -> None:
    loaded = load_manifest(artifact)
    assert set(loaded.files) == {MODEL, "golden.json"}
    assert loaded.input_spec() == SPEC
    assert sorted(path.name for path in artifact.iterdir()) == ["golden.json", MANIFEST, MODEL]


def test_a_manifest_keeps_its_centres_bit_for_bit(artifact: Path) -> None:
    fields = {"dtype": "kint4", "centres": CENTRES}
    written = write_manifest(artifact, manifest(space="gem-3f9a1c-d32-kint4", quantiser=fields))
    loaded = load_manifest(artifact)
    assert loaded.record_quantiser() == written.record_quantiser() == Quantiser("kint4", tuple(CENTRES))


def test_a_manifest_of_before_there_were_centres_reads_what_its_space_says(artifact: Path) -> None:
    path = artifact / MANIFEST
    fields = json.loads(path.read_text())
    del fields["quantiser"]
    path.write_text(json.dumps(fields | {"manifest_sha256": fields_sha256(fields)}))
    assert load_manifest(artifact).record_quantiser() == INT8


@pytest.mark.parametrize("name", [MODEL, "golden.json"])
@pytest.mark.parametrize("at", [0, -1])
def test_one_flipped_byte_is_noticed(artifact: Path, name: str, at: int) -> None:
    content = bytearray((artifact / name).read_bytes())
    content[at] ^= 1
    (artifact / name).write_bytes(bytes(content))
    with pytest.raises(InputError, match=f"{name} differs from its sha256"):
        load_manifest(artifact)


def test_a_flipped_bit_anywhere_in_the_manifest_is_refused_in_one_sentence(artifact: Path) -> None:
    path = artifact / MANIFEST
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        with pytest.raises(InputError) as caught:
            read_manifest(artifact)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_edited_manifest_is_refused(artifact: Path) -> None:
    path = artifact / MANIFEST
    path.write_text(path.read_text().replace('"max_candidates": 1000', '"max_candidates": 9000'))
    with pytest.raises(InputError, match=r"manifest\.json differs from its manifest_sha256"):
        load_manifest(artifact)


@pytest.mark.parametrize("name", [MODEL, "golden.json"])
def test_a_missing_file_is_named(artifact: Path, name: str) -> None:
    (artifact / name).unlink()
    with pytest.raises(InputError, match=f"lacks {name}"):
        load_manifest(artifact)


def test_a_file_that_nobody_vouches_for_is_refused(artifact: Path) -> None:
    (artifact / "weights.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"weights\.bin"):
        load_manifest(artifact)


def test_a_symlink_is_refused_though_its_bytes_fit(artifact: Path, tmp_path: Path) -> None:
    (artifact / MODEL).rename(tmp_path / "elsewhere")
    (artifact / MODEL).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="not a plain file"):
        load_manifest(artifact)


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/hostname", "sub/model.onnx", ".."])
def test_a_path_outside_the_artifact_is_refused(artifact: Path, name: str) -> None:
    files = json.loads((artifact / MANIFEST).read_text())["files"]
    edit(artifact, files=files | {name: files[MODEL]})
    with pytest.raises(InputError, match="export"):
        load_manifest(artifact)


@pytest.mark.parametrize("name", [MODEL, "golden.json"])
def test_a_manifest_must_name_model_and_golden_scores(artifact: Path, name: str) -> None:
    files = json.loads((artifact / MANIFEST).read_text())["files"]
    del files[name]
    edit(artifact, files=files)
    with pytest.raises(InputError, match=f"does not name {name}"):
        load_manifest(artifact)


def test_a_folder_without_manifest_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no artifact.*student_models\.export"):
        load_manifest(tmp_path)
    with pytest.raises(InputError, match="no artifact"):
        load_manifest(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1}'])
def test_a_manifest_that_cannot_be_read_is_refused(artifact: Path, content: bytes) -> None:
    (artifact / MANIFEST).write_bytes(content)
    with pytest.raises(InputError, match="not a manifest of format 1"):
        load_manifest(artifact)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"note": "a field of a later format"},
        {"tasks": "click"},
        {"tasks": []},
        {"surfaces": []},
        {"name": "../elsewhere"},
        {"version": ""},
        {"max_candidates": 0},
    ],
)
def test_a_manifest_of_another_format_is_refused_in_one_sentence(artifact: Path, change: dict) -> None:
    edit(artifact, **change)
    (field,) = change
    with pytest.raises(InputError, match=f"not a manifest of format 1: {field}") as caught:
        load_manifest(artifact)
    assert "\n" not in str(caught.value)
    assert "http" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_fingerprint": "0" * 16}, "fingerprint"),
        ({"history_length": 3}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"surfaces": ["other", "elsewhere"]}, r"lacks the surfaces \['elsewhere'\]"),
        ({"space": "gem-3f9a1c-d16-int8"}, "wide"),
        ({"space": "gem"}, "no embedding space"),
        ({"quantiser": {"dtype": "int4"}}, "its quantiser is int4, its space is gem-3f9a1c-d32-int8; export it again"),
        ({"quantiser": {"dtype": "int8", "centres": CENTRES}}, "no centres.*export it again"),
        ({"space": "gem-3f9a1c-d32-kint4"}, "needs 16 centres.*export it again"),
        ({"space": "gem-3f9a1c-d32-kint4", "quantiser": {"dtype": "kint4", "centres": CENTRES[::-1]}}, "ascending"),
        ({"feature_schema": {}}, "not a feature schema"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        manifest(**change).input_spec()
