"""Hides inputs at random in training: what serving may lack (an ad, a history, its newest hours) is then nothing new.

A user who is new needs no dropout: in one pass every user's first rows are read with an untrained id row.
"""

import torch
from torch import Tensor

from student_models.recipes import StudentRecipe

HOUR_S = 3600


def hide_inputs(inputs: dict[str, Tensor], recipe: StudentRecipe, generator: torch.Generator) -> dict[str, Tensor]:
    """A copy of one batch's inputs with some ads, some histories and the newest elements of some others hidden, each
    row drawn by itself.

    The first two become the zeros that the assembler gives for an ad outside the catalogue (its id is the
    out-of-vocabulary row) and for a user without a record.
    """
    rows = len(inputs["user_cat"])
    hidden = {
        "ad_": torch.rand(rows, generator=generator) < recipe.drop_ad,
        "history_": torch.rand(rows, generator=generator) < recipe.drop_history,
    }
    result = dict(inputs)
    for prefix, rows_hidden in hidden.items():
        for name in inputs:
            if name.startswith(prefix):
                shape = (rows, *[1] * (inputs[name].ndim - 1))
                result[name] = inputs[name].masked_fill(rows_hidden.reshape(shape), 0)
    if recipe.drop_recent and "history_mask" in inputs:
        masked = torch.rand(rows, generator=generator) < recipe.drop_recent
        least_age_s = torch.rand(rows, generator=generator) * recipe.recent_hours * HOUR_S
        return hide_recent(result, least_age_s * masked)
    return result


def hide_recent(inputs: dict[str, Tensor], least_age_s: Tensor) -> dict[str, Tensor]:
    """A copy whose histories lack every element younger than least_age_s [B], as if the record were that old: the older
    ones move up in their order, and zeros follow. A full window is not filled up from what lies behind it."""
    age_s, mask = inputs["history_age_s"], inputs["history_mask"]
    count, length = mask.shape
    young = ((mask > 0) & (age_s < least_age_s[:, None])).sum(dim=1, keepdim=True)
    place = torch.arange(length) + young  # elements stand newest first: the young ones are the leading ones
    inside = place < length
    row = torch.arange(count)[:, None]
    result = dict(inputs)
    for name, values in inputs.items():
        if name.startswith("history_") and name != "history_stats":
            kept = inside.reshape(count, length, *[1] * (values.ndim - 2))
            result[name] = values[row, place.clamp(max=length - 1)].masked_fill(~kept, 0)
    present = result["history_mask"].amax(dim=1, keepdim=True)
    result["history_stats"] = torch.cat([inputs["history_stats"][:, :1] - young, present], dim=1)
    return result
