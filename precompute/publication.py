"""From the representation log to the cache: users' records into the live generation, or a new generation beside it.

A record is a function of the log (newest L rows of a user that are visible), so whatever is written twice is written
alike, and the compare-and-set keeps the newest. Two rules make concurrent jobs end with the bytes of a rebuild:

* a job appends to the log before it reads the registry, and a builder enters the registry before it reads the log, so
  each row is seen by the builder or its job sees the generation;
* a generation carries a claim of what it covers, and whoever publishes brings every built and kept generation from its
  own claim up to the log's end: live and retired ones alike, so that a rollback finds no hole.
"""

import fcntl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from random import Random
from typing import Any, Protocol, TypeVar

import redis

from contracts.embedding import HistoryRecord, decode_history, encode_history_codes
from contracts.errors import CorruptRecordError, GemError, InputError, UnsupportedRecordError
from contracts.hashing import stable_hash
from events.representations import RepresentationLog
from precompute.cache import RecordWriter, SpaceMeta, Written
from precompute.generations import BUILDING, RETIRED, Generation, Registry
from precompute.survey import PART_ROWS, Survey, Surveyor

T = TypeVar("T")

DEFAULT_LENGTH = 50
"""History length L of LoopFM's public experiments (2605.29280)."""
WRITE_BATCH, SAMPLE = 256, 64
BUILD_LOCK = ".build.lock"


class Progress(Protocol):
    """`contracts.command.track`, or nothing."""

    def __call__(self, items: Iterable[T], *, title: str, total: int | None = None) -> Iterator[T]: ...


def unseen(items: Iterable[T], *, title: str, total: int | None = None) -> Iterator[T]:
    """Progress that nobody watches."""
    yield from items


@dataclass(frozen=True)
class Published:
    """What a publication did. `generation` is the live one (None: no user has a visible row), `built` says that it is
    new, `touched` counts users with news, `written` what became of their records in all generations together."""

    generation: str | None
    built: bool = False
    generations: tuple[str, ...] = ()
    users: int = 0
    touched: int = 0
    written: Written = field(default_factory=Written)
    watermark_ms: int | None = None
    end_offset: int = 0
    seconds: float = 0.0

    def __add__(self, later: "Published") -> "Published":
        return replace(
            later,
            built=self.built or later.built,
            generations=tuple(dict.fromkeys(self.generations + later.generations)),
            touched=self.touched + later.touched,
            written=self.written + later.written,
            seconds=self.seconds + later.seconds,
        )

    def to_json(self) -> dict[str, Any]:
        """For the last line of a command."""
        return {
            "generation": self.generation,
            "built": self.built,
            "generations_written": list(self.generations),
            "users": self.users,
            "users_touched": self.touched,
            **asdict(self.written),
            "watermark_ms": self.watermark_ms,
            "end_offset": self.end_offset,
            "publish_s": round(self.seconds, 3),
            "records_per_s": round(self.written.records / self.seconds) if self.seconds else None,
        }


