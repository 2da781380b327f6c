"""Where the jobs run: read once in a command's main and passed down."""

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from redis.connection import parse_url

from contracts.errors import InputError

EXAMPLE_URL = "redis://127.0.0.1:6379/0"
MIN_RETIRED_TTL_S = 3_600
"""A retired generation lives an hour at least: time to see that the new one is bad."""


class PrecomputeSettings(BaseSettings):
    """Environment variables with the prefix GEM_, or lines of .env as the server reads them."""

    model_config = SettingsConfigDict(
        env_prefix="GEM_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    redis_url: SecretStr = SecretStr(EXAMPLE_URL)
    """Redis or Valkey that holds the records; rediss:// for TLS, user and password inside the URL."""

    redis_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds that a job waits for one answer before it tries again."""

    retired_ttl_s: int = Field(default=7_200, ge=MIN_RETIRED_TTL_S)
    """How long a retired generation is kept for a rollback."""

    @field_validator("redis_url")
    @classmethod
    def _a_redis_url(cls, url: SecretStr) -> SecretStr:
        """Refuse what the client cannot read, without a word of it: it may hold a password."""
        text = url.get_secret_value()
        try:
            parse_url(text)
            parts = urlsplit(text)
        except ValueError:
            raise ValueError(f"is no Redis URL; one looks like {EXAMPLE_URL}") from None
        if "@" in parts.path + parts.query + parts.fragment:
            raise ValueError("has an @ behind its host; write / ? # @ of a password as %2F %3F %23 %40") from None
        return url


def read_settings(redis_url: str | None = None) -> PrecomputeSettings:
    """Settings of the environment, with the URL of the command line if one is given; InputError names a bad one, never
    its value."""
    try:
        return PrecomputeSettings() if redis_url is None else PrecomputeSettings(redis_url=SecretStr(redis_url))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        field = str(first["loc"][0])
        name = "--redis-url" if field == "redis_url" and redis_url is not None else f"GEM_{field.upper()}"
        said = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{name}: {said}; mend it (option, environment or .env)") from None
