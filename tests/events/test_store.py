"""The log on disk: it comes back as written, grows by whole files, survives a kill, and says what is wrong with it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import GemError, InputError
from events.log import InteractionLog
from events.splits import Calendar, day_calendar
from events.store import append, has_truth, read_calendar, read_log, read_truth, write_log
from tests.events.small_logs import SCHEMA, small_log

CALENDAR = day_calendar(0, teacher_days=7, student_days=5)
EVENTS = [(0, 5), (1, 5), (2, 7), (0, 9), (1, 12), (1, 12)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A written log of six impressions and three untimed events."""
    folder = tmp_path / "log"
    write_log(folder, small_log(EVENTS, untimed=[0, 2, 2]), calendar=CALENDAR)
    return folder


@pytest.fixture
def copy_of_tiny(tiny_log_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_log_dir, tmp_path / "tiny"))


def assert_same(found: InteractionLog, wanted: InteractionLog) -> None:
    assert found.schema == wanted.schema
    for field in fields(InteractionLog):
        a, b = getattr(found, field.name), getattr(wanted, field.name)
        if field.name in ("schema", "untimed"):
            continue
        for left, right in zip(a.values(), b.values(), strict=True) if isinstance(a, dict) else [(a, b)]:
            np.testing.assert_array_equal(left, right, err_msg=field.name)
    assert (found.untimed is None) == (wanted.untimed is None)
    if found.untimed is not None and wanted.untimed is not None:
        for name in ("user", "ad", "before_ms"):
            np.testing.assert_array_equal(getattr(found.untimed, name), getattr(wanted.untimed, name))
        assert found.untimed.labels.keys() == wanted.untimed.labels.keys()


def test_a_log_comes_back_as_written(folder: Path) -> None:
    assert_same(read_log(folder), small_log(EVENTS, untimed=[0, 2, 2]))
    assert read_calendar(folder) == CALENDAR
    assert not has_truth(folder)


def test_numbers_keep_their_types(folder: Path) -> None:
    log = read_log(folder)
    types = {name: str(getattr(log, name).dtype) for name in ("event_id", "user", "surface", "event_ms", "bid")}
    assert types == {"event_id": "uint64", "user": "int32", "surface": "int16", "event_ms": "int64", "bid": "float32"}
    assert log.labels["click"].dtype == np.int8


def test_rows_are_numbered_from_zero_whatever_they_were(tmp_path: Path) -> None:
    log = small_log(EVENTS)
    write_log(tmp_path / "log", log.take(np.array([4, 2])), calendar=CALENDAR)
    assert read_log(tmp_path / "log").offset.tolist() == [0, 1]


def test_appending_continues_the_offsets(tmp_path: Path) -> None:
    log = small_log(EVENTS)
    write_log(tmp_path / "log", log.take(np.arange(2)), calendar=CALENDAR)
    assert append(tmp_path / "log", log.take(np.arange(2, 5))) == (2, 5)
    assert append(tmp_path / "log", log.take(np.arange(5, 6))) == (5, 6)
    assert_same(read_log(tmp_path / "log"), log)


def test_appended_rows_may_number_their_users_otherwise(tmp_path: Path) -> None:
    """Ids are stored as text, so the appended log's own numbering does not matter."""
    log = small_log(EVENTS)
    write_log(tmp_path / "log", log.take(np.arange(5)), calendar=CALENDAR)
    swapped = replace(
        log.take(np.array([5])), user_ids=np.array(["u1", "u0", "u2"], dtype=object), user=np.array([0], dtype=np.int32)
    )
    append(tmp_path / "log", swapped)
    assert read_log(tmp_path / "log").user[5] == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda log: log.take(np.arange(3)), "already holds some of these event_ids"),
        (lambda log: log.take(np.arange(0)), "no rows to append"),
        (lambda log: replace(log, schema=replace(SCHEMA, name="other")), "another schema"),
        (lambda log: replace(log, user_ids=np.array(["u0", "u1", "new"], dtype=object)), "lacks user_id 'new'"),
    ],
)
def test_what_does_not_belong_is_not_appended(
    folder: Path, change: Callable[[InteractionLog], InteractionLog], problem: str
) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(InputError, match=problem):
        append(folder, change(small_log(EVENTS)))
    assert sorted(folder.rglob("*")) == before


def test_a_folder_is_not_overwritten_unless_asked(folder: Path) -> None:
    with pytest.raises(InputError, match="exists"):
        write_log(folder, small_log(EVENTS[:1]), calendar=CALENDAR)
    write_log(folder, small_log(EVENTS[:1]), calendar=CALENDAR, replace=True)
    assert len(read_log(folder)) == 1
    assert [path.name for path in folder.parent.iterdir()] == ["log"]


def test_only_a_log_is_ever_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years")
    with pytest.raises(InputError, match="is not a log"):
        write_log(tmp_path / "precious", small_log(EVENTS), calendar=CALENDAR, replace=True)
    assert (tmp_path / "precious" / "thesis.txt").exists()


