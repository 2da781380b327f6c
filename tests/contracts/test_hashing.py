"""Stable hashes: golden values, ranges, and the ids that are refused."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.hashing import bucket, buckets_of, id_text, stable_hash, stable_hashes


def test_integers_become_decimal_strings_and_nothing_else_is_normalised() -> None:
    assert id_text(42) == "42"
    assert id_text(-7) == "-7"
    assert id_text("042") == "042"
    assert id_text(" A ") == " A "
    assert stable_hash("042") != stable_hash("42")


@pytest.mark.parametrize(
    "value",
    ["", "x" * 257, "é" * 129, 10**256, pytest.param(10**5000, id="5,000 digits"), True, 1.5, None, b"42", "\ud800"],
)
def test_an_id_that_is_no_id_is_refused_by_name(value: object) -> None:
    with pytest.raises(InputError, match="ad_id"):
        id_text(value, field="ad_id")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["x" * 256, "é" * 128, 10**255, "a\x00b", "\N{SMILING FACE WITH SUNGLASSES}"])
def test_ids_up_to_256_bytes_are_taken(value: str | int) -> None:
    assert id_text(value) == str(value)


def test_a_hash_is_the_same_in_another_process_with_another_hash_seed() -> None:
    code = "from contracts.hashing import stable_hash; print(stable_hash('user-1'))"
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert int(run.stdout) == stable_hash("user-1")


@given(st.lists(st.text(min_size=1, max_size=20)), st.integers(2, 2**40))
def test_one_by_one_and_vectorised_agree(texts: list[str], buckets: int) -> None:
    assert stable_hashes(texts).tolist() == [stable_hash(text) for text in texts]
    found = buckets_of(texts, buckets)
    assert found.dtype == np.int64
    assert found.tolist() == [bucket(text, buckets) for text in texts]


@given(st.text(max_size=20), st.integers(2, 1000))
def test_row_0_is_never_the_bucket_of_an_id(text: str, buckets: int) -> None:
    assert 1 <= bucket(text, buckets) < buckets
