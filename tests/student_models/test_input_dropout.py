"""A hidden input is exactly what the assembler gives when serving lacks it."""

from dataclasses import replace

import numpy as np
import torch

from contracts.elements import ELEMENTS
from contracts.features import UNKNOWN_AD, HistoryBatch, InputSpec, user_inputs
from student_models.input_dropout import hide_inputs, hide_recent
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


def all_elements(data: TrainingData, rows: int = 400) -> tuple[InputSpec, dict[str, torch.Tensor]]:
    spec = replace(data.student.spec, elements=ELEMENTS)
    return spec, as_tensors(data.student.inputs(slice(0, rows), spec=spec))


def test_hiding_the_newest_hours_is_reading_an_older_record(data: TrainingData) -> None:
    """By the assembler: the same users now, with the elements that are old enough."""
    rows, (spec, inputs) = data.student, all_elements(data)
    index, now_ms = rows.index[:400], rows.event_ms[:400]
    hours = np.random.default_rng(0).uniform(0, 30, 400)
    old = (now_ms[:, None] - rows.logged.event_ms[index] >= (hours * 3_600_000)[:, None]) & (index >= 0)
    aged = np.full_like(index, -1)
    for b in range(400):
        aged[b, : old[b].sum()] = index[b][old[b]]
    dropped = (index >= 0).sum(axis=1) - old.sum(axis=1)
    assert (dropped > 0).any()
    older = replace(rows, index=aged, impressions=rows.impressions[:400] - dropped)
    expected = older.inputs(slice(0, 400), spec=spec)
    found = hide_recent(inputs, torch.from_numpy(hours * 3600))
    # an outcome does not age: it is known as of the row's own time either way
    assert [name for name in found if not np.array_equal(found[name].numpy(), expected[name])] == []


def test_the_time_mask_hides_the_youngest_and_keeps_the_order_of_the_rest(data: TrainingData) -> None:
    _, inputs = all_elements(data)
    found = hide_recent(inputs, torch.full((400,), 7200.0))
    for b in range(400):
        kept = [age for age, on in zip(inputs["history_age_s"][b], inputs["history_mask"][b], strict=True) if on]
        kept = [age for age in kept if age >= 7200]
        count = int(found["history_mask"][b].sum())
        assert found["history_age_s"][b, :count].tolist() == [float(age) for age in kept]
        assert not found["history_z"][b, count:].any()
        assert found["history_stats"][b, 1] == bool(kept)


def test_the_time_mask_is_drawn_by_row_behind_the_other_draws(data: TrainingData) -> None:
    _, without = hidden(data, tiny(), rows=400)
    _, masked = hidden(data, replace(tiny(), drop_recent=0.5, recent_hours=12.0), rows=400)
    assert torch.equal(without["ad_cat"], masked["ad_cat"])
    had = without["history_stats"][:, 0] > 0
    changed = without["history_stats"][:, 0] != masked["history_stats"][:, 0]
    assert 0 < changed.sum() < had.sum()
    _, at_no_age = hidden(data, replace(tiny(), drop_recent=1.0, recent_hours=0.0), rows=400)
    assert all(torch.equal(without[name], at_no_age[name]) for name in without)
