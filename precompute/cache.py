"""The cache that serving reads: a connection for jobs, and the writes of records.

Records are derived from the representation log and from nothing else, so every write may be repeated: the script keeps
the newest and answers what it did. What a job needs to know of generations stands in `generations`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.retry import Retry

from contracts.errors import GemError, InputError
from contracts.keys import history_key, meta_key, space_dim
from contracts.quantiser import Quantiser
from precompute.scripts import CREATED, REFUSED, REPLACED, SET_RECORD, UNCHANGED
from precompute.settings import PrecomputeSettings

CONNECT_S, RETRIES = 2.0, 8
"""A server that restarts or fails over is back within the backoff of 8 retries, about 10 s."""


@dataclass(frozen=True)
class Written:
    """What became of records: new, replaced, equal to the stored bytes, or refused because a newer one stands there."""

    created: int = 0
    replaced: int = 0
    unchanged: int = 0
    refused: int = 0

    def __add__(self, other: "Written") -> "Written":
        return Written(
            self.created + other.created,
            self.replaced + other.replaced,
            self.unchanged + other.unchanged,
            self.refused + other.refused,
        )

    @property
    def records(self) -> int:
        return self.created + self.replaced + self.unchanged + self.refused


@contextmanager
def connected(settings: PrecomputeSettings) -> Iterator[redis.Redis]:
    """A client for a job: it waits, retries with jitter, and reads bytes.

    InputError when the server cannot be reached at the start (nothing was begun); GemError when it fails later.
    """
    url = settings.redis_url.get_secret_value()
    name = redacted(url)
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=CONNECT_S, retry=Retry(NoBackoff(), 0)) as probe:
            probe.ping()
    except (TypeError, ValueError):  # an option behind the "?" that the client does not know or cannot use
        raise InputError(f"the URL of {name} has a wrong option behind its '?'; mend GEM_REDIS_URL") from None
    except redis.RedisError as error:
        raise InputError(
            f"cannot reach Valkey at {name} ({_line(error)}); start it (python -m precompute.valkey) or mend "
            "GEM_REDIS_URL"
        ) from error
    retry = Retry(ExponentialWithJitterBackoff(base=0.1, cap=2.0), RETRIES)
    client = redis.Redis.from_url(
        url, socket_connect_timeout=CONNECT_S, socket_timeout=settings.redis_timeout_s, retry=retry
    )
    with client, explained(name):
        yield client


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn what the server or the connection says into one sentence (GemError)."""
    kept = "the live generation is untouched, run the command again"
    try:
        yield
    except OutOfMemoryError as error:
        raise GemError(f"Valkey at {name} is at its maxmemory; raise it or free memory; {kept}") from error
    except ReadOnlyError as error:
        raise GemError(f"Valkey at {name} is a replica; point GEM_REDIS_URL at the primary; {kept}") from error
    except redis.RedisError as error:
        raise GemError(f"Valkey at {name} failed midway ({_line(error)}); {kept}") from error


class RecordWriter:
    """Writes history records of one space: pipelined, each a compare-and-set of one key."""

    def __init__(self, client: redis.Redis, space: str) -> None:
        self._client, self._space = client, space
        self._sha = str(client.script_load(SET_RECORD))

    def write(self, generation: str, records: Sequence[tuple[str, bytes]], *, expires_ms: int | None) -> Written:
        """Set (user id, bytes) records of a generation that lives for ever or until `expires_ms`."""
        expires = expires_ms or 0
        keys = [history_key(self._space, generation, user) for user, _ in records]
        commands = [("EVALSHA", self._sha, 1, key, blob, expires) for key, (_, blob) in zip(keys, records, strict=True)]
        outcomes = Counter(self._run(commands))
        return Written(outcomes[CREATED], outcomes[REPLACED], outcomes[UNCHANGED], outcomes[REFUSED])

    def read(self, generation: str, users: Sequence[str]) -> list[tuple[bytes | None, int]]:
        """Stored bytes and remaining life (ms, -1: no end) of each user's record."""
        commands: list[tuple[Any, ...]] = []
        for user in users:
            key = history_key(self._space, generation, user)
            commands += [("GET", key), ("PTTL", key)]
        replies = self._run(commands)
        return list(zip(replies[::2], replies[1::2], strict=True))

    def _run(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Replies of one pipeline; a server that forgot the script (restart, SCRIPT FLUSH) is taught it again."""
        for attempt in range(3):
            with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                replies = pipeline.execute(raise_on_error=False)
            errors = [reply for reply in replies if isinstance(reply, Exception)]
            if not errors:
                return replies
            if attempt == 2 or not isinstance(errors[0], NoScriptError):
                raise errors[0]
            self._client.script_load(SET_RECORD)
        raise ResponseError("unreachable")


class SpaceMeta:
    """What the space's meta key says of its quantiser. A reader with other centres takes no record of the space, so the
    key changes before the first generation with new ones goes live."""

    def __init__(self, client: redis.Redis, space: str, quantiser: Quantiser) -> None:
        self._client, self._key = client, meta_key(space)
        self._text = json.dumps({**quantiser.to_json(), "dim": space_dim(space), "version": quantiser.version})

    def declare(self) -> None:
        """Say it, whatever another log of this space said before."""
        self._client.set(self._key, self._text)

    def declare_if_absent(self) -> None:
        """Say it where nobody has: the space was published before there was this key, or the key was lost."""
        self._client.set(self._key, self._text, nx=True)


def redacted(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    host = f"{parts.hostname or ''}:{parts.port}" if parts.port else (parts.hostname or "")
    return f"{parts.scheme}://{host}{parts.path}"


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
