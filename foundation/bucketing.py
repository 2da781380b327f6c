"""Batches almost free of padding: rows of similar length together, in time order but for a window of a few batches.

Legend: n rows in time order, a batch is `batch_rows` consecutive rows of an order, a window some consecutive batches.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contracts.errors import InputError


def bucketed_order(length_n: Tensor, *, batch_rows: int, window_batches: int | None = None) -> Tensor:
    """A permutation of 0 .. n - 1, int64: its consecutive `batch_rows` are batches of rows of similar length.

    The rows of each `window_batches` consecutive batches are sorted by length and cut into as many batches, so that no
    row moves by a window or more: training stays a pass in time order at that grain. Inside a window the batches follow
    each other by the mean time of their rows, not by length, and inside a batch the rows by time; windows of one batch
    and rows of equal length therefore keep the order as it is. None: one window over all rows, for inference. A
    function of its arguments alone. InputError for a size below 1.
    """
    if batch_rows < 1 or (window_batches is not None and window_batches < 1):
        raise InputError(f"batches of {batch_rows} rows in windows of {window_batches}: both must be at least 1")
    rows = len(length_n)
    if not rows:
        return torch.zeros(0, dtype=torch.int64)
    position = np.arange(rows)
    window = position // (batch_rows * window_batches) if window_batches else np.zeros(rows, dtype=np.int64)
    by_length = np.lexsort((position, -length_n.numpy(), window))  # a short last batch takes the shortest rows
    batch = position // batch_rows
    first = np.flatnonzero(np.diff(batch, prepend=-1))
    mean_time = np.add.reduceat(by_length, first) / np.diff(first, append=rows)
    if rows % batch_rows:
        mean_time[-1] = rows  # the short batch stays last, or the batches behind it would shift
    place = np.empty(len(first), dtype=np.int64)
    place[np.lexsort((mean_time, window[first]))] = np.arange(len(first))
    return torch.from_numpy(by_length[np.lexsort((by_length, place[batch]))])


@dataclass(frozen=True)
class Padding:
    """Share of padding among the sequence tokens of a pass: of batches in time order, and of those it takes."""

    in_time_order: float
    bucketed: float


def padding_share(length_n: Tensor, order: Tensor, *, batch_rows: int) -> float:
    """Share of padding among all sequence tokens when each batch is padded to its longest row, the request's own token
    counted: what an order of `bucketed_order` saves against 0 .. n - 1."""
    if not len(order):
        return 0.0
    tokens = real = 0
    for batch_B in (length_n[order] + 1).split(batch_rows):
        tokens += len(batch_B) * int(batch_B.max())
        real += int(batch_B.sum())
    return 1 - real / tokens
