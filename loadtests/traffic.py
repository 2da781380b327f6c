"""Who asks for what: users by a Zipf law, candidates at random, all from a seed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.errors import InputError

ZIPF_EXPONENT = 1.1
"""Share of the r-th most active user is proportional to r^-1.1: a few users make much of the traffic."""
GENERATED_USERS, GENERATED_ADS = 10_000, 5_000


@dataclass(frozen=True)
class Population:
    """The ids that requests draw from."""

    users: Sequence[str]
    ads: Sequence[str]

    @classmethod
    def load(cls, *, catalog: Path | None, users_file: Path | None) -> "Population":
        """Ads of a catalogue (Arrow) and users of a file: a log's users.parquet, or text with one id a line.

        Without a file ids are generated: u0, u1, ... and a0, a1, ... InputError when a file cannot be read.
        """
        users = _users(users_file) if users_file else [f"u{number}" for number in range(GENERATED_USERS)]
        ads = _ads(catalog) if catalog else [f"a{number}" for number in range(GENERATED_ADS)]
        return cls(users, ads)


class Traffic:
    """Draws request bodies. Two with the same seed draw the same."""

    def __init__(self, population: Population, *, candidates: int, objective: str, seed: int) -> None:
        if candidates > len(population.ads):
            raise InputError(f"--candidates {candidates} is more than the {len(population.ads)} ads of the catalogue")
        self._population, self._candidates, self._objective = population, candidates, objective
        self._random = np.random.default_rng(seed)
        weights = np.arange(1, len(population.users) + 1) ** -ZIPF_EXPONENT
        self._cumulative = np.cumsum(weights / weights.sum())

    def request(self, surfaces: Sequence[str], *, timestamp_ms: int | None = None) -> dict[str, Any]:
        """One body for one of the surfaces; `timestamp_ms` is its now, for replays of old logs."""
        rank = int(np.searchsorted(self._cumulative, self._random.random() * self._cumulative[-1]))
        rows = self._random.choice(len(self._population.ads), size=self._candidates, replace=False)
        body: dict[str, Any] = {
            "surface": surfaces[int(self._random.integers(len(surfaces)))],
            "user_id": self._population.users[rank],
            "objective": self._objective,
            "candidates": {
                "ad_ids": [self._population.ads[row] for row in rows],
                "bids": np.round(self._random.lognormal(size=self._candidates), 4).tolist(),
            },
        }
        if timestamp_ms is not None:
            body["context"] = {"timestamp_ms": timestamp_ms}
        return body


def time_of(request: Path) -> int:
    """`context.timestamp_ms` of a request in a file: the now of a replay. InputError when the file has none."""
    try:
        now_ms = json.loads(request.read_text())["context"]["timestamp_ms"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--request: {request} holds no request with context.timestamp_ms ({error!r})") from error
    if type(now_ms) is not int or now_ms <= 0:
        raise InputError(f"--request: context.timestamp_ms of {request} is {now_ms!r}; give milliseconds since 1970")
    return now_ms


def _users(path: Path) -> list[str]:
    try:
        if path.suffix == ".parquet":
            users = pq.read_table(path, columns=["user_id"])["user_id"].to_pylist()
        else:
            users = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError, pa.ArrowException, KeyError) as error:
        raise InputError(f"--users-file: {path} cannot be read ({error}); give users.parquet or a text file") from error
    return _some([user for user in users if user], path)


def _ads(path: Path) -> list[str]:
    try:
        ads = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()["ad_id"].to_pylist()
    except (OSError, pa.ArrowException, KeyError) as error:
        raise InputError(f"--catalog: {path} cannot be read ({error}); give the catalog.arrow of a log") from error
    return _some(ads, path)


def _some(ids: list[str], path: Path) -> list[str]:
    if not ids:
        raise InputError(f"{path} names nobody; give a file with at least one id")
    return ids
