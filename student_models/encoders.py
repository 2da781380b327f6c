"""Encoders of the history: what a student makes of the vectors of past impressions and of what stands beside them.

Legend: B users (1 when serving, N when training), N candidates, L history (newest first), D width of z, E width of an
element, M width of the encoder, A width of an ad row, P poolings. A history enters as the assembler's inputs
history_*; everything that does not look at a candidate is computed once a user. An empty history gives finite numbers:
weights behind the mask are zero, not missing.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from contracts.features import InputSpec
from student_models.columns import small_table
from student_models.recipes import StudentRecipe

POOLINGS = {
    "decayed": ("decayed",),
    "mean": ("mean",),
    "sum": ("sum",),
    "decayed_mean": ("decayed", "mean"),
    "din": (),
    "dmin": ("mean",),
}
"""By encoder, the weighted sums of elements that the user row reads."""

HEADS = 2
"""Of the causal block, as in DMIN on KuaiVideo."""

LEAST_NORMED = 8
"""A vector at least so wide, the narrowest prefix of z, passes a LayerNorm: of K soft labels that would leave signs."""

AGE_BOUNDS_S = tuple(60.0 * minutes for minutes in (1, 10, 60, 240, 720, 1440, 2880, 5760, 11520, 23040, 43200))
"""Between the age buckets: a minute to 30 days. Compared, not computed by a logarithm, so that ONNX Runtime and PyTorch
cannot put an age into different buckets."""

NEVER = -1e9
"""Score of an element behind the mask; finite, so that a history without elements is no NaN."""


class Elements(nn.Module):
    """[B, L, E]: z behind LayerNorm and dropout and, as the spec and the recipe say, surface, ad, outcome and age."""

    def __init__(self, spec: InputSpec, recipe: StudentRecipe) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.dim) if spec.dim >= LEAST_NORMED else nn.Identity()
        self.dropout = nn.Dropout(recipe.drop_vector)
        surfaces = len(spec.schema.surfaces)
        self.surface = small_table(surfaces, recipe.feature_width) if "surface" in spec.elements else None
        widths = {"surface": recipe.feature_width, "ad_hash": recipe.id_width, "outcome": len(spec.schema.tasks)}
        self.width = spec.dim + sum(widths[name] for name in spec.elements)
        self.age = recipe.element_age and self.width > 0
        self.width += self.age

    def forward(self, inputs: dict[str, Tensor], ads: Callable[[Tensor], Tensor]) -> Tensor:
        """`ads` is the table of the candidates' ads: an ad in the history is the same row."""
        parts = []
        if "history_z" in inputs:
            parts.append(self.dropout(self.norm(inputs["history_z"])))
        if self.surface is not None:
            parts.append(self.surface(inputs["history_surface"]))
        if "history_ad_hash" in inputs:
            parts.append(ads(inputs["history_ad_hash"]))
        if "history_outcome" in inputs:
            parts.append(inputs["history_outcome"])
        if self.age:
            parts.append(torch.log1p(inputs["history_age_s"])[:, :, None] / 12)
        return torch.cat(parts, dim=2)


class CausalBlock(nn.Module):
    """Self-attention of each element to itself and older ones, residual, LayerNorm: [B, L, E] -> [B, L, M] (the refiner
    of DMIN)."""

    def __init__(self, element: int, width: int, length: int) -> None:
        super().__init__()
        self.enter = nn.Linear(element, width)
        self.attention = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        older = torch.ones(length, length, dtype=torch.bool).triu()  # newest first: place j >= i is no younger than i
        self.register_buffer("older_LL", older, persistent=False)

    def forward(self, elements_BLE: Tensor, mask_BL: Tensor) -> Tensor:
        entered_BLM = self.enter(elements_BLE)
        split = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.attention(entered_BLM).chunk(3, dim=2))
        query_BHLW, key_BHLW, value_BHLW = split
        scores_BHLL = query_BHLW @ key_BHLW.transpose(2, 3) / query_BHLW.shape[-1] ** 0.5
        seen_B1LL = self.get_buffer("older_LL") & (mask_BL > 0)[:, None, None, :]
        read_BHLW = scores_BHLL.masked_fill(~seen_B1LL, NEVER).softmax(dim=3) @ value_BHLW
        return self.norm(entered_BLM + self.leave(read_BHLW.transpose(1, 2).flatten(2)))


