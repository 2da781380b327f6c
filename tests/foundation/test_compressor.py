"""The compressor: bounded z, usable prefixes, no gradient into the model, statistics that no row of a batch sees."""

import torch

from foundation.compressor import Compressor, Standardise


def activations(rows: int) -> torch.Tensor:
    return torch.randn(rows, 3) @ torch.randn(3, 16) * 5 + 2


def test_z_is_bounded_and_64_wide() -> None:
    z = Compressor(16)(activations(9) * 1e6)
    assert z.shape == (9, 64)
    assert z.abs().max() <= 1


def test_no_gradient_reaches_the_activations() -> None:
    compressor, e = Compressor(16), activations(9).requires_grad_()
    compressor.loss(e).backward()
    assert e.grad is None
    assert all(parameter.grad is not None for parameter in compressor.parameters())


def test_learns_to_reconstruct_from_every_prefix() -> None:
    compressor = Compressor(16)
    mixing = torch.randn(3, 16)
    optimiser = torch.optim.Adam(compressor.parameters(), lr=3e-3)
    for _ in range(300):
        optimiser.zero_grad()
        compressor.loss(torch.randn(64, 3) @ mixing * 5 + 2).backward()
        optimiser.step()
    e = torch.randn(256, 3) @ mixing * 5 + 2
    target, z = compressor.standardise(e), compressor(e)
    for decoder in compressor.decoders:
        error = (decoder(z[:, : decoder.in_features]) - target).square().mean()
        assert error < 0.3 * target.square().mean()


def test_standardises_to_unit_scale_after_one_batch_already() -> None:
    module, e = Standardise(16), activations(512)
    module.update(e)
    out = module(e)
    assert out.mean(dim=0).abs().max() < 0.05
    assert (out.std(dim=0) - 1).abs().max() < 0.1


def test_a_row_does_not_depend_on_its_batch() -> None:
    compressor, e = Compressor(16), activations(9)
    compressor.loss(e)
    torch.testing.assert_close(compressor(e[3:4])[0], compressor(e)[3])
    torch.testing.assert_close(compressor.train()(e), compressor.eval()(e), rtol=0, atol=0)


def test_constant_and_unseen_activations_stay_finite() -> None:
    compressor = Compressor(16)
    assert torch.isfinite(compressor(torch.full((1, 16), 1e9))).all()
    compressor.loss(torch.ones(4, 16))
    assert torch.isfinite(compressor(torch.full((1, 16), 1e9))).all()


def test_reconstruction_is_what_the_decoders_leave_and_learns_nothing() -> None:
    compressor, e = Compressor(16), activations(50)
    for _ in range(3):
        loss = compressor.loss(e)
    before = {name: value.clone() for name, value in compressor.state_dict().items()}
    errors = compressor.reconstruction(e)
    torch.testing.assert_close(errors.mean(), loss.detach())
    target, z = compressor.standardise(e), compressor(e)
    expected = [(decoder(z[:, : decoder.in_features]) - target).square().mean() for decoder in compressor.decoders]
    torch.testing.assert_close(errors, torch.stack(expected).detach())
    assert not errors.requires_grad
    assert all(torch.equal(before[name], value) for name, value in compressor.state_dict().items())


def test_the_inner_width_may_be_another() -> None:
    compressor = Compressor(3, hidden=16)
    assert compressor(torch.randn(5, 3)).shape == (5, 64)
    assert [layer.out_features for layer in compressor.encoder if isinstance(layer, torch.nn.Linear)] == [16, 64]


def test_an_aligned_z_passes_the_map_and_the_loss_does_not() -> None:
    plain, aligned, e = Compressor(16), Compressor(16, aligned=True), activations(9)
    aligned.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(aligned(e), plain(e), rtol=0, atol=0)  # the identity, until it is set
    aligned.map_ZZ.copy_(torch.randn(64, 64))
    aligned.shift_Z.fill_(0.1)
    torch.testing.assert_close(aligned(e), (plain(e) @ aligned.map_ZZ.T + 0.1).clamp(-1, 1))
    torch.testing.assert_close(aligned.loss(e), plain.loss(e), rtol=0, atol=0)
    assert not any(name in ("map_ZZ", "shift_Z") for name, _ in aligned.named_parameters())
