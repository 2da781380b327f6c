"""The student: one user row serves all candidates, absent history adds nothing, and only the served head is served."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from contracts.features import InputSpec
from student_models.model import Served, Student
from student_models.recipes import tiny
from student_models.trainer import TrainingData, as_tensors


def student_of(data: TrainingData, *, beta: float = 1.0, decoupled: bool = False) -> Student:
    torch.manual_seed(0)
    student = Student(data.student.spec, replace(tiny(), kd_beta=beta, decoupled=decoupled))
    for module in student.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
    return student.eval()


def batch(data: TrainingData, rows: slice = slice(600, 650)) -> dict[str, Tensor]:
    return as_tensors(data.student.inputs(rows, spec=data.student.spec))


def test_one_user_row_broadcasts_over_its_candidates(data: TrainingData) -> None:
    inputs = batch(data)
    one = {name: values if name.startswith("ad_") else values[:1] for name, values in inputs.items()}
    repeated = {
        name: values if name.startswith("ad_") else values[:1].expand(50, *values.shape[1:])
        for name, values in inputs.items()
    }
    served = Served(student_of(data))
    assert served(one).shape == (50, len(data.student.spec.schema.tasks))
    assert torch.allclose(served(one), served(repeated), atol=1e-6)


def test_probabilities_do_not_depend_on_the_rest_of_the_batch(data: TrainingData) -> None:
    served, inputs = Served(student_of(data)), batch(data)
    alone = served({name: values[7:8] for name, values in inputs.items()})
    assert torch.allclose(served(inputs)[7:8], alone, atol=1e-6)


def test_what_lies_behind_the_mask_is_not_read(data: TrainingData) -> None:
    served, inputs = Served(student_of(data)), batch(data)
    behind = inputs["history_mask"] == 0
    assert behind.any()
    noisy = {**inputs, "history_z": torch.where(behind[:, :, None], 5.0, inputs["history_z"])}
    assert torch.equal(served(inputs), served(noisy))


def test_a_student_without_history_has_no_encoder(data: TrainingData) -> None:
    spec = InputSpec(data.student.spec.schema, 0, data.student.spec.dim)
    student = Student(spec, tiny())
    assert student.tower.history is None
    inputs = as_tensors(data.student.inputs(slice(0, 5), spec=spec))
    assert student(inputs).served.shape == (5, len(spec.schema.tasks))


@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0])
def test_beta_scales_what_the_distillation_head_sends_down(data: TrainingData, beta: float) -> None:
    def gradients(scale: float) -> tuple[Tensor, Tensor]:
        student = student_of(data, beta=scale)
        student(batch(data)).distilled.sum().backward()
        assert student.served.trunk.weight.grad is None
        assert student.distilled.trunk.weight.grad is not None
        assert student.tower.second.weight.grad is not None
        return student.tower.second.weight.grad, student.distilled.trunk.weight.grad

    (below, own), (below_at_one, own_at_one) = gradients(beta), gradients(1.0)
    assert torch.allclose(below, beta * below_at_one, atol=1e-5)
    assert torch.allclose(own, own_at_one)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_decoupled_towers_share_the_embeddings_alone(data: TrainingData, beta: float) -> None:
    def gradients(scale: float) -> dict[str, Tensor]:
        student = student_of(data, beta=scale, decoupled=True)
        student(batch(data)).distilled.sum().backward()
        return {n: p.grad.to_dense() for n, p in student.named_parameters() if p.grad is not None and p.grad.any()}

    scaled, at_one = gradients(beta), gradients(1.0)
    assert {name.split(".")[0] for name in at_one} == {"user_columns", "ad_columns", "distilled", "distilled_tower"}
    for name, gradient in at_one.items():
        factor = beta if "columns" in name else 1
        assert torch.allclose(scaled.get(name, torch.zeros(())), factor * gradient, atol=1e-5)


def test_decoupling_leaves_the_served_head_as_it_was(data: TrainingData) -> None:
    one, other = (Served(student_of(data, decoupled=decoupled)) for decoupled in (False, True))
    assert one(batch(data)).shape == other(batch(data)).shape
    names = {name for name, _ in one.named_parameters()}
    added = {name for name, _ in other.named_parameters()} - names
    assert added
    assert all(name.startswith("student.distilled_tower.") for name in added)


def test_both_heads_start_at_the_base_rates(data: TrainingData) -> None:
    student = Student(data.student.spec, tiny()).eval()
    student.start_at(torch.from_numpy(data.rates))
    mean = Served(student)(batch(data)).mean(dim=0)
    assert torch.allclose(torch.logit(mean), torch.logit(torch.from_numpy(data.rates)), atol=0.5)
