"""MaskNet, the personalised FFN, and attention that knows places."""

import torch

from foundation.baselines.configs import InterFormerConfig
from foundation.baselines.sequence_arch import MaskNet, PersonalisedFFN, RotaryAttention

CONFIG = InterFormerConfig(dim=8, heads=2, summary_tokens=3)


def test_channels_weigh_each_other() -> None:
    net, s = MaskNet(6, hidden=4, dim=3), torch.randn(2, 5, 6)
    torch.testing.assert_close(net(s), net.lce(s * net.mask(s)))
    assert (net.mask(torch.zeros(6)) - 1).abs().max() < 1  # small embeddings are not squared away


def test_each_request_has_an_ffn_of_its_own() -> None:
    ffn, s, x = PersonalisedFFN(CONFIG), torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    for b in range(2):
        weights = ffn.norm_summary(x[b]).T @ ffn.weight
        torch.testing.assert_close(ffn(s, x)[b], s[b] + ffn.norm(s[b]) @ weights)


def test_attention_sees_places_and_no_padding() -> None:
    attention, s = RotaryAttention(CONFIG), torch.randn(1, 6, 8)
    mask = torch.tensor([[True] * 4 + [False] * 2])
    seen = attention(s, mask)
    torch.testing.assert_close(attention(torch.where(mask[..., None], s, 9.0), mask)[:, :4], seen[:, :4])
    swapped = s[:, [0, 2, 1, 3, 4, 5]]
    assert not torch.allclose(attention(swapped, mask)[:, 0], seen[:, 0])
