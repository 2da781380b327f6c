"""The student: one light multi-task model over all surfaces, whose user part is computed once and broadcast.

Legend: B users (1 when serving, N when training), N candidates, M width of the history encoder, H, H2 hidden layers, P
width of the user x ad product, K tasks. Inputs are those of contracts.features.InputSpec.tensors(), by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from contracts.features import InputSpec
from student_models.columns import Columns
from student_models.encoders import HistoryEncoder
from student_models.recipes import StudentRecipe

Part = TypeVar("Part")


@dataclass(frozen=True)
class StudentOutput:
    """Logits [N, K]: `served` are the product, `distilled` feed the auxiliary loss alone. trunk [N, H2 + P] is what
    the served head reads of user and ad together."""

    served: Tensor
    distilled: Tensor
    trunk: Tensor


@dataclass(frozen=True)
class Sides(Generic[Part]):
    """What a head reads: user row [B, U], ad rows [N, A], trunk [N, H2 + P]; or the widths of these."""

    user: Part
    ad: Part
    trunk: Part


class Head(nn.Module):
    """Logits of all tasks from the trunk and, past it, from the user and the ad side themselves.

    The direct linear paths are the wide part of wide & deep models: an id seen four times learns its own rate by them.
    """

    def __init__(self, sides: Sides[int], tasks: int) -> None:
        super().__init__()
        self.trunk = nn.Linear(sides.trunk, tasks)
        self.user = nn.Linear(sides.user, tasks, bias=False)
        self.ad = nn.Linear(sides.ad, tasks, bias=False)

    def forward(self, sides: Sides[Tensor]) -> Tensor:
        return self.trunk(sides.trunk) + self.user(sides.user) + self.ad(sides.ad)


class Tower(nn.Module):
    """Everything between embeddings and heads: the history, one layer split into a user and an ad half, one more layer.

    relu(user half [B, H] + ad half [N, H]) is the factored form of a first layer over the concatenated row, and
    user [B, P] * ad [N, P] adds their interaction, also from one user row. What a candidate sees in the history [N, M]
    joins the ad's side.
    """

    def __init__(self, spec: InputSpec, recipe: StudentRecipe, user: int, ad: int) -> None:
        super().__init__()
        self.history = HistoryEncoder(spec, recipe, ad) if spec.history_length else None
        user += self.history.width if self.history else 0
        ad += self.history.ad_width if self.history else 0
        first, second = recipe.hidden
        self.user_half = nn.Linear(user, first)
        self.ad_half = nn.Linear(ad, first, bias=False)
        self.user_product = nn.Linear(user, recipe.product_width)
        self.ad_product = nn.Linear(ad, recipe.product_width)
        self.second = nn.Linear(first, second)
        self.widths = Sides(user, ad, second + recipe.product_width)

    def forward(
        self, user: Tensor, ad: Tensor, inputs: dict[str, Tensor], ads: Callable[[Tensor], Tensor]
    ) -> Sides[Tensor]:
        """What heads read. B rows of the user broadcast over N rows of ads; `ads` is the table of ad ids."""
        if self.history is not None:
            pooled, elements = self.history(inputs, ads)
            user = torch.cat([user, pooled], dim=1)
            if self.history.target is not None:
                seen = self.history.target(elements, inputs["history_age_s"], inputs["history_mask"], ad)
                ad = torch.cat([ad, seen], dim=1)
        hidden = torch.relu(self.user_half(user) + self.ad_half(ad))
        product = self.user_product(user) * self.ad_product(ad)
        return Sides(user, ad, torch.cat([torch.relu(self.second(hidden)), product], dim=1))


class Student(nn.Module):
    """Embeddings, a tower, one logit per task.

    The distillation head D stands beside the served head S on the same tower (ExFM, section 3) or, where the recipe
    decouples them, on a second one that shares the embeddings alone (Rec-Distill).
    """

    def __init__(self, spec: InputSpec, recipe: StudentRecipe) -> None:
        super().__init__()
        shapes = {tensor.name: tensor.shape for tensor in spec.tensors()}
        widths = {"id_width": recipe.id_width, "feature_width": recipe.feature_width}
        self.user_columns = Columns(spec.user_cat_sizes(), **widths)
        self.ad_columns = Columns(spec.ad_cat_sizes(), **widths)
        user = self.user_columns.width + int(shapes.get("user_num", (0, 0))[1])
        ad = self.ad_columns.width + int(shapes.get("ad_num", (0, 0))[1])
        self.tower = Tower(spec, recipe, user, ad)
        tasks = len(spec.schema.tasks)
        self.served = Head(self.tower.widths, tasks)
        self.distilled = Head(self.tower.widths, tasks)
        self.distilled_tower = Tower(spec, recipe, user, ad) if recipe.decoupled else None
        self.kd_beta = recipe.kd_beta

    def forward(self, inputs: dict[str, Tensor]) -> StudentOutput:
        """Logits of both heads; the gradient that head D sends into what it shares with head S is scaled by beta."""
        beta = self.kd_beta

        def scaled(value: Tensor) -> Tensor:
            return value if beta == 1 else value * beta + value.detach() * (1 - beta)

        user, ad = self._embedded(inputs)
        sides = self.tower(user, ad, inputs, self.ad_columns.tables[0])
        if self.distilled_tower is None:
            below = Sides(scaled(sides.user), scaled(sides.ad), scaled(sides.trunk))
        else:
            ads = self.ad_columns.tables[0]
            below = self.distilled_tower(scaled(user), scaled(ad), inputs, lambda codes: scaled(ads(codes)))
        return StudentOutput(self.served(sides), self.distilled(below), sides.trunk)

    def sides(self, inputs: dict[str, Tensor]) -> Sides[Tensor]:
        """What the served head reads."""
        return self.tower(*self._embedded(inputs), inputs, self.ad_columns.tables[0])

    def start_at(self, rates: Tensor) -> None:
        """Set both heads' biases to base rates [K] known before training, so that no step is spent on them."""
        logits = torch.logit(rates.clamp(1e-4, 1 - 1e-4))
        with torch.no_grad():
            self.served.trunk.bias.copy_(logits)
            self.distilled.trunk.bias.copy_(logits)

    def _embedded(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """User row [B, U] and ad rows [N, A] before the history: embeddings and numbers."""
        user = _with_numbers(self.user_columns(inputs["user_cat"]), inputs.get("user_num"))
        return user, _with_numbers(self.ad_columns(inputs["ad_cat"]), inputs.get("ad_num"))


class Served(nn.Module):
    """What is exported: the served head alone, as probabilities [N, K], conditional on the parent of a task."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.student = student

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return torch.sigmoid(self.student.served(self.student.sides(inputs)))


def _with_numbers(embedded: Tensor, numbers: Tensor | None) -> Tensor:
    return embedded if numbers is None else torch.cat([embedded, numbers], dim=1)
