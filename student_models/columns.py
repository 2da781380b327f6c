"""Embeddings of the categorical columns of a user or an ad.

Legend: R rows, C columns.
"""

import torch
from torch import Tensor, nn

SPARSE_ROWS = 1024
"""Id tables and those with more rows take sparse gradients: a step must not touch 131,072 rows for a batch of 256."""

INIT_STD = 0.001
"""An untrained row is nearly the zero vector: a user or ad that is new adds nothing."""


class Columns(nn.Module):
    """Embeddings of the columns of a categorical input, concatenated: [R, C] int64 -> [R, sum of widths]."""

    def __init__(self, sizes: tuple[int, ...], *, id_width: int, feature_width: int) -> None:
        super().__init__()
        widths = [id_width, *[feature_width] * (len(sizes) - 1)]  # column 0 is the hashed id of the user or ad
        tables = [
            nn.Embedding(rows, width, sparse=column == 0 or rows > SPARSE_ROWS)
            for column, (rows, width) in enumerate(zip(sizes, widths, strict=True))
        ]
        for table in tables:
            nn.init.normal_(table.weight, std=INIT_STD)
        self.tables = nn.ModuleList(tables)
        self.width = sum(widths)

    def forward(self, codes: Tensor) -> Tensor:
        return torch.cat([table(codes[:, column]) for column, table in enumerate(self.tables)], dim=1)


def small_table(rows: int, width: int) -> nn.Embedding:
    """An embedding table whose rows start near zero."""
    table = nn.Embedding(rows, width)
    nn.init.normal_(table.weight, std=INIT_STD)
    return table
