"""python -m precompute.status: spaces, their generations, and how fresh the live one is."""

from datetime import UTC, datetime
from typing import Annotated, Any

import redis
import typer
from rich.console import Console
from rich.table import Table

from contracts.command import report, run
from contracts.keys import check_space, registry_key
from precompute.cache import connected, redacted
from precompute.clock import now_ms
from precompute.generations import LIVE, RETIRED, Generation, Registry
from precompute.settings import MIN_RETIRED_TTL_S, read_settings

TABLE_WIDTH = 132

app = typer.Typer(add_completion=False)


@app.command()
def main(
    space: Annotated[str | None, typer.Option(help="Only this space; default: all that are published.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="Valkey; default: GEM_REDIS_URL.")] = None,
) -> None:
    """Show what is published; changes nothing."""
    settings = read_settings(redis_url)
    with connected(settings) as client:
        memory = client.info("memory")
        names = [check_space(space)] if space else spaces_of(client)
        spaces = {name: space_status(client, name, now_ms=now_ms()) for name in names}
    url = redacted(settings.redis_url.get_secret_value())
    console = Console()
    console.width = max(console.width, TABLE_WIDTH)
    console.print(_table(url, spaces))
    report(
        {
            "redis": url,
            "used_memory_bytes": memory["used_memory"],
            "maxmemory_bytes": memory["maxmemory"],
            "maxmemory_policy": memory["maxmemory_policy"],
            "spaces": spaces,
        }
    )


def spaces_of(client: redis.Redis) -> list[str]:
    """Every space that has a registry, by SCAN over the whole database."""
    prefix, suffix = registry_key("*").split("*")
    keys = client.scan_iter(match=registry_key("*"), count=10_000, _type="hash")
    return sorted({key.decode().removeprefix(prefix).removesuffix(suffix) for key in keys})


def space_status(client: redis.Redis, space: str, *, now_ms: int) -> dict[str, Any]:
    """The live generation and one entry a generation: what it is, what it covers, its age and the life left to it."""
    registry = Registry(client, space, retired_ttl_s=MIN_RETIRED_TTL_S)
    pointer = registry.pointer()
    generations = [
        {
            "generation": entry.name,
            "state": _state(entry, pointer, now_ms),
            "users": entry.users,
            "length": entry.length,
            "epoch": entry.epoch,
            "offset": entry.offset,
            "published_ms": entry.published_ms,
            "watermark_ms": entry.watermark_ms,
            "watermark_age_s": None if entry.watermark_ms is None else (now_ms - entry.watermark_ms) / 1000,
            "expires_s": None if entry.expires_ms is None else max(0, entry.expires_ms - now_ms) / 1000,
        }
        for entry in registry.generations().values()
    ]
    return {"live": pointer, "generations": generations}


def _state(entry: Generation, pointer: str | None, now_ms: int) -> str:
    if entry.name == pointer:
        return LIVE
    if not entry.kept(now_ms):
        return "expired"
    return RETIRED if entry.state == LIVE else entry.state


def _table(url: str, spaces: dict[str, dict[str, Any]]) -> Table:
    table = Table(title=f"Embeddings in {url}")
    for column in ("space", "generation", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("users", "L", "offset", "published", "events until", "expires in"):
        table.add_column(column, justify="right")
    for space, status in spaces.items():
        for row in status["generations"]:
            table.add_row(
                *(space, row["generation"], row["state"], f"{row['users']:,}", str(row["length"]), str(row["offset"])),
                *(_time(row["published_ms"]), _time(row["watermark_ms"])),
                "never" if row["expires_s"] is None else f"{row['expires_s'] / 60:.0f} min",
            )
    return table


def _time(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


if __name__ == "__main__":
    run(app)
