import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import GemError, InputError
from contracts.quantiser import DTYPES, INT8, Quantiser, fit_centres
from events.representations import RepresentationLog, Representations
from tests.events.made_rows import SPACE, TASKS, append, made_rows, new_log


@pytest.fixture
def log(tmp_path: Path) -> RepresentationLog:
    """Three shards of 40 rows."""
    log = new_log(tmp_path, epoch=9)
    for first in (0, 40, 80):
        append(log, made_rows(40, first=first, seed=first))
    return log


def expect_equal(found: Representations, expected: Representations) -> None:
    for field in fields(Representations):
        left, right = getattr(found, field.name), getattr(expected, field.name)
        assert left.dtype == right.dtype, field.name
        np.testing.assert_array_equal(left, right, err_msg=field.name)


def test_what_is_appended_is_read_again(log):
    expected = Representations.concatenate([made_rows(40, first=first, seed=first) for first in (0, 40, 80)])
    expect_equal(RepresentationLog(log.folder).read(), expected)


def test_a_log_says_what_made_it(log):
    again = RepresentationLog(log.folder)
    assert (again.space, again.tasks, again.epoch, again.end_offset) == (SPACE, TASKS, 9, 120)
    assert again.folder.name == SPACE


def test_the_rows_of_some_users_alone(log):
    users = ["user 1/ü", "user 3/ü"]
    expect_equal(log.read(users=users), log.read().take(np.isin(log.read().user_id.astype(str), users)))
    assert len(log.read(users=["nobody"])) == 0


def test_the_full_vectors_may_stay_on_disk(log):
    light = log.read(z=False)
    assert light.z.shape == (120, 0)
    np.testing.assert_array_equal(light.codes, INT8.encode(log.read().z[:, :32]))


def quantiser_of(dtype: str, *, seed: int = 0) -> Quantiser:
    return Quantiser(dtype, fit_centres(made_rows(50, seed=seed).z) if dtype == "kint4" else ())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_log_keeps_its_quantiser_and_the_codes_that_it_makes(tmp_path, dtype):
    quantiser = quantiser_of(dtype)
    log = new_log(tmp_path, space=f"gem-3f9a1c-d32-{dtype}", centres=quantiser.centres)
    assert len(log.read().codes) == 0
    for first in (0, 40):
        append(log, made_rows(40, first=first, seed=first, quantiser=quantiser))
    with log.writing():
        log.begin_epoch(5)
    again = RepresentationLog(log.folder)
    assert again.quantiser == quantiser
    parts = [made_rows(40, first=first, seed=first, quantiser=quantiser) for first in (0, 40)]
    expect_equal(again.read(), Representations.concatenate(parts))
    record = again.as_of(again.read()).record("user 1/ü", 1)
    (codes,) = [codes for user, codes, _ in again.as_of(again.read()).records(1) if user == "user 1/ü"]
    np.testing.assert_array_equal(record.vectors, quantiser.decode(codes))


@pytest.mark.parametrize("dtype", ["int4", "kint4"])
def test_four_bit_codes_take_half_a_byte(tmp_path, dtype):
    log = new_log(tmp_path, space=f"gem-3f9a1c-d32-{dtype}", centres=quantiser_of(dtype).centres)
    append(log, made_rows(40, quantiser=quantiser_of(dtype)))
    assert log.columns(log.shards()[0], ["codes"]).schema.field("codes").type.byte_width == 16


def test_a_log_of_before_there_were_centres_opens(log):
    path = log.folder / "log.json"
    fields = json.loads(path.read_text())
    assert fields.pop("centres") == []
    path.write_text(json.dumps(fields))
    assert RepresentationLog(log.folder).quantiser == INT8
    assert len(RepresentationLog(log.folder).read()) == 120


@pytest.mark.parametrize("centres", [None, 3, ["x"], [0.5], [None] * 16])
def test_a_log_whose_centres_are_damaged_is_refused(tmp_path, centres):
    log = new_log(tmp_path, space="gem-3f9a1c-d32-kint4", centres=quantiser_of("kint4").centres)
    path = log.folder / "log.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"centres": centres}))
    with pytest.raises(InputError, match=r"log.json is damaged"):
        RepresentationLog(log.folder)


def test_a_log_with_centres_that_its_space_cannot_have_is_not_made(tmp_path):
    for space, centres in (("gem-3f9a1c-d32-kint4", ()), (SPACE, quantiser_of("kint4").centres)):
        with pytest.raises(InputError, match="centres"):
            new_log(tmp_path, space=space, centres=centres)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_with_other_centres_is_refused(tmp_path):
    space = "gem-3f9a1c-d32-kint4"
    one, other = (quantiser_of("kint4", seed=seed) for seed in (0, 1))
    logs = [new_log(tmp_path / q.version, space=space, centres=q.centres) for q in (one, other)]
    for log, quantiser in zip(logs, (one, other), strict=True):
        append(log, made_rows(40, quantiser=quantiser))
    logs[0].shards()[0].path.write_bytes(logs[1].shards()[0].path.read_bytes())
    with pytest.raises(InputError, match=r"other centres .*run the refresh again"):
        logs[0].read()


