"""Where a request is ranked. It knows no transport: a typed request goes in, an answer or a coded refusal comes out.

Legend: N candidates after duplicates are dropped, K output columns.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from contracts.bodies import BodyError, Candidate, ModelRef, RankRequest, RankResponse, canonical_id
from contracts.embedding import HistoryRecord
from contracts.errors import GemError
from contracts.features import HistoryBatch, in_order, user_bucket, user_inputs
from serving.artifact import Model
from serving.candidates import resolve
from serving.catalogue import LiveCatalogue
from serving.context import Clock, Context, read_context
from serving.freshness import MaxAges, cover_pairs, judge
from serving.results import rank_results
from serving.store import MISSING, EmbeddingStore

STRICT_STATUSES = ("fresh", "stale")
DEADLINE_EXCEEDED = "deadline_exceeded"


class EmbeddingRequiredError(GemError):
    """A strict request whose embedding is neither fresh nor stale."""

    code, pointer = "embedding_required", "/strict"


@dataclass(frozen=True, slots=True)
class Ranked:
    """The answer and what the logs keep of how it came about. Times are seconds; probabilities [N, K] and scores [N]
    stand in the order of `ad_ids`."""

    response: RankResponse
    model: Model
    catalogue_version: str
    user_id: str
    now_ms: int
    ad_ids: list[str]
    inputs: Mapping[str, np.ndarray]
    probabilities: np.ndarray
    scores: np.ndarray
    store_s: float
    infer_s: float


class Ranker:
    """Ranks for every surface that has a model. `now_ms` is the server's clock."""

    def __init__(
        self,
        *,
        models: Mapping[str, Model],
        store: EmbeddingStore,
        catalogue: LiveCatalogue,
        ages: MaxAges,
        clock: Clock,
        deadline_s: float,
        now_ms: Callable[[], int],
    ) -> None:
        self.models, self.store, self.catalogue = models, store, catalogue
        self._ages, self._clock, self._deadline_s, self._now_ms = ages, clock, deadline_s, now_ms

    async def rank(self, request: RankRequest, *, request_id: str, started: float) -> Ranked:
        """One call down, one return up. `started` is the perf_counter time from which the deadline counts.

        Raises BodyError (the request cannot be ranked) and EmbeddingRequiredError (strict); nothing that the store
        does raises.
        """
        model = self._route(request.surface)
        user_id = canonical_id(request.user_id, pointer="/user_id")
        context = read_context(request.context, model.context_features, clock=self._clock, server_ms=self._now_ms())
        catalogue = self.catalogue.current
        candidates = resolve(request, catalogue, max_candidates=model.manifest.max_candidates)
        n = len(candidates.ad_ids)
        deadline = started + (request.deadline_ms / 1000 if request.deadline_ms is not None else self._deadline_s)

        before = time.perf_counter()
        space = model.manifest.space
        left_s = deadline - before
        budget_s = max(left_s - model.scorer.estimate_s(n), left_s / 2)
        reading = await self.store.read(space, user_id, budget_s=budget_s)
        store_s = time.perf_counter() - before
        hashes = catalogue.hashes_of(candidates.ad_ids, candidates.rows) if reading.pairs is not None else None
        pairs = cover_pairs(reading, self._ages, now_ms=context.now_ms, ad_hashes=hashes, total=n)
        embedding = judge(reading, self._ages, space=space, now_ms=context.now_ms, pairs=pairs)
        if request.strict and embedding.info.status not in STRICT_STATUSES:
            reasons = ", ".join(embedding.degraded)
            raise EmbeddingRequiredError(f"the embedding is {embedding.info.status} ({reasons}); try again later")

        user_side = _user_side(model, request.surface, user_id, context, embedding.history)
        inputs = in_order(model.spec, user_side | catalogue.table.rows(candidates.rows))
        before = time.perf_counter()
        probabilities = await model.scorer.score(inputs, n) if n else np.zeros((0, model.chains.shape[1]), np.float32)
        infer_s = time.perf_counter() - before

        results, value = rank_results(request, model, catalogue, candidates, probabilities)
        degraded = embedding.degraded
        if time.perf_counter() > deadline:
            degraded = [*degraded, DEADLINE_EXCEEDED]
        response = RankResponse(
            request_id=request_id,
            surface=request.surface,
            model=ModelRef(model.manifest.name, model.manifest.version),
            embedding=embedding.info,
            degraded=degraded,
            results=results,
            dropped=candidates.dropped,
        )
        return Ranked(
            response=response,
            model=model,
            catalogue_version=catalogue.version,
            user_id=user_id,
            now_ms=context.now_ms,
            ad_ids=candidates.ad_ids,
            inputs=inputs,
            probabilities=probabilities,
            scores=value.score,
            store_s=store_s,
            infer_s=infer_s,
        )

    async def canary(self) -> list[str]:
        """Rank one ad with every model on the real path; the reasons why answers are degraded now.

        Raises whatever keeps a model from ranking.
        """
        ad_id = next(iter(self.catalogue.current.rows), "canary")
        reasons: dict[str, None] = {}
        for surface in {model.label: surface for surface, model in self.models.items()}.values():
            request = RankRequest(surface=surface, user_id="canary", candidates=[Candidate(ad_id)])
            ranked = await self.rank(request, request_id="canary", started=time.perf_counter())
            if ranked.response.results[0].status == "not_finite":
                raise GemError(f"model {ranked.model.label} gives a score that is not finite")
            reasons |= dict.fromkeys(ranked.response.degraded)
        # nobody publishes an embedding for the canary: that it is missing says nothing about the service
        return [reason for reason in reasons if reason != MISSING]

    def _route(self, surface: str) -> Model:
        model = self.models.get(surface)
        if model is None:
            detail = f"no model serves surface {surface!r}; these are served: {', '.join(sorted(self.models))}"
            raise BodyError("unknown_surface", detail, "/surface")
        return model


def _user_side(
    model: Model, surface: str, user_id: str, context: Context, history: HistoryRecord | None
) -> dict[str, np.ndarray]:
    """Inputs of the user side, B = 1."""
    spec = model.spec
    return user_inputs(
        spec,
        user_buckets=np.array([user_bucket(spec.schema, user_id)]),
        surfaces=np.array([spec.schema.surface_code(surface)]),
        now_ms=np.array([context.now_ms]),
        context=context.columns,
        history=HistoryBatch.from_record(history, spec=spec, now_ms=context.now_ms) if spec.history_length else None,
    )
