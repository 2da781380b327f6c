"""Generations of a space: which one is live, what each covers, and when a retired one expires.

The live pointer (`emb:<space>:live`) is the truth; the registry beside it (a hash, generation -> JSON) says what is in
each generation. Every change is a compare-and-set of one key, so two jobs never lose each other's; what a killed job
left half-way is put right by `reconcile`, which every job runs.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice

import redis

from contracts.errors import GemError, InputError
from contracts.keys import generation_name, generation_number, live_key, registry_key, watermark_key
from precompute.scripts import RAISE_VALUE, SWAP_FIELD, SWAP_VALUE

BUILDING, LIVE, RETIRED = "building", "live", "retired"
SWEEP_KEYS = 1_000


@dataclass(frozen=True)
class Generation:
    """One entry of the registry.

    Records of it cover every row of the representation log (of `epoch`) below `offset` that a reader at `as_of_ms`
    sees; `length` is their L, `users` how many there are, `watermark_ms` the newest event among those rows. The life of
    every key of it ends at `expires_ms` (None: never); `settled` says that the keys have that end already. A generation
    that was never built to the end has no `built_ms`: no increment goes there and no rollback.
    """

    name: str
    state: str
    epoch: int
    length: int
    created_ms: int
    offset: int = 0
    as_of_ms: int = 0
    watermark_ms: int | None = None
    users: int = 0
    built_ms: int | None = None
    published_ms: int | None = None
    expires_ms: int | None = None
    settled: bool = True

    def kept(self, now_ms: int) -> bool:
        """Whether it can still be read: live, being built, or retired and not expired."""
        return self.expires_ms is None or self.expires_ms > now_ms


class Registry:
    """The generations of one space in Valkey."""

    def __init__(self, client: redis.Redis, space: str, *, retired_ttl_s: int) -> None:
        self._client, self.space, self._ttl_ms = client, space, retired_ttl_s * 1000
        self._swap_value = client.register_script(SWAP_VALUE)
        self._swap_field = client.register_script(SWAP_FIELD)
        self._raise_value = client.register_script(RAISE_VALUE)

    def pointer(self) -> str | None:
        """Name of the live generation; InputError when the key holds anything else."""
        value = self._client.get(live_key(self.space))
        if value is None:
            return None
        try:
            name = _decoded(value)
            generation_number(name)
        except (UnicodeDecodeError, InputError):
            key = live_key(self.space)
            raise InputError(
                f"{key} does not name a generation: something else wrote it; run DEL {key} in Valkey, then "
                "python -m precompute.publish --full --representations <root>/" + self.space
            ) from None
        return name

    def generations(self) -> dict[str, Generation]:
        """All entries by name, oldest first."""
        raw = self._client.hgetall(registry_key(self.space))
        entries = [_entry(name, text) for name, text in raw.items()]
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: generation_number(entry.name))}

    def live(self) -> Generation | None:
        """The entry that the pointer names; None when nothing is published or the pointer's entry is gone."""
        name = self.pointer()
        return None if name is None else self._read(name)

    def create(self, *, epoch: int, length: int, now_ms: int) -> Generation:
        """A new entry under the next free number, in state building."""
        while True:
            numbers = [generation_number(name) for name in self.generations()]
            pointer = self.pointer()
            numbers += [generation_number(pointer)] if pointer else []
            name = generation_name(max(numbers, default=0) + 1)
            entry = Generation(name, BUILDING, epoch, length, created_ms=now_ms)
            if self._swap(name, None, entry):
                return entry

    def entry(self, name: str) -> Generation:
        """One entry; GemError when it is gone (the server lost its data)."""
        entry = self._read(name)
        if entry is None:
            raise GemError(
                f"generation {name} of {self.space} vanished from Valkey during the job; run it again to build anew"
            )
        return entry

    def update(self, name: str, change: Callable[[Generation], Generation]) -> Generation:
        """Change an entry by compare-and-set; GemError when it is gone."""
        while True:
            entry = self.entry(name)
            changed = change(entry)
            if changed == entry or self._swap(name, entry, changed):
                return changed

    def flip(self, expected: str | None, name: str) -> bool:
        """Make `name` live in one step if `expected` still is."""
        key = live_key(self.space)
        return bool(self._swap_value(keys=[key], args=[expected or "", name]))

    def revive(self, name: str) -> Generation:
        """Take the end off every key of a retired generation, before it becomes live again."""
        entry = self.update(name, lambda entry: replace(entry, expires_ms=None, settled=False))
        self._settle(entry)
        return entry

    def raise_watermark(self, entry: Generation) -> None:
        """Move the generation's watermark key up to the entry's watermark; it never goes back."""
        if entry.watermark_ms is not None:
            key = watermark_key(self.space, entry.name)
            self._raise_value(keys=[key], args=[entry.watermark_ms, entry.expires_ms or 0])

    def unsettle(self, name: str) -> None:
        """Have the life of the generation's keys checked by the next `reconcile`: some were written meanwhile."""
        self.update(name, lambda entry: replace(entry, settled=False))

    def reconcile(self, now_ms: int) -> None:
        """Bring entries and keys in line with the pointer, until nothing changes any more.

        The generation that the pointer names is live and has no end; one that was live is retired and gets an end; keys
        take over the end of their generation; entries of expired generations are removed (but for the newest, whose
        number must not be given twice).
        """
        while True:
            pointer, entries = self.pointer(), self.generations()
            newest = next(reversed(entries), None)
            changed = False
            for name, entry in entries.items():
                wanted = self._wanted(entry, pointer, now_ms)
                if wanted != entry:
                    changed |= self._swap(name, entry, wanted)
                elif not entry.settled:
                    self._settle(entry)
                    changed = True
                elif not entry.kept(now_ms) and name != newest:
                    self._clear(entry)
            if not changed:
                return

    def history_keys(self, name: str) -> Iterator[bytes]:
        """Keys of the generation's history records, by SCAN (a key may come twice)."""
        return self._client.scan_iter(match=f"emb:{self.space}:{name}:*:h", count=SWEEP_KEYS)

    def _wanted(self, entry: Generation, pointer: str | None, now_ms: int) -> Generation:
        if entry.name == pointer:
            if entry.state == LIVE and entry.expires_ms is None:
                return entry
            settled = entry.settled and entry.expires_ms is None
            return replace(entry, state=LIVE, expires_ms=None, settled=settled, published_ms=now_ms)
        if entry.state == LIVE or (entry.state == RETIRED and entry.expires_ms is None):
            return replace(entry, state=RETIRED, expires_ms=now_ms + self._ttl_ms, settled=False)
        return entry

    def _settle(self, entry: Generation) -> None:
        """Give every key of a generation its end or none; if the entry changed meanwhile, it stays unsettled."""
        keys = self._client.scan_iter(match=f"emb:{self.space}:{entry.name}:*", count=SWEEP_KEYS)
        while batch := list(islice(keys, SWEEP_KEYS)):
            with self._client.pipeline(transaction=False) as pipeline:
                for key in batch:
                    if entry.expires_ms is None:
                        pipeline.persist(key)
                    else:
                        pipeline.pexpireat(key, entry.expires_ms)
                pipeline.execute()
        if not self._swap(entry.name, entry, replace(entry, settled=True)):
            self.unsettle(entry.name)

    def _clear(self, entry: Generation) -> None:
        """Remove what an expired generation left: keys without an end (a job was killed at the wrong moment), entry."""
        keys = self._client.scan_iter(match=f"emb:{self.space}:{entry.name}:*", count=SWEEP_KEYS)
        while batch := list(islice(keys, SWEEP_KEYS)):
            with self._client.pipeline(transaction=False) as pipeline:
                for key in batch:
                    pipeline.unlink(key)
                pipeline.execute()
        self._swap(entry.name, entry, None)

    def _read(self, name: str) -> Generation | None:
        text = self._client.hget(registry_key(self.space), name)
        return None if text is None else _entry(name, text)

    def _swap(self, name: str, old: Generation | None, new: Generation | None) -> bool:
        arguments = [name, _text(old), _text(new)]
        return bool(self._swap_field(keys=[registry_key(self.space)], args=arguments))


def _text(entry: Generation | None) -> str:
    if entry is None:
        return ""
    return json.dumps({name: value for name, value in asdict(entry).items() if name != "name"}, separators=(",", ":"))


def _entry(field: bytes | str, text: bytes | str) -> Generation:
    name = field.decode(errors="replace") if isinstance(field, bytes) else field
    try:
        generation_number(name)
        entry = Generation(name=name, **json.loads(text))
        if _text(entry) != _decoded(text):
            raise ValueError("fields are missing")
        return entry
    except (ValueError, TypeError, InputError) as error:
        raise InputError(
            f"the registry of generations holds an entry {name} that this version cannot read ({error}); "
            "delete it (HDEL) and run precompute.publish --full"
        ) from error


def _decoded(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
