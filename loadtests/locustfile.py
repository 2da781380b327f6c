"""Locust users that rank and check every answer. Closed load: each user waits for its answer before it asks again.

`python -m loadtests.run` starts this without a terminal and judges the outcome; `locust -f loadtests/locustfile.py`
opens Locust's own page.
"""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant_throughput, events, task
from locust.stats import PERCENTILES_TO_REPORT, StatsCSV

from loadtests.answers import embedding_status, fault
from loadtests.traffic import Population, Traffic, time_of

RANK = "/v1/rank"
REPORTED_PERCENTILES = {"50%": 0.5, "95%": 0.95, "99%": 0.99}


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """Options beside Locust's own; `loadtests.run` passes them on."""
    parser.add_argument("--rate", type=float, default=0, help="requests a second of all users; 0: as many as they can")
    parser.add_argument("--catalog", default="", help="catalog.arrow with the ads; empty: generated ids")
    parser.add_argument("--users-file", default="", help="users.parquet or text; empty: generated ids")
    parser.add_argument("--candidates", type=int, default=100, help="candidates of a request")
    parser.add_argument("--objective", default="ecpm", choices=("p", "ecpm"), help="p or ecpm")
    parser.add_argument("--seed", type=int, default=0, help="of users and candidates")
    parser.add_argument("--timestamp-ms", type=int, default=0, help="now of every request (replays); 0: the server's")
    parser.add_argument("--request", default="", help="request.json of a demo: its time in place of --timestamp-ms")


@events.init.add_listener
def load_population(environment: Any, **_: Any) -> None:
    """Read the ids once for all users."""
    options = environment.parsed_options
    population = Population.load(
        catalog=Path(options.catalog) if options.catalog else None,
        users_file=Path(options.users_file) if options.users_file else None,
    )
    environment.now_ms = time_of(Path(options.request)) if options.request else options.timestamp_ms or None
    environment.embeddings = Counter()
    environment.traffic = Traffic(
        population, candidates=options.candidates, objective=options.objective, seed=options.seed
    )


@events.quitting.add_listener
def write_outcome(environment: Any, **_: Any) -> None:
    """The outcome of all rank requests, and Locust's CSV files once more: it writes them once a second and would leave
    out what happened since, which is where a server that breaks last would hide."""
    prefix = environment.parsed_options.csv_prefix
    if not prefix:
        return
    tables = StatsCSV(environment, PERCENTILES_TO_REPORT)
    for kind, write in (("stats", tables.requests_csv), ("failures", tables.failures_csv)):
        with Path(f"{prefix}_{kind}.csv").open("w", newline="") as file:
            write(csv.writer(file))
    ranked = environment.stats.get(RANK, "POST")
    errors = [error for error in environment.stats.errors.values() if error.name == RANK]
    outcome = {
        "requests": ranked.num_requests,
        "failures": ranked.num_failures,
        "requests_per_s": ranked.total_rps,
        "percentiles_ms": {
            name: ranked.get_response_time_percentile(share) for name, share in REPORTED_PERCENTILES.items()
        },
        "reasons": [f"{error.occurrences} x {error.error}" for error in errors],
        "embeddings": environment.embeddings,
    }
    Path(f"{prefix}_outcome.json").write_text(json.dumps(outcome))


class Ranking(FastHttpUser):
    """One client that ranks on every surface that has a model."""

    def on_start(self) -> None:
        """Ask which surfaces are served."""
        models = self.client.get("/v1/models").json()["models"]
        self.surfaces = sorted({surface for model in models for surface in model["surfaces"]})

    def wait_time(self) -> float:
        """Keep to the user's share of `--rate`."""
        options = self.environment.parsed_options
        if not options.rate:
            return 0.0
        return constant_throughput(options.rate / max(options.num_users, 1))(self)

    @task
    def rank(self) -> None:
        """One request, its answer checked."""
        request = self.environment.traffic.request(self.surfaces, timestamp_ms=self.environment.now_ms)
        with self.client.post(RANK, json=request, name=RANK, catch_response=True) as response:
            content = response.content or b""
            if wrong := fault(response.status_code, content, request):
                response.failure(wrong)
            else:
                self.environment.embeddings[embedding_status(content)] += 1
