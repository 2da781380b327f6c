"""Training: one pass in time order, the stated loss, the same weights for the same seed, whole rows left untouched."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from contracts.errors import GemError
from events.metrics import ne
from student_models.columns import INIT_STD
from student_models.dataset import StudentRows
from student_models.logged import LoggedVectors
from student_models.model import Student, StudentOutput
from student_models.recipes import ARMS, STUDY_ARMS, Arm, arm_named, arm_spec, tiny
from student_models.trainer import TrainingData, distillation_loss, fit, fitnet_loss, probabilities

BASE, KD, KD_LOOPFM, PLACEBO = (arm_named(name) for name in ("base", "kd", "kd_loopfm", "placebo"))


def weights(data: TrainingData, arm_name: str = "kd_loopfm", seed: int = 0) -> dict[str, torch.Tensor]:
    return fit(data, tiny(), arm_named(arm_name), seed).state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_seed_gives_the_same_weights_and_another_gives_others(data: TrainingData) -> None:
    first = weights(data)
    torch.manual_seed(99)  # what ran before must not matter
    assert same(first, weights(data))
    assert not same(first, weights(data, seed=1))


def test_training_leaves_the_global_generator_alone(data: TrainingData) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(data, tiny(), BASE, 0)
    assert torch.equal(torch.rand(3), expected)


def test_steps_follow_time_and_see_each_row_once(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []
    inputs = StudentRows.inputs

    def noted(rows: StudentRows, part: slice, **keywords: object) -> dict[str, np.ndarray]:
        seen.append(rows.event_ms[part])
        return inputs(rows, part, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(StudentRows, "inputs", noted)
    fit(data, tiny(), KD_LOOPFM, 0)
    assert np.array_equal(np.concatenate(seen), data.student.event_ms)
    assert (np.diff(np.concatenate(seen)) >= 0).all()


def test_the_loss_is_that_of_exfm(data: TrainingData) -> None:
    rows, part = data.student, slice(100, 164)
    random = np.random.default_rng(0)
    served, distilled = (random.normal(size=(64, rows.labels.shape[1])).astype(np.float32) for _ in range(2))
    recipe = replace(tiny(), kd_weight=3.0, kd_alpha=1.5)

    def bce(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
        p = 1 / (1 + np.exp(-logits))
        return -y * np.log(p) - (1 - y) * np.log(1 - p)

    output = StudentOutput(torch.from_numpy(served), torch.from_numpy(distilled), torch.zeros(64, 1))
    hard = (bce(served, rows.labels[part]) * rows.usable[part]).sum() / 64
    soft = (bce(distilled, np.minimum(1.5 * rows.soft[part], 1)) * rows.has_soft[part][:, None]).sum() / 64
    arms = (BASE, KD, replace(KD, kd_weight=0.5))
    found = [distillation_loss(output, rows, part, recipe=recipe, arm=arm).item() for arm in arms]
    assert found == pytest.approx([hard, hard + 3 * soft, hard + 0.5 * soft], rel=1e-5)


def test_the_fitnet_loss_is_the_error_of_the_rows_own_z(data: TrainingData) -> None:
    rows, part = data.student, slice(100, 164)
    half = replace(rows, own=np.where(np.arange(len(rows)) % 2, rows.own, -1))
    predicted = np.random.default_rng(0).normal(size=(64, rows.spec.dim)).astype(np.float32)
    error = ((predicted - rows.logged.vectors[rows.own[part]]) ** 2).mean(axis=1)
    assert fitnet_loss(torch.from_numpy(predicted), half, part).item() == pytest.approx(error[1::2].sum() / 64)
    blind = replace(rows, own=np.full(len(rows), -1))
    assert fitnet_loss(torch.from_numpy(predicted), blind, part).item() == 0


def test_rows_without_soft_label_leave_the_distillation_head_alone(data: TrainingData) -> None:
    blind = replace(data, student=replace(data.student, own=np.full(len(data.student), -1)))
    base, kd = weights(data, "base"), fit(blind, tiny(), KD, 0).state_dict()
    assert same(base, kd)


def test_the_placebo_is_kd_loopfm_on_other_vectors(data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    real, placebo = weights(data), weights(data, "placebo")
    assert not same(real, placebo)
    monkeypatch.setattr(LoggedVectors, "shuffled", lambda logged: logged)
    assert same(real, weights(data, "placebo"))


def test_a_step_leaves_the_rows_of_other_ids_alone(data: TrainingData) -> None:
    table = fit(data, tiny(), BASE, 0).user_columns.get_parameter("tables.0.weight")
    seen = np.unique(data.student.user_bucket)
    unseen = np.setdiff1d(np.arange(len(table)), seen)
    assert table[unseen].abs().max() < 10 * INIT_STD
    assert table[seen].abs().mean() > 10 * INIT_STD


OTHER_WAYS = [arm for arm in STUDY_ARMS if arm.kd_weight is None]


@pytest.mark.parametrize("arm", [*ARMS, *OTHER_WAYS], ids=lambda arm: arm.name)
def test_every_arm_learns_more_than_the_mean(data: TrainingData, arm: Arm) -> None:
    rows, spec = data.student.read_by(arm), arm_spec(data.student.spec, tiny(), arm)
    clicks = probabilities(fit(data, tiny(), arm, 0), rows, spec=spec)[:, 0]
    assert ne(rows.labels[:, 0], clicks).ne < 1


def test_without_labels_a_decoupled_student_moves_what_distillation_owns_or_shares(data: TrainingData) -> None:
    mute = replace(data, student=replace(data.student, usable=np.zeros_like(data.student.usable)))
    recipe = replace(tiny(), decoupled=True)
    trained = fit(mute, recipe, KD, 0).state_dict()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = Student(arm_spec(data.student.spec, recipe, KD), recipe)
        fresh.start_at(torch.from_numpy(data.rates))
    moved = {name.split(".")[0] for name, value in fresh.state_dict().items() if not torch.equal(value, trained[name])}
    assert moved == {"user_columns", "ad_columns", "distilled", "distilled_tower"}


def test_a_loss_that_is_not_finite_ends_the_run(data: TrainingData) -> None:
    broken = replace(data, student=replace(data.student, labels=np.full_like(data.student.labels, np.nan)))
    with pytest.raises(GemError, match="the loss is nan at row 0; lower the rate"):
        fit(broken, tiny(), BASE, 0)
