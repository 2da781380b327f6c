"""Embedding records and their bytes: the public format of docs/embedding_format.md, version 1.

Legend: L history length, M pairs, D width. All numbers are little-endian. A record is a 64-byte header and then the
arrays, each present or absent as kind and flags say. Vectors lie in [-1, 1] (the compressor ends in tanh) and are
stored as codes; students train on the decoded codes, so what they saw is what serving reads.
"""

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from contracts.errors import CorruptRecordError, UnsupportedRecordError, WrongKeyError
from contracts.hashing import stable_hash

MAGIC = b"GEMR"
FORMAT = 1
HEADER = struct.Struct("<4sBBBBIHHqQQQQII")
"""magic, format, kind, dtype, flags, n, D, 0, computed_ms, log_offset, fence, key hash, impressions, CRC32, 0."""
CRC_AT = 56
LOG_OFFSET_AT, FENCE_AT, IMPRESSIONS_AT = 24, 32, 48
"""Byte positions that the compare-and-set script of the writer reads."""
MAX_ELEMENTS = 65_536
MAX_DIM = 4_096

KIND_HISTORY, KIND_PAIR = 1, 2
FLAG_SURFACE, FLAG_AD_HASH, FLAG_OUTCOME = 1, 2, 4
KNOWN_FLAGS = FLAG_SURFACE | FLAG_AD_HASH | FLAG_OUTCOME
DTYPE_CODES = {"fp16": 0, "int8": 1, "int4": 2, "kint4": 3}
DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}
IMPLEMENTED_DTYPES = ("int8",)


@dataclass(frozen=True)
class HistoryRecord:
    """The newest impressions of one user (LoopFM), oldest first; the request being answered is never in it.

    vectors [L, D] float32 (decoded codes), event_ms [L] int64, impressions = all that the log holds of the user so
    far (>= L), computed_ms = when the latest of them became available, log_offset = the highest ingestion offset among
    them, fence = epoch of the representation log. surface uint8, ad_hash uint64, outcome uint8: optional arrays [L].
    All of it follows from the log, so a rebuild from the log gives the same bytes.
    """

    vectors: np.ndarray
    event_ms: np.ndarray
    impressions: int
    computed_ms: int
    log_offset: int
    fence: int = 0
    surface: np.ndarray | None = None
    ad_hash: np.ndarray | None = None
    outcome: np.ndarray | None = None


@dataclass(frozen=True)
class PairRecord:
    """Embeddings of likely user-ad pairs (Solaris): ad_hash [M] uint64, vectors [M, D] float32,
    pair_computed_ms [M] int64, and user_vector [D], the fallback for ads that are not among them."""

    ad_hash: np.ndarray
    vectors: np.ndarray
    pair_computed_ms: np.ndarray
    user_vector: np.ndarray
    computed_ms: int
    log_offset: int
    fence: int = 0


def check_dtype(dtype: str) -> str:
    """The dtype itself if this version writes and reads it; UnsupportedRecordError for the reserved codes."""
    if dtype not in IMPLEMENTED_DTYPES:
        raise UnsupportedRecordError(
            f"dtype {dtype!r} is reserved in format {FORMAT} but not implemented; use one of {IMPLEMENTED_DTYPES}"
        )
    return dtype


def quantise(vectors: np.ndarray, dtype: str = "int8") -> np.ndarray:
    """Codes of vectors in [-1, 1], same shape: q = clip(rint(127 z), -127, 127) for int8."""
    check_dtype(dtype)
    return np.clip(np.rint(np.asarray(vectors, dtype=np.float32) * np.float32(127)), -127, 127).astype(np.int8)


def dequantise(codes: np.ndarray, dtype: str = "int8") -> np.ndarray:
    """float32 vectors of stored codes, same shape: z = q / 127 for int8."""
    check_dtype(dtype)
    return codes.astype(np.float32) / np.float32(127)


