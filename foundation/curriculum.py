"""Events that train GEM before the log's own rows do: those that precede the log and carry no time."""

import numpy as np

from events.log import InteractionLog


def untimed_events(log: InteractionLog, *, per_user: int | None, before_ms: int, seed: int) -> np.ndarray:
    """The newest `per_user` untimed events of each user (None: all of them), int64, numbered as in LogTensors.

    Each user's stand in their own order; users take turns, those furthest from the log first, in random order within
    a turn: without times no order between users is truer than another. Only events that are certain to lie before
    `before_ms`. They teach the tasks whose labels the source has (docs/log.md has what they bring).
    """
    untimed = log.untimed
    if untimed is None or per_user == 0:
        return np.zeros(0, dtype=np.int64)
    rank = np.searchsorted(untimed.user, untimed.user, side="right") - 1 - np.arange(len(untimed.user))
    newest = rank < per_user if per_user is not None else np.ones(len(rank), dtype=bool)
    chosen = np.flatnonzero(newest & (untimed.before_ms < before_ms))
    turn = np.random.default_rng(seed).random(len(chosen))
    return chosen[np.lexsort((turn, -rank[chosen]))] + len(log)