def test_a_range_may_hold_fewer_rows_than_offsets(tmp_path):
    log = new_log(tmp_path)
    log.append(made_rows(40).take(np.arange(0, 40, 3)), first_offset=0, end_offset=40)
    log.append(made_rows(40).take(np.zeros(40, dtype=bool)), first_offset=40, end_offset=90)
    assert log.end_offset == 90
    assert len(log.read()) == 14
    assert log.missing() == []


def test_an_empty_log_reads_as_no_rows(tmp_path):
    rows = new_log(tmp_path).read()
    assert len(rows) == 0
    assert rows.z.shape == (0, 64)
    assert rows.codes.shape == (0, 32)


def test_a_space_has_one_log(log):
    with pytest.raises(InputError, match="already"):
        new_log(log.folder.parent)


def broken(rows: Representations, name: str) -> Representations:
    if name == "order":
        return rows.take(np.arange(len(rows))[::-1])
    if name == "offsets":
        return replace(rows, offset=rows.offset + 1)
    if name == "z width":
        return replace(rows, z=rows.z[:, :32])
    if name == "codes width":
        return replace(rows, codes=rows.codes[:, :8])
    if name == "nan":
        return replace(rows, z=np.where(rows.offset[:, None] == 3, np.float16("nan"), rows.z))
    return replace(rows, soft=rows.soft * np.float32("inf"))


@pytest.mark.parametrize("name", ["order", "offsets", "z width", "codes width", "nan", "soft"])
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, name):
    log = new_log(tmp_path)
    with pytest.raises(InputError):
        log.append(broken(made_rows(40), name), first_offset=0, end_offset=40)
    assert log.shards() == []


def test_a_range_that_is_covered_is_refused(log):
    with pytest.raises(InputError, match="overlaps"):
        log.append(made_rows(10, first=115), first_offset=115, end_offset=125)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
def test_a_corrupt_shard_is_named_with_its_mend(log, damage):
    path = log.shards()[1].path
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0x10
    damaged = {"truncated": content[:-20], "flipped": bytes(flipped), "empty": b"", "text": b"no parquet" * 40}
    path.write_bytes(damaged[damage])
    with pytest.raises(InputError, match=f"{path.name}.*delete this file and run the refresh again"):
        log.read()


def test_a_shard_of_another_space_is_refused(log, tmp_path):
    other = new_log(tmp_path / "other", space="gem-ffffff-d32-int8")
    append(other, made_rows(40))
    log.shards()[0].path.write_bytes(other.shards()[0].path.read_bytes())
    with pytest.raises(InputError, match="no shard of"):
        log.read()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_deleted_shard_is_missed_wherever_it_was(log, which):
    log.shards()[which].path.unlink()
    again = RepresentationLog(log.folder)
    assert again.missing() == [(40 * which, 40 * which + 40)]
    assert again.end_offset == 120
    with pytest.raises(InputError, match="lacks the offsets"):
        again.read()


def test_a_shard_that_is_appended_while_a_reader_looks_is_no_gap(log, monkeypatch):
    reader = RepresentationLog(log.folder)
    listed = reader._listed

    def listed_before_an_append():
        found = listed()
        if log.end_offset == 120:
            append(log, made_rows(40, first=120))
        return found

    monkeypatch.setattr(reader, "_listed", listed_before_an_append)
    assert len(reader.whole()) == 3
    assert len(reader.whole()) == 4


def test_a_listing_that_lacks_a_shard_before_its_last_one_is_taken_again(log, monkeypatch):
    complete = log.shards()
    listings = iter([[complete[0], complete[2]]])
    monkeypatch.setattr(log, "_listed", lambda: next(listings, complete))
    assert log.whole() == complete


def test_a_gap_is_filled_in_a_new_epoch(log):
    expected = log.read()
    log.shards()[1].path.unlink()
    with log.writing():
        log.begin_epoch(4)
        log.append(made_rows(40, first=40, seed=40), first_offset=40, end_offset=80)
    assert RepresentationLog(log.folder).epoch == 10, "an epoch never goes back"
    expect_equal(log.read(), expected)


def test_one_writer_at_a_time(log):
    with log.writing(), pytest.raises(GemError, match="another process is writing"), log.writing():
        pass
    with log.writing():
        pass


def test_a_killed_writer_leaves_neither_a_lock_nor_half_a_shard(log):
    script = (
        "import os, signal, sys; from pathlib import Path; from events.representations import RepresentationLog\n"
        "log = RepresentationLog(Path(sys.argv[1]))\n"
        "with log.writing():\n"
        "    (log.folder / '.000000000120-000000000160.parquet.tmp').write_bytes(b'PAR1')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(log.folder)], cwd=Path(__file__).parents[2])
    assert killed.returncode == -9
    assert len(log.read()) == 120
    with log.writing():
        append(log, made_rows(40, first=120))
    assert len(log.read()) == 160
    assert not list(log.folder.glob(".*.tmp"))


def test_a_folder_without_a_log_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no representation log: it has no log\.json"):
        RepresentationLog(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"space": 3}'])
def test_a_damaged_index_is_refused(log, text):
    (log.folder / "log.json").write_text(text)
    with pytest.raises(InputError, match="damaged"):
        RepresentationLog(log.folder)


def test_a_log_of_a_later_format_is_refused(log):
    path = log.folder / "log.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(InputError, match="format 2"):
        RepresentationLog(log.folder)
