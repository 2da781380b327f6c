"""What a publication has to do: which users of a representation log have news since a claim, and how far the log goes.

One pass over the light columns, shard by shard; vectors are read later, for as many users at a time as fit in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from events.representations import RepresentationLog, Shard

PART_ROWS = 500_000
"""Rows whose codes are held in memory at once, about 300 bytes each while they are sorted."""


@dataclass(frozen=True)
class Survey:
    """The log as a reader at `as_of_ms` sees it: `users` have a record, `touched` of them have news, `parts` splits the
    touched ones so that each part's rows fit in memory; `watermark_ms` is the newest event that is visible."""

    end_offset: int
    as_of_ms: int
    watermark_ms: int | None
    users: list[str]
    touched: int
    parts: list[list[str]]


@dataclass(frozen=True)
class _Summary:
    """One shard: its users (numbers), the rows of each, and its latest times."""

    users: np.ndarray
    rows: np.ndarray
    visible_ms: int
    event_ms: int


class Surveyor:
    """Surveys one log, again and again as it grows: a shard without news since the claims is not read twice."""

    def __init__(self, log: RepresentationLog, *, part_rows: int = PART_ROWS) -> None:
        self._log, self._part_rows = log, part_rows
        self._numbers: dict[str, int] = {}
        self._summaries: dict[Shard, _Summary] = {}

    def survey(self, *, as_of_ms: int, claims: Sequence[tuple[int, int]]) -> Survey:
        """Compare the log with claims (offset, as_of_ms): the rows below that offset which were visible at that time
        are published. A user with a visible row outside one of the claims is touched."""
        end_offset = self._log.end_offset  # before the scan: what is appended meanwhile belongs to the next survey
        counted: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        watermark = -1
        for shard in self._log.whole():
            known = self._summaries.get(shard)
            if known and shard.end <= min(claims)[0] and known.visible_ms < min(as_of_ms, *(ms for _, ms in claims)):
                counted.append((known.users, known.rows, known.rows, np.zeros_like(known.rows)))
                watermark = max(watermark, known.event_ms)
                continue
            table = self._log.columns(shard, ["offset", "event_ms", "available_ms", "user_id"])
            offset, event_ms = table["offset"].to_numpy(), table["event_ms"].to_numpy()
            visible_ms = np.maximum(table["available_ms"].to_numpy(), event_ms)
            visible = visible_ms < as_of_ms
            news = np.zeros(len(table), dtype=bool)
            for claimed_offset, claimed_ms in claims:
                news |= (offset >= claimed_offset) | (visible_ms >= claimed_ms)
            users, user = self._users(table)
            rows, seen, touched = (
                np.bincount(user[mask], minlength=len(users)) for mask in (slice(None), visible, visible & news)
            )
            counted.append((users, rows, seen, touched))
            watermark = max(watermark, int(event_ms[visible].max(initial=-1)))
            latest = (int(visible_ms.max(initial=-1)), int(event_ms.max(initial=-1)))
            self._summaries[shard] = _Summary(users, rows, *latest)
        return self._sum(end_offset, as_of_ms, watermark, counted)

    def anything_visible(self, *, as_of_ms: int) -> bool:
        """Whether a reader at this time sees any row."""
        return any(
            bool((np.maximum(table["available_ms"].to_numpy(), table["event_ms"].to_numpy()) < as_of_ms).any())
            for table in (self._log.columns(shard, ["event_ms", "available_ms"]) for shard in self._log.whole())
        )

    def _users(self, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the shard's users, and for each row a place among them."""
        column = table["user_id"].unify_dictionaries().combine_chunks()
        numbers = self._numbers
        users = [numbers.setdefault(name, len(numbers)) for name in column.dictionary.to_pylist()]
        return np.array(users, dtype=np.int64), column.indices.to_numpy(zero_copy_only=False)

    def _sum(
        self,
        end_offset: int,
        as_of_ms: int,
        watermark: int,
        counted: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
    ) -> Survey:
        rows, seen, touched = np.zeros((3, len(self._numbers)), dtype=np.int64)
        for users, of_all, of_visible, of_news in counted:
            rows[users] += of_all
            seen[users] += of_visible
            touched[users] += of_news
        names = list(self._numbers)
        with_news = np.flatnonzero(touched)
        parts = _parts([names[user] for user in with_news.tolist()], rows[with_news].tolist(), self._part_rows)
        return Survey(
            end_offset=end_offset,
            as_of_ms=as_of_ms,
            watermark_ms=watermark if seen.any() else None,
            users=[names[user] for user in np.flatnonzero(seen).tolist()],
            touched=len(with_news),
            parts=list(parts),
        )


def _parts(users: list[str], rows: list[int], part_rows: int) -> Iterator[list[str]]:
    part: list[str] = []
    held = 0
    for user, count in zip(users, rows, strict=True):
        if part and held + count > part_rows:
            yield part
            part, held = [], 0
        part.append(user)
        held += count
    if part:
        yield part
