"""Names of spaces, generations and keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.keys import (
    check_space,
    generation_name,
    generation_number,
    history_key,
    live_key,
    meta_key,
    pair_key,
    space_dim,
    space_dtype,
    space_name,
    watermark_key,
)

SPACE = "gem-3f9a1c-d32-int8"


def test_a_space_says_what_made_it() -> None:
    assert space_name("gem", "3f9a1c" + "0" * 58, 32, "int8") == SPACE
    assert (space_dim(SPACE), space_dtype(SPACE)) == (32, "int8")


@pytest.mark.parametrize("space", ["", "gem", "gem-3f9a1c-d32", "gem-3f9a1-d32-int8", "gem-3f9a1c-d32-int8:x", "../x"])
def test_what_is_no_space_is_refused(space: str) -> None:
    with pytest.raises(InputError, match="gem-3f9a1c-d32-int8"):
        check_space(space)


def test_keys_are_those_of_the_format_page() -> None:
    assert live_key(SPACE) == "emb:gem-3f9a1c-d32-int8:live"
    assert meta_key(SPACE) == "emb:gem-3f9a1c-d32-int8:meta"
    assert watermark_key(SPACE, "g000002") == "emb:gem-3f9a1c-d32-int8:g000002:watermark"
    assert history_key(SPACE, "g000002", "42") == "emb:gem-3f9a1c-d32-int8:g000002:{42}:h"
    assert pair_key(SPACE, "g000002", "a b/c{d}") == "emb:gem-3f9a1c-d32-int8:g000002:{a%20b%2Fc%7Bd%7D}:p"


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_two_users_never_share_a_key_and_both_records_share_the_hash_tag(first: str, second: str) -> None:
    one, other = (history_key(SPACE, "g000001", user) for user in (first, second))
    assert (one == other) == (first == second)
    assert one.count("{") == one.count("}") == 1
    assert one[one.index("{") :][:-2] == pair_key(SPACE, "g000001", first)[one.index("{") :][:-2]


@given(st.integers(0, 999_999))
def test_generation_names_come_back_and_sort_like_numbers(number: int) -> None:
    assert generation_number(generation_name(number)) == number
    assert (generation_name(number) < generation_name(500_000)) == (number < 500_000)


@pytest.mark.parametrize("generation", ["", "g1", "000001", "g0000001"])
def test_what_is_no_generation_is_refused(generation: str) -> None:
    with pytest.raises(InputError, match="g000001"):
        generation_number(generation)