class Publisher:
    """Publishes one representation log; `now_ms` is the clock, `progress` what the person sees."""

    def __init__(
        self,
        log: RepresentationLog,
        client: redis.Redis,
        *,
        retired_ttl_s: int,
        now_ms: Callable[[], int],
        progress: Progress = unseen,
        part_rows: int = PART_ROWS,
    ) -> None:
        self._log = log
        self._registry = Registry(client, log.space, retired_ttl_s=retired_ttl_s)
        self._meta = SpaceMeta(client, log.space, log.quantiser)
        self._writer = RecordWriter(client, log.space)
        self._now_ms, self._progress = now_ms, progress
        self._surveyor = Surveyor(log, part_rows=part_rows)

    def publish(self, *, full: bool = False, length: int | None = None) -> Published:
        """Bring the cache up to the log: users with news into the live generation and the kept ones; a whole new
        generation where there is none yet, it has another length or epoch, or `full` asks for it."""
        self._registry.reconcile(self._now_ms())
        live = self._registry.live()
        self._check_fence(live)
        length = length or (live.length if live else DEFAULT_LENGTH)
        if full or live is None or live.epoch < self._log.epoch or live.length != length:
            return self._build(length)
        return self._increment()

    def _increment(self) -> Published:
        """Publish the users whose rows the claims of the built and kept generations do not cover."""
        started = time.monotonic()
        now_ms = self._now_ms()
        targets = [
            entry
            for entry in self._registry.generations().values()
            if entry.built_ms is not None and entry.epoch == self._log.epoch and entry.kept(now_ms)
        ]
        claims = [(entry.offset, entry.as_of_ms) for entry in targets]
        news = self._surveyor.survey(as_of_ms=now_ms + 1, claims=claims)
        self._meta.declare_if_absent()
        written = self._write(targets, news)
        for entry in targets:
            self._registry.raise_watermark(replace(entry, watermark_ms=news.watermark_ms))
        self._follow(targets)
        present = self._registry.generations()
        overtaken = [entry for entry in targets if entry.name in present and not self._claim(entry.name, news)]
        live = self._registry.live()
        self._check_fence(live)
        if live is None:
            raise GemError(f"the live generation of {self._log.space} vanished from Valkey; run this again")
        done = Published(
            generation=live.name,
            generations=tuple(entry.name for entry in targets),
            users=live.users,
            touched=news.touched,
            written=written,
            watermark_ms=live.watermark_ms,
            end_offset=live.offset,
            seconds=time.monotonic() - started,
        )
        return done + self._increment() if overtaken else done

    def _build(self, length: int) -> Published:
        """Write a whole generation, validate it, flip to it, and publish what came meanwhile."""
        with self._building():
            started = time.monotonic()
            expected = self._registry.pointer()
            self._check_fence(self._registry.live())
            if not self._surveyor.anything_visible(as_of_ms=self._now_ms() + 1):
                return Published(generation=expected, end_offset=self._log.end_offset)
            entry = self._entry_to_build(length)
            # entered before it is read: rows that are appended from here on see this generation, once it is built
            news = self._surveyor.survey(as_of_ms=self._now_ms() + 1, claims=[(0, 0)])
            touched, written = news.touched, Written()
            while news.touched:
                written += self._write([entry], news)
                self._claim(entry.name, news)
                claims = [(news.end_offset, news.as_of_ms)]
                news = self._surveyor.survey(as_of_ms=self._now_ms() + 1, claims=claims)
            entry = self._registry.entry(entry.name)
            self._validate(entry)
            self._registry.raise_watermark(entry)
            self._registry.update(entry.name, lambda entry: replace(entry, built_ms=self._now_ms()))
            self._meta.declare()
            flipped = self._registry.flip(expected, entry.name)
            self._registry.reconcile(self._now_ms())
            built = Published(
                entry.name, True, (entry.name,), touched=touched, written=written, seconds=time.monotonic() - started
            )
            done = built + self._increment()
            if not flipped:
                raise GemError(
                    f"the live generation of {self._log.space} changed from {expected} to {done.generation} while "
                    f"{entry.name} was built; {entry.name} is complete: flip to it with precompute.rollback --to "
                    f"{entry.name}, or publish again"
                )
            return done

    def _entry_to_build(self, length: int) -> Generation:
        """The entry that a killed builder of this log left, or a new one; other leftovers are retired."""
        chosen = None
        for entry in self._registry.generations().values():
            if entry.state != BUILDING or entry.epoch > self._log.epoch:
                continue
            if (entry.epoch, entry.length) == (self._log.epoch, length) and chosen is None:
                chosen = entry
            else:
                self._registry.update(entry.name, lambda entry: replace(entry, state=RETIRED))
        self._registry.reconcile(self._now_ms())
        return chosen or self._registry.create(epoch=self._log.epoch, length=length, now_ms=self._now_ms())

    def _write(self, targets: Sequence[Generation], news: Survey) -> Written:
        """Write the records of the touched users to every target, then read some of them back."""
        written = Written()
        total = sum(-(-len(part) // WRITE_BATCH) for part in news.parts)
        wanted = set(Random(news.end_offset).sample(range(total), min(SAMPLE, total)))
        for length in {entry.length for entry in targets}:
            group = [entry for entry in targets if entry.length == length]
            batches = self._progress(self._records(news, length), title="publish", total=total)
            sample: list[tuple[str, bytes]] = []
            for number, batch in enumerate(batches):
                for entry in group:
                    written += self._writer.write(entry.name, batch, expires_ms=entry.expires_ms)
                sample += batch[:1] if number in wanted else []
            for entry in group:
                self._read_back(entry, sample, news)
        return written

    def _records(self, news: Survey, length: int) -> Iterator[list[tuple[str, bytes]]]:
        """(user id, bytes) in batches; memory holds the rows of one part."""
        quantiser = self._log.quantiser
        everyone = len(news.parts) == 1 and news.touched == len(news.users)
        for part in news.parts:
            rows = self._log.as_of(self._log.read(z=False, users=None if everyone else part))
            records = (
                (user, encode_history_codes(codes, record, user_id=user, quantiser=quantiser))
                for user, codes, record in rows.records(length, as_of_ms=news.as_of_ms)
            )
            while batch := list(islice(records, WRITE_BATCH)):
                yield batch

    def _read_back(self, entry: Generation, sample: Sequence[tuple[str, bytes]], news: Survey) -> None:
        """Compare stored bytes with what was written; a stored record may be newer, never older, absent or damaged."""
        if entry.expires_ms is not None:
            return
        stored = self._writer.read(entry.name, [user for user, _ in sample])
        for (user, blob), (found, _) in zip(sample, stored, strict=True):
            if found != blob and (found is None or self._age(found, user) < self._age(blob, user)):
                raise GemError(
                    f"read-back: the record of user hash {stable_hash(user):016x} in {entry.name} is not what was "
                    "written; check Valkey's memory and eviction policy and run this again"
                )
        if entry.built_ms is None:
            return
        others = Random(news.end_offset).sample(news.users, min(SAMPLE, len(news.users)))
        stored = self._writer.read(entry.name, others)
        if lost := sum(found is None for found, _ in stored):
            raise GemError(
                f"{lost} of {len(others)} sampled users have no record in {entry.name}: Valkey lost or evicted keys "
                "(its maxmemory-policy must be noeviction); run precompute.publish --full"
            )
        if any(life != -1 for _, life in stored):
            self._registry.unsettle(entry.name)

    def _follow(self, targets: Sequence[Generation]) -> None:
        """A generation that was retired or revived while it was written: have its keys' life checked."""
        now = self._registry.generations()
        for entry in targets:
            current = now.get(entry.name)
            if current is not None and current.expires_ms != entry.expires_ms:
                self._registry.unsettle(entry.name)
        self._registry.reconcile(self._now_ms())

    def _claim(self, name: str, news: Survey) -> bool:
        """Enter what the generation covers now. False when a job with another view of the log overtook this one (more
        rows but an earlier time, or the reverse): its records may have won, so both views must be published again."""
        overtaken = False

        def claim(entry: Generation) -> Generation:
            nonlocal overtaken
            mine, theirs = (news.end_offset, news.as_of_ms), (entry.offset, entry.as_of_ms)
            overtaken = (mine[0] - theirs[0]) * (mine[1] - theirs[1]) < 0
            if theirs >= mine:
                return entry
            watermark = max(entry.watermark_ms or 0, news.watermark_ms or 0)
            return replace(
                entry, offset=mine[0], as_of_ms=mine[1], users=len(news.users), watermark_ms=watermark or None
            )

        self._registry.update(name, claim)
        return not overtaken

    def _validate(self, entry: Generation) -> None:
        """Every user of the claim has a record."""
        found = sum(1 for _ in self._registry.history_keys(entry.name))
        if found < entry.users:
            raise GemError(
                f"{entry.name} holds {found} of {entry.users} records after it was written: Valkey lost or evicted "
                "keys; the live generation stays; free memory and publish again"
            )

    def _check_fence(self, live: Generation | None) -> None:
        if live is not None and live.epoch > self._log.epoch:
            raise InputError(
                f"stale fence: {live.name} of {self._log.space} was published from epoch {live.epoch} of its "
                f"representation log, {self._log.folder} is at epoch {self._log.epoch}; publish from the newer copy"
            )

    @contextmanager
    def _building(self) -> Iterator[None]:
        """One builder at a time; the lock ends with its process, so an entry in state building is a leftover then."""
        with (self._log.folder / BUILD_LOCK).open("a+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise GemError(
                    f"another process is building a generation from {self._log.folder}; wait for it, then try again"
                ) from error
            yield

    def _age(self, blob: bytes, user: str) -> tuple[int, int, int]:
        """What the compare-and-set compares; a damaged record is older than any."""
        try:
            record: HistoryRecord = decode_history(blob, user_id=user, quantiser=self._log.quantiser)
        except (CorruptRecordError, UnsupportedRecordError):
            return (-1, -1, -1)
        return record.fence, record.log_offset, record.impressions
