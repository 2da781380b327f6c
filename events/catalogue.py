"""The ad catalogue that serving loads (GEM_CATALOG): one Arrow IPC file, derived from the log's ads.

Columns: ad_id, campaign, objective (a task name), default_bid float32, updated_ms int64, and one column per ad feature
that a student may read. The schema's fingerprint stands in the file's metadata under `gem_schema_fingerprint`, and the
sha256 of the whole file under `gem_sha256` (contracts/seal.py): serving refuses a file of which one bit has changed.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.seal import OPEN_SEAL, SEAL_KEY, seal
from events.log import InteractionLog
from events.tables import ads_table

FINGERPRINT_KEY = "gem_schema_fingerprint"


def write_catalogue(path: Path, log: InteractionLog, *, updated_ms: int) -> None:
    """Write all ads of the log, as of `updated_ms`."""
    ads = ads_table(log)
    hidden = [f.name for f in log.schema.features if f.side == "ad" and f.teacher_only]
    table = ads.drop_columns(hidden).add_column(
        4, "updated_ms", pa.array(np.full(ads.num_rows, updated_ms, dtype=np.int64))
    )
    table = table.replace_schema_metadata({FINGERPRINT_KEY: log.schema.fingerprint(), SEAL_KEY: OPEN_SEAL})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    path.write_bytes(seal(sink.getvalue().to_pybytes()))
