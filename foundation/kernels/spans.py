"""Where the rows of each example lie: padded or jagged, one description for all back ends."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """Rows of B examples in a flat tensor: example b owns `length_B[b]` rows from `start_B[b]` on (int64)."""

    start_B: Tensor
    length_B: Tensor
    longest: int

    @classmethod
    def dense(cls, batch: int, rows: int, lengths_B: Tensor | None, device: torch.device) -> "Spans":
        """B blocks of `rows` rows, of which the first `lengths_B` count (None: all)."""
        start_B = torch.arange(batch, device=device) * rows
        length_B = torch.full_like(start_B, rows) if lengths_B is None else lengths_B.to(device, torch.int64)
        return cls(start_B, length_B.clamp(0, rows), rows)

    @classmethod
    def jagged(cls, offsets: Tensor, total: int, device: torch.device) -> "Spans":
        """Examples laid end to end: example b owns rows offsets[b] .. offsets[b + 1] - 1 of `total`."""
        offsets = offsets.to(device, torch.int64)
        length_B = offsets.diff()
        bounds = [int(offsets[0]), int(offsets[-1]), int(length_B.min()) if len(length_B) else 0]
        if bounds[:2] != [0, total] or bounds[2] < 0:
            raise ValueError(f"offsets must rise from 0 to {total}, the number of rows, and never fall")
        return cls(offsets[:-1], length_B, int(length_B.max()) if len(length_B) else 0)

    def slots(self) -> Tensor:
        """Row of each token, taken in order, in the padded layout [B, longest] flattened: int64 [total]."""
        rank_L = torch.arange(self.longest, device=self.length_B.device)
        return (rank_L < self.length_B[:, None]).flatten().nonzero()[:, 0]


def examples(q: Tensor, k: Tensor, offsets: Tensor | None, kv_offsets: Tensor | None) -> int:
    """B: from the offsets of either side, else from the padded shape of keys or queries."""
    if offsets is not None or kv_offsets is not None:
        return len(offsets if offsets is not None else kv_offsets) - 1  # type: ignore[arg-type]
    return len(k) if k.dim() == 4 else len(q)


def query_spans(q: Tensor, offsets: Tensor | None, batch: int) -> Spans:
    """Spans of `q` flattened to [rows, H, d]; a padded set that serves every example starts at row 0 for each."""
    if offsets is not None:
        return Spans.jagged(offsets, len(q), q.device)
    spans = Spans.dense(batch, q.shape[1], None, q.device)
    return spans if len(q) == batch else Spans(torch.zeros_like(spans.start_B), spans.length_B, spans.longest)


def key_spans(k: Tensor, kv_offsets: Tensor | None, kv_lengths: Tensor | None, batch: int) -> Spans:
    """Spans of `k` (and `v`) flattened to [rows, H, d]."""
    if kv_offsets is not None:
        return Spans.jagged(kv_offsets, len(k), k.device)
    return Spans.dense(batch, k.shape[1] if k.dim() == 4 else len(k) // max(batch, 1), kv_lengths, k.device)


def check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor | None,
    kv_offsets: Tensor | None,
    kv_lengths: Tensor | None,
    window: int | None,
) -> None:
    """ValueError, naming the argument, unless the shapes fit together as `gdpa` says."""
    if q.dim() != (4 if offsets is None else 3):
        raise ValueError(f"q has {q.dim()} axes: give [B, T, H, d], or [total, H, d] with offsets")
    if k.shape != v.shape or k.dim() not in (3, 4) or (kv_offsets is not None and k.dim() == 4):
        raise ValueError("k and v must have one shape: [B, F, H, d], [B * F, H, d], or [total, H, d] with kv_offsets")
    if q.shape[-2:] != k.shape[-2:]:
        raise ValueError(f"heads and width differ: q has {tuple(q.shape[-2:])}, k and v {tuple(k.shape[-2:])}")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
    batch = examples(q, k, offsets, kv_offsets)
    if offsets is None and len(q) not in (1, batch):
        raise ValueError(f"q holds {len(q)} examples, keys and values {batch}")
    if kv_offsets is None and (len(k) != batch if k.dim() == 4 else len(k) % max(batch, 1) or (len(k) and not batch)):
        raise ValueError(f"k and v must hold {batch} examples of equal length, or bring kv_offsets")
    if kv_offsets is not None and len(kv_offsets) != batch + 1:
        raise ValueError(f"kv_offsets must hold {batch + 1} numbers, as offsets does")
    if kv_lengths is not None and (kv_offsets is not None or kv_lengths.shape != (batch,)):
        raise ValueError("kv_lengths [B] belongs to dense keys and values")
    if window is not None and window < 0:
        raise ValueError(f"window must be 0 or more, not {window}")
