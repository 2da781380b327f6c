"""The tiny world as an experiment's dataset."""

import shutil
from pathlib import Path

import pytest

from events.store import read_calendar, read_log
from foundation.experiments.data import Dataset
from foundation.log_tensors import LogTensors


@pytest.fixture(scope="session")
def tiny_work(tiny_log_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder in which the tiny log stands where a smoke run keeps its world. Add only finished jobs to it."""
    work = tmp_path_factory.mktemp("experiments")
    shutil.copytree(tiny_log_dir, work / "data" / "smoke" / "log")
    return work


@pytest.fixture(scope="session")
def tiny_data(tiny_work: Path) -> Dataset:
    folder = tiny_work / "data" / "smoke"
    log = read_log(folder / "log")
    return Dataset("smoke", folder, log, read_calendar(folder / "log"), LogTensors(log))
