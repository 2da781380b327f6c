"""`python -m events.kuairand`: write KuaiRand-Pure as an interaction log. The data is no part of this project.

8 May 2022, the test day, is left out; --final includes it and notes the opening in results/test_openings.json.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.command import report, run
from contracts.errors import InputError
from events.kuairand_log import build_log
from events.kuairand_source import read_source
from events.openings import note_opening
from events.splits import kuairand_calendar
from events.store import write_log

app = typer.Typer(add_completion=False)


class KuaiRandSettings(BaseSettings):
    """Where the data lies: KuaiRand-Pure's data folder, in either layout, under either name."""

    model_config = SettingsConfigDict(env_file=".env", env_ignore_empty=True, extra="ignore")

    gem_kuairand_dir: Path | None = None
    kuairand_dir: Path | None = None

    @property
    def directory(self) -> Path | None:
        """The folder that is set; InputError when the two names are set and differ."""
        if self.gem_kuairand_dir and self.kuairand_dir and self.gem_kuairand_dir != self.kuairand_dir:
            raise InputError(
                f"GEM_KUAIRAND_DIR is {self.gem_kuairand_dir} but KUAIRAND_DIR is {self.kuairand_dir}; unset one of "
                "them, or pass --dir"
            )
        return self.gem_kuairand_dir or self.kuairand_dir


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="folder of the log; must not exist")],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="KuaiRand-Pure's data folder; default: GEM_KUAIRAND_DIR")
    ] = None,
    final: Annotated[bool, typer.Option(help="include 8 May, the test day, and note that it was opened")] = False,
    openings: Annotated[Path, typer.Option(help="where --final notes the opening")] = Path(
        "results/test_openings.json"
    ),
    replace_log: Annotated[bool, typer.Option("--replace", help="replace a log that stands at --out")] = False,
) -> None:
    """Read the files, build the log, write it."""
    source_folder = directory or KuaiRandSettings().directory
    if source_folder is None:
        raise InputError("no KuaiRand folder given; pass --dir or set GEM_KUAIRAND_DIR")
    log = build_log(read_source(source_folder), final=final)
    calendar = kuairand_calendar()
    if final:
        note_opening(openings, now=datetime.now(UTC), command=sys.argv)
    write_log(out, log, calendar=calendar, replace=replace_log)
    periods = ("teacher_fit", "teacher_validation", "teacher", "student", "validation", "test")
    report(
        {
            "log": str(out),
            "rows": len(log),
            "users": len(np.unique(log.user)),
            "ads": len(np.unique(log.ad)),
            "untimed": len(log.untimed.user) if log.untimed else 0,
            "periods": {name: len(calendar.rows(log, name)) for name in periods},
            "rates": {task: float(labels.mean()) for task, labels in log.labels.items()},
        }
    )


if __name__ == "__main__":
    run(app)
