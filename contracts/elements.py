"""What a history element may carry beside its vector: the optional arrays of a record, and their model inputs.

Legend: B users, L history length, K tasks. surface: code of the surface where the ad was shown, uint8. ad_hash: stable
hash of the ad's id, uint64. outcome, uint8: bit k says that the label of task k (in the schema's order) was known to be
1 when the history was read or the record was made; 0 is also what is not known yet.
"""

import numpy as np

from contracts.errors import InputError
from contracts.hashing import buckets_of_hashes
from contracts.schema import FeatureSchema

ELEMENTS = ("surface", "ad_hash", "outcome")
"""In the order of their inputs history_<name>."""


def check_elements(schema: FeatureSchema, elements: tuple[str, ...]) -> None:
    """InputError when an element's name is unknown, twice or out of order, or its byte is too small for the schema."""
    if elements != tuple(name for name in ELEMENTS if name in elements):
        raise InputError(f"elements {elements} of a history: name each at most once, in the order of {ELEMENTS}")
    if "surface" in elements and len(schema.surfaces) > 256:
        raise InputError(f"a record keeps a surface in one byte, the schema has {len(schema.surfaces)} surfaces")
    if "outcome" in elements and len(schema.tasks) > 8:
        raise InputError(f"a record keeps an outcome as bits of one byte, the schema has {len(schema.tasks)} tasks")


def element_form(schema: FeatureSchema, name: str) -> tuple[str, tuple[int, ...]]:
    """Type and trailing shape, behind [B, L], of the input of one element."""
    return ("float32", (len(schema.tasks),)) if name == "outcome" else ("int64", ())


def element_input(schema: FeatureSchema, name: str, values: np.ndarray | None, mask: np.ndarray) -> np.ndarray:
    """The input of one element from its array [B, L] (None: the source has none) and the mask [B, L].

    surface int64 [B, L]: 0, the pooled one, for a code that the schema lacks. ad_hash int64 [B, L]: the ad's embedding
    row. outcome float32 [B, L, K]. All are 0 behind the mask and where there is no array.
    """
    dtype, trailing = element_form(schema, name)
    if values is None:
        return np.zeros((*mask.shape, *trailing), dtype=dtype)
    if name == "surface":
        return np.where(mask & (values < len(schema.surfaces)), values, 0).astype(np.int64)
    if name == "ad_hash":
        return buckets_of_hashes(values, schema.ad_buckets) * mask
    bits = values[:, :, None] >> np.arange(len(schema.tasks), dtype=np.uint8) & np.uint8(1)
    return (bits * mask[:, :, None]).astype(np.float32)


def outcome_bits(positive: np.ndarray) -> np.ndarray:
    """The outcome of elements whose labels are known to be 1: bool [..., K] -> uint8 [...]."""
    weights = np.left_shift(1, np.arange(positive.shape[-1]))
    return (positive * weights).sum(axis=-1).astype(np.uint8)
