"""python -m precompute.rollback: flip the live pointer of a space back to a generation that is still kept."""

from typing import Annotated

import typer

from contracts.command import report, run
from contracts.errors import GemError, InputError
from contracts.keys import check_space, generation_number
from precompute.cache import connected
from precompute.clock import now_ms
from precompute.generations import Generation, Registry
from precompute.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command()
def main(
    space: Annotated[str, typer.Option(help="Embedding space, e.g. gem-3f9a1c-d32-int8.")],
    to: Annotated[str | None, typer.Option(help="Generation to flip to; default: the newest before the live.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="Valkey; default: GEM_REDIS_URL.")] = None,
) -> None:
    """Make the previous generation live again. It has had all increments, so nothing is lost."""
    settings = read_settings(redis_url)
    with connected(settings) as client:
        registry = Registry(client, check_space(space), retired_ttl_s=settings.retired_ttl_s)
        before, target = roll_back(registry, to=to, now_ms=now_ms())
    report({"space": space, "from": before, "generation": target.name, "users": target.users})


def roll_back(registry: Registry, *, to: str | None, now_ms: int) -> tuple[str, Generation]:
    """Flip back; returns the generation that was live and the one that is now. InputError when there is none to go to,
    GemError when another job flipped meanwhile."""
    registry.reconcile(now_ms)
    live = registry.pointer()
    if live is None:
        raise InputError(f"nothing is published of {registry.space}; publish it with precompute.publish")
    target = _choose(registry, live, to, now_ms)
    registry.revive(target.name)
    found = sum(1 for _ in registry.history_keys(target.name))
    if found < target.users:
        registry.reconcile(now_ms)
        raise InputError(
            f"{target.name} holds {found} of its {target.users} records, the others have expired; publish a new "
            "generation with precompute.publish --full"
        )
    if not registry.flip(live, target.name):
        registry.reconcile(now_ms)
        raise GemError(f"the live generation changed from {live} to {registry.pointer()} meanwhile; look and try again")
    registry.reconcile(now_ms)
    return live, registry.entry(target.name)


def _choose(registry: Registry, live: str, to: str | None, now_ms: int) -> Generation:
    kept = {
        name: entry
        for name, entry in registry.generations().items()
        if entry.built_ms is not None and entry.kept(now_ms) and name != live
    }
    if to is not None:
        if to not in kept:
            raise InputError(f"--to {to} is no generation of {registry.space} to flip to; there are {list(kept)}")
        return kept[to]
    older = [entry for name, entry in kept.items() if generation_number(name) < generation_number(live)]
    if not older:
        raise InputError(f"no generation before {live} is kept of {registry.space}; there are {list(kept)} (--to)")
    return older[-1]


if __name__ == "__main__":
    run(app)
