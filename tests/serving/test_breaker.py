"""The circuit breaker: opens on failures in a row, remembers why, closes on the first success."""

from serving.breaker import Breaker


def test_it_opens_after_failures_in_a_row_and_says_why():
    breaker = Breaker(threshold=3)
    for reason in ("timeout", "timeout", "unreachable"):
        assert not breaker.is_open
        breaker.failed(reason)
    assert breaker.is_open
    assert breaker.reason == "unreachable"


def test_a_success_starts_the_count_again():
    breaker = Breaker(threshold=2)
    breaker.failed("timeout")
    breaker.succeeded()
    breaker.failed("timeout")
    assert not breaker.is_open


def test_a_success_closes_it():
    breaker = Breaker(threshold=1)
    breaker.failed("timeout")
    breaker.succeeded()
    assert (breaker.is_open, breaker.reason) == (False, None)
