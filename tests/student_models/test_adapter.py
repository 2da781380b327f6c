"""The student adapter: learns from the strictly earlier slice alone, replaces later soft labels alone."""

from dataclasses import replace

import numpy as np
import torch

from student_models.adapter import Adapter, adapted, fit_adapter
from student_models.dataset import StudentRows
from student_models.trainer import TrainingData

SHARE = 0.3


def cut_of(rows: StudentRows) -> int:
    return int(rows.event_ms[int(SHARE * len(rows))])


def test_an_adapter_without_labels_is_the_identity() -> None:
    logits = torch.randn(50, 3)
    assert torch.equal(Adapter(3)(logits), logits)
    nothing = fit_adapter(logits, np.zeros((50, 3), np.float32), np.zeros((50, 3), dtype=bool))
    assert torch.equal(nothing(logits), logits)


def test_an_adapter_mends_a_shifted_teacher() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(4000, 1)).astype(np.float32)
    labels = (random.random((4000, 1)) < 1 / (1 + np.exp(-logits - 1.5))).astype(np.float32)
    adapter = fit_adapter(torch.from_numpy(logits), labels, np.ones((4000, 1), dtype=bool))
    with torch.no_grad():
        chance = torch.sigmoid(adapter(torch.from_numpy(logits))).numpy()
    assert abs(chance.mean() - labels.mean()) < 0.01 < abs((1 / (1 + np.exp(-logits))).mean() - labels.mean())


def test_only_later_soft_labels_change(data: TrainingData) -> None:
    rows = data.student
    changed = adapted(rows, SHARE)
    later = rows.event_ms >= cut_of(rows)
    assert np.array_equal(changed.soft[~later], rows.soft[~later])
    assert (changed.soft[later, 0] != rows.soft[later, 0]).mean() > 0.9
    assert ((changed.soft >= 0) & (changed.soft <= 1)).all()
    assert changed.soft.dtype == np.float32
    assert np.array_equal(changed.labels, rows.labels)


def test_labels_of_the_future_or_not_yet_known_change_nothing(data: TrainingData) -> None:
    rows, cut_ms = data.student, cut_of(data.student)
    unknown = (rows.event_ms >= cut_ms)[:, None] | (rows.known_ms >= cut_ms)
    flipped = replace(rows, labels=np.where(unknown, 1 - rows.labels, rows.labels))
    assert np.array_equal(adapted(rows, SHARE).soft, adapted(flipped, SHARE).soft)
    known = replace(rows, labels=np.where(unknown, rows.labels, 1 - rows.labels))
    assert not np.array_equal(adapted(rows, SHARE).soft, adapted(known, SHARE).soft)


def test_a_row_without_soft_label_gets_none(data: TrainingData) -> None:
    rows = data.student
    half = replace(rows, own=np.where(np.arange(len(rows)) % 2, rows.own, -1))
    assert np.array_equal(adapted(half, SHARE).soft[::2], rows.soft[::2])
