"""Where the jobs run: read once in a command's main and passed down."""

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.errors import InputError

MIN_RETIRED_TTL_S = 3_600
"""A retired generation lives an hour at least: time to see that the new one is bad."""


class PrecomputeSettings(BaseSettings):
    """Environment variables with the prefix GEM_."""

    model_config = SettingsConfigDict(env_prefix="GEM_", extra="ignore", frozen=True)

    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Redis or Valkey that holds the records; rediss:// for TLS, user and password inside the URL."""

    redis_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds that a job waits for one answer before it tries again."""

    retired_ttl_s: int = Field(default=7_200, ge=MIN_RETIRED_TTL_S)
    """How long a retired generation is kept for a rollback."""


def read_settings(redis_url: str | None = None) -> PrecomputeSettings:
    """Settings of the environment, with the URL of the command line if one is given; InputError names a bad one."""
    try:
        settings = PrecomputeSettings()
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        name = "GEM_" + "_".join(str(part) for part in first["loc"]).upper()
        raise InputError(f"{name}: {first['msg']}; mend the environment variable") from error
    return settings if redis_url is None else settings.model_copy(update={"redis_url": SecretStr(redis_url)})
