"""Quantisers: vectors in [-1, 1] to the codes that are stored, and back, alike in training and in serving.

Legend: n vectors, D width. A code is one number a dimension: int8 for `int8` and `int4`, uint8 0..15 for `kint4`,
float16 for `fp16`. Packed, a vector starts at a byte: the 4-bit dtypes lay two codes in one, low nibble first, `int4`
as two's complement, and an odd width ends in a nibble of zero. Decoding is one float32 division or one gather, so its
bits are the same everywhere. Bytes and golden values: docs/embedding_format.md.
"""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from contracts.errors import CorruptRecordError, InputError

DTYPES = ("fp16", "int8", "int4", "kint4")
CENTRES = 16
STEPS = {"int8": 127, "int4": 7}
"""Codes of a uniform dtype lie in -steps .. steps."""
LLOYD_ROUNDS = 300
"""Upper limit: tanh-shaped numbers settle within about a hundred."""


@dataclass(frozen=True)
class Quantiser:
    """How the vectors of a space are stored; `centres` are the 16 ascending fp32 numbers of kint4 (LoopFM's K-means
    INT4, one set for all dimensions), and none for the others. InputError for anything else."""

    dtype: str
    centres: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"{self.dtype!r} is no quantiser; use one of {', '.join(DTYPES)}")
        if self.dtype != "kint4":
            if self.centres:
                raise InputError(f"{self.dtype} has no centres; pass none, or use kint4")
            return
        if len(self.centres) != CENTRES:
            raise InputError(f"kint4 needs {CENTRES} centres, not {len(self.centres)}; fit them with fit_centres")
        exact = np.array(self.centres, dtype=np.float64)
        if not (np.isfinite(exact).all() and (exact == exact.astype(np.float32)).all() and (np.diff(exact) > 0).all()):
            raise InputError("the centres of kint4 are not finite ascending fp32 numbers; fit them with fit_centres")

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return {"fp16": 16, "int8": 8}.get(self.dtype, 4)

    @cached_property
    def version(self) -> str:
        """8 hex digits of sha256 over the dtype's name and the centres as fp32: what two readers compare."""
        return sha256(self.dtype.encode() + self._table.tobytes()).hexdigest()[:8]

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Codes of vectors float [..., D], same shape; numbers beyond [-1, 1] become its ends. A tie between two
        centres goes to the lower one. InputError for numbers that are not finite."""
        vectors = np.asarray(vectors, dtype=np.float32)
        if not np.isfinite(vectors).all():
            raise InputError("a vector has numbers that are not finite; the teacher that made it is broken")
        if self.dtype == "kint4":
            return np.searchsorted(self._edges, vectors.astype(np.float64), side="left").astype(np.uint8)
        if self.dtype == "fp16":
            return np.clip(vectors, -1, 1).astype(np.float16)
        steps = STEPS[self.dtype]
        return np.clip(np.rint(vectors * np.float32(steps)), -steps, steps).astype(np.int8)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """float32 vectors of codes, same shape."""
        if self.dtype == "kint4":
            return self._table[codes]
        if self.dtype == "fp16":
            return codes.astype(np.float32)
        return codes.astype(np.float32) / np.float32(STEPS[self.dtype])

    def packed_bytes(self, n: int, dim: int) -> int:
        """Bytes of n packed vectors."""
        return n * ((dim * self.bits + 7) // 8)

    def pack(self, codes: np.ndarray) -> bytes:
        """Bytes of codes [n, D], vector by vector."""
        if self.bits != 4:
            return np.ascontiguousarray(codes, dtype="<f2" if self.dtype == "fp16" else "i1").tobytes()
        nibbles = codes.astype(np.uint8) & 0x0F
        if nibbles.shape[1] % 2:
            nibbles = np.pad(nibbles, ((0, 0), (0, 1)))
        return (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).tobytes()

    def unpack(self, packed: bytes | memoryview | np.ndarray, n: int, dim: int) -> np.ndarray:
        """Codes [n, D] of packed vectors; CorruptRecordError when the bytes are too few or too many, or no `encode`
        makes such a code (-128, -8, beyond [-1, 1], not a number, a last nibble that is not zero)."""
        raw = np.frombuffer(packed, dtype=np.uint8)
        if len(raw) != self.packed_bytes(n, dim):
            raise CorruptRecordError(f"{len(raw)} bytes are not {n} vectors of {dim} {self.dtype} codes")
        if self.bits == 4:
            nibbles = np.empty((n, dim + dim % 2), dtype=np.uint8)
            pairs = raw.reshape(n, nibbles.shape[1] // 2)
            nibbles[:, 0::2], nibbles[:, 1::2] = pairs & 0x0F, pairs >> 4
            codes: np.ndarray = nibbles[:, :dim]
            known = not nibbles[:, dim:].any()
            if self.dtype == "int4":
                codes = (codes ^ 8).view(np.int8) - np.int8(8)
        else:
            codes, known = raw.view("<f2" if self.dtype == "fp16" else "i1").reshape(n, dim), True
        if self.dtype == "fp16":
            known = bool((np.abs(codes) <= 1).all())
        elif self.dtype != "kint4":
            known = known and bool((codes >= -STEPS[self.dtype]).all())
        if not known:
            raise CorruptRecordError(f"the vectors hold codes that no {self.dtype} writer makes")
        return codes

    def to_json(self) -> dict[str, Any]:
        """For log.json, the manifest and the meta key; fp32 numbers come back from JSON bit for bit."""
        return {"dtype": self.dtype, "centres": list(self.centres)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Quantiser":
        """Inverse of `to_json`; InputError when the fields are no quantiser's."""
        try:
            return cls(str(fields["dtype"]), tuple(float(centre) for centre in fields["centres"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"no quantiser is described by {fields!r}; it has the fields dtype and centres") from error

    @cached_property
    def _table(self) -> np.ndarray:
        return np.array(self.centres, dtype="<f4")

    @cached_property
    def _edges(self) -> np.ndarray:
        """Midpoints between the centres, float64 [15]: exact, so that a tie is one."""
        table = self._table.astype(np.float64)
        return (table[1:] + table[:-1]) / 2


INT8 = Quantiser("int8")
"""What is stored unless something else is asked for: near-lossless according to LoopFM's authors."""


def fit_centres(vectors: np.ndarray) -> tuple[float, ...]:
    """The 16 centres of kint4 for vectors of any shape: K-means in one dimension over all their numbers.

    Lloyd's rounds on the sorted distinct numbers, from quantiles that lie on 16 different ones; nothing is random.
    Where there are fewer than 16 distinct numbers, each is a centre and the others follow the largest in the smallest
    fp32 steps. InputError for no numbers, or some that are not finite.
    """
    numbers = np.asarray(vectors, dtype=np.float32).ravel()
    if not len(numbers) or not np.isfinite(numbers).all():
        raise InputError("centres are fitted to at least one number, all of them finite; check the teacher's vectors")
    values, counts = np.unique(numbers.astype(np.float64) + 0.0, return_counts=True)  # + 0.0: no negative zero
    if len(values) <= CENTRES:
        return _ascending(np.pad(values, (0, CENTRES - len(values)), mode="edge"))
    mass, moment = np.append(0, np.cumsum(counts)), np.append(0, np.cumsum(counts * values))
    place = np.arange(CENTRES)
    start = np.searchsorted(mass[1:], (place + 0.5) / CENTRES * mass[-1])
    start = np.maximum.accumulate(start - place) + place
    centres = values[np.minimum(start, len(values) - CENTRES + place)]
    for _ in range(LLOYD_ROUNDS):
        edges = np.searchsorted(values, (centres[1:] + centres[:-1]) / 2, side="right")
        cuts = np.concatenate([[0], edges, [len(values)]])
        held = np.diff(mass[cuts])
        means = np.where(held > 0, np.diff(moment[cuts]) / np.maximum(held, 1), centres)
        if np.array_equal(means, centres):
            break
        centres = means
    return _ascending(centres)


def _ascending(centres: np.ndarray) -> tuple[float, ...]:
    """As fp32 numbers, each at least one step above the last."""
    found: list[np.float32] = []
    for centre in centres.astype(np.float32):
        lowest = np.nextafter(found[-1], np.float32(np.inf)) if found else centre
        found.append(max(centre, lowest))
    return tuple(float(centre) for centre in found)
