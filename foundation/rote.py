"""Rotary temporal embedding: half of the rotary pairs turn with the rank, half with the logarithm of the age.

Legend: B batch, T tokens, H heads, d head width, P = d / 2 rotary pairs. Kunlun's ROTE extends RoPE by
tau = log(1 + age / t_scale); the age (request time - event time) is the coordinate, because rotary attention sees
differences of coordinates and only a cumulative one makes them a distance in time (docs/adr/0006).
"""

import torch
from torch import Tensor

TIME_SCALE_S = 60.0
HORIZON_S = 30 * 86_400.0
"""Age at which an event without a time stands on the time axis: behind everything that has one."""
RANK_BASE = 1_000.0
AGE_BASE = 100.0
"""Slowest wavelengths, in ranks and in nats of age: well beyond any history here (RoPE's 10,000 is for text)."""


def log_age(age_s_BT: Tensor, timed_BT: Tensor) -> Tensor:
    """log(1 + age / 60 s), float32 [B, T]; untimed events stand at the horizon."""
    return torch.log1p(torch.where(timed_BT, age_s_BT, HORIZON_S) / TIME_SCALE_S)


def rotary_table(log_age_BT: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
    """(cos, sin), each [B, T, 1, P]: pairs 0 .. P/2 - 1 by rank (0 = the request), the others by log age."""
    pairs = head_width // 2
    by_rank = pairs // 2
    steps = torch.arange(pairs, dtype=torch.float32, device=log_age_BT.device)
    rank_T = torch.arange(log_age_BT.shape[1], dtype=torch.float32, device=log_age_BT.device)
    rank_rates = RANK_BASE ** (-steps[:by_rank] / max(by_rank, 1))
    age_rates = AGE_BASE ** (-steps[: pairs - by_rank] / (pairs - by_rank))
    rank_angles = (rank_T[:, None] * rank_rates).expand(log_age_BT.shape[0], -1, -1)
    angles_BTP = torch.cat([rank_angles, log_age_BT[..., None] * age_rates], dim=2)
    return angles_BTP.cos()[:, :, None], angles_BTP.sin()[:, :, None]


def rotate(x_BTHd: Tensor, cos_BT1P: Tensor, sin_BT1P: Tensor) -> Tensor:
    """Turns the interleaved pairs (x_0, x_1), (x_2, x_3), ... by the table's angles: [B, T, H, d]."""
    even, odd = x_BTHd[..., 0::2], x_BTHd[..., 1::2]
    turned = torch.stack([even * cos_BT1P - odd * sin_BT1P, even * sin_BT1P + odd * cos_BT1P], dim=-1)
    return turned.flatten(-2)
