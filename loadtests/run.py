"""`python -m loadtests.run`: Locust without a terminal, a CSV report, exit code 1 when any answer was wrong.

Locust rounds times to a millisecond below 100 ms and to two figures above, and its load is closed (a slow server is
asked less often): for percentiles of a fast server read the server's own histograms.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import typer
from rich.console import Console
from rich.table import Table

from contracts.command import report, run
from contracts.errors import GemError, InputError
from loadtests.traffic import Population, Traffic, time_of

app = typer.Typer(add_completion=False)
LOCUSTFILE = Path(__file__).with_name("locustfile.py")
PERCENTILES = ("50%", "95%", "99%")
REPORTS = ("stats.csv", "failures.csv", "outcome.json")
"""What a run leaves beside Locust's other CSV files; each name follows the prefix of --csv."""


@dataclass(frozen=True)
class Outcome:
    """What Locust saw of `POST /v1/rank`, to the end. Times are milliseconds; embeddings counts right answers by
    embedding.status."""

    requests: int
    failures: int
    requests_per_s: float
    percentiles_ms: dict[str, float]
    reasons: list[str]
    embeddings: dict[str, int]


@app.command()
def main(
    host: Annotated[str, typer.Option(help="base URL of the server")] = "http://127.0.0.1:8000",
    users: Annotated[int, typer.Option(min=1, help="clients at the same time")] = 8,
    rate: Annotated[float, typer.Option(min=0, help="requests a second of all clients; 0: as many as they can")] = 0,
    duration: Annotated[int, typer.Option(min=1, help="seconds")] = 30,
    csv_prefix: Annotated[Path, typer.Option("--csv", help="prefix of the CSV files")] = Path("runs/load/locust"),
    catalog: Annotated[Path | None, typer.Option(help="catalog.arrow with the ads; else generated ids")] = None,
    users_file: Annotated[Path | None, typer.Option(help="users.parquet or text; else generated ids")] = None,
    candidates: Annotated[int, typer.Option(min=0, max=1000, help="candidates of a request")] = 100,
    objective: Annotated[Literal["p", "ecpm"], typer.Option(help="what ads are ranked by")] = "ecpm",
    timestamp_ms: Annotated[
        int, typer.Option(min=0, help="now of every request, for replays; 0: the server's clock")
    ] = 0,
    request: Annotated[
        Path | None, typer.Option(help="request.json of a demo: its time in place of --timestamp-ms")
    ] = None,
    seed: Annotated[int, typer.Option(help="of users and candidates")] = 0,
) -> None:
    """Rank with Zipf users, check every answer, write a CSV report."""
    population = Population.load(catalog=catalog, users_file=users_file)
    Traffic(population, candidates=candidates, objective=objective, seed=seed)  # bad input ends here, not in Locust
    now_ms = time_of(request) if request else timestamp_ms
    clear(csv_prefix)
    host = host.rstrip("/")
    check_host(host)
    options: dict[str, Any] = {
        "--host": host,
        "--users": users,
        "--spawn-rate": users,
        "--run-time": f"{duration}s",
        "--csv": csv_prefix,
        "--rate": rate,
        "--candidates": candidates,
        "--objective": objective,
        "--seed": seed,
        "--timestamp-ms": now_ms,
        "--catalog": catalog or "",
        "--users-file": users_file or "",
    }
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", "--skip-log"]
    command += [str(word) for option in options.items() for word in option]
    ended = subprocess.run(command, stdout=sys.stderr)
    outcome = read_outcome(csv_prefix, ended.returncode)
    show(outcome)
    report(
        {
            "requests": outcome.requests,
            "failures": outcome.failures,
            "requests_per_s": outcome.requests_per_s,
            "percentiles_ms": outcome.percentiles_ms,
            "embeddings": outcome.embeddings,
            "csv": str(csv_prefix) + "_stats.csv",
        }
    )
    if outcome.failures or not outcome.requests:
        reasons = "; ".join(outcome.reasons[:3]) or "nothing was answered"
        raise GemError(f"{outcome.failures} of {outcome.requests} answers failed: {reasons}")


def clear(prefix: Path) -> None:
    """Delete an earlier run's report: its figures must not pass for this one's. InputError when none can be written."""
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        for kind in REPORTS:
            file = Path(f"{prefix}_{kind}")
            file.write_text("")
            file.unlink()
    except OSError as error:
        raise InputError(f"--csv: {error.filename or prefix} cannot be written ({error.strerror})") from error


def check_host(host: str) -> None:
    """InputError when no ready server of this project answers there."""
    try:
        ready = httpx.get(f"{host}/readyz", timeout=10)
        models = httpx.get(f"{host}/v1/models", timeout=10)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"--host: nothing answers at {host} ({error}); start python -m serving") from error
    if ready.status_code != 200:
        raise InputError(f"--host: the server at {host} is not ready (status {ready.status_code}); see its log")
    try:
        if "models" in models.json():
            return
    except (ValueError, TypeError):
        pass
    raise InputError(f"--host: what answers at {host} has no /v1/models; name the server's own port, not its metrics'")


def read_outcome(prefix: Path, returncode: int) -> Outcome:
    """What the Locust file left at its end; GemError when it left nothing."""
    file = Path(f"{prefix}_outcome.json")
    if not file.is_file():
        raise GemError(f"locust ended with code {returncode} before it wrote {file}; its message is above")
    return Outcome(**json.loads(file.read_text()))


def show(outcome: Outcome) -> None:
    """The outcome as a table."""
    table = Table("requests", "failures", "requests/s", *(f"p{name[:-1]} ms" for name in PERCENTILES))
    times = (f"{outcome.percentiles_ms.get(name, float('nan')):.0f}" for name in PERCENTILES)
    table.add_row(str(outcome.requests), str(outcome.failures), f"{outcome.requests_per_s:.1f}", *times)
    Console().print(table)
    counts = ", ".join(f"{status} {count}" for status, count in sorted(outcome.embeddings.items()))
    Console().print(f"right answers by embedding.status: {counts or 'none'}")
    for reason in outcome.reasons:
        Console().print(reason, markup=False)


if __name__ == "__main__":
    run(app)
