"""Encoders: each reads what it says, gives finite numbers without a history, and exports with N dynamic and B = 1."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from contracts.elements import ELEMENTS
from contracts.features import InputSpec
from student_models.encoders import AGE_BOUNDS_S, HistoryEncoder
from student_models.export import TOLERANCE, Case, eager, export_onnx, largest_difference
from student_models.model import Served, Student
from student_models.recipes import Arm, Encoder, StudentRecipe, arm_spec, tiny
from student_models.trainer import TrainingData, as_tensors

ENCODERS = get_args(Encoder)
LOOPFM = Arm("loopfm", history=True)
ELEMENT_INPUTS = ("history_z", "history_age_s", "history_surface", "history_ad_hash", "history_outcome")
ALL = {"element_age": True, "element_surface": True, "element_ad": True, "element_outcome": True}


def recipe_of(encoder: str, *, elements: bool = True) -> StudentRecipe:
    return replace(tiny(), encoder=encoder, **(ALL if elements else {}))  # type: ignore[arg-type]


def student_of(data: TrainingData, recipe: StudentRecipe, arm: Arm = LOOPFM) -> Student:
    """With embeddings and attention of unit scale, so that every path matters."""
    torch.manual_seed(0)
    student = Student(arm_spec(data.student.spec, recipe, arm), recipe)
    for module in student.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
    return student.eval()


def inputs_of(data: TrainingData, recipe: StudentRecipe, arm: Arm = LOOPFM) -> dict[str, Tensor]:
    rows = data.student.read_by(arm)
    return as_tensors(rows.inputs(slice(600, 640), spec=arm_spec(data.student.spec, recipe, arm)))


def request(inputs: dict[str, Tensor], row: int, candidates: int) -> dict[str, Tensor]:
    """One user's inputs and the ads of the next rows, over and over."""
    ads = torch.arange(candidates) % len(inputs["ad_cat"])
    return {name: v[ads] if name.startswith("ad_") else v[row : row + 1] for name, v in inputs.items()}


def without_history(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(v) if name.startswith("history_") else v for name, v in inputs.items()}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_user_without_history_gets_finite_numbers_and_gradients(data: TrainingData, encoder: str) -> None:
    recipe = recipe_of(encoder)
    student, inputs = student_of(data, recipe).train(), without_history(inputs_of(data, recipe))
    output = student(inputs)
    (output.served.sum() + output.distilled.sum()).backward()
    assert output.served.isfinite().all()
    assert all(p.grad is None or p.grad.to_dense().isfinite().all() for p in student.parameters())


@pytest.mark.parametrize("encoder", ENCODERS)
def test_one_user_row_broadcasts_over_its_candidates(data: TrainingData, encoder: str) -> None:
    recipe = recipe_of(encoder)
    served, one = Served(student_of(data, recipe)), request(inputs_of(data, recipe), 3, 40)
    repeated = {n: v if n.startswith("ad_") else v.expand(40, *v.shape[1:]) for n, v in one.items()}
    assert torch.allclose(served(one), served(repeated), atol=1e-6)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_what_lies_behind_the_mask_is_not_read(data: TrainingData, encoder: str) -> None:
    recipe = recipe_of(encoder)
    served, inputs = Served(student_of(data, recipe)), inputs_of(data, recipe)
    behind = inputs["history_mask"] == 0
    assert behind.any()
    noisy = dict(inputs)
    for name in ("history_z", "history_outcome", "history_surface", "history_ad_hash"):
        where = behind.reshape(*behind.shape, *[1] * (inputs[name].ndim - 2))
        noisy[name] = torch.where(where, torch.ones_like(inputs[name]), inputs[name])
    assert torch.equal(served(inputs), served(noisy))


