"""Optimisers for tables of which a batch reads a few rows: only those rows are touched.

Legend: R rows of the batch, E width of a row. Both do what torch's own sparse optimisers do (the tests compare them),
by gathers and scatters of rows instead of sums of sparse tensors, which cost several times as much.
"""

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8
ADAGRAD_EPS = 1e-10
"""Defaults of torch's optimisers."""


class LazyAdam:
    """Adam whose moments decay only where a row has a gradient: `torch.optim.SparseAdam`."""

    def __init__(self, tables: list[nn.Parameter]) -> None:
        self.tables = tables
        self.state = {
            table: {"exp_avg": torch.zeros_like(table), "exp_avg_sq": torch.zeros_like(table), "step": torch.zeros(())}
            for table in tables
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update of every table that has a sparse gradient."""
        for table in self.tables:
            if table.grad is None:
                continue
            row_R, grad_RE = rows_of(table.grad)
            state = self.state[table]
            state["step"] += 1
            step = float(state["step"])
            mean_RE = state["exp_avg"].index_select(0, row_R).lerp_(grad_RE, 1 - BETAS[0])
            square_RE = state["exp_avg_sq"].index_select(0, row_R).lerp_(grad_RE.square(), 1 - BETAS[1])
            state["exp_avg"].index_copy_(0, row_R, mean_RE)
            state["exp_avg_sq"].index_copy_(0, row_R, square_RE)
            size = rate * (1 - BETAS[1] ** step) ** 0.5 / (1 - BETAS[0] ** step)
            moved_RE = table.index_select(0, row_R).addcdiv_(mean_RE, square_RE.sqrt_().add_(ADAM_EPS), value=-size)
            table.index_copy_(0, row_R, moved_RE)


class RowAdagrad:
    """Adagrad of rows. `per_row`: one accumulator for each row, of the mean square of its gradient (row-wise Adagrad of
    FBGEMM's tables); else one for each weight, `torch.optim.Adagrad`."""

    def __init__(self, tables: list[nn.Parameter], *, per_row: bool) -> None:
        self.tables = tables
        self._per_row = per_row
        self.state = {
            table: {"sum": torch.zeros_like(table[:, :1] if per_row else table), "step": torch.zeros(())}
            for table in tables
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update of every table that has a sparse gradient."""
        for table in self.tables:
            if table.grad is None:
                continue
            row_R, grad_RE = rows_of(table.grad)
            state = self.state[table]
            state["step"] += 1
            square_RE = grad_RE.square()
            if self._per_row:
                square_RE = square_RE.mean(dim=1, keepdim=True)
            sum_RE = state["sum"].index_select(0, row_R).add_(square_RE)
            state["sum"].index_copy_(0, row_R, sum_RE)
            moved_RE = table.index_select(0, row_R).addcdiv_(grad_RE, sum_RE.sqrt_().add_(ADAGRAD_EPS), value=-rate)
            table.index_copy_(0, row_R, moved_RE)


def rows_of(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows of a sparse gradient, int64 [R], and the sum of each one's gradients [R, E]: `coalesce`, faster."""
    row_R, place = torch.unique(gradient._indices()[0], return_inverse=True)
    values = gradient._values()
    return row_R, values.new_zeros(len(row_R), values.shape[1]).index_add_(0, place, values)
