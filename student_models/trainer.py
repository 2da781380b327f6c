"""Training of one student: one pass in time order, with the auxiliary distillation head where the arm has one.

Legend: T rows in time order, K tasks.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from contracts.errors import GemError
from contracts.features import InputSpec
from student_models.adapter import adapted
from student_models.dataset import StudentRows
from student_models.input_dropout import hide_inputs
from student_models.model import Served, Student, StudentOutput
from student_models.recipes import Arm, StudentRecipe, arm_spec

SCORING_BATCH = 2048


@dataclass(frozen=True)
class TrainingData:
    """What all arms and seeds share: the rows of two periods and the base rates [K] known before the first."""

    student: StudentRows
    validation: StudentRows
    rates: np.ndarray


def fit(data: TrainingData, recipe: StudentRecipe, arm: Arm, seed: int) -> Student:
    """One pass over the student period in time order, without shuffling: the trained student in evaluation mode.

    Raises GemError when a loss is not finite. Equal arguments give equal weights on one machine.
    """
    rows, spec = data.student.read_by(arm), arm_spec(data.student.spec, recipe, arm)
    if arm.adapter:
        rows = adapted(rows, recipe.adapter_share)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # initial weights and dropout draw from the global generator
        hiding = torch.Generator().manual_seed(seed)
        student = Student(spec, recipe)
        student.start_at(torch.from_numpy(data.rates))
        dense, tables = _optimizers(student, recipe)
        matched = nn.Linear(student.tower.widths.trunk, data.student.spec.dim) if arm.fitnet else None
        if matched is not None:
            dense.add_param_group({"params": list(matched.parameters())})
        steps = -(-len(rows) // recipe.batch)
        rate = torch.optim.lr_scheduler.LinearLR(dense, 1.0, recipe.final_rate, total_iters=steps)
        student.train()
        for start in range(0, len(rows), recipe.batch):
            part = slice(start, start + recipe.batch)
            inputs = hide_inputs(as_tensors(rows.inputs(part, spec=spec)), recipe, hiding)
            output = student(inputs)
            loss = distillation_loss(output, rows, part, recipe=recipe, arm=arm)
            if matched is not None:
                loss = loss + recipe.fitnet_weight * fitnet_loss(matched(output.trunk), data.student, part)
            if not torch.isfinite(loss):
                raise GemError(f"arm {arm.name}, seed {seed}: the loss is {loss.item()} at row {start}; lower the rate")
            dense.zero_grad()
            tables.zero_grad()
            loss.backward()
            dense.step()
            with torch.sparse.check_sparse_tensor_invariants(False):  # the checks cost; leaving them unset warns
                tables.step()
            rate.step()
    return student.eval()


def distillation_loss(
    output: StudentOutput, rows: StudentRows, part: slice, *, recipe: StudentRecipe, arm: Arm
) -> Tensor:
    """BCE(y_S, y) + w BCE(y_D, min(alpha y_F, 1)), summed over tasks (ExFM, section 3).

    The first term counts where a label is defined and known, the second on every row with a soft label; an arm that
    does not distil has the first term alone. w is the arm's where it has one.
    """
    loss = _masked_bce(output.served, rows.labels[part], rows.usable[part])
    if arm.distil:
        soft = np.minimum(recipe.kd_alpha * rows.soft[part], 1)
        weight = recipe.kd_weight if arm.kd_weight is None else arm.kd_weight
        loss = loss + weight * _masked_bce(output.distilled, soft, rows.has_soft[part][:, None])
    return loss


def fitnet_loss(predicted: Tensor, rows: StudentRows, part: slice) -> Tensor:
    """Mean square error of z as predicted from the trunk [B, D], over the rows that have one / rows of the batch
    (FitNets: a hint layer behind a linear map)."""
    own = rows.own[part]
    known = np.flatnonzero(own >= 0)
    z = torch.from_numpy(rows.logged.vectors[own[known]])
    return (predicted[torch.from_numpy(known)] - z).square().mean(dim=1).sum() / len(own)


def probabilities(student: Student, rows: StudentRows, *, spec: InputSpec) -> np.ndarray:
    """Served probabilities of the rows: float32 [T, K], conditional on the parent where a task has one."""
    served = Served(student.eval())
    parts = []
    with torch.inference_mode():
        for start in range(0, len(rows), SCORING_BATCH):
            inputs = rows.inputs(slice(start, start + SCORING_BATCH), spec=spec)
            parts.append(served(as_tensors(inputs)).numpy())
    return np.concatenate(parts)


def as_tensors(inputs: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values) for name, values in inputs.items()}


def _optimizers(student: Student, recipe: StudentRecipe) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Adam for the dense part, Adagrad for the hashed tables: it touches the batch's rows alone, and its first steps
    are full ones, which matters where a user is seen four times (SparseAdam did worse: docs/log.md)."""
    tables = [m.weight for m in student.modules() if isinstance(m, nn.Embedding) and m.sparse]
    dense = [p for p in student.parameters() if all(p is not table for table in tables)]
    return torch.optim.Adam(dense, lr=recipe.learning_rate), torch.optim.Adagrad(tables, lr=recipe.id_learning_rate)


def _masked_bce(logits: Tensor, targets: np.ndarray, mask: np.ndarray) -> Tensor:
    """Sum over tasks and masked rows / rows of the batch: every observed label weighs the same, also a rare task's."""
    weights = torch.from_numpy(np.broadcast_to(mask, targets.shape).astype(np.float32))
    losses = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(targets), reduction="none")
    return (losses * weights).sum() / len(logits)
