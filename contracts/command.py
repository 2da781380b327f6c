"""What every command promises: progress a person can follow, one JSON object as the last line, exit codes 0, 1, 2."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, NoReturn, TypeVar

from contracts.errors import GemError

T = TypeVar("T")

WRONG_PATH = (NotADirectoryError, FileExistsError, IsADirectoryError, PermissionError, FileNotFoundError)
"""What the system says of a path that was given wrongly; anything else (disk full, I/O error) failed midway."""

NOTE_ITEMS = 50
"""On a terminal the note is renewed after so many items."""


def run(main: Callable[[], Any]) -> NoReturn:
    """Run a command: a GemError or OSError becomes one sentence on standard error and an exit code."""
    try:
        main()
    except GemError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        wrong = isinstance(error, WRONG_PATH)
        mend = "choose another path, or mend this one" if wrong else "finished work is kept; mend it and run this again"
        print(f"error: {_told(error)}; {mend}", file=sys.stderr)
        sys.exit(2 if wrong else 1)
    except KeyboardInterrupt:
        print("error: interrupted; finished work is kept, run the command again to go on", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def report(result: dict[str, Any]) -> None:
    """Print the result as one JSON line: the last line of standard output (NaN becomes null)."""
    print(json.dumps(finite(result), ensure_ascii=False, allow_nan=False), flush=True)


def track(
    items: Iterable[T], *, title: str, total: int | None = None, note: Callable[[], str] | None = None
) -> Iterator[T]:
    """Yield the items under a progress bar on standard error; off a terminal, a plain line at each tenth.

    `note` says how it goes, behind the count.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    total = total if total is not None else (len(items) if isinstance(items, Sized) else None)
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(title, total=total)
            for number, item in enumerate(progress.track(items, task_id=task)):
                yield item
                if note and number % NOTE_ITEMS == 0:
                    progress.update(task, description=f"{title} {note()}")
        return
    step = max(1, (total or 0) // 10)
    for number, item in enumerate(items, start=1):
        yield item
        if total and (number % step == 0 or number == total):
            said = f" {note()}" if note else ""
            print(f"{title}: {number}/{total}{said}", file=sys.stderr, flush=True)


def _told(error: OSError) -> str:
    """`<file>: <what the system says>` on one line."""
    said = " ".join((error.strerror or str(error) or type(error).__name__).split())
    return said if error.filename is None else f"{os.fsdecode(error.filename)}: {said}"


def finite(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinite numbers become null, tuples lists."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
