"""python -m precompute.publish: bring Valkey up to a representation log, without the teacher."""

from pathlib import Path
from typing import Annotated

import typer

from contracts.command import report, run, track
from contracts.errors import InputError
from events.representations import RepresentationLog
from precompute.cache import connected
from precompute.clock import now_ms
from precompute.publication import Publisher
from precompute.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command()
def main(
    representations: Annotated[Path, typer.Option(help="Representation log of one space: ROOT/<space>.")],
    redis_url: Annotated[str | None, typer.Option(help="Valkey; default: GEM_REDIS_URL.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Build a new generation and flip to it.")] = False,
    length: Annotated[int | None, typer.Option(help="History length L; default: the live generation's.", min=1)] = None,
) -> None:
    """Publish the users with news; the first time, with --full or for another length, a whole new generation."""
    settings = read_settings(redis_url)
    log = RepresentationLog(representations)
    with connected(settings) as client:
        publisher = Publisher(log, client, retired_ttl_s=settings.retired_ttl_s, now_ms=now_ms, progress=track)
        done = publisher.publish(full=full, length=length)
    if done.generation is None:
        raise InputError(f"{representations} holds no row that is available yet; represent some or wait")
    report({"space": log.space, **done.to_json()})


if __name__ == "__main__":
    run(app)
