"""Structured logs: one JSON object a line on standard error; users appear as the stable hash of their id."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import msgspec

from contracts.hashing import stable_hash

MAX_PENDING = 10_000
FLUSH_S = 0.1
_encode = msgspec.json.Encoder().encode


class LineWriter:
    """Writes lines from a thread of its own, so that a slow or full pipe never holds up a request.

    When the reader cannot follow, the oldest of 10,000 pending lines give way; `dropped` counts them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pending: deque[bytes] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is pending; give up after `timeout_s` when nobody reads."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Queue one entry."""
        if len(self._pending) >= MAX_PENDING:
            self._pending.popleft()
            self.dropped += 1
        self._pending.append(_encode(entry))

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        lines = [self._pending.popleft() for _ in range(len(self._pending))]
        if lines:
            try:
                self._stream.write(b"\n".join(lines).decode() + "\n")
                self._stream.flush()
            except OSError:  # standard error has been closed: there is nowhere left to say so
                self.dropped += len(lines)


class JsonHandler(logging.Handler):
    """Python's logging through the same writer."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__(logging.INFO)
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        entry: dict[str, Any] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = logging.Formatter().formatException(record.exc_info)
        self._writer.write(entry)


def install(writer: LineWriter) -> None:
    """Send the process's logs through `writer`: our own from INFO on, those of libraries from WARNING on."""
    logging.basicConfig(handlers=[JsonHandler(writer)], level=logging.WARNING, force=True)
    logging.getLogger("serving").setLevel(logging.INFO)


class RequestLog:
    """One line for each answered request, or for a share of them; the server's own failures always get one."""

    def __init__(self, writer: LineWriter, *, rate: float, random: Callable[[], float]) -> None:
        self._writer, self._rate, self._random = writer, rate, random

    def add(self, *, status: int, user_id: str | None, fields: dict[str, Any]) -> None:
        """fields: what the line says beside time, status and the user's hash."""
        if status < 500 and self._rate < 1 and self._random() >= self._rate:
            return
        entry: dict[str, Any] = {"ts": round(time.time(), 3), "event": "rank", "status": status}
        if user_id is not None:
            entry["user"] = f"{stable_hash(user_id):016x}"
        self._writer.write(entry | fields)
