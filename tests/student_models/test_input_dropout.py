"""A hidden input is exactly what the assembler gives when serving lacks it."""

from dataclasses import replace

import numpy as np
import torch

from contracts.features import UNKNOWN_AD, HistoryBatch, user_inputs
from student_models.input_dropout import hide_inputs
from student_models.recipes import StudentRecipe, tiny
from student_models.trainer import TrainingData, as_tensors

KEEP_ALL = replace(tiny(), drop_ad=0.0, drop_history=0.0)


def hidden(data: TrainingData, recipe: StudentRecipe, rows: int = 200) -> tuple[dict, dict]:
    inputs = as_tensors(data.student.inputs(slice(0, rows), spec=data.student.spec))
    return inputs, hide_inputs(inputs, recipe, torch.Generator().manual_seed(0))


def test_nothing_is_hidden_at_probability_zero(data: TrainingData) -> None:
    inputs, same = hidden(data, KEEP_ALL)
    assert all(torch.equal(inputs[name], same[name]) for name in inputs)


def test_the_batch_itself_stays_as_it_was(data: TrainingData) -> None:
    before = data.student.inputs(slice(0, 200), spec=data.student.spec)
    inputs, _ = hidden(data, replace(tiny(), drop_ad=1.0, drop_history=1.0))
    assert all(np.array_equal(before[name], inputs[name].numpy()) for name in before)


def test_a_hidden_history_is_that_of_a_user_without_one(data: TrainingData) -> None:
    rows, part = data.student, slice(0, 200)
    _, without = hidden(data, replace(KEEP_ALL, drop_history=1.0))
    expected = user_inputs(
        rows.spec,
        user_buckets=rows.user_bucket[part],
        surfaces=rows.surface[part],
        now_ms=rows.event_ms[part],
        context={name: values[part] for name, values in rows.context.items()},
        history=HistoryBatch.from_index(
            rows.logged.vectors, rows.logged.event_ms, np.full_like(rows.index[part], -1), np.zeros(200)
        ),
    )
    assert all(np.array_equal(without[name].numpy(), values) for name, values in expected.items())


def test_a_hidden_ad_is_one_outside_the_catalogue(data: TrainingData) -> None:
    _, without = hidden(data, replace(KEEP_ALL, drop_ad=1.0))
    unknown = data.student.ads.rows(np.full(200, UNKNOWN_AD))
    assert all(np.array_equal(without[name].numpy(), values) for name, values in unknown.items())


def test_rows_are_drawn_by_themselves_in_the_stated_share(data: TrainingData) -> None:
    inputs, some = hidden(data, replace(KEEP_ALL, drop_ad=0.3))
    gone = (some["ad_cat"] == 0).all(dim=1)
    assert 0.2 < gone.float().mean() < 0.4
    assert torch.equal(some["ad_cat"][~gone], inputs["ad_cat"][~gone])
    assert all(torch.equal(some[name], inputs[name]) for name in inputs if not name.startswith("ad_"))
