"""python -m precompute.backfill: represent the past, unpublished; each row is available a while after its event."""

from pathlib import Path
from typing import Annotated

import typer

from contracts.command import report, run
from events.store import read_log
from foundation.teacher import Teacher
from precompute.clock import now_ms
from precompute.represent import (
    BACKFILL_DELAY_S,
    SERVED_DIM,
    SERVED_DTYPE,
    SHARD_ROWS,
    Availability,
    open_log,
    represent_new,
)

app = typer.Typer(add_completion=False)


@app.command()
def main(
    log: Annotated[Path, typer.Option(help="Folder of the interaction log.")],
    checkpoint: Annotated[Path, typer.Option(help="Folder of the teacher's checkpoint.")],
    representations: Annotated[Path, typer.Option(help="Root of the representation logs, a folder a space.")],
    delay: Annotated[int, typer.Option(help="Seconds from an event until its row is available.", min=0)] = (
        BACKFILL_DELAY_S
    ),
    dim: Annotated[int, typer.Option(help="Served width, a prefix of z: 8, 16, 32 or 64.")] = SERVED_DIM,
    dtype: Annotated[str, typer.Option(help="Quantiser of the served codes: int8, int4, kint4 or fp16.")] = (
        SERVED_DTYPE
    ),
    shard_rows: Annotated[int, typer.Option(help="Rows a shard: what a killed run may lose.", min=1)] = SHARD_ROWS,
) -> None:
    """Run the teacher on impressions that the representation log lacks; what students of the past train on."""
    teacher = Teacher.load(checkpoint)
    events = read_log(log)
    records = open_log(representations, teacher, events, now_ms=now_ms(), dim=dim, dtype=dtype)
    with records.writing():
        made = represent_new(
            records, events, teacher, available=Availability(delay), now_ms=now_ms, shard_rows=shard_rows
        )
    report({"space": records.space, "representations": str(records.folder), **made.to_json()})


if __name__ == "__main__":
    run(app)
