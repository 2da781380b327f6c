"""A circuit breaker for the embedding store: after repeated failures, requests stop waiting for it."""


class Breaker:
    """Opens after `threshold` failures in a row; the background poll, never a request, finds out when to close it.

    `reason` is the code of the failure that opened it, so that an answer without a read still says why.
    """

    def __init__(self, threshold: int = 5) -> None:
        self._threshold = threshold
        self._failures = 0
        self.reason: str | None = None

    @property
    def is_open(self) -> bool:
        return self._failures >= self._threshold

    def failed(self, reason: str) -> None:
        """A request's read failed."""
        self._failures += 1
        self.reason = reason

    def succeeded(self) -> None:
        """A read or a probe came through."""
        self._failures = 0
        self.reason = None
