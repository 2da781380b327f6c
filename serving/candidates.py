"""The candidates of a request against the catalogue: duplicates dropped, rows found, bids filled in."""

from dataclasses import dataclass

import numpy as np

from contracts.bodies import CandidateList, Dropped, RankRequest
from contracts.features import UNKNOWN_AD
from serving.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class Candidates:
    """N ads: ids, catalogue rows int64 (UNKNOWN_AD: not in it), bids float64 (NaN: none), requested bool (the request
    named the bid), and what was dropped."""

    ad_ids: list[str]
    rows: np.ndarray
    bids: np.ndarray
    requested: np.ndarray
    dropped: list[Dropped]

    @property
    def known(self) -> np.ndarray:
        """Which ads the catalogue has: bool [N]."""
        return self.rows != UNKNOWN_AD


def resolve(request: RankRequest, catalogue: Catalogue, *, max_candidates: int) -> Candidates:
    """The first of each ad id, in the request's order; a bid of the request goes before the catalogue's default.

    Raises BodyError for too many candidates, an id out of bounds, bids of another length.
    """
    given = CandidateList.of(request, max_candidates=max_candidates)
    ad_ids, bids, dropped = given.ad_ids, given.bids, []
    if len(set(ad_ids)) < len(ad_ids):
        first = dict(zip(reversed(ad_ids), range(len(ad_ids) - 1, -1, -1), strict=True))
        kept = sorted(first.values())
        dropped = [Dropped(ad_id, "duplicate") for i, ad_id in enumerate(ad_ids) if first[ad_id] != i]
        ad_ids, bids = [ad_ids[i] for i in kept], [bids[i] for i in kept]
    rows = catalogue.rows_of(ad_ids)
    filled = np.array(bids, dtype=np.float64)  # None becomes NaN
    requested = ~np.isnan(filled)
    if not requested.all():
        missing = ~requested & (rows != UNKNOWN_AD)
        filled[missing] = catalogue.default_bid[rows[missing]]
    return Candidates(ad_ids, rows, filled, requested, dropped)
