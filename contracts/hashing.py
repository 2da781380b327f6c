"""Stable hashes of ids: blake2b with 8 bytes, read little-endian. Golden values stand in docs/embedding_format.md.

Python's own `hash` changes with every process, so nothing that is stored or trained may depend on it.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from contracts.errors import InputError

MAX_ID_BYTES = 256
OUT_OF_VOCABULARY = 0
"""Bucket of an id that the model must treat as unknown; `bucket` never returns it."""


def id_text(value: str | int, *, field: str = "user_id") -> str:
    """The canonical text of an id: integers become decimal strings, nothing else is normalised ("042" is not "42").

    Raises InputError for booleans, other types, empty ids, ids over 256 bytes and text that is not valid UTF-8.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 8 * MAX_ID_BYTES:  # Python refuses to print integers of thousands of digits
            raise InputError(f"{field} is an integer of over {MAX_ID_BYTES} digits; send 1 to {MAX_ID_BYTES}")
        value = str(value)
    if not isinstance(value, str):
        raise InputError(f"{field} must be a string or an integer, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InputError(f"{field} holds a lone surrogate; send valid UTF-8") from None
    if not 1 <= size <= MAX_ID_BYTES:
        raise InputError(f"{field} has {size} bytes of UTF-8; send 1 to {MAX_ID_BYTES}")
    return value


def stable_hash(text: str) -> int:
    """Unsigned 64-bit hash of a text, the same in every process, machine and version."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def stable_hashes(texts: Iterable[str]) -> np.ndarray:
    """`stable_hash` of each text: uint64 [n]."""
    return np.fromiter((stable_hash(text) for text in texts), dtype=np.uint64)


def bucket(text: str, buckets: int) -> int:
    """Embedding row of an id: 1 .. buckets - 1. Row 0 is kept for ids the model must treat as unknown."""
    return 1 + stable_hash(text) % (buckets - 1)


def buckets_of(texts: Iterable[str], buckets: int) -> np.ndarray:
    """`bucket` of each text: int64 [n]."""
    return buckets_of_hashes(stable_hashes(texts), buckets)


def buckets_of_hashes(hashes: np.ndarray, buckets: int) -> np.ndarray:
    """`bucket` of ids by their stable hashes uint64 [...]: int64, same shape."""
    return (hashes % np.uint64(buckets - 1)).astype(np.int64) + 1
