"""A tiny teacher, trained once per test session on the tiny log."""

from pathlib import Path

import numpy as np
import pytest
import torch

from events.log import InteractionLog
from events.splits import Calendar
from events.store import read_calendar
from foundation.train import main as train


@pytest.fixture(autouse=True)
def _fixed_randomness() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_calendar(tiny_log_dir: Path) -> Calendar:
    return read_calendar(tiny_log_dir)


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_log_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recipe tiny on the teacher's period. Read only."""
    folder = tmp_path_factory.mktemp("teacher") / "gem"
    train(tiny_log_dir, folder, recipe_name="tiny")
    return folder


@pytest.fixture(scope="session")
def later_rows(tiny_log: InteractionLog, tiny_calendar: Calendar) -> np.ndarray:
    """Rows after the teacher's period, in time order."""
    return tiny_calendar.rows(tiny_log, "log")
