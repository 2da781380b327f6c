from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.embedding import encode_history, encode_history_codes
from events.as_of import AsOf
from events.representations import Representations
from tests.events.made_rows import made_rows, newest_by_loop, record_by_loop

LENGTH = 3


@st.composite
def any_rows(draw: st.DrawFn) -> Representations:
    """Few users, many ties, and availability in any order (late and refreshed rows)."""
    count = draw(st.integers(0, 12))
    rows = made_rows(count, users=3, seed=draw(st.integers(0, 1_000)))
    times = st.lists(st.integers(0, 8), min_size=count, max_size=count)
    event_ms = np.array(draw(times), dtype=np.int64)
    delays = np.array(draw(times), dtype=np.int64)
    if draw(st.booleans()):
        delays = np.full(count, draw(st.integers(-2, 3)), dtype=np.int64)
    return replace(rows, event_ms=event_ms, available_ms=event_ms + delays)


@settings(deadline=None)
@given(any_rows(), st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 18)), min_size=1, max_size=8))
def test_histories_are_those_of_the_plain_loop(rows, queries):
    users = [f"user {number}/ü" for number, _ in queries]
    now_ms = np.array([time for _, time in queries])
    index, impressions = AsOf(rows).histories(users, now_ms, LENGTH)
    for query, user in enumerate(users):
        seen = newest_by_loop(rows, user, int(now_ms[query]))
        assert index[query].tolist() == (seen[:LENGTH] + [-1] * LENGTH)[:LENGTH]
        assert impressions[query] == len(seen)


@settings(deadline=None)
@given(any_rows(), st.one_of(st.none(), st.integers(0, 18)))
def test_records_are_those_of_the_plain_loop(rows, as_of_ms):
    as_of = AsOf(rows, fence=7)
    written = {}
    for user, codes, record in as_of.records(LENGTH, as_of_ms=as_of_ms):
        written[user] = encode_history_codes(codes, record, user_id=user)
    for user in ["user 0/ü", "user 1/ü", "user 2/ü", "nobody"]:
        seen = newest_by_loop(rows, user, 10**9 if as_of_ms is None else as_of_ms)
        found = as_of.record(user, LENGTH, as_of_ms)
        if not seen:
            assert found is None
            assert user not in written
        else:
            assert found is not None
            expected = encode_history(record_by_loop(rows, seen, length=LENGTH, fence=7), user_id=user)
            assert encode_history(found, user_id=user) == expected
            assert written[user] == expected


def test_users_may_be_given_by_number():
    rows = made_rows(30)
    as_of = AsOf(rows)
    users = ["user 1/ü", "nobody", "user 0/ü"]
    now_ms = np.full(3, 40)
    by_id, by_number = as_of.histories(users, now_ms, 4), as_of.histories(as_of.codes(users), now_ms, 4)
    np.testing.assert_array_equal(by_id[0], by_number[0])
    assert by_id[0][1].tolist() == [-1] * 4
    assert by_id[1][1] == 0


def test_what_comes_later_does_not_change_the_past():
    rows = made_rows(200, delay_ms=7)
    now_ms = int(rows.event_ms[100])
    past = rows.take(rows.visible_ms < now_ms)
    users = [f"user {number}/ü" for number in range(5)]
    whole, alone = (AsOf(block).histories(users, np.full(5, now_ms), 20) for block in (rows, past))
    kept = np.flatnonzero(rows.visible_ms < now_ms)
    np.testing.assert_array_equal(whole[0], np.where(alone[0] >= 0, kept[alone[0]], -1))
    np.testing.assert_array_equal(whole[1], alone[1])


def test_a_log_without_rows_has_no_histories():
    rows = made_rows(5).take(np.zeros(5, dtype=bool))
    index, impressions = AsOf(rows).histories(["user 0/ü"], np.array([10]), 2)
    assert index.tolist() == [[-1, -1]]
    assert impressions.tolist() == [0]
    assert list(AsOf(rows).records(2)) == []


@pytest.mark.parametrize("name", [field.name for field in fields(Representations)])
def test_a_history_row_points_into_every_column(name):
    rows = made_rows(50)
    index, _ = AsOf(rows).histories([rows.user_id[-1]], np.array([10_000]), 1)
    newest = newest_by_loop(rows, rows.user_id[-1], 10_000)[0]
    np.testing.assert_array_equal(getattr(rows, name)[index[0, 0]], getattr(rows, name)[newest])
