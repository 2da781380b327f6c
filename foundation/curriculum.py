"""Events that train GEM before the log's own rows do: those that precede the log and carry no time."""

import numpy as np

from events.log import InteractionLog


def untimed_events(log: InteractionLog, *, per_user: int, before_ms: int, seed: int) -> np.ndarray:
    """The newest `per_user` untimed events of each user, int64, numbered as in LogTensors.

    Each user's stand in their own order; users take turns, those furthest from the log first, in random order within
    a turn: without times no order between users is truer than another. Only events that are certain to lie before
    `before_ms`. They teach the tasks whose labels the source has (docs/log.md has what they bring).
    """
    untimed = log.untimed
    if untimed is None or not per_user:
        return np.zeros(0, dtype=np.int64)
    rank = np.searchsorted(untimed.user, untimed.user, side="right") - 1 - np.arange(len(untimed.user))
    chosen = np.flatnonzero((rank < per_user) & (untimed.before_ms < before_ms))
    turn = np.random.default_rng(seed).random(len(chosen))
    return chosen[np.lexsort((turn, -rank[chosen]))] + len(log)
