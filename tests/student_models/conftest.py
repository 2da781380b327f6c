"""The tiny world with a representation log from a made-up teacher, and students trained on it once."""

from pathlib import Path

import pytest

from events.log import InteractionLog
from events.representations import RepresentationLog
from events.splits import Calendar
from events.store import read_calendar, read_truth
from student_models.recipes import tiny
from student_models.train import main as train
from student_models.train import training_data
from student_models.trainer import TrainingData
from tests.student_models.made_teacher import write_representations


@pytest.fixture(scope="session")
def calendar(tiny_log_dir: Path) -> Calendar:
    return read_calendar(tiny_log_dir)


@pytest.fixture(scope="session")
def records_dir(
    tiny_log_dir: Path, tiny_log: InteractionLog, calendar: Calendar, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """<root>/<space> of the made-up teacher. Read only."""
    root = tmp_path_factory.mktemp("representations")
    return write_representations(root, tiny_log, calendar, truth=read_truth(tiny_log_dir)).folder


@pytest.fixture(scope="session")
def records(records_dir: Path) -> RepresentationLog:
    return RepresentationLog(records_dir)


@pytest.fixture(scope="session")
def data(tiny_log: InteractionLog, records: RepresentationLog, calendar: Calendar) -> TrainingData:
    return training_data(tiny_log, records, calendar, history_length=tiny().history_length)


@pytest.fixture(scope="session")
def runs_dir(tiny_log_dir: Path, records_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All arms, two seeds, by the command. Read only."""
    out = tmp_path_factory.mktemp("runs")
    train(tiny_log_dir, records_dir, out, seeds=2, recipe="tiny")
    return out