def test_an_empty_log_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty"):
        write_log(tmp_path / "log", small_log([]), calendar=CALENDAR)
    assert not list(tmp_path.iterdir())


def test_truth_is_aligned_with_the_rows(tmp_path: Path) -> None:
    log = small_log(EVENTS)
    truth = {"click": np.linspace(0, 1, 6), "conversion": np.linspace(1, 0, 6)}
    write_log(tmp_path / "log", log, calendar=CALENDAR, truth=truth)
    path = tmp_path / "log" / "truth.parquet"
    pq.write_table(pq.read_table(path).take([3, 1, 0, 5, 4, 2]), path)
    found = read_truth(tmp_path / "log")
    assert has_truth(tmp_path / "log")
    for task, values in truth.items():
        np.testing.assert_array_equal(found[task], values)


def test_a_surface_without_a_code_is_pooled(folder: Path) -> None:
    edit(folder / "impressions", "surface", pa.array(["feed", "other", "popup", "feed", "other", "feed"]))
    assert read_log(folder).surface.tolist() == [1, 0, 0, 1, 0, 1]


# ---- a kill ------------------------------------------------------------------------------------------------------

KILL_AT_RENAME = """
import os, signal, sys
from pathlib import Path
import numpy as np
from events import store
from events.splits import day_calendar
from tests.events.small_logs import small_log

for name in ("rename", "replace"):
    setattr(os, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
folder = Path(sys.argv[2])
if sys.argv[1] == "append":
    log = small_log([(0, 5), (1, 5), (2, 7), (0, 9), (1, 12), (1, 12), (0, 20)])
    store.append(folder, log.take(np.array([6])))
else:
    store.write_log(folder, small_log([(0, 1)]), calendar=day_calendar(0, teacher_days=7, student_days=5), replace=True)
"""


@pytest.mark.parametrize("work", ["append", "replace"])
def test_a_writer_killed_before_its_rename_leaves_the_old_state(folder: Path, work: str) -> None:
    process = subprocess.run([sys.executable, "-c", KILL_AT_RENAME, work, str(folder)], cwd=Path(__file__).parents[2])
    assert process.returncode == -signal.SIGKILL
    assert_same(read_log(folder), small_log(EVENTS, untimed=[0, 2, 2]))
    # what the dead writer left does not hinder the next
    more = small_log([*EVENTS, (0, 20)])
    assert append(folder, more.take(np.array([6]))) == (6, 7)
    write_log(folder, small_log(EVENTS[:1]), calendar=CALENDAR, replace=True)
    assert [path.name for path in folder.parent.iterdir()] == ["log"]


def test_a_replacement_that_fails_puts_the_old_log_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if Path(source).name.endswith(".partial"):
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(GemError, match="was not written"):
        write_log(folder, small_log(EVENTS[:1]), calendar=CALENDAR, replace=True)
    assert len(read_log(folder)) == len(EVENTS)


# ---- bad input: each is one error that names the file, the column and the mend -------------------------------------


def edit(path: Path, column: str, values: pa.Array | None) -> None:
    """Replace one column of a Parquet file (or of the only one in a folder), or drop it."""
    path = next(path.glob("*.parquet")) if path.is_dir() else path
    table = pq.read_table(path)
    at = table.column_names.index(column)
    table = table.remove_column(at)
    pq.write_table(table if values is None else table.add_column(at, column, values), path)


