"""Elements of a history as model inputs: codes within the schema, zeros behind the mask, bits by task."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.elements import ELEMENTS, check_elements, element_form, element_input, outcome_bits
from contracts.errors import InputError
from contracts.hashing import bucket, stable_hash
from contracts.schema import FeatureSchema, Task


def schema(surfaces: int = 3, tasks: int = 2) -> FeatureSchema:
    names = tuple(f"s{k}" for k in range(surfaces))
    return FeatureSchema("x", names, tuple(Task(f"t{k}") for k in range(tasks)), (), 8, 1000)


MASK = np.array([[True, True, False]])


def test_an_ad_in_the_history_has_the_row_of_the_ad_itself() -> None:
    names = ["042", "42", "\u5e7f\u544a"]
    hashes = np.array([[stable_hash(name) for name in names]], dtype=np.uint64)
    rows = element_input(schema(), "ad_hash", hashes, np.ones((1, 3), dtype=bool))
    assert rows.tolist() == [[bucket(name, 1000) for name in names]]


@pytest.mark.parametrize("value", [0, 1, 2**63, 2**64 - 1])
def test_hashes_of_64_bits_fall_into_the_table_and_not_into_row_0(value: int) -> None:
    rows = element_input(schema(), "ad_hash", np.full((1, 3), value, np.uint64), MASK)
    assert rows.tolist() == [[1 + value % 999, 1 + value % 999, 0]]


def test_a_surface_that_the_schema_lacks_is_the_pooled_one() -> None:
    rows = element_input(schema(), "surface", np.array([[2, 3, 2]], dtype=np.uint8), MASK)
    assert rows.tolist() == [[2, 0, 0]]


def test_an_outcome_is_a_bit_for_each_task() -> None:
    rows = element_input(schema(), "outcome", np.array([[1, 3, 3]], dtype=np.uint8), MASK)
    assert rows.tolist() == [[[1, 0], [1, 1], [0, 0]]]


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=1, max_size=5))
def test_outcomes_come_back_from_their_bits(positive: list[list[bool]]) -> None:
    bits = outcome_bits(np.array(positive))
    assert bits.dtype == np.uint8
    back = element_input(schema(tasks=8), "outcome", bits[None], np.ones((1, len(positive)), dtype=bool))
    assert np.array_equal(back[0], np.array(positive, dtype=np.float32))


@pytest.mark.parametrize("name", ELEMENTS)
def test_no_array_reads_as_zeros_of_the_stated_form(name: str) -> None:
    dtype, trailing = element_form(schema(), name)
    zeros = element_input(schema(), name, None, MASK)
    assert (zeros.dtype, zeros.shape) == (dtype, (1, 3, *trailing))
    assert not zeros.any()


@pytest.mark.parametrize("elements", [("ad_hash", "surface"), ("outcome", "outcome"), ("position",)])
def test_elements_are_named_once_and_in_order(elements: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="at most once, in the order of"):
        check_elements(schema(), elements)


def test_what_does_not_fit_into_a_byte_is_refused() -> None:
    with pytest.raises(InputError, match="the schema has 257 surfaces"):
        check_elements(schema(surfaces=257), ("surface",))
    with pytest.raises(InputError, match="the schema has 9 tasks"):
        check_elements(schema(tasks=9), ("outcome",))
    check_elements(schema(surfaces=257, tasks=9), ("ad_hash",))
