"""The wall clock of jobs: passed down as an argument, so a test may set the time."""

import time


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000