def encode_history(record: HistoryRecord, *, user_id: str, dtype: str = "int8") -> bytes:
    """Bytes of a history record, bound to its user by the key hash."""
    n, dim = record.vectors.shape
    return encode_history_codes(quantise(record.vectors, dtype), record, user_id=user_id, dtype=dtype, shape=(n, dim))


def encode_history_codes(
    codes: np.ndarray, record: HistoryRecord, *, user_id: str, dtype: str, shape: tuple[int, int]
) -> bytes:
    """As `encode_history`, from codes that are already stored in the log (the vectors of `record` are not read)."""
    check_dtype(dtype)
    flags, arrays = 0, [np.ascontiguousarray(record.event_ms, dtype="<i8")]
    if record.ad_hash is not None:
        flags |= FLAG_AD_HASH
        arrays.append(np.ascontiguousarray(record.ad_hash, dtype="<u8"))
    arrays.append(np.ascontiguousarray(codes, dtype=np.int8))
    if record.surface is not None:
        flags |= FLAG_SURFACE
        arrays.append(np.ascontiguousarray(record.surface, dtype=np.uint8))
    if record.outcome is not None:
        flags |= FLAG_OUTCOME
        arrays.append(np.ascontiguousarray(record.outcome, dtype=np.uint8))
    return _seal(
        KIND_HISTORY,
        DTYPE_CODES[dtype],
        flags,
        shape,
        record,
        record.impressions,
        user_id,
        b"".join(map(_bytes, arrays)),
    )


def encode_pair(record: PairRecord, *, user_id: str, dtype: str = "int8") -> bytes:
    """Bytes of a pair record, bound to its user by the key hash."""
    m, dim = record.vectors.shape
    arrays = [
        np.ascontiguousarray(record.ad_hash, dtype="<u8"),
        np.ascontiguousarray(record.pair_computed_ms, dtype="<i8"),
        quantise(record.vectors, dtype),
        quantise(record.user_vector, dtype),
    ]
    return _seal(KIND_PAIR, DTYPE_CODES[dtype], 0, (m, dim), record, 0, user_id, b"".join(map(_bytes, arrays)))


def decode_history(blob: bytes, *, user_id: str, dim: int | None = None) -> HistoryRecord:
    """The record in `blob`.

    Raises CorruptRecordError (magic, length, CRC, another width than `dim`, numbers that no writer can mean),
    WrongKeyError (another user's record), UnsupportedRecordError (format or dtype reserved). A reader on the request
    path treats all three as a miss.
    """
    n, width, dtype, flags, header = _open(blob, KIND_HISTORY, user_id, dim)
    cursor = _Cursor(blob)
    event_ms = cursor.take("<i8", n)
    ad_hash = cursor.take("<u8", n) if flags & FLAG_AD_HASH else None
    codes = cursor.take("i1", n * width).reshape(n, width)
    surface = cursor.take("u1", n) if flags & FLAG_SURFACE else None
    outcome = cursor.take("u1", n) if flags & FLAG_OUTCOME else None
    cursor.finish()
    if not n <= header[12] < 1 << 63:
        raise CorruptRecordError(f"the record says {header[12]} impressions for {n} elements; publish the user again")
    if n and (event_ms[0] < 0 or (event_ms[1:] < event_ms[:-1]).any()):
        raise CorruptRecordError("the record's event_ms do not ascend from 0 on; publish the user again")
    return HistoryRecord(
        vectors=dequantise(codes, dtype),
        event_ms=event_ms,
        impressions=header[12],
        computed_ms=header[8],
        log_offset=header[9],
        fence=header[10],
        surface=surface,
        ad_hash=ad_hash,
        outcome=outcome,
    )


