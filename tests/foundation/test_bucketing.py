"""Similar lengths together, time order kept to within a window: whatever the lengths and the sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from foundation.bucketing import bucketed_order, padding_share

LENGTHS = st.lists(st.integers(0, 50), max_size=80).map(lambda lengths: torch.tensor(lengths, dtype=torch.int64))


@given(length_n=LENGTHS, batch_rows=st.integers(1, 9), window=st.none() | st.integers(1, 5))
def test_a_permutation_that_moves_no_row_by_a_window(
    length_n: torch.Tensor, batch_rows: int, window: int | None
) -> None:
    order = bucketed_order(length_n, batch_rows=batch_rows, window_batches=window)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(len(length_n)))
    if window:
        moved = (order - torch.arange(len(order))).abs()
        assert (moved < batch_rows * window).all()
        assert torch.equal(order // (batch_rows * window), torch.arange(len(order)) // (batch_rows * window))
    again = bucketed_order(length_n.clone(), batch_rows=batch_rows, window_batches=window)
    assert torch.equal(order, again)


@given(length_n=LENGTHS, batch_rows=st.integers(1, 9), window=st.none() | st.integers(1, 5))
def test_never_more_padding(length_n: torch.Tensor, batch_rows: int, window: int | None) -> None:
    if len(length_n) % batch_rows:
        length_n = length_n[: len(length_n) // batch_rows * batch_rows]  # a short batch may take longer rows' places
    before = padding_share(length_n, torch.arange(len(length_n)), batch_rows=batch_rows)
    order = bucketed_order(length_n, batch_rows=batch_rows, window_batches=window)
    assert padding_share(length_n, order, batch_rows=batch_rows) <= before + 1e-9


@given(length_n=LENGTHS, batch_rows=st.integers(1, 9))
def test_windows_of_one_batch_and_equal_lengths_keep_the_order(length_n: torch.Tensor, batch_rows: int) -> None:
    kept = torch.arange(len(length_n))
    assert torch.equal(bucketed_order(length_n, batch_rows=batch_rows, window_batches=1), kept)
    assert torch.equal(bucketed_order(length_n * 0, batch_rows=batch_rows, window_batches=4), kept)


def test_saves_most_of_the_padding_of_mixed_lengths() -> None:
    length_n = torch.from_numpy(np.random.default_rng(0).geometric(0.03, 8_000).clip(max=256))
    before = padding_share(length_n, torch.arange(len(length_n)), batch_rows=64)
    after = padding_share(length_n, bucketed_order(length_n, batch_rows=64, window_batches=32), batch_rows=64)
    assert before > 0.6
    assert after < 0.15


def test_batches_do_not_go_from_long_to_short() -> None:
    """A drift of lengths inside each window would be a schedule that nobody asked for."""
    length_n = torch.from_numpy(np.random.default_rng(0).integers(0, 100, 6_400))
    order = bucketed_order(length_n, batch_rows=64, window_batches=100)
    means = length_n[order].float().unflatten(0, (100, 64)).mean(dim=1)
    assert abs(np.corrcoef(means.numpy(), np.arange(100))[0, 1]) < 0.3


def test_the_share_counts_the_requests_own_token() -> None:
    assert padding_share(torch.tensor([0, 3]), torch.arange(2), batch_rows=2) == pytest.approx(3 / 8)
    assert padding_share(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), batch_rows=2) == 0


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        bucketed_order(torch.zeros(4), batch_rows=0, window_batches=2)
    with pytest.raises(InputError, match="at least 1"):
        bucketed_order(torch.zeros(4), batch_rows=2, window_batches=0)
