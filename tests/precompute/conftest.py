"""A tiny teacher that was trained on the tiny log."""

from pathlib import Path

import pytest

from foundation.teacher import Teacher
from foundation.train import main as train


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_log_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recipe tiny on the teacher's period. Read only."""
    folder = tmp_path_factory.mktemp("teacher") / "gem"
    train(tiny_log_dir, folder, recipe_name="tiny")
    return folder


@pytest.fixture
def teacher(tiny_checkpoint: Path) -> Teacher:
    return Teacher.load(tiny_checkpoint)
