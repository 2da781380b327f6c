"""Record bytes: the golden bytes of the format page, round trips, and every way in which a blob can be wrong."""

import json
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.embedding import (
    DTYPE_CODES,
    FENCE_AT,
    HEADER,
    IMPRESSIONS_AT,
    LOG_OFFSET_AT,
    MAX_ELEMENTS,
    HistoryRecord,
    PairRecord,
    decode_history,
    decode_pair,
    encode_history,
    encode_history_codes,
    encode_pair,
)
from contracts.errors import CorruptRecordError, GemError, UnsupportedRecordError, WrongKeyError
from contracts.hashing import bucket, stable_hash
from contracts.quantiser import DTYPES, INT8, Quantiser

PAGE = (Path(__file__).parents[2] / "docs" / "embedding_format.md").read_text()
CENTRES = tuple((np.arange(16) - 7.25) / 8)
KINT4 = Quantiser("kint4", CENTRES)
QUANTISERS = (Quantiser("fp16"), INT8, Quantiser("int4"), KINT4)
CODE_TYPES = {"fp16": np.float16, "int8": np.int8, "int4": np.int8, "kint4": np.uint8}


def block(name: str) -> str:
    """Text of the fenced block of that name on the page."""
    found = re.search(rf"^```{name}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/embedding_format.md has no block {name!r}"
    return found[1]


def page_header() -> list[tuple[int, int, str, str]]:
    """(offset, bytes, type, field) of each row of the page's header table."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    return [(int(offset), int(size), kind, field) for offset, size, kind, field in rows]


def header_as_the_page_says(blob: bytes) -> dict[str, int | bytes]:
    """The header read by nothing but the page's table."""
    formats = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}
    fields: dict[str, int | bytes] = {}
    for offset, size, kind, field in page_header():
        raw = blob[offset : offset + size]
        fields[field] = raw if kind == "bytes" else struct.unpack(f"<{formats[kind]}", raw)[0]
    return fields


def history(length: int = 3, dim: int = 4, *, seed: int = 0, optional: bool = True) -> HistoryRecord:
    rng = np.random.default_rng(seed)
    return HistoryRecord(
        vectors=rng.uniform(-1, 1, (length, dim)).astype(np.float32),
        event_ms=np.sort(rng.integers(0, 2**41, length)),
        impressions=length + int(rng.integers(0, 100)),
        computed_ms=int(rng.integers(0, 2**41)),
        log_offset=int(rng.integers(0, 2**63)),
        fence=int(rng.integers(0, 2**63)),
        surface=rng.integers(0, 256, length).astype(np.uint8) if optional else None,
        ad_hash=rng.integers(0, 2**64, length, dtype=np.uint64) if optional else None,
        outcome=rng.integers(0, 256, length).astype(np.uint8) if optional else None,
    )


def pair(count: int = 3, dim: int = 4, *, seed: int = 0) -> PairRecord:
    rng = np.random.default_rng(seed)
    return PairRecord(
        ad_hash=rng.integers(0, 2**64, count, dtype=np.uint64),
        vectors=rng.uniform(-1, 1, (count, dim)).astype(np.float32),
        pair_computed_ms=rng.integers(0, 2**41, count),
        user_vector=rng.uniform(-1, 1, dim).astype(np.float32),
        computed_ms=int(rng.integers(0, 2**41)),
        log_offset=int(rng.integers(0, 2**63)),
    )


def resealed(blob: bytes, *, at: int, value: int) -> bytes:
    """The blob with one header byte changed and a CRC that fits: a well-formed record of another kind of writer."""
    changed = bytearray(blob)
    changed[at] = value
    crc = zlib.crc32(bytes(changed[HEADER.size :]), zlib.crc32(bytes(changed[:56])))
    changed[56:60] = struct.pack("<I", crc)
    return bytes(changed)


def test_the_pages_header_table_covers_64_bytes_without_a_gap() -> None:
    end = 0
    for offset, size, _, _ in page_header():
        assert offset == end
        end += size
    assert end == HEADER.size == 64


def golden(name: str) -> tuple[bytes, dict[str, Any], Quantiser]:
    """Bytes and fields of a golden record of the page, and the quantiser that its name says."""
    fields = json.loads(block(f"{name}-fields"))
    dtype = name.split("-")[2] if name.count("-") == 2 else "int8"
    return bytes.fromhex(block(name)), fields, Quantiser(dtype, tuple(fields.get("centres", ())))


HISTORIES = ["golden-history", "golden-history-int4", "golden-history-kint4", "golden-history-fp16"]
PAIRS = ["golden-pair", "golden-pair-kint4"]


