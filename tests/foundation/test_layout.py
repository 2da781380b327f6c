"""Every categorical value has one row of its own in the shared table."""

import numpy as np

from events.log import InteractionLog
from foundation.layout import InputLayout
from tests.events.small_logs import SCHEMA


def test_columns_follow_each_other_without_overlap() -> None:
    columns = InputLayout(SCHEMA).columns
    assert [c.name for c in columns] == ["user_id", "ad_id", "category", "surface", "hour", "weekday", "device"]
    assert [c.offset for c in columns] == list(np.cumsum([0, *[c.size for c in columns[:-1]]]))
    assert InputLayout(SCHEMA).table_rows == sum(c.size for c in columns)


def test_surface_and_clock_have_a_row_for_the_unknown() -> None:
    for name, values in (("surface", len(SCHEMA.surfaces)), ("hour", 24), ("weekday", 7)):
        column = InputLayout(SCHEMA).column(name)
        assert (column.size, column.unknown) == (values + 1, values)
    assert InputLayout(SCHEMA).column("ad_id").unknown == 0


def test_sides_and_counts(tiny_log: InteractionLog) -> None:
    layout = InputLayout(SCHEMA)
    assert (layout.user_columns, layout.ad_columns, layout.event_columns) == (1, 2, 3)
    assert layout.set_floats == 3 + 8  # profile, quality, length of the history; four feedback numbers of two tasks
    assert layout.event_floats == 5  # known and positive of two tasks, quality
    wide = InputLayout(tiny_log.schema)
    assert sum(len(wide.side(name)) for name in ("user", "ad", "row")) == len(wide.columns)
