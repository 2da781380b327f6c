"""The parts of a server put together: built from the settings, tended in the background, closed at the end."""

import asyncio
import gc
import logging
import random
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from contracts.errors import InputError
from contracts.quantiser import Quantiser
from serving.artifact import Model, load_models
from serving.catalogue import Catalogue, LiveCatalogue, load_catalogue
from serving.feature_log import FeatureLog
from serving.freshness import MaxAges
from serving.logs import LineWriter, RequestLog
from serving.ranker import Ranker
from serving.settings import Settings
from serving.store import EmbeddingStore
from serving.telemetry import Telemetry

POLL_S = 1.0
"""Live generation, watermark and catalogue file are looked at this often, off the request path."""
log = logging.getLogger(__name__)


@dataclass
class Service:
    """Everything that one worker process holds."""

    settings: Settings
    ranker: Ranker
    telemetry: Telemetry
    writer: LineWriter
    request_log: RequestLog
    feature_log: FeatureLog | None
    executor: ThreadPoolExecutor
    _tending: asyncio.Task[None] | None = field(default=None, init=False)

    async def start(self) -> None:
        """Look at the store once, so that the first request finds the live generation, and keep looking."""
        self.writer.start()
        await self._tend()
        self._tending = asyncio.create_task(self._keep_tending())
        gc.collect()
        gc.freeze()  # models and catalogue live as long as the process: the collector need not walk them

    async def close(self) -> None:
        """Stop, and write what is buffered."""
        if self._tending is not None:
            self._tending.cancel()
        await self.ranker.store.close()
        if self.feature_log is not None:
            self.feature_log.flush()
        self.executor.shutdown()
        self.writer.close()

    async def _keep_tending(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._tend()
            except Exception:  # the loop must outlive any surprise, and say so
                log.exception("background poll failed")

    async def _tend(self) -> None:
        store, catalogue = self.ranker.store, self.ranker.catalogue
        up = await store.poll()
        self.telemetry.store(up=up, breaker_open=store.breaker.is_open)
        self.telemetry.catalogue(catalogue.current, reloaded=await catalogue.poll())
        if self.feature_log is not None:
            self.telemetry.feature_log(written=self.feature_log.written, dropped=self.feature_log.dropped)


def build(settings: Settings, *, stream: TextIO) -> Service:
    """A service that is ready to start: artifacts verified and warmed, catalogue loaded. InputError where not.

    `stream` takes the logs.
    """
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scorer")
    models = load_models(
        settings.models,
        intra_op_threads=settings.intra_op_threads,
        inline_rows=settings.inline_rows,
        executor=executor,
    )
    telemetry, writer = Telemetry(), LineWriter(stream)
    feature_log = None
    if settings.feature_log is not None:
        feature_log = FeatureLog(settings.feature_log, rate=settings.feature_log_rate, random=random.random)
    ranker = Ranker(
        models=models,
        store=EmbeddingStore(
            settings.redis_url.get_secret_value(),
            quantisers_of(models.values()),
            connections=settings.store_connections,
            timeout_s=settings.store_timeout_ms / 1000,
        ),
        catalogue=LiveCatalogue(settings.catalog, lambda path: _fitting_catalogue(path, models)),
        ages=MaxAges(settings.fresh_s, settings.stale_s),
        clock=settings.clock,
        deadline_s=settings.deadline_ms / 1000,
        now_ms=lambda: time.time_ns() // 1_000_000,
    )
    telemetry.serves(models)
    return Service(
        settings=settings,
        ranker=ranker,
        telemetry=telemetry,
        writer=writer,
        request_log=RequestLog(writer, rate=settings.log_rate, random=random.random),
        feature_log=feature_log,
        executor=executor,
    )


def quantisers_of(models: Iterable[Model]) -> dict[str, Quantiser]:
    """The quantiser of each space that the models read; InputError when two of them decode one space differently."""
    readers: dict[str, Model] = {}
    for model in models:
        first = readers.setdefault(model.manifest.space, model)
        if first.quantiser != model.quantiser:
            raise InputError(
                f"GEM_MODELS: {first.label} and {model.label} read space {model.manifest.space} with other centres; "
                "keep those that were trained on the log that is published"
            )
    return {space: model.quantiser for space, model in readers.items()}


def _fitting_catalogue(path: Path, models: Mapping[str, Model]) -> Catalogue:
    """The catalogue, if every model reads its schema and predicts every objective in it."""
    first, *others = models.values()
    catalogue = load_catalogue(path, first.spec.schema)
    for model in (first, *others):
        if model.manifest.schema_fingerprint != first.manifest.schema_fingerprint:
            raise InputError(
                f"GEM_MODELS: {first.label} and {model.label} read different schemas; one catalogue has one"
            )
        lacking = [model.spec.schema.tasks[code].name for code in catalogue.objectives if not model.chains[code].any()]
        if lacking:
            raise InputError(f"GEM_CATALOG: {path} has ads with objectives {lacking}, which {model.label} lacks")
    return catalogue
