"""Which columns GEM reads, and where each categorical value stands in the one embedding table.

All categorical columns share one table: a value's row is its column's offset plus its code. An ad seen in a history and
the candidate ad read the same rows, and so do the surfaces of past and present impressions.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from contracts.hashing import OUT_OF_VOCABULARY
from contracts.schema import HOURS, WEEKDAYS, FeatureSchema


@dataclass(frozen=True)
class Column:
    """One categorical column: `size` rows of the table from `offset` on. `unknown` is the code of a missing value."""

    name: str
    size: int
    offset: int
    unknown: int = OUT_OF_VOCABULARY

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Rows of the embedding table: int64, same shape."""
        return codes.astype(np.int64) + self.offset


@dataclass(frozen=True)
class InputLayout:
    """Columns in the order of the set tokens: user id and features, ad id and features, surface, clock, context.

    Surface, hour and weekday have one row more than the schema has values: that of events where it is not known.
    """

    schema: FeatureSchema

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        schema = self.schema
        sizes = [("user_id", schema.user_buckets)]
        sizes += [(f.name, f.cardinality) for f in schema.select("user", "categorical", teacher=True)]
        sizes += [("ad_id", schema.ad_buckets)]
        sizes += [(f.name, f.cardinality) for f in schema.select("ad", "categorical", teacher=True)]
        clock = {"surface": len(schema.surfaces), "hour": HOURS, "weekday": WEEKDAYS}
        sizes += [(name, values + 1) for name, values in clock.items()]
        sizes += [(f.name, f.cardinality) for f in schema.select("context", "categorical", teacher=True)]
        columns, offset = [], 0
        for name, size in sizes:
            columns.append(Column(name, size, offset, clock.get(name, OUT_OF_VOCABULARY)))
            offset += size
        return tuple(columns)

    @property
    def table_rows(self) -> int:
        return self.columns[-1].offset + self.columns[-1].size

    @property
    def user_columns(self) -> int:
        return 1 + len(self.schema.select("user", "categorical", teacher=True))

    @property
    def ad_columns(self) -> int:
        return 1 + len(self.schema.select("ad", "categorical", teacher=True))

    @property
    def event_columns(self) -> int:
        """Columns of one event: those of its ad, and the surface."""
        return self.ad_columns + 1

    @property
    def set_floats(self) -> int:
        """Float features of a row; then the length of its history, and 4 feedback rates and counts of each task."""
        return sum(feature.kind == "float" for feature in self.schema.features) + 1 + 4 * len(self.schema.tasks)

    @property
    def event_floats(self) -> int:
        """Per event: known and positive of each task, and the float features of its ad."""
        return 2 * len(self.schema.tasks) + len(self.schema.select("ad", "float", teacher=True))

    def column(self, name: str) -> Column:
        """The column of that name."""
        return next(column for column in self.columns if column.name == name)

    def side(self, name: str) -> tuple[Column, ...]:
        """The columns of "user", "ad" or, for all others, "row"."""
        users, ads = self.user_columns, self.ad_columns
        return {
            "user": self.columns[:users],
            "ad": self.columns[users : users + ads],
            "row": self.columns[users + ads :],
        }[name]
