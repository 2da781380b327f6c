"""Which events a sequence tower reads, and where they stand.

Legend: B batch, T tokens of the whole sequence, U tokens of the tower, D model width, E width of the tower. Event-level
personalisation (Kunlun): high-value events get a wider, deeper tower with a longer history than impressions do. Ranks
and ages stay those of the whole sequence; windows and blocks count the tower's own tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from contracts.schema import FeatureSchema
from foundation.batch import GemBatch
from foundation.config import ALL_TYPES, GemConfig, Tower
from foundation.rote import log_age, rotary_table


@dataclass(frozen=True)
class SequenceGeometry:
    """What all layers of a tower share about its sequences: mask of real tokens [B, U], rotary table (cos, sin)."""

    mask_BU: Tensor
    rotary: tuple[Tensor, Tensor]


def event_types(tower: Tower, schema: FeatureSchema) -> tuple[int, ...] | None:
    """Codes of the tower's types in `GemBatch.event_type_BT`; None for all types."""
    if ALL_TYPES in tower.types:
        return None
    known = {"impression": 0, **{task.name: number + 1 for number, task in enumerate(schema.tasks)}}
    codes = {known.get(name, -1) if isinstance(name, str) else name for name in tower.types}
    if not codes <= set(known.values()):
        raise InputError(f"a tower's types {tower.types} are not all among {[ALL_TYPES, *known]}")
    return tuple(sorted(codes))


def newest_places(member_BT: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Places in T of each row's first `tokens` members, int64 [B, U] right-padded with 0; and the mask of real ones."""
    count_BT = member_BT.cumsum(dim=1)
    length_B = count_BT[:, -1].clamp(max=tokens)
    width = int(length_B.max())
    # one place more than the tower has takes everything that it does not read
    target_BT = torch.where(member_BT & (count_BT <= width), count_BT - 1, width)
    place_T = torch.arange(member_BT.shape[1], device=member_BT.device).expand_as(target_BT)
    places_BU = torch.zeros(len(member_BT), width + 1, dtype=torch.long, device=member_BT.device)
    places_BU = places_BU.scatter(1, target_BT, place_T)[:, :width]
    mask_BU = torch.arange(width, device=member_BT.device) < length_B[:, None]
    return places_BU * mask_BU, mask_BU


class TowerInput(nn.Module):
    """Tokens of the whole sequence -> those of a tower, at its width, with their geometry."""

    def __init__(self, config: GemConfig, tower: Tower, schema: FeatureSchema) -> None:
        super().__init__()
        self.types, self.tokens, self.head_width = (
            event_types(tower, schema),
            tower.length + 1,
            tower.dim // tower.heads,
        )
        self.project = nn.Identity() if tower.dim == config.dim else nn.Linear(config.dim, tower.dim)

    def forward(self, s_BTD: Tensor, batch: GemBatch) -> tuple[Tensor, SequenceGeometry]:
        """s [B, T, D] -> [B, U, E]. The request's own token, rank 0, belongs to every tower."""
        age_BT = log_age(batch.age_s_BT, batch.timed_BT)
        if self.types is None and batch.mask_BT.shape[1] <= self.tokens:
            return self.project(s_BTD), SequenceGeometry(batch.mask_BT, rotary_table(age_BT, self.head_width))
        member_BT = batch.mask_BT.clone()
        if self.types is not None:
            types = torch.tensor(self.types, device=member_BT.device)
            member_BT[:, 1:] &= torch.isin(batch.event_type_BT[:, 1:], types)
        rank_BU, mask_BU = newest_places(member_BT, self.tokens)
        chosen_BUD = s_BTD.gather(1, rank_BU[..., None].expand(-1, -1, s_BTD.shape[2]))
        table = rotary_table(age_BT.gather(1, rank_BU), self.head_width, rank_BU)
        return self.project(chosen_BUD), SequenceGeometry(mask_BU, table)