@pytest.mark.parametrize("name", HISTORIES)
def test_the_golden_histories_of_the_page_decode_to_the_pages_fields(name: str) -> None:
    blob, fields, quantiser = golden(name)
    codes = np.array(fields["codes"], dtype=CODE_TYPES[quantiser.dtype])
    record = decode_history(blob, user_id="user-1", dim=codes.shape[1], quantiser=quantiser)
    for field in ("computed_ms", "log_offset", "fence", "impressions"):
        assert getattr(record, field) == fields[field]
    for field in ("event_ms", "ad_hash", "surface", "outcome"):
        found = getattr(record, field)
        assert (found if found is None else found.tolist()) == fields.get(field)
    assert record.vectors.dtype == np.float32
    assert np.array_equal(record.vectors, as_the_page_decodes(codes, fields, quantiser.dtype))
    assert encode_history(record, user_id="user-1", quantiser=quantiser) == blob
    assert encode_history_codes(codes, record, user_id="user-1", quantiser=quantiser) == blob


def as_the_page_decodes(codes: np.ndarray, fields: dict[str, Any], dtype: str) -> np.ndarray:
    """The page's table of quantisers, without the code under test."""
    if dtype == "kint4":
        return np.array([[fields["centres"][code] for code in row] for row in codes.tolist()], dtype=np.float32)
    return codes.astype(np.float32) / np.float32({"fp16": 1, "int8": 127, "int4": 7}[dtype])


@pytest.mark.parametrize("name", PAIRS)
def test_the_golden_pairs_of_the_page_decode_to_the_pages_fields(name: str) -> None:
    blob, fields, quantiser = golden(name)
    codes = np.array(fields["codes"], dtype=CODE_TYPES[quantiser.dtype])
    user_codes = np.array([fields["user_codes"]], dtype=codes.dtype)
    record = decode_pair(blob, user_id="user-1", dim=codes.shape[1], quantiser=quantiser)
    for field in ("computed_ms", "log_offset", "fence"):
        assert getattr(record, field) == fields[field]
    assert record.ad_hash.tolist() == fields["ad_hash"]
    assert record.pair_computed_ms.tolist() == fields["pair_computed_ms"]
    assert np.array_equal(record.vectors, as_the_page_decodes(codes, fields, quantiser.dtype))
    assert np.array_equal(record.user_vector, as_the_page_decodes(user_codes, fields, quantiser.dtype)[0])
    assert encode_pair(record, user_id="user-1", quantiser=quantiser) == blob


@pytest.mark.parametrize("name", [*HISTORIES, *PAIRS])
def test_the_pages_header_table_reads_the_golden_bytes(name: str) -> None:
    blob, fields, quantiser = golden(name)
    header = header_as_the_page_says(blob)
    assert (header["magic"], header["format"]) == (b"GEMR", 1)
    assert header["kind"] == (1 if name.startswith("golden-history") else 2)
    assert header["dtype"] == page_quantisers()[quantiser.dtype][0]
    assert header["centres"] == int(fields.get("version", "0"), 16)
    assert header["n"] == len(fields["codes"])
    assert header["dim"] == len(fields["codes"][0])
    assert header["key_hash"] == stable_hash("user-1")
    assert header["crc"] == zlib.crc32(blob[64:], zlib.crc32(blob[:56]))
    for field in ("computed_ms", "log_offset", "fence", "impressions"):
        assert header[field] == fields[field]


def page_quantisers() -> dict[str, tuple[int, int, str]]:
    """Name -> (dtype code, bits, version) of each row of the page's table of quantisers."""
    rows = re.findall(r"^\| (\d) \| `(\w+)` \| (\d+) \|.*\| (\S.*?) \|$", PAGE, re.MULTILINE)
    return {name: (int(code), int(bits), version.strip("`")) for code, name, bits, version in rows}


def test_the_pages_table_of_quantisers_is_that_of_the_code() -> None:
    assert set(page_quantisers()) == set(DTYPES)
    for name, (code, bits, version) in page_quantisers().items():
        assert DTYPE_CODES[name] == code
        quantiser = golden("golden-history-kint4")[2] if name == "kint4" else Quantiser(name)
        assert quantiser.bits == bits
        expected = golden("golden-history-kint4")[1]["version"] if name == "kint4" else version
        assert quantiser.version == expected


