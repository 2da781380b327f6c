"""The ad catalogue: what serving loads, and nothing that only the teacher may see."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from contracts.errors import InputError
from contracts.features import AdTable
from contracts.seal import SEAL_KEY, check_seal
from events.catalogue import FINGERPRINT_KEY
from events.log import InteractionLog
from events.splits import day_calendar
from events.store import write_log
from tests.events.small_logs import SCHEMA, small_log


def read(folder: Path) -> pa.Table:
    with pa.memory_map(str(folder / "catalog.arrow")) as source:
        return pa.ipc.open_file(source).read_all()


def test_columns_and_types(tmp_path: Path) -> None:
    write_log(tmp_path / "log", small_log([(0, 5)]), calendar=day_calendar(0, teacher_days=7, student_days=5))
    table = read(tmp_path / "log")
    assert {name: str(table[name].type) for name in table.column_names} == {
        "ad_id": "string",
        "campaign": "string",
        "objective": "string",
        "default_bid": "float",
        "updated_ms": "int64",
        "category": "int32",
    }
    assert table.schema.metadata[FINGERPRINT_KEY.encode()].decode() == SCHEMA.fingerprint()


def test_the_catalogue_gives_the_ad_inputs_of_the_log(tiny_log: InteractionLog, tiny_log_dir: Path) -> None:
    table = read(tiny_log_dir)
    columns = {name: table[name].to_numpy() for name in table.column_names[5:]}
    from_catalogue = AdTable.build(tiny_log.schema, table["ad_id"].to_pylist(), columns)
    np.testing.assert_array_equal(from_catalogue.cat, tiny_log.ad_table().cat)
    np.testing.assert_array_equal(from_catalogue.num, tiny_log.ad_table().num)
    assert (table["updated_ms"].to_numpy() == tiny_log.ingested_ms.max()).all()


def test_the_file_is_sealed_and_any_arrow_reader_reads_it(tiny_log_dir: Path) -> None:
    content = (tiny_log_dir / "catalog.arrow").read_bytes()
    check_seal(content)
    assert read(tiny_log_dir).schema.metadata[SEAL_KEY.encode()] in content
    with pytest.raises(InputError, match="gem_sha256"):
        check_seal(content.replace(b"click", b"clock", 1))
