"""Checkpoints: written whole, verified on load, each fault named with its mend."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from contracts.errors import InputError
from contracts.schema import FeatureSchema
from foundation.checkpoint import (
    INFO,
    MODEL,
    PROGRESS,
    check_schema,
    read_info,
    read_model,
    read_progress,
    write_progress,
)
from tests.events.small_logs import SCHEMA


@pytest.fixture
def copy(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))


def test_describes_itself(tiny_checkpoint: Path) -> None:
    info = read_info(tiny_checkpoint)
    assert info.recipe.name == "tiny"
    assert info.fingerprint == info.schema.fingerprint()
    assert info.trained_from_ms < info.trained_until_ms
    assert len(info.run) == 64
    assert not (tiny_checkpoint / PROGRESS).exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        read_info(tmp_path / "nowhere")


def test_one_flipped_byte_is_found(copy: Path) -> None:
    weights = bytearray((copy / MODEL).read_bytes())
    weights[-1] ^= 1
    (copy / MODEL).write_bytes(bytes(weights))
    with pytest.raises(InputError, match="differs from its sha256"):
        read_info(copy)


def test_truncated_weights_are_refused(copy: Path) -> None:
    (copy / MODEL).write_bytes((copy / MODEL).read_bytes()[:100])
    with pytest.raises(InputError, match=MODEL):
        read_model(copy)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"run": '])
def test_a_broken_description_is_refused(copy: Path, text: str) -> None:
    (copy / INFO).write_text(text)
    with pytest.raises(InputError, match=INFO):
        read_info(copy)


def test_another_version_is_refused(copy: Path) -> None:
    raw = json.loads((copy / INFO).read_text())
    (copy / INFO).write_text(json.dumps({**raw, "format": 99}))
    with pytest.raises(InputError, match="format 99"):
        read_info(copy)


def test_another_schema_is_refused(tiny_checkpoint: Path) -> None:
    other: FeatureSchema = SCHEMA
    with pytest.raises(InputError, match="trained on schema 'synthetic-tiny'"):
        check_schema(read_info(tiny_checkpoint), other, source="here")


def test_progress_returns_what_was_kept(tmp_path: Path) -> None:
    run = {"seed": 1, "rows": [1, 2]}
    assert read_progress(tmp_path, run=run) is None
    for step in (3, 5):
        write_progress(tmp_path, {"w": torch.full((2,), step)}, {"m:w": torch.ones(2)}, step=step, run=run)
    kept = read_progress(tmp_path, run=run)
    assert kept is not None
    weights, moments, step = kept
    assert (weights["w"].tolist(), moments["m:w"].tolist(), step) == ([5, 5], [1, 1], 5)
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS]


def test_progress_of_another_run_is_refused(tmp_path: Path) -> None:
    write_progress(tmp_path, {"w": torch.ones(2)}, {}, step=3, run={"seed": 1})
    with pytest.raises(InputError, match="other options"):
        read_progress(tmp_path, run={"seed": 2})


def test_broken_progress_is_refused(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_bytes(b"half a file")
    with pytest.raises(InputError, match="delete it"):
        read_progress(tmp_path, run={"seed": 1})
