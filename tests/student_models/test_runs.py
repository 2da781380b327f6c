"""A run on disk: read back as written, and every damage named with its mend."""

import hashlib
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from contracts.errors import InputError
from contracts.quantiser import INT8, Quantiser, fit_centres
from events.log import InteractionLog
from events.representations import RepresentationLog
from student_models.recipes import arm_named, arm_spec, tiny
from student_models.runs import (
    MODEL,
    PREDICTIONS,
    RUN,
    Sources,
    finished,
    read_predictions,
    read_run,
    writable_folder,
)
from student_models.trainer import TrainingData, probabilities

TASKS = ["click", "install"]


@pytest.fixture
def run_folder(runs_dir: Path, tmp_path: Path) -> Path:
    """A copy of one run, to be damaged."""
    return Path(shutil.copytree(runs_dir / "kd_loopfm" / "seed1", tmp_path / "seed1"))


def test_a_loaded_student_predicts_what_was_saved(runs_dir: Path, data: TrainingData) -> None:
    folder, arm, rows = runs_dir / "kd_loopfm" / "seed1", arm_named("kd_loopfm"), data.validation
    student = read_run(folder).student(folder)
    predicted = probabilities(student, rows.read_by(arm), spec=arm_spec(rows.spec, tiny(), arm))
    saved = read_predictions(folder / "predictions.parquet", rows.event_id, [t.name for t in rows.spec.schema.tasks])
    assert np.array_equal(predicted, saved)


def test_a_run_says_what_made_it(runs_dir: Path, data: TrainingData) -> None:
    run = read_run(runs_dir / "loopfm" / "seed0")
    schema = data.student.spec.schema
    assert (run.arm, run.seed, run.space) == ("loopfm", 0, "made-3f9a1c-d16-int8")
    assert (run.rows, run.validation_rows) == (len(data.student), len(data.validation))
    assert run.schema_fingerprint == run.input_spec().schema.fingerprint() == schema.fingerprint()
    assert run.input_spec() == data.student.spec
    assert set(run.metrics["ne"]) == {task.name for task in schema.tasks}


def test_a_run_names_the_logs_it_learned_from(
    runs_dir: Path, data: TrainingData, tiny_log: InteractionLog, records: RepresentationLog
) -> None:
    run = read_run(runs_dir / "loopfm" / "seed0")
    assert run.sources() == Sources.of(tiny_log, records)
    assert (run.epoch, run.end_offset, run.log_rows) == (records.epoch, records.end_offset, len(tiny_log))
    assert run.soft_label_share == data.student.soft_label_share > 0.9


@pytest.mark.parametrize("field", list(Sources.__dataclass_fields__))
def test_a_run_of_other_logs_is_not_kept(run_folder: Path, field: str) -> None:
    sources, arm = read_run(run_folder).sources(), arm_named("kd_loopfm")
    assert finished(run_folder, recipe=tiny(), arm=arm, sources=sources)
    value = asdict(sources)[field]
    other = {int: lambda: value + 1, str: lambda: value + "0", list: lambda: [*value, 0.5]}[type(value)]()
    said = re.escape(f"a run of another log: {field} {value} (now {other}); give another --out")
    with pytest.raises(InputError, match=said):
        finished(run_folder, recipe=tiny(), arm=arm, sources=replace(sources, **{field: other}))


def test_a_run_keeps_the_centres_of_its_space(run_folder: Path) -> None:
    path, centres = run_folder / RUN, fit_centres(np.linspace(-1, 1, 99))
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"space": "made-3f9a1c-d16-kint4", "centres": centres}))
    assert read_run(run_folder).quantiser() == Quantiser("kint4", centres)
    assert fields.pop("centres") == []
    path.write_text(json.dumps(fields))
    assert read_run(run_folder).quantiser() == INT8, "a run of before there were centres"