def decode_pair(blob: bytes, *, user_id: str, dim: int | None = None) -> PairRecord:
    """The pair record in `blob`; errors as `decode_history`."""
    m, width, dtype, _, header = _open(blob, KIND_PAIR, user_id, dim)
    cursor = _Cursor(blob)
    ad_hash = cursor.take("<u8", m)
    pair_computed_ms = cursor.take("<i8", m)
    codes = cursor.take("i1", m * width).reshape(m, width)
    user_codes = cursor.take("i1", width)
    cursor.finish()
    if m and pair_computed_ms.min() < 0:
        raise CorruptRecordError("the record's pair_computed_ms are before 1970; publish the user again")
    return PairRecord(
        ad_hash=ad_hash,
        vectors=dequantise(codes, dtype),
        pair_computed_ms=pair_computed_ms,
        user_vector=dequantise(user_codes, dtype),
        computed_ms=header[8],
        log_offset=header[9],
        fence=header[10],
    )


def _bytes(array: np.ndarray) -> bytes:
    return array.tobytes()


def _seal(
    kind: int,
    dtype: int,
    flags: int,
    shape: tuple[int, int],
    record: HistoryRecord | PairRecord,
    impressions: int,
    user_id: str,
    payload: bytes,
) -> bytes:
    n, dim = shape
    if n > MAX_ELEMENTS or dim > MAX_DIM:
        raise UnsupportedRecordError(f"a record of {n} x {dim} is over the limit of {MAX_ELEMENTS} x {MAX_DIM}")
    fields = (
        *(MAGIC, FORMAT, kind, dtype, flags, n, dim, 0),
        *(record.computed_ms, record.log_offset, record.fence, stable_hash(user_id), impressions),
    )
    head = HEADER.pack(*fields, 0, 0)[:CRC_AT]
    return head + struct.pack("<II", zlib.crc32(payload, zlib.crc32(head)), 0) + payload


def _open(blob: bytes, kind: int, user_id: str, dim: int | None) -> tuple[int, int, str, int, tuple[int, ...]]:
    if len(blob) < HEADER.size or blob[:4] != MAGIC:
        raise CorruptRecordError(f"not an embedding record: {len(blob)} bytes without the header {MAGIC!r}")
    header = HEADER.unpack_from(blob)
    _, fmt, found_kind, dtype, flags, n, width = header[:7]
    if fmt != FORMAT:
        raise UnsupportedRecordError(f"record format {fmt} is not {FORMAT}; read it with a newer version")
    if header[13] != zlib.crc32(memoryview(blob)[HEADER.size :], zlib.crc32(blob[:CRC_AT])):
        raise CorruptRecordError("the record's CRC does not match its bytes; publish the user again")
    if header[7] or header[14] or flags & ~KNOWN_FLAGS:
        raise UnsupportedRecordError("the record sets bits that format 1 reserves; read it with a newer version")
    if header[11] != stable_hash(user_id):
        raise WrongKeyError("the record belongs to another key")
    if found_kind != kind:
        raise CorruptRecordError(f"record kind {found_kind} stands where kind {kind} is expected")
    if dim is not None and width != dim:
        raise CorruptRecordError(f"the record is {width} wide, the model reads {dim}")
    name = check_dtype(DTYPE_NAMES.get(dtype, f"code {dtype}"))
    if header[8] < 0:
        raise CorruptRecordError(f"the record's computed_ms is {header[8]}; publish the user again")
    return n, width, name, flags, header


class _Cursor:
    """Reads arrays one after the other behind the header, without copying."""

    def __init__(self, blob: bytes) -> None:
        self.blob, self.at = blob, HEADER.size

    def take(self, dtype: str, count: int) -> np.ndarray:
        try:
            array = np.frombuffer(self.blob, dtype=dtype, count=count, offset=self.at)
        except ValueError as error:
            raise CorruptRecordError(f"the record ends before its arrays do ({error})") from error
        self.at += array.nbytes
        return array

    def finish(self) -> None:
        if self.at != len(self.blob):
            raise CorruptRecordError(f"{len(self.blob) - self.at} bytes follow the record's arrays")
