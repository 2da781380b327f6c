"""Batches of a wanted shape without a log behind them."""

import torch

from foundation.batch import GemBatch
from foundation.layout import InputLayout


def fake_batch(layout: InputLayout, lengths: list[int], *, aggregates: int = 0) -> GemBatch:
    """One request per history length, random values, codes and event types that the layout knows."""
    length_B, tasks = torch.tensor(lengths), len(layout.schema.tasks)
    rows, tokens = len(lengths), max(lengths) + 1
    mask_BT = torch.arange(tokens) <= length_B[:, None]
    age_s_BT = (torch.rand(rows, tokens) * 10_000).cumsum(dim=1)
    age_s_BT[:, 0] = 0
    sizes = torch.tensor([column.size for column in layout.columns])
    offsets = torch.tensor([column.offset for column in layout.columns])
    chosen = [*range(layout.user_columns, layout.user_columns + layout.ad_columns)]
    surface = next(number for number, column in enumerate(layout.columns) if column.name == "surface")
    chosen.append(surface)
    types_BT = torch.randint(0, tasks + 1, (rows, tokens)) * mask_BT
    types_BT[:, 0] = 0
    return GemBatch(
        set_codes_BC=(torch.rand(rows, len(sizes)) * sizes).long() + offsets,
        set_floats_BG=torch.randn(rows, layout.set_floats),
        event_codes_BTC=(torch.rand(rows, tokens, len(chosen)) * sizes[chosen]).long() + offsets[chosen],
        event_floats_BTG=torch.randn(rows, tokens, layout.event_floats),
        age_s_BT=age_s_BT * mask_BT,
        timed_BT=mask_BT,
        mask_BT=mask_BT,
        gap_s_BT=torch.rand(rows, tokens) * 10_000 * mask_BT,
        event_type_BT=types_BT,
        surface_B=torch.randint(0, len(layout.schema.surfaces), (rows,)),
        aggregates_BA=torch.cat(
            [torch.rand(rows, aggregates // 2) * 2 - 1, (torch.rand(rows, aggregates // 2) < 0.2).float()], dim=1
        ),
    )
