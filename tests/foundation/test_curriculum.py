"""Untimed events train first: the newest of each user, in the user's own order, certain to precede the period."""

from dataclasses import replace

import numpy as np

from foundation.curriculum import untimed_events
from tests.events.small_logs import small_log

LOG = small_log([(0, 1000), (1, 2000)], untimed=[0, 0, 0, 1, 1, 2])


def test_takes_the_newest_of_each_user_furthest_first() -> None:
    events = untimed_events(LOG, per_user=2, before_ms=1000, seed=0)
    assert sorted(events - len(LOG)) == [1, 2, 3, 4, 5]
    assert set(events[:2] - len(LOG)) == {1, 3}  # the second newest of users 0 and 1; user 2 has one event


def test_users_take_turns_in_an_order_that_the_seed_decides() -> None:
    crowd = small_log([(0, 1000)], users=50, untimed=list(range(50)) * 2)
    one, same, other = (untimed_events(crowd, per_user=2, before_ms=1000, seed=seed) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_all_of_them_in_the_same_order() -> None:
    everything = untimed_events(LOG, per_user=None, before_ms=1000, seed=0) - len(LOG)
    assert sorted(everything) == [0, 1, 2, 3, 4, 5]
    assert everything[0] == 0  # the third newest of user 0 has no equal
    assert set(everything[1:3]) == {1, 3}
    many = untimed_events(LOG, per_user=1000, before_ms=1000, seed=0) - len(LOG)
    assert everything.tolist() == many.tolist()


def test_nothing_that_may_lie_in_the_period() -> None:
    assert LOG.untimed is not None
    dated = replace(LOG, untimed=replace(LOG.untimed, before_ms=np.array([10, 10, 10, 5000, 5000, 10])))
    events = untimed_events(dated, per_user=2, before_ms=1000, seed=0)
    assert sorted(events - len(LOG)) == [1, 2, 5]


def test_a_log_without_untimed_events_has_none() -> None:
    assert not len(untimed_events(replace(LOG, untimed=None), per_user=4, before_ms=1000, seed=0))
    assert not len(untimed_events(LOG, per_user=0, before_ms=1000, seed=0))
