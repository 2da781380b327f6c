"""Embedding records and their bytes: the public format of docs/embedding_format.md, version 1.

Legend: L history length, M pairs, D width. All numbers are little-endian. A record is a 64-byte header and then the
arrays, each present or absent as kind and flags say. Vectors lie in [-1, 1] (the compressor ends in tanh) and are
stored as the packed codes of a quantiser; students train on the decoded codes, so what they saw is what serving reads.
"""

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from contracts.errors import CorruptRecordError, UnsupportedRecordError, WrongKeyError
from contracts.hashing import stable_hash
from contracts.quantiser import INT8, Quantiser

MAGIC = b"GEMR"
FORMAT = 1
HEADER = struct.Struct("<4sBBBBIHHqQQQQII")
"""magic, format, kind, dtype, flags, n, D, 0, computed_ms, log_offset, fence, key hash, impressions, CRC32, centres.

The last is the version of a kint4 record's centres, which do not stand in it, and 0 in all others."""
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
PLAIN_DTYPES = {code for name, code in DTYPE_CODES.items() if name != "kint4"}
"""Codes whose records say all that their reader needs."""


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


def encode_history(record: HistoryRecord, *, user_id: str, quantiser: Quantiser = INT8) -> bytes:
    """Bytes of a history record, bound to its user by the key hash."""
    return encode_history_codes(quantiser.encode(record.vectors), record, user_id=user_id, quantiser=quantiser)


def encode_history_codes(
    codes: np.ndarray, record: HistoryRecord, *, user_id: str, quantiser: Quantiser = INT8
) -> bytes:
    """As `encode_history`, from codes [L, D] that are already stored in the log (the vectors of `record` are not
    read)."""
    flags, arrays = 0, [_bytes(record.event_ms, "<i8")]
    if record.ad_hash is not None:
        flags |= FLAG_AD_HASH
        arrays.append(_bytes(record.ad_hash, "<u8"))
    arrays.append(quantiser.pack(codes))
    if record.surface is not None:
        flags |= FLAG_SURFACE
        arrays.append(_bytes(record.surface, "u1"))
    if record.outcome is not None:
        flags |= FLAG_OUTCOME
        arrays.append(_bytes(record.outcome, "u1"))
    return _seal(KIND_HISTORY, quantiser, flags, codes.shape, record, record.impressions, user_id, b"".join(arrays))


def encode_pair(record: PairRecord, *, user_id: str, quantiser: Quantiser = INT8) -> bytes:
    """Bytes of a pair record, bound to its user by the key hash."""
    arrays = [
        _bytes(record.ad_hash, "<u8"),
        _bytes(record.pair_computed_ms, "<i8"),
        quantiser.pack(quantiser.encode(record.vectors)),
        quantiser.pack(quantiser.encode(record.user_vector[None])),
    ]
    return _seal(KIND_PAIR, quantiser, 0, record.vectors.shape, record, 0, user_id, b"".join(arrays))


def decode_history(
    blob: bytes, *, user_id: str, dim: int | None = None, quantiser: Quantiser | None = None
) -> HistoryRecord:
    """The record in `blob`. Without a quantiser, any dtype that needs no centres is read.

    Raises CorruptRecordError (magic, length, CRC, another width than `dim` or dtype than the quantiser's, numbers that
    no writer can mean), WrongKeyError (another user's record), UnsupportedRecordError (unknown format or dtype, kint4
    without the centres that it was written with). A reader on the request path treats all three as a miss.
    """
    n, width, found, flags, header = _open(blob, KIND_HISTORY, user_id, dim, quantiser)
    cursor = _Cursor(blob)
    event_ms = cursor.take("<i8", n)
    ad_hash = cursor.take("<u8", n) if flags & FLAG_AD_HASH else None
    packed = cursor.take("u1", found.packed_bytes(n, width))
    surface = cursor.take("u1", n) if flags & FLAG_SURFACE else None
    outcome = cursor.take("u1", n) if flags & FLAG_OUTCOME else None
    cursor.finish()
    if not n <= header[12] < 1 << 63:
        raise CorruptRecordError(f"the record says {header[12]} impressions for {n} elements; publish the user again")
    if n and (event_ms[0] < 0 or (event_ms[1:] < event_ms[:-1]).any()):
        raise CorruptRecordError("the record's event_ms do not ascend from 0 on; publish the user again")
    return HistoryRecord(
        vectors=found.decode(found.unpack(packed, n, width)),
        event_ms=event_ms,
        impressions=header[12],
        computed_ms=header[8],
        log_offset=header[9],
        fence=header[10],
        surface=surface,
        ad_hash=ad_hash,
        outcome=outcome,
    )


