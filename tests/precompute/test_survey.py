import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from precompute.survey import Surveyor
from tests.events.made_rows import append, made_rows, new_log


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 250)), min_size=1, max_size=3),
    st.integers(0, 250),
    st.integers(1, 60),
)
def test_a_user_is_touched_by_a_visible_row_outside_a_claim(tmp_path_factory, claims, as_of_ms, part_rows):
    log = new_log(tmp_path_factory.mktemp("log"))
    surveyor = Surveyor(log, part_rows=part_rows)
    for first in (0, 40):
        append(log, made_rows(40, first=first, users=9, seed=first, start_ms=first, delay_ms=20))
        surveyor.survey(as_of_ms=as_of_ms, claims=[(0, 0)])
    found = surveyor.survey(as_of_ms=as_of_ms, claims=claims)
    rows = log.read()
    visible = rows.visible_ms < as_of_ms
    outside = np.zeros(80, dtype=bool)
    for offset, claimed_ms in claims:
        outside |= ~((rows.offset < offset) & (rows.visible_ms < claimed_ms))
    parts = [user for part in found.parts for user in part]
    assert set(found.users) == set(rows.user_id[visible])
    assert set(parts) == set(rows.user_id[visible & outside])
    assert len(parts) == found.touched == len(set(parts))
    assert found.watermark_ms == (rows.event_ms[visible].max() if visible.any() else None)
    assert found.end_offset == 80
    assert all(len(part) == 1 or np.isin(rows.user_id, part).sum() <= part_rows for part in found.parts)