def test_the_hashes_of_the_page_are_the_hashes_of_the_code() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{16})` \| (\d+) \|", PAGE, re.MULTILINE)
    assert len(rows) >= 5
    for text, value, row in rows:
        assert (f"{stable_hash(text):016x}", bucket(text, 1024)) == (value, int(row))


def test_the_compare_and_set_script_finds_its_fields_where_the_page_says() -> None:
    places = {field: offset for offset, _, _, field in page_header()}
    assert (places["log_offset"], places["fence"]) == (LOG_OFFSET_AT, FENCE_AT)
    assert places["impressions"] == IMPRESSIONS_AT


@settings(deadline=None)
@given(
    quantiser=st.sampled_from(QUANTISERS),
    length=st.integers(0, 40),
    dim=st.integers(1, 70),
    seed=st.integers(0, 999),
    flags=st.integers(0, 7),
)
def test_a_history_comes_back_as_it_was(quantiser: Quantiser, length: int, dim: int, seed: int, flags: int) -> None:
    record = history(length, dim, seed=seed)
    kept: dict[str, Any] = {
        name: None for bit, name in enumerate(("surface", "ad_hash", "outcome")) if not flags >> bit & 1
    }
    record = replace(record, **kept)
    blob = encode_history(record, user_id="u", quantiser=quantiser)
    again = decode_history(blob, user_id="u", dim=dim, quantiser=quantiser)
    for name in ("impressions", "computed_ms", "log_offset", "fence"):
        assert getattr(again, name) == getattr(record, name)
    for name in ("event_ms", "surface", "ad_hash", "outcome"):
        found, expected = getattr(again, name), getattr(record, name)
        assert (found is None) == (expected is None)
        assert expected is None or np.array_equal(found, expected)
    assert np.array_equal(again.vectors, quantiser.decode(quantiser.encode(record.vectors)))
    assert encode_history(again, user_id="u", quantiser=quantiser) == blob


@settings(deadline=None)
@given(
    quantiser=st.sampled_from(QUANTISERS), count=st.integers(0, 40), dim=st.integers(1, 70), seed=st.integers(0, 999)
)
def test_a_pair_record_comes_back_as_it_was(quantiser: Quantiser, count: int, dim: int, seed: int) -> None:
    record = pair(count, dim, seed=seed)
    blob = encode_pair(record, user_id="u", quantiser=quantiser)
    again = decode_pair(blob, user_id="u", dim=dim, quantiser=quantiser)
    assert np.array_equal(again.ad_hash, record.ad_hash)
    assert np.array_equal(again.pair_computed_ms, record.pair_computed_ms)
    assert np.array_equal(again.vectors, quantiser.decode(quantiser.encode(record.vectors)))
    assert np.array_equal(again.user_vector, quantiser.decode(quantiser.encode(record.user_vector)))
    assert encode_pair(again, user_id="u", quantiser=quantiser) == blob


@settings(deadline=None)
@given(st.data())
def test_any_flipped_bit_is_noticed(data: st.DataObject) -> None:
    quantiser = data.draw(st.sampled_from(QUANTISERS))
    blob = bytearray(encode_history(history(data.draw(st.integers(0, 5))), user_id="u", quantiser=quantiser))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((CorruptRecordError, UnsupportedRecordError)):
        decode_history(bytes(blob), user_id="u", quantiser=quantiser)


@settings(deadline=None)
@given(st.data())
def test_any_truncation_or_tail_is_noticed(data: st.DataObject) -> None:
    quantiser = data.draw(st.sampled_from(QUANTISERS))
    blob = encode_pair(pair(data.draw(st.integers(0, 5)), 3), user_id="u", quantiser=quantiser)
    with pytest.raises(CorruptRecordError):
        decode_pair(blob[: data.draw(st.integers(0, len(blob) - 1))], user_id="u", quantiser=quantiser)
    with pytest.raises(CorruptRecordError):
        decode_pair(blob + b"\0", user_id="u", quantiser=quantiser)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_typed_error(blob: bytes) -> None:
    with pytest.raises(GemError):
        decode_history(blob, user_id="u")


def test_another_users_record_is_never_read() -> None:
    with pytest.raises(WrongKeyError):
        decode_history(encode_history(history(), user_id="42"), user_id="042")
    with pytest.raises(WrongKeyError):
        decode_pair(encode_pair(pair(), user_id="42"), user_id="43")


def test_a_pair_record_is_not_a_history_and_a_width_is_not_another() -> None:
    with pytest.raises(CorruptRecordError, match="kind"):
        decode_history(encode_pair(pair(), user_id="u"), user_id="u")
    with pytest.raises(CorruptRecordError, match="wide"):
        decode_history(encode_history(history(dim=4), user_id="u"), user_id="u", dim=8)


@pytest.mark.parametrize("count", [2, 4])
def test_a_count_that_its_arrays_do_not_fill_is_noticed_behind_a_valid_crc(count: int) -> None:
    blob = resealed(encode_history(history(3), user_id="u"), at=8, value=count)
    with pytest.raises(CorruptRecordError, match=r"ends before|follow"):
        decode_history(blob, user_id="u")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"impressions": 1}, "impressions"),
        ({"impressions": 2**63}, "impressions"),
        ({"impressions": 2**64 - 1}, "impressions"),
        ({"computed_ms": -1}, "computed_ms"),
        ({"event_ms": np.array([1, 3, 2])}, "event_ms"),
        ({"event_ms": np.array([-1, 2, 3])}, "event_ms"),
        ({"event_ms": np.array([-(2**63), 2**63 - 1, 2**63 - 1])}, "event_ms"),
    ],
)
def test_numbers_that_no_writer_can_mean_are_corrupt_behind_a_valid_crc(changes: dict[str, Any], message: str) -> None:
    blob = encode_history(replace(history(3), **changes), user_id="u")
    with pytest.raises(CorruptRecordError, match=message):
        decode_history(blob, user_id="u")


@pytest.mark.parametrize("changes", [{"computed_ms": -1}, {"pair_computed_ms": np.array([1, -(2**63), 2])}])
def test_a_pair_record_before_1970_is_corrupt(changes: dict[str, Any]) -> None:
    blob = encode_pair(replace(pair(3), **changes), user_id="u")
    with pytest.raises(CorruptRecordError, match="computed_ms"):
        decode_pair(blob, user_id="u")


def test_elements_at_the_same_time_and_an_empty_history_are_fine() -> None:
    for record in (replace(history(3), event_ms=np.array([0, 5, 5]), impressions=3), history(0)):
        assert len(decode_history(encode_history(record, user_id="u"), user_id="u").event_ms) == len(record.event_ms)


@pytest.mark.parametrize(("at", "value"), [(4, 2), (7, 8), (14, 1), (60, 1), (6, 3), (6, 4), (6, 9)])
def test_a_newer_writers_record_is_refused_not_guessed(at: int, value: int) -> None:
    blob = resealed(encode_history(history(optional=False), user_id="u"), at=at, value=value)
    with pytest.raises(UnsupportedRecordError):
        decode_history(blob, user_id="u")


def test_a_kint4_record_is_read_with_its_own_centres_and_no_others() -> None:
    other = Quantiser("kint4", (*CENTRES[:-1], 1.0))
    records = (
        (decode_history, encode_history(history(), user_id="u", quantiser=KINT4)),
        (decode_pair, encode_pair(pair(), user_id="u", quantiser=KINT4)),
    )
    for decode, blob in records:
        with pytest.raises(UnsupportedRecordError, match="without its centres"):
            decode(blob, user_id="u")
        with pytest.raises(UnsupportedRecordError, match=f"centres {KINT4.version}, the model reads {other.version}"):
            decode(blob, user_id="u", quantiser=other)
        assert decode(blob, user_id="u", quantiser=KINT4).vectors.shape == (3, 4)


@pytest.mark.parametrize("written", QUANTISERS, ids=DTYPES)
@pytest.mark.parametrize("read", QUANTISERS, ids=DTYPES)
def test_a_record_of_another_dtype_than_the_models_is_refused(written: Quantiser, read: Quantiser) -> None:
    blob = encode_history(history(), user_id="u", quantiser=written)
    if written == read:
        assert decode_history(blob, user_id="u", quantiser=read).impressions
        return
    with pytest.raises(CorruptRecordError, match=f"is {written.dtype}, the model reads {read.dtype}"):
        decode_history(blob, user_id="u", quantiser=read)


@pytest.mark.parametrize("quantiser", QUANTISERS[:3], ids=DTYPES[:3])
def test_without_a_quantiser_a_record_is_read_by_its_own_dtype(quantiser: Quantiser) -> None:
    blob = encode_history(history(), user_id="u", quantiser=quantiser)
    expected = decode_history(blob, user_id="u", quantiser=quantiser).vectors
    assert decode_history(blob, user_id="u").vectors.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("quantiser", "codes"),
    [
        (INT8, np.array([[-128]], np.int8)),
        (Quantiser("int4"), np.array([[-8]], np.int8)),
        (Quantiser("fp16"), np.array([[np.nan]], np.float16)),
        (Quantiser("fp16"), np.array([[1.001]], np.float16)),
    ],
)
def test_codes_that_no_writer_makes_are_corrupt_behind_a_valid_crc(quantiser: Quantiser, codes: np.ndarray) -> None:
    blob = encode_history_codes(codes, history(1, 1, optional=False), user_id="u", quantiser=quantiser)
    with pytest.raises(CorruptRecordError, match=f"no {quantiser.dtype} writer makes"):
        decode_history(blob, user_id="u")


def test_a_record_over_the_limit_is_not_written() -> None:
    record = history(0, 1, optional=False)
    with pytest.raises(UnsupportedRecordError, match="limit"):
        encode_history_codes(np.zeros((MAX_ELEMENTS + 1, 1), np.int8), record, user_id="u")