def decode_pair(blob: bytes, *, user_id: str, dim: int | None = None, quantiser: Quantiser | None = None) -> PairRecord:
    """The pair record in `blob`; quantiser and errors as `decode_history`."""
    m, width, found, _, header = _open(blob, KIND_PAIR, user_id, dim, quantiser)
    cursor = _Cursor(blob)
    ad_hash = cursor.take("<u8", m)
    pair_computed_ms = cursor.take("<i8", m)
    packed = cursor.take("u1", found.packed_bytes(m, width))
    packed_user = cursor.take("u1", found.packed_bytes(1, width))
    cursor.finish()
    if m and pair_computed_ms.min() < 0:
        raise CorruptRecordError("the record's pair_computed_ms are before 1970; publish the user again")
    return PairRecord(
        ad_hash=ad_hash,
        vectors=found.decode(found.unpack(packed, m, width)),
        pair_computed_ms=pair_computed_ms,
        user_vector=found.decode(found.unpack(packed_user, 1, width))[0],
        computed_ms=header[8],
        log_offset=header[9],
        fence=header[10],
    )


def _bytes(array: np.ndarray, dtype: str) -> bytes:
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


def _centres_version(quantiser: Quantiser) -> int:
    """What the last header field says: which centres a kint4 record needs."""
    return int(quantiser.version, 16) if quantiser.centres else 0


def _seal(
    kind: int,
    quantiser: Quantiser,
    flags: int,
    shape: tuple[int, ...],
    record: HistoryRecord | PairRecord,
    impressions: int,
    user_id: str,
    payload: bytes,
) -> bytes:
    n, dim = shape
    if n > MAX_ELEMENTS or dim > MAX_DIM:
        raise UnsupportedRecordError(f"a record of {n} x {dim} is over the limit of {MAX_ELEMENTS} x {MAX_DIM}")
    fields = (
        *(MAGIC, FORMAT, kind, DTYPE_CODES[quantiser.dtype], flags, n, dim, 0),
        *(record.computed_ms, record.log_offset, record.fence, stable_hash(user_id), impressions),
    )
    head = HEADER.pack(*fields, 0, 0)[:CRC_AT]
    return head + struct.pack("<II", zlib.crc32(payload, zlib.crc32(head)), _centres_version(quantiser)) + payload


def _open(
    blob: bytes, kind: int, user_id: str, dim: int | None, quantiser: Quantiser | None
) -> tuple[int, int, Quantiser, int, tuple[int, ...]]:
    """n, width, the quantiser of its vectors, flags and the whole header of a record that passes its checks."""
    if len(blob) < HEADER.size or blob[:4] != MAGIC:
        raise CorruptRecordError(f"not an embedding record: {len(blob)} bytes without the header {MAGIC!r}")
    header = HEADER.unpack_from(blob)
    _, fmt, found_kind, dtype, flags, n, width = header[:7]
    if fmt != FORMAT:
        raise UnsupportedRecordError(f"record format {fmt} is not {FORMAT}; read it with a newer version")
    if header[13] != zlib.crc32(memoryview(blob)[HEADER.size :], zlib.crc32(blob[:CRC_AT])):
        raise CorruptRecordError("the record's CRC does not match its bytes; publish the user again")
    if header[7] or (header[14] and dtype in PLAIN_DTYPES) or flags & ~KNOWN_FLAGS:
        raise UnsupportedRecordError("the record sets bits that format 1 reserves; read it with a newer version")
    if header[11] != stable_hash(user_id):
        raise WrongKeyError("the record belongs to another key")
    if found_kind != kind:
        raise CorruptRecordError(f"record kind {found_kind} stands where kind {kind} is expected")
    if dim is not None and width != dim:
        raise CorruptRecordError(f"the record is {width} wide, the model reads {dim}")
    found = _quantiser_of(dtype, header[14], quantiser)
    if header[8] < 0:
        raise CorruptRecordError(f"the record's computed_ms is {header[8]}; publish the user again")
    return n, width, found, flags, header


def _quantiser_of(dtype: int, version: int, quantiser: Quantiser | None) -> Quantiser:
    """The quantiser that reads a record of this dtype code and centres' version."""
    name = DTYPE_NAMES.get(dtype)
    if name is None:
        raise UnsupportedRecordError(f"dtype code {dtype} is unknown in format {FORMAT}; read it with a newer version")
    if quantiser is None and name != "kint4":
        quantiser = Quantiser(name)
    if quantiser is None:
        raise UnsupportedRecordError("a kint4 record cannot be read without its centres; pass the space's quantiser")
    if quantiser.dtype != name:
        raise CorruptRecordError(f"the record is {name}, the model reads {quantiser.dtype}")
    if version != _centres_version(quantiser):
        raise UnsupportedRecordError(
            f"the record was written with the centres {version:08x}, the model reads {quantiser.version}; publish "
            "from the log that the model was trained on, or export a model of this one"
        )
    return quantiser


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
