"""From probabilities to an order: the ad's own objective, its bid, and a total, deterministic ranking.

Legend: N candidates, K output columns, T tasks of the schema.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.bodies import CandidateStatus

OK, UNKNOWN_AD, NO_BID, NOT_FINITE = range(4)
STATUSES: tuple[CandidateStatus, ...] = ("ok", "unknown_ad", "no_bid", "not_finite")
"""Candidates of the first two are ranked by score; the others have score 0 and stand at the end."""


@dataclass(frozen=True, slots=True)
class Utility:
    """Of N candidates: p and score float64, finite; status codes int64. Without a bid or a finite p, score is 0."""

    p: np.ndarray
    score: np.ndarray
    status: np.ndarray


def chain_probability(probabilities: np.ndarray, chains: np.ndarray, objective: np.ndarray) -> np.ndarray:
    """P(objective) of each candidate: float64 [N].

    probabilities [N, K] are conditional on the parent task, chains [T, K] says which columns multiply, objective [N]
    is each candidate's row of it.
    """
    return np.where(chains[objective], probabilities.astype(np.float64), 1.0).prod(axis=1)


def utility(p: np.ndarray, bids: np.ndarray, *, ecpm: bool, known: np.ndarray) -> Utility:
    """What each candidate is worth. p and bids are float64 [N], a NaN bid means none; known: ads of the catalogue."""
    finite = np.isfinite(p)
    p = np.where(finite, p, 0.0)
    status = np.where(known, OK, UNKNOWN_AD)
    score = p
    if ecpm:
        status[np.isnan(bids)] = NO_BID
        score = np.where(status == NO_BID, 0.0, bids) * p
    status[~finite] = NOT_FINITE
    return Utility(p, score, status)


def rank_order(value: Utility, bids: np.ndarray, ad_ids: Sequence[str]) -> list[int]:
    """Positions from best to worst: ranked candidates first, then by score, bid (none counts as 0) and ad id.

    Ids compare by their UTF-8 bytes, which is the order of Python's strings. Where every score differs, as nearly
    always, scores alone decide.
    """
    order = np.argsort(-value.score)
    ordered = value.score[order]
    if (ordered[1:] != ordered[:-1]).all() and (value.status < NO_BID).all():
        return order.tolist()
    return reference_order(value, np.where(np.isnan(bids), 0.0, bids), ad_ids)


def reference_order(value: Utility, bids: np.ndarray, ad_ids: Sequence[str]) -> list[int]:
    """As `rank_order`, by sorting tuples; bids without NaN."""
    columns = (value.status >= NO_BID).tolist(), (-value.score).tolist(), (-bids).tolist(), ad_ids
    return [row[-1] for row in sorted(zip(*columns, range(len(ad_ids)), strict=True))]
