"""A teacher that is made up: z is a fixed random projection of what it sees, soft labels lie near the true chances."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from contracts.hashing import stable_hashes
from contracts.quantiser import INT8
from events.log import InteractionLog
from events.representations import RepresentationLog, Representations
from events.splits import Calendar

SPACE = "made-3f9a1c-d16-int8"
DELAY_MS = 600_000


def representations(log: InteractionLog, rows: np.ndarray, truth: Mapping[str, np.ndarray]) -> Representations:
    """What the made-up teacher says of these rows, each available ten minutes after its event."""
    random = np.random.default_rng(0)
    seen = [*log.user_features.values()]
    user = np.stack([column[log.user[rows]] for column in seen], axis=1) @ random.normal(size=(len(seen), 64))
    ad = random.normal(size=(len(log.ad_ids), 64))[log.ad[rows]]
    z = np.tanh(0.3 * user + 0.3 * ad).astype(np.float16)
    return Representations(
        offset=log.offset[rows],
        event_id=log.event_id[rows],
        event_ms=log.event_ms[rows],
        available_ms=log.event_ms[rows] + DELAY_MS,
        user_id=log.user_ids[log.user[rows]],
        ad_hash=stable_hashes(log.ad_ids)[log.ad[rows]],
        surface=log.surface[rows],
        z=z,
        codes=INT8.encode(z[:, :16]),
        soft=np.stack([0.9 * truth[task.name][rows] + 0.05 for task in log.schema.tasks], axis=1).astype(np.float32),
    )


def write_representations(
    root: Path, log: InteractionLog, calendar: Calendar, *, truth: Mapping[str, np.ndarray]
) -> RepresentationLog:
    """The representation log of all rows from the logged period on."""
    rows = np.flatnonzero(log.event_ms >= calendar.log.start_ms)
    return write_rows(root, log, representations(log, rows, truth))


def write_rows(
    root: Path, log: InteractionLog, rows: Representations, *, end_offset: int | None = None
) -> RepresentationLog:
    """A representation log of `log` that holds these rows and ends at an offset, by default where the log does; without
    rows and without an end, one that nobody has appended to."""
    records = RepresentationLog.create(
        root,
        space=SPACE,
        tasks=[task.name for task in log.schema.tasks],
        teacher="3f9a1c" + "0" * 58,
        schema_fingerprint=log.schema.fingerprint(),
        epoch=1,
    )
    if len(rows) or end_offset:
        records.append(rows, first_offset=0, end_offset=end_offset or len(log))
    return records