class TargetAttention(nn.Module):
    """The history as a candidate sees it, [N, M]: DIN's activation unit over ad, element and their product, a softmax
    over the elements; with `places`, position and age buckets add to the element (DMIN)."""

    def __init__(self, element: int, ad: int, width: int, length: int, *, places: bool) -> None:
        super().__init__()
        self.query = nn.Linear(ad, width)
        self.key = nn.Linear(element, width, bias=False)
        self.value = nn.Linear(element, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.position = small_table(length, width) if places else None
        self.age = small_table(len(AGE_BOUNDS_S) + 1, width) if places else None
        self.register_buffer("bounds_s", torch.tensor(AGE_BOUNDS_S), persistent=False)

    def forward(self, elements_BLE: Tensor, age_s_BL: Tensor, mask_BL: Tensor, ad_NA: Tensor) -> Tensor:
        key_BLM = self.key(elements_BLE)
        if self.position is not None and self.age is not None:
            bucket_BL = (age_s_BL[:, :, None] >= self.get_buffer("bounds_s")).long().sum(dim=2)
            key_BLM = key_BLM + self.age(bucket_BL) + self.position.weight
        query_N1M = self.query(ad_NA)[:, None]
        unit_NLM = torch.relu(query_N1M + key_BLM + query_N1M * key_BLM)
        scores_NL = self.score(unit_NLM).squeeze(2).masked_fill(mask_BL == 0, NEVER)
        weights_NL = scores_NL.softmax(dim=1) * mask_BL
        return (weights_NL[:, None] @ self.value(elements_BLE)).squeeze(1)


class HistoryEncoder(nn.Module):
    """The user's reading of a history, [B, P M + 3]: its poolings, the number of impressions, whether there is a
    history, and the age of its newest element; and, for din and dmin, `target`, a candidate's.

    The decay starts at e^(-k/3) by rank k, the best pooling of the LoopFM pilot on KuaiRand; its rate is learned.
    Poolings commute with the linear layer, so it runs on P vectors a user instead of L. A sum is divided by sqrt(L)
    to stay near unit scale.
    """

    def __init__(self, spec: InputSpec, recipe: StudentRecipe, ad: int) -> None:
        super().__init__()
        width, length = recipe.sequence_width, spec.history_length
        self.elements = Elements(spec, recipe)
        element, attends = self.elements.width, recipe.encoder in ("din", "dmin")
        self.pooling = POOLINGS[recipe.encoder] if element else ()
        self.block = CausalBlock(element, width, length) if recipe.encoder == "dmin" and element else None
        read = width if self.block else element
        self.project = nn.Linear(read, width, bias=False) if self.pooling else None
        self.log_decay = nn.Parameter(torch.tensor(1 / 3).log()) if "decayed" in self.pooling else None
        places = recipe.encoder == "dmin"
        self.target = TargetAttention(read, ad, width, length, places=places) if attends and element else None
        self.width = len(self.pooling) * width + 3
        self.ad_width = width if self.target else 0

    def forward(self, inputs: dict[str, Tensor], ads: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
        """The user's reading [B, width] and the elements that `target` attends to [B, L, E or M]."""
        mask_BL, stats_B2 = inputs["history_mask"], inputs["history_stats"]
        impressions_B1, present_B1 = stats_B2[:, :1], stats_B2[:, 1:]
        count_B1 = torch.log1p(impressions_B1) / 4  # about unit scale at 50 impressions
        age_B1 = torch.log1p(inputs["history_age_s"][:, :1]) * present_B1 / 12  # about unit scale at two days
        numbers = [count_B1, present_B1, age_B1]
        if not self.elements.width:
            return torch.cat(numbers, dim=1), None
        elements = self.elements(inputs, ads)
        if self.block is not None:
            elements = self.block(elements, mask_BL)
        if self.project is None:
            return torch.cat(numbers, dim=1), elements
        pooled_BPE = torch.matmul(self._weights(mask_BL), elements)
        return torch.cat([self.project(pooled_BPE).flatten(1), *numbers], dim=1), elements

    def _weights(self, mask_BL: Tensor) -> Tensor:
        """Weight of each element in each pooling: [B, P, L]."""
        length = mask_BL.shape[1]
        if self.pooling == ("sum",):
            return mask_BL[:, None] / length**0.5
        weights = {"mean": mask_BL}
        if self.log_decay is not None:
            ranks_L = torch.arange(length, dtype=mask_BL.dtype, device=mask_BL.device)
            weights["decayed"] = mask_BL * torch.exp(-self.log_decay.exp() * ranks_L)
        weights_BPL = torch.stack([weights[name] for name in self.pooling], dim=1)
        return weights_BPL / weights_BPL.sum(dim=2, keepdim=True).clamp(min=1e-6)
