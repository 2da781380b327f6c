"""Published embeddings, and the app in process with a transport."""

import asyncio
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import redis

from contracts.embedding import HistoryRecord, PairRecord, decode_history, encode_history, encode_pair
from contracts.hashing import stable_hashes
from contracts.keys import history_key, live_key, pair_key, watermark_key
from serving.app import create_app
from serving.service import Service, build
from serving.settings import Settings
from tests.serving.small_student import DIM, GENERATION, SPACE, write_artifact, write_catalogue


@dataclass(frozen=True)
class Cache:
    """Writes records as the publisher does."""

    client: redis.Redis

    def go_live(self, *, generation: str = GENERATION, watermark_ms: int | None = None) -> None:
        self.client.set(live_key(SPACE), generation)
        if watermark_ms is not None:
            self.client.set(watermark_key(SPACE, generation), watermark_ms)

    def publish(
        self, user_id: str, *, computed_ms: int, elements: int = 3, generation: str = GENERATION, dim: int = DIM
    ) -> HistoryRecord:
        record = make_history(computed_ms=computed_ms, elements=elements, dim=dim)
        blob = encode_history(record, user_id=user_id)
        self.client.set(history_key(SPACE, generation, user_id), blob)
        return decode_history(blob, user_id=user_id)

    def publish_pairs(self, user_id: str, ad_ids: list[str], *, computed_ms: list[int]) -> None:
        rng = np.random.default_rng(1)
        record = PairRecord(
            ad_hash=stable_hashes(ad_ids),
            vectors=rng.uniform(-1, 1, (len(ad_ids), DIM)).astype(np.float32),
            pair_computed_ms=np.array(computed_ms),
            user_vector=np.zeros(DIM, np.float32),
            computed_ms=max(computed_ms),
            log_offset=1,
        )
        self.client.set(pair_key(SPACE, GENERATION, user_id), encode_pair(record, user_id=user_id))


def make_history(*, computed_ms: int, elements: int = 3, dim: int = DIM) -> HistoryRecord:
    rng = np.random.default_rng(elements)
    return HistoryRecord(
        vectors=rng.uniform(-1, 1, (elements, dim)).astype(np.float32),
        event_ms=computed_ms - 60_000 * np.arange(elements, 0, -1, dtype=np.int64),
        impressions=elements + 7,
        computed_ms=computed_ms,
        log_offset=17,
    )


@dataclass
class Client:
    """The app in process. `poll` is what the background does every second."""

    service: Service
    runner: asyncio.Runner
    http: httpx.AsyncClient

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.runner.run(self.http.request(method, path, **options))

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def rank(self, body: Any, **headers: str) -> httpx.Response:
        return self.request("POST", "/v1/rank", json=body, headers=headers)

    def send(self, content: bytes, **headers: str) -> httpx.Response:
        return self.request("POST", "/v1/rank", content=content, headers={"content-type": "application/json"} | headers)

    def poll(self) -> None:
        self.runner.run(self.service._tend())


def body(**changes: Any) -> dict[str, Any]:
    """A small valid request."""
    return {"surface": "feed", "user_id": "u1", "candidates": [{"ad_id": "a1"}, {"ad_id": "a2", "bid": 2.5}]} | changes


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with one artifact for all surfaces. Read only."""
    root = tmp_path_factory.mktemp("artifacts")
    write_artifact(root)
    return root


@pytest.fixture(scope="session")
def catalogue_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalogue of 1,200 ads. Read only."""
    return write_catalogue(tmp_path_factory.mktemp("catalogue") / "catalog.arrow")


@pytest.fixture
def make_settings(artifacts: Path, catalogue_path: Path) -> Callable[..., Settings]:
    """Settings of a server under test; keyword arguments override."""

    def make(**changes: Any) -> Settings:
        defaults = {
            "models": artifacts,
            "catalog": catalogue_path,
            "redis_url": "redis://127.0.0.1:1/0",  # nobody listens there
            "metrics_port": 0,
            "store_timeout_ms": 200,  # the test machine may be busy
            "deadline_ms": 5000,
            "log_rate": 0,
        }
        return Settings(_env_file=None, **{**defaults, **changes})

    return make


@pytest.fixture
def open_client(make_settings: Callable[..., Settings]) -> Iterator[Callable[..., Client]]:
    """Opens clients of apps of their own: open_client(redis_url=..., clock=...)."""
    closing: list[tuple[Client, Any]] = []

    def open_one(**changes: Any) -> Client:
        service = build(make_settings(**changes), stream=io.StringIO())
        app = create_app(service)
        runner = asyncio.Runner()
        context = app.router.lifespan_context(app)
        runner.run(context.__aenter__())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        client = Client(service, runner, httpx.AsyncClient(transport=transport, base_url="http://gem"))
        closing.append((client, context))
        return client

    yield open_one
    for client, context in closing:
        client.runner.run(client.http.aclose())
        client.runner.run(context.__aexit__(None, None, None))
        client.runner.close()


@pytest.fixture
def cache(valkey: redis.Redis) -> Cache:
    """The embedding cache of the test space, empty."""
    return Cache(valkey)


@pytest.fixture
def client(open_client: Callable[..., Client], valkey_url: str, cache: Cache) -> Client:
    """An app on an empty cache whose generation is live; its clock is the request's."""
    cache.go_live()
    return open_client(redis_url=valkey_url, clock="request")
