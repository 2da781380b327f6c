"""Where and how the server runs: environment variables with the prefix GEM_, read once at the start and passed down."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from redis.asyncio.connection import parse_url

from contracts.errors import InputError


class Settings(BaseSettings):
    """Settings of the ranking service. URLs are secrets: they may hold a password and are redacted everywhere."""

    model_config = SettingsConfigDict(
        env_prefix="GEM_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    models: Path
    """Folder of artifacts `<name>/<version>/` (the newest version of each name serves), or one artifact."""
    catalog: Path
    """The ad catalogue: an Arrow IPC file, reloaded when it changes."""
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Valkey or Redis with the embeddings."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    workers: int = Field(1, ge=1, le=64)
    """Server processes that share the port."""
    metrics_port: int = Field(9464, ge=0, le=65535)
    """Port of /metrics, the only place of metrics; 0 turns them off."""
    clock: Literal["server", "request"] = "server"
    """`server` refuses a context.timestamp_ms more than five minutes off; `request` trusts it (replays, demo)."""
    fresh_s: float = Field(3_600, gt=0)
    """An embedding up to this age, in seconds, is fresh."""
    stale_s: float = Field(86_400, gt=0)
    """Up to this age it is stale but used; beyond, it is expired and not used."""
    deadline_ms: float = Field(50, gt=0)
    """Time for an answer where the request names none."""
    store_timeout_ms: float = Field(20, gt=0)
    """Longest wait for the embedding store in one request."""
    store_connections: int = Field(32, ge=1)
    """Connections to the store of each process; a request waits for a free one within its store timeout."""
    body_limit_bytes: int = Field(1 << 20, ge=1024)
    """Larger request bodies are refused with 413."""
    intra_op_threads: int = Field(1, ge=1)
    """Threads of one inference."""
    inline_rows: int = Field(256, ge=0)
    """Up to so many candidates are scored on the event loop (a thread hop costs more), longer lists on a thread."""
    feature_log: Path | None = None
    """Folder for the exact model inputs of a sampled share of requests, as Parquet; unset: none are kept."""
    feature_log_rate: float = Field(0.01, ge=0, le=1)
    """Share of requests whose inputs are kept."""
    log_rate: float = Field(1.0, ge=0, le=1)
    """Share of answered requests that get a line in the log; refusals by the server (5xx) always do."""
    shutdown_grace_s: int = Field(10, ge=0)
    """After SIGTERM, requests in flight get this long to finish."""

    @field_validator("redis_url")
    @classmethod
    def _known_scheme(cls, url: SecretStr) -> SecretStr:
        try:
            parse_url(url.get_secret_value())
        except ValueError:
            raise ValueError("must be a redis://, rediss:// or unix:// URL") from None
        return url


def load_settings() -> Settings:
    """The settings of this process; InputError names each variable that is missing or wrong, never its value."""
    try:
        settings = Settings()  # type: ignore[call-arg]  # the environment fills the fields
    except ValidationError as error:
        faults = (f"GEM_{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in error.errors())
        raise InputError(f"settings: {'; '.join(faults)}; see .env.example") from None
    if settings.stale_s < settings.fresh_s:
        raise InputError("settings: GEM_STALE_S is below GEM_FRESH_S; an embedding is fresh first and stale later")
    return settings
