"""The adapter around torch-rechub: what its layers are given, and the habits that the adapter answers for."""

import torch
from torch import nn

from foundation.baselines.configs import LibraryConfig
from foundation.baselines.library import BstInterest, Candidate, DienInterest, DinInterest, oldest_first

CONFIG = LibraryConfig(dim=4, history_length=5, attention_hidden=3, heads=2, feed_forward=6, dropout=0.0)
MASK = torch.tensor([[True, True, True, False], [True, False, False, False], [True, True, True, True]])


def test_din_sums_the_events_that_its_unit_weighs() -> None:
    din, s = DinInterest(CONFIG).eval(), torch.randn(3, 4, 4)
    out = din(s, MASK)
    for row, length in enumerate((2, 0, 3)):
        alone = din.unit(s[row : row + 1, 1 : 1 + length], s[row : row + 1, 0]) if length else torch.zeros(1, 4)
        torch.testing.assert_close(out[row, :4], alone[0])
    torch.testing.assert_close(out[:, 4:], s[:, 0])


def test_padding_stays_out_of_the_batch_norm_of_din() -> None:
    din, s = DinInterest(CONFIG).train(), torch.randn(3, 4, 4)
    expected = din(s, MASK)
    torch.testing.assert_close(din(torch.where(MASK[..., None], s, 50.0), MASK), expected)


def test_a_single_event_takes_the_running_statistics() -> None:
    din = DinInterest(CONFIG).train()
    out = din(torch.randn(2, 2, 4), torch.tensor([[True, True], [True, False]]))
    assert torch.isfinite(out).all()
    assert all(module.training for module in din.modules())


def test_dien_reads_the_oldest_event_first() -> None:
    s = torch.arange(6.0).view(1, 6, 1).expand(2, -1, 4)
    turned = oldest_first(s, torch.tensor([3, 6]))[..., 0]
    assert turned[0, :3].tolist() == [2, 1, 0]
    assert turned[1].tolist() == [5, 4, 3, 2, 1, 0]


def test_dien_of_no_history_is_the_candidate_alone() -> None:
    dien, s = DienInterest(CONFIG), torch.randn(3, 4, 4)
    out = dien(s, MASK)
    assert not out[1, :4].any()
    torch.testing.assert_close(out[0], dien(s[:1, :3], MASK[:1, :3])[0])
    torch.testing.assert_close(dien(torch.where(MASK[..., None], s, 50.0), MASK), out)


def test_bst_counts_positions_from_the_candidate_and_has_the_width_asked_for() -> None:
    bst, s = BstInterest(CONFIG).eval(), torch.randn(3, 4, 4)
    out = bst(s, MASK)
    torch.testing.assert_close(out[:1], bst(s[:1, :3], MASK[:1, :3]))
    assert not torch.allclose(bst(s[2:, [0, 2, 1, 3]], MASK[2:])[:, :4], out[2:, :4])
    widths = [
        layer.linear1.out_features for layer in bst.encoder.layers if isinstance(layer, nn.TransformerEncoderLayer)
    ]
    assert widths == [6]


def test_dcn_sees_no_history() -> None:
    s = torch.randn(3, 4, 4)
    torch.testing.assert_close(Candidate(CONFIG)(s, MASK), s[:, 0])
