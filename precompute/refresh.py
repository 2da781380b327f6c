"""python -m precompute.refresh: represent what is new in the interaction log, and publish the users it touches.

One refresh or backfill at a time writes a representation log: a second one ends at once with exit code 1. Publications
and rollbacks may run beside it. Whatever is killed, the next run goes on where the last shard ended.
"""

from pathlib import Path
from typing import Annotated

import typer

from contracts.command import report, run, track
from events.store import read_log
from foundation.teacher import Teacher
from precompute.cache import connected
from precompute.clock import now_ms
from precompute.publication import Publisher
from precompute.represent import SERVED_DIM, SERVED_DTYPE, SHARD_ROWS, Availability, open_log, represent_new
from precompute.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command()
def main(
    log: Annotated[Path, typer.Option(help="Folder of the interaction log.")],
    checkpoint: Annotated[Path, typer.Option(help="Folder of the teacher's checkpoint.")],
    representations: Annotated[Path, typer.Option(help="Root of the representation logs, a folder a space.")],
    redis_url: Annotated[str | None, typer.Option(help="Valkey; default: GEM_REDIS_URL.")] = None,
    available: Annotated[str, typer.Option(help="When rows count as available: now, or event+SECONDS.")] = "now",
    length: Annotated[int | None, typer.Option(help="History length L; default: the live generation's.", min=1)] = None,
    dim: Annotated[int, typer.Option(help="Served width, a prefix of z: 8, 16, 32 or 64.")] = SERVED_DIM,
    dtype: Annotated[str, typer.Option(help="Quantiser of the served codes: int8, int4, kint4 or fp16.")] = (
        SERVED_DTYPE
    ),
    shard_rows: Annotated[int, typer.Option(help="Rows a shard: what a killed run may lose.", min=1)] = SHARD_ROWS,
) -> None:
    """Run the teacher on impressions that the representation log lacks, then bring Valkey up to the log."""
    settings = read_settings(redis_url)
    availability = Availability.parse(available)
    with connected(settings) as client:
        teacher = Teacher.load(checkpoint)
        events = read_log(log)
        records = open_log(representations, teacher, events, now_ms=now_ms(), dim=dim, dtype=dtype)
        with records.writing():
            made = represent_new(records, events, teacher, available=availability, now_ms=now_ms, shard_rows=shard_rows)
            publisher = Publisher(records, client, retired_ttl_s=settings.retired_ttl_s, now_ms=now_ms, progress=track)
            done = publisher.publish(length=length)
    report({"space": records.space, "representations": str(records.folder), **made.to_json(), **done.to_json()})


if __name__ == "__main__":
    run(app)