def test_a_run_without_its_json_is_not_finished(run_folder: Path) -> None:
    (run_folder / RUN).unlink()
    sources = Sources(space="made-3f9a1c-d16-int8", schema_fingerprint="", epoch=1, end_offset=1, log_rows=1)
    assert not finished(run_folder, recipe=tiny(), arm=arm_named("kd_loopfm"), sources=sources)
    with pytest.raises(InputError, match=r"holds no finished student .*student_models.train"):
        read_run(run_folder)


@pytest.mark.parametrize("text", ["{", "{}", '{"arm": "base"}'])
def test_a_damaged_run_is_named(run_folder: Path, text: str) -> None:
    (run_folder / RUN).write_text(text)
    with pytest.raises(InputError, match=r"run.json is damaged .*train this arm again"):
        read_run(run_folder)


def flip_last_byte(path: Path) -> None:
    """Damage that no format notices: in safetensors the last bytes are a weight."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_flipped_byte_is_noticed(run_folder: Path) -> None:
    run = read_run(run_folder)
    for name in (MODEL, PREDICTIONS):
        assert run.sha256[name] == hashlib.sha256((run_folder / name).read_bytes()).hexdigest()
        assert run.verified(run_folder, name) == run_folder / name
        flip_last_byte(run_folder / name)
        with pytest.raises(InputError, match=rf"{name} is damaged: .*train this arm again"):
            run.verified(run_folder, name)
    with pytest.raises(InputError, match=r"model.safetensors is damaged"):
        run.student(run_folder)


def test_damaged_weights_are_named(run_folder: Path) -> None:
    content = (run_folder / MODEL).read_bytes()
    run = read_run(run_folder)
    (run_folder / MODEL).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"model.safetensors is damaged"):
        run.student(run_folder)
    (run_folder / MODEL).unlink()
    with pytest.raises(InputError, match=r"model.safetensors cannot be loaded"):
        run.student(run_folder)


@pytest.mark.parametrize("field", ["hidden", "a_field_of_another_version"])
def test_weights_of_another_recipe_are_refused(run_folder: Path, field: str) -> None:
    raw = json.loads((run_folder / RUN).read_text())
    raw["recipe"][field] = [32, 8]
    (run_folder / RUN).write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"model.safetensors cannot be loaded"):
        read_run(run_folder).student(run_folder)


def test_predictions_come_in_the_order_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    values = {"p_click": np.array([0.1, 0.2, 0.3], np.float32), "p_install": np.array([0.4, 0.5, 0.6], np.float32)}
    pq.write_table(pa.table({"event_id": np.array([7, 2**63, 1], np.uint64), **values}), path)
    found = read_predictions(path, np.array([1, 7], np.uint64), TASKS)
    assert found.tolist() == np.array([[0.3, 0.6], [0.1, 0.4]], np.float32).tolist()
    with pytest.raises(InputError, match="lacks predictions for rows of the evaluated period"):
        read_predictions(path, np.array([1, 2], np.uint64), TASKS)
    with pytest.raises(InputError, match="p_<task> for click, like"):
        read_predictions(path, np.array([1], np.uint64), ["click", "like"])


@pytest.mark.parametrize("content", [None, b"PAR1 but not really"])
def test_unreadable_predictions_are_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "p.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"p.parquet is no file of predictions"):
        read_predictions(path, np.array([1], np.uint64), TASKS)


def test_predictions_without_event_ids_are_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({f"p_{task}": np.array([0.1], np.float32) for task in TASKS}), path)
    with pytest.raises(InputError, match=r"no file of predictions with event_id .*foundation\.evaluate") as caught:
        read_predictions(path, np.array([1], np.uint64), TASKS)
    assert len(str(caught.value).splitlines()) == 1


def test_a_place_that_is_no_folder_is_named(tmp_path: Path) -> None:
    assert writable_folder(tmp_path / "a" / "b", "--out").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"--out .*file.* is no folder that can be written .*give another"):
            writable_folder(place, "--out")


def test_saved_weights_are_plain_tensors(runs_dir: Path) -> None:
    state = read_run(runs_dir / "base" / "seed0").student(runs_dir / "base" / "seed0").state_dict()
    assert all(value.dtype == torch.float32 and torch.isfinite(value).all() for value in state.values())
