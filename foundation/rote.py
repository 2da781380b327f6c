"""Time in the sequence: which encodings are on, and the rotary temporal embedding (ROTE).

Legend: B batch, T tokens, H heads, d head width, P = d / 2 rotary pairs. Kunlun's ROTE extends RoPE by
tau = log(1 + age / t_scale): half of the rotary pairs turn with the rank, half with tau. The age (request time - event
time) is the coordinate, because rotary attention sees differences of coordinates and only a cumulative one makes them a
distance in time (docs/adr/0006). The bucketed tables are in `tokens.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TIME_SCALE_S = 60.0
HORIZON_S = 30 * 86_400.0
"""Age at which an event without a time stands on the time axis: behind everything that has one."""
RANK_BASE = 1_000.0
AGE_BASE = 100.0
"""Slowest wavelengths, in ranks and in nats of age: well beyond any history here (RoPE's 10,000 is for text)."""


@dataclass(frozen=True)
class TimeEncoding:
    """How rank and time reach the sequence; each switch works alone, and all may be off.

    `rotary`: ROTE on queries and keys (two readers of Kunlun agree on it; half/half split and 60 s are this project's
    choice). `rotary_values`: on the values too, as Meta's block attention kernel does. Learned tables that are added to
    the tokens, by the names in Meta's Triton GDPA (`ts_event_request_even`, `ts_event_request_log`,
    `ts_adjacent_event_log`, `pos_emb`; sizes are not public): `age_even` over even buckets of the age, `age_log` over
    logarithmic ones, `gap_log` over logarithmic buckets of the gap to the next newer event, `position` over ranks.
    An event without a time has bucket 0 and is told apart by its rank.
    """

    rotary: bool = True
    rotary_values: bool = False
    age_even: bool = False
    age_log: bool = True
    gap_log: bool = False
    position: bool = True


def log_age(age_s_BT: Tensor, timed_BT: Tensor) -> Tensor:
    """log(1 + age / 60 s), float32 [B, T]; untimed events stand at the horizon."""
    return torch.log1p(torch.where(timed_BT, age_s_BT, HORIZON_S) / TIME_SCALE_S)


def rotary_table(log_age_BT: Tensor, head_width: int, rank_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(cos, sin), each [B, T, 1, P]: pairs 0 .. P/2 - 1 by rank (0 = the request), the others by log age.

    `rank_BT` (int64) gives each token's rank where it is not its place, as in a tower over some of the events.
    """
    pairs = head_width // 2
    by_rank = pairs // 2
    steps = torch.arange(pairs, dtype=torch.float32, device=log_age_BT.device)
    rank_rates = RANK_BASE ** (-steps[:by_rank] / max(by_rank, 1))
    age_rates = AGE_BASE ** (-steps[: pairs - by_rank] / (pairs - by_rank))
    if rank_BT is None:
        rank_T = torch.arange(log_age_BT.shape[1], dtype=torch.float32, device=log_age_BT.device)
        rank_angles = (rank_T[:, None] * rank_rates).expand(log_age_BT.shape[0], -1, -1)
    else:
        rank_angles = rank_BT.float()[..., None] * rank_rates
    angles_BTP = torch.cat([rank_angles, log_age_BT[..., None] * age_rates], dim=2)
    return angles_BTP.cos()[:, :, None], angles_BTP.sin()[:, :, None]


def rotate(x_BTHd: Tensor, cos_BT1P: Tensor, sin_BT1P: Tensor) -> Tensor:
    """Turns the interleaved pairs (x_0, x_1), (x_2, x_3), ... by the table's angles: [B, T, H, d]."""
    even, odd = x_BTHd[..., 0::2], x_BTHd[..., 1::2]
    turned = torch.stack([even * cos_BT1P - odd * sin_BT1P, even * sin_BT1P + odd * cos_BT1P], dim=-1)
    return turned.flatten(-2)


def rotated(
    q_BTHd: Tensor, k_BTHd: Tensor, v_BTHd: Tensor, table: tuple[Tensor, Tensor], time: TimeEncoding
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of self attention, turned as `time` says; unchanged when its rotary part is off."""
    if time.rotary:
        q_BTHd, k_BTHd = rotate(q_BTHd, *table), rotate(k_BTHd, *table)
    if time.rotary_values:
        v_BTHd = rotate(v_BTHd, *table)
    return q_BTHd, k_BTHd, v_BTHd