def truncate(path: Path) -> None:
    path = next(path.glob("*.parquet")) if path.is_dir() else path
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def rename_shard(folder: Path) -> None:
    shard = next((folder / "impressions").glob("*.parquet"))
    shard.rename(shard.with_name("000000000003-000000000009.parquet"))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, r"no log at .*log; generate"),
    "no schema": (lambda f: (f / "schema.json").unlink(), r"schema\.json is missing"),
    "schema is not JSON": (lambda f: (f / "schema.json").write_text("{"), r"schema\.json is not readable JSON"),
    "schema is another JSON": (lambda f: (f / "schema.json").write_text('{"a": 1}'), r"not a feature schema"),
    "no users": (lambda f: (f / "users.parquet").unlink(), r"users\.parquet is missing"),
    "no impressions": (lambda f: shutil.rmtree(f / "impressions"), r"impressions holds no impressions"),
    "a stray file": (lambda f: (f / "impressions" / "new.parquet").write_text(""), r"new\.parquet: the name"),
    "a gap": (rename_shard, r"starts at offset 3 where 0 is next"),
    "truncated impressions": (lambda f: truncate(f / "impressions"), r"000000000006\.parquet is not a readable"),
    "truncated ads": (lambda f: truncate(f / "ads.parquet"), r"ads\.parquet is not a readable Parquet file"),
    "a missing column": (
        lambda f: edit(f / "impressions", "event_ms", None),
        r"impressions: column 'event_ms' is missing; add it or write the log again",
    ),
    "a missing label": (
        lambda f: edit(f / "impressions", "label_ms_click", None),
        r"column 'label_ms_click' is missing",
    ),
    "a missing feature": (lambda f: edit(f / "ads.parquet", "category", None), r"ads\.parquet: column 'category'"),
    "a label of 2": (
        lambda f: edit(f / "impressions", "label_click", pa.array([0, 1, 2, 0, 0, 0])),
        r"column 'label_click' holds labels other",
    ),
    "a null": (
        lambda f: edit(f / "impressions", "event_ms", pa.array([1, None, 2, 3, 4, 5])),
        r"column 'event_ms' has 1 nulls",
    ),
    "text for numbers": (
        lambda f: edit(f / "impressions", "event_ms", pa.array(list("abcdef"))),
        r"column 'event_ms' is string, not int64",
    ),
    "numbers for text": (
        lambda f: edit(f / "users.parquet", "user_id", pa.array([0, 1, 2])),
        r"column 'user_id' is int64, not text",
    ),
    "not a number": (
        lambda f: edit(f / "impressions", "bid", pa.array([1.0, float("nan"), 1, 1, 1, 1])),
        r"column 'bid' has values that are not finite",
    ),
    "a code out of range": (
        lambda f: edit(f / "impressions", "device", pa.array([0, 1, 2, 3, 0, 0])),
        r"column 'device' has codes outside 0\.\.2",
    ),
    "an unknown user": (
        lambda f: edit(f / "impressions", "user_id", pa.array(["u0", "u1", "u2", "u9", "u1", "u1"])),
        r"user_id 'u9' is not in .*users\.parquet",
    ),
    "an unknown objective": (
        lambda f: edit(f / "ads.parquet", "objective", pa.array(["click", "sale", "click", "click"])),
        r"column 'objective' holds 'sale'",
    ),
    "a repeated user": (
        lambda f: edit(f / "users.parquet", "user_id", pa.array(["u0", "u1", "u1"])),
        r"column 'user_id' repeats an id",
    ),
    "an empty id": (
        lambda f: edit(f / "ads.parquet", "ad_id", pa.array(["", "a1", "a2", "a3"])),
        r"column 'ad_id' has an id that is not 1 to 256 bytes",
    ),
    "a repeated impression": (
        lambda f: edit(f / "impressions", "event_id", pa.array([1, 1, 2, 3, 4, 5], type=pa.uint64())),
        r"column 'event_id' repeats a value",
    ),
    "untimed events out of order": (
        lambda f: edit(f / "untimed.parquet", "user_id", pa.array(["u2", "u0", "u2"])),
        r"untimed\.parquet: rows must be grouped by user",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(folder: Path, case: str) -> None:
    spoil, problem = BAD[case]
    spoil(folder)
    with pytest.raises(InputError, match=problem):
        read_log(folder)


def test_a_file_with_fewer_rows_than_its_name_says(folder: Path) -> None:
    shard = next((folder / "impressions").glob("*.parquet"))
    pq.write_table(pq.read_table(shard).slice(0, 4), shard)
    with pytest.raises(InputError, match="holds 4 rows, not 6"):
        read_log(folder)


def test_files_of_one_log_have_the_same_columns(folder: Path) -> None:
    more = small_log([*EVENTS, (0, 20)])
    append(folder, more.take(np.array([6])))
    edit(folder / "impressions" / "000000000006-000000000007.parquet", "device", None)
    with pytest.raises(InputError, match="column 'device' is not in every file"):
        read_log(folder)


def test_a_file_is_no_folder_to_write_in(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is no folder to write in"):
        write_log(tmp_path / "file" / "log", small_log(EVENTS), calendar=CALENDAR)


def test_a_broken_calendar_is_named(folder: Path) -> None:
    (folder / "calendar.json").write_text(json.dumps({"log": 3}))
    with pytest.raises(InputError, match="not a calendar"):
        read_calendar(folder)


def test_truth_that_lacks_rows_is_named(copy_of_tiny: Path) -> None:
    path = copy_of_tiny / "truth.parquet"
    pq.write_table(pq.read_table(path).slice(0, 10), path)
    with pytest.raises(InputError, match=r"truth\.parquet lacks some impressions"):
        read_truth(copy_of_tiny)


def test_a_feature_may_not_take_the_name_of_a_column(tmp_path: Path) -> None:
    feature = replace(SCHEMA.features[1], name="campaign")
    log = replace(
        small_log(EVENTS),
        schema=replace(SCHEMA, features=(feature,)),
        ad_features={"campaign": np.zeros(4, dtype=np.int32)},
    )
    with pytest.raises(InputError, match="'campaign' has the name of one of the log's own columns"):
        write_log(tmp_path / "log", log, calendar=CALENDAR)
    assert not list(tmp_path.iterdir()), "nothing half-written stays"


def test_the_calendar_stands_beside_the_log(tiny_log_dir: Path, tiny_log: InteractionLog) -> None:
    calendar: Calendar = read_calendar(tiny_log_dir)
    covered = sum(len(calendar.rows(tiny_log, name)) for name in ("teacher", "student", "validation", "test"))
    assert covered == len(tiny_log)
