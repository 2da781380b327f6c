"""Prometheus metrics of one process: prefix gem_, base units, bounded labels, no ids. Served on a port of their own."""

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from contracts.errors import InputError
from serving.artifact import Model
from serving.catalogue import Catalogue
from serving.ranker import Ranked

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)
CANDIDATES = (1, 10, 50, 100, 200, 500, 1000)
AGES_S = (60, 600, 3_600, 6 * 3_600, 86_400, 3 * 86_400, 7 * 86_400)


class Telemetry:
    """The metric families. Label values come from manifests, problem codes and fixed lists, so series are bounded."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "gem_requests_total", "Rank requests.", ["surface", "model", "outcome"], registry=registry
        )
        self._duration = Histogram(
            "gem_request_duration_seconds", "Time to answer.", ["surface"], buckets=SECONDS, registry=registry
        )
        self._stage = Histogram(
            "gem_stage_duration_seconds", "Time by stage.", ["stage"], buckets=SECONDS, registry=registry
        )
        self._candidates = Histogram("gem_candidates", "Candidates ranked.", buckets=CANDIDATES, registry=registry)
        self._dropped = Counter("gem_dropped_candidates_total", "Candidates dropped.", ["reason"], registry=registry)
        self._lookups = Counter(
            "gem_embedding_lookups_total", "Embedding reads.", ["source", "status"], registry=registry
        )
        self._age = Histogram("gem_embedding_age_seconds", "Age of embeddings.", buckets=AGES_S, registry=registry)
        self._degraded = Counter("gem_degraded_total", "Reasons of degraded answers.", ["reason"], registry=registry)
        self._store_up = Gauge(
            "gem_store_up", "The last poll of the store came through.", registry=registry, multiprocess_mode="livemin"
        )
        self._breaker = Gauge(
            "gem_store_breaker_open", "Requests skip the store.", registry=registry, multiprocess_mode="livemax"
        )
        self._models = Gauge(
            "gem_model_info",
            "Models that serve.",
            ["surface", "model", "version", "space"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._catalogue = Gauge(
            "gem_catalogue_info", "The catalogue.", ["version"], registry=registry, multiprocess_mode="livemax"
        )
        self._catalogue_updated = Gauge(
            "gem_catalogue_updated_timestamp_seconds",
            "Newest row of the catalogue.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._reloads = Counter("gem_catalogue_reloads_total", "Catalogue reloads.", ["result"], registry=registry)
        self._logged = Gauge(
            "gem_feature_log_rows", "Feature log rows.", ["result"], registry=registry, multiprocess_mode="sum"
        )
        self._named_catalogue: str | None = None
        # a labels() call costs a lock and a sort; a request makes ten
        self._child = lru_cache(maxsize=512)(lambda family, *values: family.labels(*values))

    def answered(self, ranked: Ranked, *, took_s: float) -> None:
        """Count an answer."""
        response, child = ranked.response, self._child
        outcome = "degraded" if response.degraded else "ok"
        child(self._requests, response.surface, response.model.name, outcome).inc()
        child(self._duration, response.surface).observe(took_s)
        child(self._stage, "embed").observe(ranked.store_s)
        child(self._stage, "infer").observe(ranked.infer_s)
        self._candidates.observe(len(ranked.ad_ids))
        embedding = response.embedding
        child(self._lookups, embedding.source, embedding.status).inc()
        if embedding.age_s is not None:
            self._age.observe(embedding.age_s)
        for reason in response.degraded:
            child(self._degraded, reason).inc()
        if response.dropped:
            child(self._dropped, "duplicate").inc(len(response.dropped))

    def refused(self, code: str) -> None:
        """Count a problem by its code."""
        self._child(self._requests, "", "", code).inc()

    def serves(self, models: Mapping[str, Model]) -> None:
        """Name the models that serve."""
        for surface, model in models.items():
            self._models.labels(surface, model.manifest.name, model.manifest.version, model.manifest.space).set(1)

    def catalogue(self, catalogue: Catalogue, *, reloaded: bool | None = None) -> None:
        """Name the catalogue; `reloaded` counts an attempt to replace it. The version before it goes to 0: files of
        several workers can take no series back."""
        if reloaded is not None:
            self._reloads.labels("ok" if reloaded else "refused").inc()
        if self._named_catalogue not in (None, catalogue.version):
            self._catalogue.labels(self._named_catalogue).set(0)
        self._named_catalogue = catalogue.version
        self._catalogue.labels(catalogue.version).set(1)
        self._catalogue_updated.set(catalogue.updated_ms / 1000)

    def store(self, *, up: bool, breaker_open: bool) -> None:
        """State of the embedding store after a poll."""
        self._store_up.set(up)
        self._breaker.set(breaker_open)

    def feature_log(self, *, written: int, dropped: int) -> None:
        """Rows of the feature log so far."""
        self._logged.labels("written").set(written)
        self._logged.labels("dropped").set(dropped)


def serve_metrics(registry: CollectorRegistry, *, host: str, port: int) -> None:
    """Serve /metrics from a thread of its own, so that scrapes never queue behind ranking."""
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise InputError(
            f"GEM_METRICS_PORT: {host}:{port} cannot be bound ({error.strerror}); free it or set 0"
        ) from error


def single_process(telemetry: Telemetry) -> CollectorRegistry:
    """The registry to serve where one process does all the work: with its CPU, memory and file descriptors."""
    ProcessCollector(registry=telemetry.registry)
    return telemetry.registry


def all_workers(folder: str) -> CollectorRegistry:
    """The registry to serve where several workers write their values into files of `folder`: their sums."""
    registry = CollectorRegistry()
    registry.register(LivingWorkers(folder))
    return registry


class LivingWorkers:
    """The workers' values in `folder`, without the gauges of workers that have died: those would stay as they were."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._files = MultiProcessCollector(None, path=folder)

    def collect(self) -> Iterable[Metric]:
        """Forget the dead, then sum."""
        pids = {path.stem.rsplit("_", 1)[1] for path in self._folder.glob("gauge_live*.db")}
        for pid in pids:
            if not _is_alive(int(pid)):
                mark_process_dead(pid, self._folder)
        return self._files.collect()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
