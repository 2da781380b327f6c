"""The catalogue: model inputs as training builds them, bad files refused, changes picked up off the request path."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from contracts.errors import InputError
from contracts.features import UNKNOWN_AD
from contracts.hashing import stable_hash
from contracts.seal import OPEN_SEAL, SEAL_KEY, seal
from events.store import read_log
from serving.catalogue import LiveCatalogue, load_catalogue
from tests.serving.small_student import ADS, NOW_MS, SCHEMA, ad_table, catalogue_table, write_catalogue


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_catalogue(path, SCHEMA)
    return str(caught.value)


def test_inputs_are_those_of_the_one_assembler(catalogue_path: Path):
    catalogue = load_catalogue(catalogue_path, SCHEMA)
    rows = catalogue.rows_of(["a5", "nobody", "a0"])
    assert rows.tolist() == [5, UNKNOWN_AD, 0]
    expected = ad_table().rows(np.array([5, UNKNOWN_AD, 0]))
    for name, array in catalogue.table.rows(rows).items():
        np.testing.assert_array_equal(array, expected[name])


def test_every_ad_has_its_hash(catalogue_path: Path):
    catalogue = load_catalogue(catalogue_path, SCHEMA)
    ids = ["nobody", "a3", "a1199", "another"]
    hashes = catalogue.hashes_of(ids, catalogue.rows_of(ids))
    assert hashes.tolist() == [stable_hash(ad_id) for ad_id in ids]


def test_an_empty_catalogue_knows_no_ad(tmp_path: Path):
    catalogue = load_catalogue(write_catalogue(tmp_path / "c.arrow", catalogue_table(())), SCHEMA)
    assert catalogue.rows_of(["a"]).tolist() == [UNKNOWN_AD]


def test_the_file_written_by_the_log_is_read(tiny_log_dir: Path):
    log = read_log(tiny_log_dir)
    catalogue = load_catalogue(tiny_log_dir / "catalog.arrow", log.schema)
    np.testing.assert_array_equal(catalogue.table.cat, log.ad_table().cat)
    np.testing.assert_array_equal(catalogue.rows_of(list(log.ad_ids)), np.arange(len(log.ad_ids)))


def without(name: str) -> pa.Table:
    return catalogue_table().drop_columns([name])


def replaced(name: str, values: pa.Array) -> pa.Table:
    table = catalogue_table(ADS[:3])
    return table.set_column(table.column_names.index(name), name, values)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (without("objective"), "lacks the column 'objective'"),
        (without("category"), "lacks the column 'category'"),
        (catalogue_table().replace_schema_metadata({}), "is of schema unknown"),
        (replaced("ad_id", pa.array(["x", "x", "y"])), "lists an ad twice"),
        (replaced("ad_id", pa.array(["x", None, "y"])), "has empty values in 'ad_id'"),
        (replaced("objective", pa.array(["click", "sale", "click"])), "has objectives ['sale']"),
        (replaced("default_bid", pa.array([1.0, -1.0, 1.0])), "negative or not finite"),
        (replaced("default_bid", pa.array([1.0, float("nan"), 1.0])), "negative or not finite"),
        (replaced("default_bid", pa.array(["a", "b", "c"])), "wrong type in 'default_bid'"),
        (replaced("category", pa.array([0, 7, 1])), "codes outside 0..6"),
        (replaced("category", pa.array([0.5, 1, 2])), "wrong type in 'category'"),
        (replaced("category", pa.array([[0], [1], [2]])), "wrong type in 'category'"),
        (replaced("price", pa.array(["a", "b", "c"])), "wrong type in 'price'"),
        (replaced("price", pa.array([0.0, float("inf"), 1.0])), "not finite"),
    ],
)
def test_a_bad_column_is_named(tmp_path: Path, table: pa.Table, message: str):
    assert message in refusal(write_catalogue(tmp_path / "c.arrow", table))


def test_a_truncated_file_is_refused(tmp_path: Path):
    path = write_catalogue(tmp_path / "c.arrow")
    for size in (0, 100, path.stat().st_size // 2, path.stat().st_size - 1):
        cut = tmp_path / f"{size}.arrow"
        cut.write_bytes(path.read_bytes()[:size])
        assert "is no whole Arrow file" in refusal(cut)


def test_a_missing_file_is_refused(tmp_path: Path):
    assert "cannot be read" in refusal(tmp_path / "nowhere.arrow")


def sealed_catalogue(path: Path) -> bytes:
    """A catalogue with a seal, as the log's writer makes it."""
    table = catalogue_table(ADS[:20])
    metadata = {**table.schema.metadata, SEAL_KEY: OPEN_SEAL}
    write_catalogue(path, table.replace_schema_metadata(metadata))
    path.write_bytes(seal(path.read_bytes()))
    return path.read_bytes()


