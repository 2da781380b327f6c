"""Training: one pass in time order, the stated loss, the same weights for the same seed, whole rows left untouched."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from contracts.errors import GemError
from events.metrics import ne
from student_models.dataset import LoggedVectors, StudentRows
from student_models.model import INIT_STD, StudentOutput
from student_models.recipes import ARMS, arm_named, tiny
from student_models.trainer import TrainingData, arm_spec, distillation_loss, fit, probabilities

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

    output = StudentOutput(torch.from_numpy(served), torch.from_numpy(distilled))
    hard = (bce(served, rows.labels[part]) * rows.usable[part]).sum() / 64
    soft = (bce(distilled, np.minimum(1.5 * rows.soft[part], 1)) * rows.has_soft[part][:, None]).sum() / 64
    found = [distillation_loss(output, rows, part, recipe=recipe, arm=arm).item() for arm in (BASE, KD)]
    assert found == pytest.approx([hard, hard + 3 * soft], rel=1e-5)


def test_rows_without_soft_label_leave_the_distillation_head_alone(data: TrainingData) -> None:
    blind = replace(data, student=replace(data.student, has_soft=np.zeros(len(data.student), dtype=bool)))
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


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_learns_more_than_the_mean(data: TrainingData, arm: object) -> None:
    student = fit(data, tiny(), arm, 0)  # type: ignore[arg-type]
    rows = data.student
    spec = arm_spec(rows.spec, tiny(), arm)  # type: ignore[arg-type]
    logged = rows.logged.shuffled() if arm is PLACEBO else rows.logged
    clicks = probabilities(student, rows, spec=spec, logged=logged)[:, 0]
    assert ne(rows.labels[:, 0], clicks).ne < 1


def test_a_loss_that_is_not_finite_ends_the_run(data: TrainingData) -> None:
    broken = replace(data, student=replace(data.student, labels=np.full_like(data.student.labels, np.nan)))
    with pytest.raises(GemError, match="the loss is nan at row 0; lower the rate"):
        fit(broken, tiny(), BASE, 0)
