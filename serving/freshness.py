"""How good an embedding is: its age against the settings' limits, in the words of the response."""

from dataclasses import dataclass

import numpy as np

from contracts.bodies import EmbeddingInfo, EmbeddingStatus, PairInfo
from contracts.embedding import HistoryRecord
from serving.store import Reading


@dataclass(frozen=True, slots=True)
class MaxAges:
    """Up to `fresh_s` an embedding is fresh, up to `stale_s` stale but used, beyond that expired and not used."""

    fresh_s: float
    stale_s: float

    def grade(self, age_s: float) -> EmbeddingStatus:
        """fresh, stale or expired."""
        if age_s <= self.fresh_s:
            return "fresh"
        return "stale" if age_s <= self.stale_s else "expired"


@dataclass(frozen=True, slots=True)
class Judged:
    """What the response says of the embedding, the record that the model may use, and why it is not the best."""

    info: EmbeddingInfo
    history: HistoryRecord | None
    degraded: list[str]


def judge(reading: Reading, ages: MaxAges, *, space: str, now_ms: int, pairs: PairInfo) -> Judged:
    """Age is now minus the later of the record's time and the watermark: a user without news is fresh.

    An expired record is not used: the model sees the user as one without history.
    """
    record, live = reading.history, reading.live
    if record is None:
        status: EmbeddingStatus = "unavailable" if reading.unavailable else "missing"
        info = EmbeddingInfo(status, "default", space, live.generation, None, None, pairs)
        return Judged(info, None, [reading.fault] if reading.fault else [])
    published_ms = max(record.computed_ms, live.watermark_ms or 0)
    age_s = max(now_ms - published_ms, 0) / 1000
    status = ages.grade(age_s)
    used = status != "expired"
    source = reading.source if used else "default"
    info = EmbeddingInfo(status, source, space, live.generation, record.computed_ms, age_s, pairs)
    return Judged(info, record if used else None, [] if status == "fresh" else [f"embedding_{status}"])


def cover_pairs(reading: Reading, ages: MaxAges, *, now_ms: int, ad_hashes: np.ndarray | None, total: int) -> PairInfo:
    """How many candidates have a precomputed pair that is not expired, and how old the oldest of those is.

    ad_hashes uint64 [N] is needed only where the reading holds a pair record. Age is per pair.
    """
    record = reading.pairs
    if record is None or ad_hashes is None:
        return PairInfo("unavailable" if reading.unavailable else "missing", 0, total)
    covering = np.isin(record.ad_hash, ad_hashes)
    if not covering.any():
        return PairInfo("missing", 0, total)
    age_s = np.maximum(now_ms - record.pair_computed_ms, 0) / 1000
    usable = covering & (age_s <= ages.stale_s)
    if not usable.any():
        return PairInfo("expired", 0, total)
    covered = int(np.isin(ad_hashes, record.ad_hash[usable]).sum())
    return PairInfo(ages.grade(float(age_s[usable].max())), covered, total)
