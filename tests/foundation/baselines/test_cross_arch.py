"""Summaries: the forms of the gate, the number of tokens, padding."""

from dataclasses import replace

import torch

from foundation.baselines.configs import InterFormerConfig
from foundation.baselines.cross_arch import Gating, SequenceSummary, SetSummary

CONFIG = InterFormerConfig(dim=4, heads=2, summary_tokens=3, pma_tokens=2, recent_tokens=2)


def test_the_gate_has_three_forms() -> None:
    x = torch.randn(2, 3, 4)
    multiplied, printed, none = (Gating(4, form) for form in ("multiplied", "printed", "none"))
    torch.testing.assert_close(multiplied(x), x * torch.sigmoid(multiplied.map(x)))
    torch.testing.assert_close(printed(x), torch.sigmoid(x * printed.map(x)))
    assert none(x) is x


def test_the_set_is_compressed_over_its_tokens() -> None:
    summary, x = SetSummary(replace(CONFIG, gating="none"), tokens=5), torch.randn(2, 5, 4)
    expected = torch.einsum("mn,bnd->bmd", summary.compress.weight, x) + summary.compress.bias[:, None]
    torch.testing.assert_close(summary(x), expected)


def test_a_sequence_is_its_cls_tokens_poolings_and_newest_events() -> None:
    summary = SequenceSummary(replace(CONFIG, gating="none"))
    s, mask = torch.randn(1, 3 + 4, 4), torch.tensor([[True] * 4 + [False] * 3])  # one event, three of padding
    tokens, normed = summary(s, mask), summary.norm(s)
    assert tokens.shape == (1, 8, 4)
    torch.testing.assert_close(tokens[:, :3], normed[:, :3])
    torch.testing.assert_close(tokens[:, 5], normed[:, 3])
    assert not tokens[:, 6:].any()


def test_padding_is_not_pooled() -> None:
    summary, mask = SequenceSummary(CONFIG), torch.tensor([[True] * 5 + [False] * 2])
    s = torch.randn(1, 7, 4)
    changed = torch.where(mask[..., None], s, 100.0)
    torch.testing.assert_close(summary(changed, mask), summary(s, mask))