@pytest.mark.parametrize("name", ELEMENT_INPUTS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_element_input_is_read(data: TrainingData, encoder: str, name: str) -> None:
    recipe = recipe_of(encoder)
    served, inputs = Served(student_of(data, recipe)), inputs_of(data, recipe)
    full = inputs["history_mask"].sum(dim=1) > 1
    changed = dict(inputs)
    changed[name] = inputs[name].clone()
    changed[name][:, 1] = 1 - inputs[name][:, 1].clamp(max=1) if name != "history_age_s" else inputs[name][:, 1] + 9e4
    same = changed[name].flatten(1).eq(inputs[name].flatten(1)).all(dim=1)
    differs = (served(inputs) != served(changed)).any(dim=1)
    assert differs[full & ~same].all()


@pytest.mark.parametrize("encoder", ["decayed", "decayed_mean"])
def test_the_newest_element_weighs_most(data: TrainingData, encoder: str) -> None:
    weight = gradient_by_place(data, encoder)
    assert weight[0] == weight.max()


@pytest.mark.parametrize("encoder", ["mean", "sum"])
def test_all_elements_weigh_the_same(data: TrainingData, encoder: str) -> None:
    history = student_of(data, recipe_of(encoder, elements=False)).tower.history
    assert history is not None
    weights = history._weights(torch.tensor([[1.0, 1.0, 1.0, 0.0]]))[0, 0]
    each = 1 / 3 if encoder == "mean" else 1 / 2
    assert weights.tolist() == pytest.approx([each, each, each, 0.0])


def gradient_by_place(data: TrainingData, encoder: str) -> Tensor:
    history = student_of(data, recipe_of(encoder, elements=False)).tower.history
    assert history is not None
    z = torch.randn(1, 8, data.student.spec.dim, requires_grad=True)
    inputs = {"history_z": z, "history_age_s": torch.ones(1, 8), "history_mask": torch.ones(1, 8)}
    history({**inputs, "history_stats": torch.tensor([[8.0, 1.0]])}, nn.Identity())[0].square().sum().backward()
    assert z.grad is not None
    return z.grad.abs().sum(dim=2)[0]


def test_the_causal_block_looks_at_older_elements_alone(data: TrainingData) -> None:
    history = student_of(data, recipe_of("dmin", elements=False)).tower.history
    assert history is not None
    assert history.block is not None
    z, mask = torch.randn(1, 8, data.student.spec.dim), torch.ones(1, 8)
    changed = z.clone()
    changed[0, 3] += 1
    moved = (history.block(z, mask) != history.block(changed, mask)).any(dim=2)[0]
    assert moved.tolist() == [True] * 4 + [False] * 4  # newest first: 0 to 3 see element 3


@pytest.mark.parametrize("encoder", ["din", "dmin"])
def test_attention_depends_on_the_candidate(data: TrainingData, encoder: str) -> None:
    history = student_of(data, recipe_of(encoder, elements=False)).tower.history
    assert history is not None
    assert history.target is not None
    width = history.target.value.in_features
    elements, ages, mask = torch.randn(1, 8, width), torch.ones(1, 8), torch.ones(1, 8)
    seen = history.target(elements, ages, mask, torch.randn(2, history.target.query.in_features))
    assert seen.shape == (2, history.ad_width)
    assert not torch.allclose(seen[0], seen[1])
    older = history.target(elements, ages * 9e4, mask, torch.zeros(1, history.target.query.in_features))
    younger = history.target(elements, ages, mask, torch.zeros(1, history.target.query.in_features))
    # a bucket that all elements share adds the same to each key, a relu makes it matter
    assert torch.equal(older, younger) == (encoder == "din")


def test_age_buckets_part_at_their_bounds() -> None:
    ages = torch.tensor([[0.0, 59.0, 60.0, 3599.0, 3600.0, 1e9]])
    bucket = (ages[:, :, None] >= torch.tensor(AGE_BOUNDS_S)).long().sum(dim=2)
    assert bucket.tolist() == [[0, 0, 1, 2, 3, len(AGE_BOUNDS_S)]]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_history_of_counts_alone_has_no_elements(data: TrainingData, encoder: str) -> None:
    recipe, arm = recipe_of(encoder), Arm("count", history="count")
    student = student_of(data, recipe, arm)
    assert student.tower.history is not None
    assert (student.tower.history.width, student.tower.history.target) == (3, None)
    assert student(inputs_of(data, recipe, arm)).served.isfinite().all()


def test_few_numbers_are_not_normed(data: TrainingData) -> None:
    schema = data.student.spec.schema
    narrow, wide = (HistoryEncoder(InputSpec(schema, 4, dim), tiny(), 5).elements.norm for dim in (3, 8))
    assert isinstance(narrow, nn.Identity)
    assert isinstance(wide, nn.LayerNorm)


@pytest.mark.parametrize("encoder", ["decayed_mean", "sum", "din", "dmin"])
def test_the_graph_equals_eager(data: TrainingData, tmp_path: Path, encoder: str) -> None:
    recipe = recipe_of(encoder)
    served, inputs = Served(student_of(data, recipe)).eval(), inputs_of(data, recipe)
    spec = arm_spec(data.student.spec, recipe, LOOPFM)
    assert spec.elements == ELEMENTS
    empty = without_history(inputs)
    requests = [request(of, 5, candidates) for candidates in (1, 2, 37) for of in (inputs, empty)]
    cases = [Case({name: np.ascontiguousarray(v.numpy()) for name, v in one.items()}) for one in requests]
    export_onnx(served, spec, cases[-1], tmp_path / "model.onnx")
    expected = [eager(served, case) for case in cases]
    assert all(np.isfinite(probabilities).all() for probabilities in expected)
    assert largest_difference(tmp_path / "model.onnx", cases, expected) <= TOLERANCE
