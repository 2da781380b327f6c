"""The student: one light multi-task model over all surfaces, whose user part is computed once and broadcast.

Legend: B users (1 when serving, N when training), N candidates, L history (newest first), D width of z, M width of the
history encoder, H, H2 hidden layers, P width of the user x ad product, K tasks. Inputs are those of
contracts.features.InputSpec.tensors(), by name.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from contracts.features import InputSpec
from student_models.recipes import StudentRecipe

Part = TypeVar("Part")

SPARSE_ROWS = 1024
"""Id tables and those with more rows take sparse gradients: a step must not touch 131,072 rows for a batch of 256."""

INIT_STD = 0.001
"""An untrained row is nearly the zero vector: a user or ad that is new adds nothing."""


@dataclass(frozen=True)
class StudentOutput:
    """Logits [N, K]: `served` are the product, `distilled` feed the auxiliary loss alone."""

    served: Tensor
    distilled: Tensor


class Columns(nn.Module):
    """Embeddings of the columns of a categorical input, concatenated: [R, C] int64 -> [R, sum of widths]."""

    def __init__(self, sizes: tuple[int, ...], *, id_width: int, feature_width: int) -> None:
        super().__init__()
        widths = [id_width, *[feature_width] * (len(sizes) - 1)]  # column 0 is the hashed id of the user or ad
        tables = [
            nn.Embedding(rows, width, sparse=column == 0 or rows > SPARSE_ROWS)
            for column, (rows, width) in enumerate(zip(sizes, widths, strict=True))
        ]
        for table in tables:
            nn.init.normal_(table.weight, std=INIT_STD)
        self.tables = nn.ModuleList(tables)
        self.width = sum(widths)

    def forward(self, codes: Tensor) -> Tensor:
        return torch.cat([table(codes[:, column]) for column, table in enumerate(self.tables)], dim=1)


class HistoryEncoder(nn.Module):
    """Pools the vectors of past impressions into [B, 2 M + 3]: a mean that decays with rank and a plain mean of z, the
    number of impressions, whether there is a history, and the age of its newest element.

    The decay starts at e^(-k/3) by rank k, the best pooling of the LoopFM pilot on KuaiRand; its rate is learned. Both
    means commute with the linear layer, so it runs on two vectors a user instead of L.
    """

    def __init__(self, dim: int, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(dim, width, bias=False)
        self.log_decay = nn.Parameter(torch.tensor(1 / 3).log())
        self.width = 2 * width + 3

    def forward(self, z_BLD: Tensor, age_s_BL: Tensor, mask_BL: Tensor, stats_B2: Tensor) -> Tensor:
        ranks_L = torch.arange(z_BLD.shape[1], dtype=z_BLD.dtype, device=z_BLD.device)
        decayed_BL = mask_BL * torch.exp(-self.log_decay.exp() * ranks_L)
        weights_B2L = torch.stack([decayed_BL, mask_BL], dim=1)
        weights_B2L = weights_B2L / weights_B2L.sum(dim=2, keepdim=True).clamp(min=1e-6)
        pooled_B2D = torch.matmul(weights_B2L, self.dropout(self.norm(z_BLD)))
        impressions_B1, present_B1 = stats_B2[:, :1], stats_B2[:, 1:]
        count_B1 = torch.log1p(impressions_B1) / 4  # about unit scale at 50 impressions
        age_B1 = torch.log1p(age_s_BL[:, :1]) * present_B1 / 12  # about unit scale at two days
        return torch.cat([self.project(pooled_B2D).flatten(1), count_B1, present_B1, age_B1], dim=1)


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


class Student(nn.Module):
    """Embeddings, pooled history, one layer split into a user and an ad half, one more layer, one logit per task.

    relu(user half [B, H] + ad half [N, H]) is the factored form of a first layer over the concatenated row, and
    user [B, P] * ad [N, P] adds their interaction, also from one user row. The distillation head D stands beside the
    served head S on the same trunk (ExFM, section 3).
    """

    def __init__(self, spec: InputSpec, recipe: StudentRecipe) -> None:
        super().__init__()
        shapes = {tensor.name: tensor.shape for tensor in spec.tensors()}
        widths = {"id_width": recipe.id_width, "feature_width": recipe.feature_width}
        self.user_columns = Columns(spec.user_cat_sizes(), **widths)
        self.ad_columns = Columns(spec.ad_cat_sizes(), **widths)
        self.history = (
            HistoryEncoder(spec.dim, recipe.sequence_width, recipe.drop_vector) if spec.history_length else None
        )
        user = self.user_columns.width + int(shapes.get("user_num", (0, 0))[1])
        user += self.history.width if self.history else 0
        ad = self.ad_columns.width + int(shapes.get("ad_num", (0, 0))[1])
        first, second = recipe.hidden
        self.user_half = nn.Linear(user, first)
        self.ad_half = nn.Linear(ad, first, bias=False)
        self.user_product = nn.Linear(user, recipe.product_width)
        self.ad_product = nn.Linear(ad, recipe.product_width)
        self.second = nn.Linear(first, second)
        sides, tasks = Sides(user, ad, second + recipe.product_width), len(spec.schema.tasks)
        self.served = Head(sides, tasks)
        self.distilled = Head(sides, tasks)
        self.kd_beta = recipe.kd_beta

    def forward(self, inputs: dict[str, Tensor]) -> StudentOutput:
        """Logits of both heads; the gradient that head D sends below itself is scaled by beta."""
        sides, beta = self.sides(inputs), self.kd_beta

        def scaled(value: Tensor) -> Tensor:
            return value if beta == 1 else value * beta + value.detach() * (1 - beta)

        below = Sides(scaled(sides.user), scaled(sides.ad), scaled(sides.trunk))
        return StudentOutput(self.served(sides), self.distilled(below))

    def sides(self, inputs: dict[str, Tensor]) -> Sides[Tensor]:
        """What both heads read. B rows of user inputs broadcast over N rows of ad inputs."""
        user = self.user_part(inputs)
        ad = _with_numbers(self.ad_columns(inputs["ad_cat"]), inputs.get("ad_num"))
        hidden = torch.relu(self.user_half(user) + self.ad_half(ad))
        product = self.user_product(user) * self.ad_product(ad)
        return Sides(user, ad, torch.cat([torch.relu(self.second(hidden)), product], dim=1))

    def user_part(self, inputs: dict[str, Tensor]) -> Tensor:
        """The user row: embeddings, context numbers, pooled history."""
        user = _with_numbers(self.user_columns(inputs["user_cat"]), inputs.get("user_num"))
        if self.history is None:
            return user
        names = ("history_z", "history_age_s", "history_mask", "history_stats")
        return torch.cat([user, self.history(*(inputs[name] for name in names))], dim=1)

    def start_at(self, rates: Tensor) -> None:
        """Set both heads' biases to base rates [K] known before training, so that no step is spent on them."""
        logits = torch.logit(rates.clamp(1e-4, 1 - 1e-4))
        with torch.no_grad():
            self.served.trunk.bias.copy_(logits)
            self.distilled.trunk.bias.copy_(logits)


class Served(nn.Module):
    """What is exported: the served head alone, as probabilities [N, K], conditional on the parent of a task."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.student = student

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return torch.sigmoid(self.student.served(self.student.sides(inputs)))


def _with_numbers(embedded: Tensor, numbers: Tensor | None) -> Tensor:
    return embedded if numbers is None else torch.cat([embedded, numbers], dim=1)
