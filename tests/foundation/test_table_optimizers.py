"""The row optimisers do what torch's sparse ones do, and row-wise Adagrad what its formula says."""

import pytest
import torch
from torch import Tensor, nn

from foundation.table_optimizers import LazyAdam, RowAdagrad, rows_of

ROWS, WIDTH = 40, 3


def gradient(seed: int) -> Tensor:
    """Of a batch that reads some rows several times."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, ROWS // 2, (1, 30), generator=generator)
    values = torch.randn(30, WIDTH, generator=generator)
    return torch.sparse_coo_tensor(rows, values, (ROWS, WIDTH), check_invariants=False)


@pytest.mark.parametrize("kind", ["adam", "adagrad"])
def test_takes_the_steps_of_torch_s_optimiser(kind: str) -> None:
    start = torch.randn(ROWS, WIDTH)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    fast: LazyAdam | RowAdagrad
    reference: torch.optim.Optimizer
    if kind == "adam":
        fast, reference = LazyAdam([ours]), torch.optim.SparseAdam([theirs], lr=0.1)
    else:
        fast, reference = RowAdagrad([ours], per_row=False), torch.optim.Adagrad([theirs], lr=0.1)
    for step in range(20):
        ours.grad, theirs.grad = gradient(step), gradient(step)
        fast.step(0.1)
        with torch.sparse.check_sparse_tensor_invariants(False):
            reference.step()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_row_wise_adagrad_keeps_one_accumulator_per_row() -> None:
    table = nn.Parameter(torch.randn(ROWS, WIDTH))
    optimiser = RowAdagrad([table], per_row=True)
    expected, total = table.detach().clone(), torch.zeros(ROWS, 1)
    for step in range(5):
        table.grad = gradient(step)
        dense = table.grad.to_dense()
        optimiser.step(0.1)
        total += dense.square().mean(dim=1, keepdim=True)
        expected -= 0.1 * dense / (total.sqrt() + 1e-10)
    torch.testing.assert_close(table.detach(), expected, atol=1e-5, rtol=1e-5)
    assert optimiser.state[table]["sum"].shape == (ROWS, 1)


def test_rows_of_is_coalesce() -> None:
    rows, values = rows_of(gradient(0))
    with torch.sparse.check_sparse_tensor_invariants(False):
        reference = gradient(0).coalesce()
    assert torch.equal(rows, reference.indices()[0])
    torch.testing.assert_close(values, reference.values())


@pytest.mark.parametrize("optimiser", [LazyAdam, lambda tables: RowAdagrad(tables, per_row=True)])
def test_a_table_without_a_gradient_stays(optimiser: type[LazyAdam]) -> None:
    table = nn.Parameter(torch.randn(ROWS, WIDTH))
    before = table.detach().clone()
    optimiser([table]).step(0.1)
    assert torch.equal(table.detach(), before)
