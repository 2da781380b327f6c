"""One shard of the representation log: rows in memory, and their Parquet file.

Legend: R rows, K tasks, d served width. Vectors are fixed-size binary columns (little-endian fp16; the quantiser's
packed codes): reading one is a copy and not a decode of lists. Pages carry checksums, so a flipped bit is an error and
no wrong embedding.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contracts.errors import CorruptRecordError, InputError
from contracts.keys import space_dim
from contracts.quantiser import INT8, Quantiser

Z_DIM = 64
"""Width of the stored compressor output; its prefixes 8, 16, 32 and 64 are each usable alone (LoopFM, Matryoshka)."""
PARTIAL = ".tmp"
"""Ending of a file that is being written; what a killed writer leaves is removed by the next one."""
MEND = "delete this file and run the refresh again: only its rows are recomputed"


@dataclass(frozen=True)
class Representations:
    """Rows of the log in order of their ingestion offset.

    offset int64, event_id uint64, event_ms, available_ms int64, user_id str objects, ad_hash uint64, all [R],
    surface int16 [R], z float16 [R, 64] in [-1, 1] ([R, 0] when read without), codes [R, d] = the quantised prefix
    that the cache serves (one code a number, of the quantiser's type), soft float32 [R, K] = the teacher's conditional
    probabilities in task order.
    """

    offset: np.ndarray
    event_id: np.ndarray
    event_ms: np.ndarray
    available_ms: np.ndarray
    user_id: np.ndarray
    ad_hash: np.ndarray
    surface: np.ndarray
    z: np.ndarray
    codes: np.ndarray
    soft: np.ndarray

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def visible_ms(self) -> np.ndarray:
        """A reader at time t sees a row exactly when visible_ms < t: it was available and had happened. int64 [R]."""
        return np.maximum(self.available_ms, self.event_ms)

    def take(self, rows: np.ndarray) -> "Representations":
        """The rows at these numbers or under this mask, in their order."""
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @classmethod
    def concatenate(cls, parts: Sequence["Representations"]) -> "Representations":
        """One block of several non-empty lists of rows, in their order."""
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)})


@dataclass(frozen=True)
class ShardFormat:
    """What the files of one log have in common: the space, the tasks in order, the teacher and the quantiser."""

    space: str
    tasks: tuple[str, ...]
    teacher: str
    quantiser: Quantiser = INT8

    def schema(self) -> pa.Schema:
        """Arrow schema of a shard."""
        code_bytes = self.quantiser.packed_bytes(1, space_dim(self.space))
        columns: list[tuple[str, Any]] = [
            *(("offset", pa.int64()), ("event_id", pa.uint64()), ("event_ms", pa.int64())),
            *(("available_ms", pa.int64()), ("user_id", pa.string()), ("ad_hash", pa.uint64())),
            *(("surface", pa.int16()), ("z", pa.binary(2 * Z_DIM)), ("codes", pa.binary(code_bytes))),
            *((f"soft_{task}", pa.float32()) for task in self.tasks),
        ]
        metadata = {"space": self.space, "teacher": self.teacher, "quantiser": self.quantiser.version}
        return pa.schema(columns, metadata=metadata)

    def write(self, path: Path, rows: Representations) -> None:
        """Write a shard under a temporary name beside `path`, fsync it, and rename it in one step."""
        columns = [
            *(pa.array(getattr(rows, name)) for name in ("offset", "event_id", "event_ms", "available_ms")),
            pa.array(rows.user_id, pa.string()),
            pa.array(rows.ad_hash),
            pa.array(rows.surface.astype(np.int16)),
            _binary(rows.z.astype("<f2")),
            self._packed(rows.codes),
            *(pa.array(np.ascontiguousarray(column, np.float32)) for column in rows.soft.T),
        ]
        table = pa.Table.from_arrays(columns, schema=self.schema())
        partial = path.with_name(f".{path.name}{PARTIAL}")
        with partial.open("wb") as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    def columns(self, path: Path, names: list[str]) -> pa.Table:
        """Some columns of a shard; InputError when the file is damaged or belongs to another space."""
        try:
            with pq.ParquetFile(path, read_dictionary=["user_id"], page_checksum_verification=True) as file:
                metadata = file.schema_arrow.metadata or {}
                if metadata.get(b"space") != self.space.encode():
                    raise InputError(f"{path} is no shard of {self.space}; {MEND}")
                version = self.quantiser.version.encode()
                if metadata.get(b"quantiser", version) != version:
                    raise InputError(f"{path} was written with other centres than this log's; {MEND}")
                table = file.read(names)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({str(error).strip().splitlines()[0]}); {MEND}") from error
        if table.column_names != names:
            raise InputError(f"{path} lacks the columns {sorted(set(names) - set(table.column_names))}; {MEND}")
        return table

    def rows(self, path: Path, *, z: bool, users: pa.Array | None) -> Representations:
        """The rows of a shard, or those of some users; `z` says whether to read the full vectors."""
        table = self.columns(path, [name for name in self.schema().names if z or name != "z"])
        if users is not None:
            column = table["user_id"].unify_dictionaries().combine_chunks()
            wanted = pc.is_in(column.dictionary, value_set=users).to_numpy(zero_copy_only=False)
            table = table.filter(pa.array(wanted[column.indices.to_numpy(zero_copy_only=False)]))
        names = ("offset", "event_id", "event_ms", "available_ms", "user_id", "ad_hash", "surface")
        soft = [table[f"soft_{task}"].to_numpy() for task in self.tasks]
        return Representations(
            **{name: table[name].to_numpy() for name in names},
            z=_matrix(table, "z", "<f2") if z else np.zeros((len(table), 0), np.float16),
            codes=self._codes(path, _matrix(table, "codes", "u1")),
            soft=np.stack(soft, axis=1) if soft else np.zeros((len(table), 0), np.float32),
        )

    def empty(self, *, z: bool) -> Representations:
        """No rows, in the right types and widths."""
        types = {"offset": "i8", "event_id": "u8", "event_ms": "i8", "available_ms": "i8", "user_id": "O"}
        return Representations(
            **{name: np.zeros(0, dtype) for name, dtype in types.items()},
            ad_hash=np.zeros(0, np.uint64),
            surface=np.zeros(0, np.int16),
            z=np.zeros((0, Z_DIM if z else 0), np.float16),
            codes=self.quantiser.unpack(b"", 0, space_dim(self.space)),
            soft=np.zeros((0, len(self.tasks)), np.float32),
        )

    def _packed(self, codes: np.ndarray) -> pa.Array:
        """Packed codes as fixed-size binary, a vector a row."""
        width = self.quantiser.packed_bytes(1, codes.shape[1])
        return pa.Array.from_buffers(pa.binary(width), len(codes), [None, pa.py_buffer(self.quantiser.pack(codes))])

    def _codes(self, path: Path, packed: np.ndarray) -> np.ndarray:
        """Inverse of `_packed`: [R, d]."""
        try:
            return self.quantiser.unpack(packed.reshape(-1), len(packed), space_dim(self.space))
        except CorruptRecordError as error:
            raise InputError(f"{path} holds other codes than {self.space} says ({error}); {MEND}") from error


def _binary(matrix: np.ndarray) -> pa.Array:
    """Rows of a matrix as fixed-size binary, without a copy of each."""
    matrix = np.ascontiguousarray(matrix)
    width = matrix.shape[1] * matrix.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(matrix), [None, pa.py_buffer(matrix)])


def _matrix(table: pa.Table, name: str, dtype: str) -> np.ndarray:
    """Inverse of `_binary`: [R, width]."""
    column = table[name].combine_chunks()
    width = column.type.byte_width
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [np.frombuffer(c.buffers()[1], "u1", len(c) * width, c.offset * width) for c in chunks if len(c)]
    flat = np.concatenate(parts) if parts else np.zeros(0, "u1")
    return flat.view(dtype).reshape(len(table), width // np.dtype(dtype).itemsize)
