"""A weight per value and task; user columns have none."""

import torch

from events.log import InteractionLog
from foundation.first_order import FirstOrder
from foundation.layout import InputLayout


def test_is_the_sum_of_the_weights_of_the_rows_values(tiny_log: InteractionLog) -> None:
    layout = InputLayout(tiny_log.schema)
    module = FirstOrder(layout)
    torch.nn.init.normal_(module.table.weight)
    torch.nn.init.normal_(module.floats.weight)
    codes, floats = torch.randint(0, layout.table_rows, (3, len(layout.columns))), torch.randn(3, layout.set_floats)
    expected = torch.stack([module.table.weight[row[layout.user_columns :]].sum(0) for row in codes])
    torch.testing.assert_close(module(codes, floats), expected + floats @ module.floats.weight.T)


def test_a_user_has_no_weight_of_its_own(tiny_log: InteractionLog) -> None:
    layout = InputLayout(tiny_log.schema)
    module = FirstOrder(layout)
    torch.nn.init.normal_(module.table.weight)
    codes, floats = torch.randint(0, layout.table_rows, (1, len(layout.columns))), torch.zeros(1, layout.set_floats)
    other = codes.clone()
    other[:, : layout.user_columns] = 0
    assert torch.equal(module(codes, floats), module(other, floats))


def test_starts_at_zero(tiny_log: InteractionLog) -> None:
    layout = InputLayout(tiny_log.schema)
    codes = torch.zeros(2, len(layout.columns), dtype=torch.long)
    assert not FirstOrder(layout)(codes, torch.ones(2, layout.set_floats)).any()