def test_a_flipped_bit_anywhere_in_a_sealed_catalogue_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "c.arrow"
    content = sealed_catalogue(path)
    assert len(load_catalogue(path, SCHEMA).rows) == 20
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        message = refusal(path)
        assert str(path) in message
        assert "gem_sha256" in message


def test_text_that_is_not_utf8_is_refused(tmp_path: Path):
    path = write_catalogue(tmp_path / "c.arrow", catalogue_table(("aaaaaaaa", "bbbbbbbb")))
    path.write_bytes(path.read_bytes().replace(b"bbbbbbbb", b"bbbb\xffbbb"))
    assert f"{path} is no whole Arrow file" in refusal(path)


def test_offsets_that_lead_outside_are_refused(tmp_path: Path):
    path = write_catalogue(tmp_path / "c.arrow", catalogue_table(("aaaaaaaa", "bbbbbbbb")))
    offsets = np.array([0, 8, 16], dtype="<i4")
    content = path.read_bytes()
    assert content.count(offsets.tobytes()) == 1
    path.write_bytes(content.replace(offsets.tobytes(), np.array([0, 8, 1 << 30], dtype="<i4").tobytes()))
    assert f"{path} is no whole Arrow file" in refusal(path)


def test_columns_of_other_widths_are_read_as_the_schemas_types(tmp_path: Path):
    table = catalogue_table()
    for name, kind in (("category", pa.int64()), ("price", pa.float64())):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
    catalogue = load_catalogue(write_catalogue(tmp_path / "c.arrow", table), SCHEMA)
    np.testing.assert_array_equal(catalogue.table.cat, ad_table().cat)
    np.testing.assert_array_equal(catalogue.table.num, ad_table().num)


@pytest.fixture
def live(tmp_path: Path) -> LiveCatalogue:
    write_catalogue(tmp_path / "c.arrow", catalogue_table(ADS[:10]))
    return LiveCatalogue(tmp_path / "c.arrow", lambda path: load_catalogue(path, SCHEMA))


def test_a_file_that_has_not_changed_is_not_read_again(live: LiveCatalogue):
    before = live.current
    assert asyncio.run(live.poll()) is None
    assert live.current is before


def test_a_new_file_replaces_the_catalogue(live: LiveCatalogue, tmp_path: Path):
    version = live.current.version
    write_catalogue(tmp_path / "c.arrow", catalogue_table(ADS[:20]))
    assert asyncio.run(live.poll()) is True
    assert len(live.current.rows) == 20
    assert live.current.version != version
    assert live.current.updated_ms == NOW_MS - 1000


def flip(path: Path) -> None:
    content = bytearray(sealed_catalogue(path))
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"x"), lambda path: path.unlink(), flip])
def test_a_bad_new_file_keeps_the_old_catalogue(live: LiveCatalogue, tmp_path: Path, spoil: Callable[[Path], object]):
    before = live.current
    spoil(tmp_path / "c.arrow")
    assert asyncio.run(live.poll()) is False
    assert asyncio.run(live.poll()) is None, "a bad file is tried once, until it changes"
    assert live.current is before
    write_catalogue(tmp_path / "c.arrow", catalogue_table(ADS[:5]))
    assert asyncio.run(live.poll()) is True
