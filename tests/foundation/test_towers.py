"""Towers read the newest events of their types, where they stood, and the request's own token."""

from dataclasses import replace

import pytest
import torch

from contracts.errors import InputError
from events.log import InteractionLog
from foundation.config import Tower
from foundation.layout import InputLayout
from foundation.presets import tiny_model
from foundation.rote import log_age, rotary_table
from foundation.towers import TowerInput, event_types, newest_places
from tests.foundation.fake_batches import fake_batch

CONFIG = tiny_model()
CLICKS = Tower(types=("click", "conversion"), dim=8, heads=2, layers=2, pooled_tokens=2, window=3, length=3)
WHOLE = CONFIG.towers[0]


@pytest.fixture
def layout(tiny_log: InteractionLog) -> InputLayout:
    return InputLayout(tiny_log.schema)


def test_the_first_members_of_each_row() -> None:
    member = torch.tensor([[1, 0, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 0, 0, 1]], dtype=torch.bool)
    places, mask = newest_places(member, 3)
    assert places.tolist() == [[0, 2, 3], [0, 0, 0], [0, 1, 4]]
    assert mask.tolist() == [[True] * 3, [True, False, False], [True] * 3]
    assert newest_places(member[1:2], 3)[0].tolist() == [[0]]


def test_names_of_types(layout: InputLayout) -> None:
    schema = layout.schema
    assert event_types(CLICKS, schema) == (1, 2)
    assert event_types(replace(CLICKS, types=("impression", 3)), schema) == (0, 3)
    assert event_types(WHOLE, schema) is None
    with pytest.raises(InputError, match="impression"):
        event_types(replace(CLICKS, types=("buy",)), schema)
    with pytest.raises(InputError):
        event_types(replace(CLICKS, types=(9,)), schema)


def test_the_tower_of_all_events_takes_the_sequence_as_it_is(layout: InputLayout) -> None:
    batch, s = fake_batch(layout, [3, 7]), torch.randn(2, 8, CONFIG.dim)
    tokens, geometry = TowerInput(CONFIG, WHOLE, layout.schema)(s, batch)
    assert tokens is s
    assert geometry.mask_BU is batch.mask_BT


def test_a_shorter_tower_takes_the_newest(layout: InputLayout) -> None:
    batch, s = fake_batch(layout, [3, 7]), torch.randn(2, 8, CONFIG.dim)
    tokens, geometry = TowerInput(CONFIG, replace(WHOLE, length=4), layout.schema)(s, batch)
    torch.testing.assert_close(tokens[1], s[1, :5])
    assert geometry.mask_BU.sum(dim=1).tolist() == [4, 5]


def test_events_of_a_type_keep_their_rank_and_age(layout: InputLayout) -> None:
    batch, s = fake_batch(layout, [0, 2, 16, 16]), torch.randn(4, 17, CONFIG.dim)
    entry = TowerInput(CONFIG, CLICKS, layout.schema)
    tokens, geometry = entry(s, batch)
    age = log_age(batch.age_s_BT, batch.timed_BT)
    cos, sin = rotary_table(age, 4)
    for b in range(4):
        own = [0, *[t for t in range(1, 17) if batch.event_type_BT[b, t] in (1, 2)][:3]]
        assert geometry.mask_BU[b].sum() == len(own)
        torch.testing.assert_close(tokens[b, : len(own)], entry.project(s[b, own]))
        torch.testing.assert_close(geometry.rotary[0][b, : len(own)], cos[b, own])
        torch.testing.assert_close(geometry.rotary[1][b, : len(own)], sin[b, own])
