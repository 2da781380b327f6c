"""Results of a request: utilities ordered, cut to top_k and, where asked for, explained."""

from collections.abc import Sequence

import numpy as np

from contracts.bodies import BidSource, Explanation, RankRequest, Result
from serving.artifact import Model
from serving.candidates import Candidates
from serving.catalogue import Catalogue
from serving.objective import STATUSES, Utility, chain_probability, rank_order, utility


def rank_results(
    request: RankRequest, model: Model, catalogue: Catalogue, candidates: Candidates, probabilities: np.ndarray
) -> tuple[list[Result], Utility]:
    """The first `top_k` results, best first, and the utility of all candidates in their own order.

    probabilities [N, K] as the model gives them. An unknown ad is taken for one of the default objective.
    """
    known = candidates.known
    objective = np.full(len(known), model.default_objective)
    objective[known] = catalogue.objective[candidates.rows[known]]
    p = chain_probability(probabilities, model.chains, objective)
    value = utility(p, candidates.bids, ecpm=request.objective == "ecpm", known=known)
    order = rank_order(value, candidates.bids, candidates.ad_ids)[: request.top_k]
    ids, scores, chances, codes = candidates.ad_ids, value.score.tolist(), value.p.tolist(), value.status.tolist()
    if not request.explain:
        results = [Result(ids[i], rank, scores[i], chances[i], STATUSES[codes[i]]) for rank, i in enumerate(order, 1)]
        return results, value
    reasons = _explain(model, candidates, probabilities, objective, order)
    results = [
        Result(ids[i], rank, scores[i], chances[i], STATUSES[codes[i]], reason)
        for rank, (i, reason) in enumerate(zip(order, reasons, strict=True), 1)
    ]
    return results, value


def _explain(
    model: Model, candidates: Candidates, probabilities: np.ndarray, objective: np.ndarray, order: Sequence[int]
) -> list[Explanation]:
    names, bids = [task.name for task in model.spec.schema.tasks], candidates.bids.tolist()
    finite = np.where(np.isfinite(probabilities), probabilities, 0.0).tolist()
    reasons = []
    for i in order:
        bid = bids[i] if bids[i] == bids[i] else None
        source: BidSource = "request" if candidates.requested[i] else "none" if bid is None else "catalogue"
        tasks = dict(zip(model.manifest.tasks, finite[i], strict=True))
        reasons.append(Explanation(tasks=tasks, objective=names[objective[i]], bid=bid, bid_source=source))
    return reasons
