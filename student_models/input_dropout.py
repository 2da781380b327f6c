"""Hides inputs at random in training: what serving may lack (an ad, a history) is then nothing new to the student.

A user who is new needs no dropout: in one pass every user's first rows are read with an untrained id row.
"""

import torch
from torch import Tensor

from student_models.recipes import StudentRecipe


def hide_inputs(inputs: dict[str, Tensor], recipe: StudentRecipe, generator: torch.Generator) -> dict[str, Tensor]:
    """A copy of one batch's inputs with some ads and some histories hidden, each row drawn by itself.

    Both become the zeros that the assembler gives for an ad outside the catalogue (its id is the out-of-vocabulary
    row) and for a user without a record.
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
    return result
