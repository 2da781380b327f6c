"""Domain experts: a surface learns its own correction; one without training falls back to the trunk exactly."""

import torch

from foundation.domains import DomainExperts


def trained(*, surfaces: list[int], steps: int = 60, trunk_share: float = 0.1) -> tuple[DomainExperts, torch.Tensor]:
    """Experts that learned +1 on surface 0 and -1 on all others, from rows of these surfaces."""
    torch.manual_seed(0)
    experts = DomainExperts(6, 4, 3, 2, trunk_share=trunk_share)
    optimiser = torch.optim.AdamW(experts.parameters(), lr=0.05)
    surface = torch.tensor(surfaces * 20)
    hidden = torch.randn(len(surface), 6)
    target = torch.where(surface == 0, 1.0, -1.0)[:, None]
    for _ in range(steps):
        optimiser.zero_grad()
        (experts(hidden, surface) - target).square().mean().backward()
        optimiser.step()
    return experts.eval(), hidden


def test_adds_nothing_before_training() -> None:
    experts = DomainExperts(6, 4, 3, 2)
    assert (experts(torch.randn(5, 6), torch.arange(5)) == 0).all()


def test_surfaces_learn_what_differs() -> None:
    experts, hidden = trained(surfaces=[0, 1])
    added = experts(hidden, torch.tensor([0, 1] * 20))
    assert added[0::2].mean() > 0.8
    assert added[1::2].mean() < -0.8


def test_a_surface_without_training_rows_and_unknown_codes_fall_back_to_the_trunk() -> None:
    experts, hidden = trained(surfaces=[0, 1])
    with torch.no_grad():
        experts.outer.add_(1.0)  # whatever stands in the weights of a surface that was never seen
        experts.bias.add_(1.0)
    for code in (2, 3, 4, 99, -1):
        assert (experts(hidden, torch.full((len(hidden),), code)) == 0).all()
    assert (experts(hidden, torch.zeros(len(hidden), dtype=torch.long)) != 0).any()


def test_what_was_seen_travels_with_the_weights() -> None:
    experts, hidden = trained(surfaces=[0, 2])
    assert experts.seen_S.tolist() == [True, False, True, False]
    other = DomainExperts(6, 4, 3, 2).eval()
    other.load_state_dict(experts.state_dict())
    surface = torch.arange(len(hidden)) % 5
    assert torch.equal(other(hidden, surface), experts(hidden, surface))


def test_a_row_is_computed_by_its_own_expert_alone() -> None:
    experts, hidden = trained(surfaces=[0, 1, 2, 3])
    surface = torch.arange(len(hidden)) % 4
    together = experts(hidden, surface)
    s, w = experts.surfaces, experts.width
    for row, code in enumerate(surface.tolist()):
        inner = experts.inner.weight.view(s, w, -1)[code] @ hidden[row] + experts.inner.bias.view(s, w)[code]
        gate = torch.sigmoid(experts.gate.weight[code] @ hidden[row] + experts.gate.bias[code])
        expert = torch.nn.functional.gelu(inner, approximate="tanh") @ experts.outer.view(s, w, -1)[code]
        torch.testing.assert_close(together[row], gate * (expert + experts.bias[code]), atol=1e-6, rtol=1e-5)


def test_part_of_the_training_rows_do_without_their_expert() -> None:
    experts, hidden = trained(surfaces=[0], trunk_share=0.5)
    experts.train()
    without = (experts(hidden.repeat(50, 1), torch.zeros(len(hidden) * 50, dtype=torch.long)) == 0).all(dim=1)
    assert 0.45 < without.float().mean() < 0.55
    always = DomainExperts(6, 4, 3, 2, trunk_share=0.0)
    always.load_state_dict(experts.state_dict())
    assert (always(hidden, torch.zeros(len(hidden), dtype=torch.long)) != 0).any(dim=1).all()


def test_the_gradient_reaches_every_weight_of_the_surfaces_that_train() -> None:
    experts, hidden = trained(surfaces=[0, 1, 2, 3], steps=2)
    experts.train()
    experts.zero_grad()
    experts(hidden, torch.arange(len(hidden)) % 4).square().sum().backward()
    for name, parameter in experts.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name
