"""First-order terms: one weight per value and task, added to the logits past all interactions.

Legend: B batch, C set columns, G floats, K tasks. The wide part of wide & deep models (1606.07792): the rate of an ad
or a surface is learned from few rows, which tasks that are defined on clicked rows alone need most. User columns are
left out: a weight per user id memorises instead (docs/log.md has both findings).
"""

import torch
from torch import Tensor, nn

from foundation.layout import InputLayout


class FirstOrder(nn.Module):
    """Weights of ad, surface, clock and context values and of the float features; all start at zero."""

    def __init__(self, layout: InputLayout) -> None:
        super().__init__()
        tasks = len(layout.schema.tasks)
        self._first_column = layout.user_columns
        self.table = nn.Embedding(layout.table_rows, tasks, sparse=True)
        self.floats = nn.Linear(layout.set_floats, tasks, bias=False)
        nn.init.zeros_(self.table.weight)
        nn.init.zeros_(self.floats.weight)

    def forward(self, set_codes_BC: Tensor, set_floats_BG: Tensor) -> Tensor:
        """Terms of the logits [B, K]."""
        weights_BCK: Tensor = self.table(set_codes_BC[:, self._first_column :])
        return torch.add(weights_BCK.sum(dim=1), self.floats(set_floats_BG))
