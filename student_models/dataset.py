"""Interaction log + representation log -> model inputs, through contracts/features.py alone.

Legend: T rows in time order, R logged representations, L history length, D served width, K tasks. Everything that does
not depend on the arm or the seed is computed once; vectors are gathered batch by batch, since [T, L, D] would not fit.
"""

from dataclasses import dataclass, replace

import numpy as np

from contracts.errors import InputError
from contracts.features import AdTable, HistoryBatch, InputSpec, in_order, user_inputs
from contracts.keys import space_dim
from events.log import UNKNOWN_LABEL, InteractionLog
from events.representation_shards import Representations
from events.representations import RepresentationLog
from events.splits import DAY_MS, Calendar
from student_models.logged import LoggedVectors, Outcomes, UserMeans
from student_models.recipes import Arm

SOFT_LABEL_SHARE = 0.9
"""Least share of a training period's rows that must have a soft label: a refresh that is a little behind may pass, a
log of other events or a backfill that stopped may not."""

NEVER = np.iinfo(np.int64).max
"""When a label that is not defined will be known."""


@dataclass(frozen=True)
class StudentRows:
    """Rows of one period, ordered by time, with what a student reads (inputs) and what it learns from (targets).

    event_id uint64, user (table row), event_ms, user_bucket, surface, ad (table row) [T]; index [T, L] rows of `logged`
    newest first, -1 for none; impressions [T]. Targets: labels float32 [T, K] where `usable` bool [T, K], trainable
    from known_ms int64 [T, K] on; soft labels float32 [T, K] where `has_soft` bool [T]; own int64 [T] = the row of
    `logged` that is the row itself, -1 for none; they never reach the inputs.
    """

    spec: InputSpec
    event_id: np.ndarray
    user: np.ndarray
    event_ms: np.ndarray
    user_bucket: np.ndarray
    surface: np.ndarray
    context: dict[str, np.ndarray]
    ad: np.ndarray
    ads: AdTable
    logged: LoggedVectors
    index: np.ndarray
    impressions: np.ndarray
    user_means: UserMeans
    labels: np.ndarray
    usable: np.ndarray
    known_ms: np.ndarray
    soft: np.ndarray
    own: np.ndarray

    def __len__(self) -> int:
        return len(self.event_id)

    @property
    def has_soft(self) -> np.ndarray:
        """Which rows the teacher has represented: bool [T]."""
        return self.own >= 0

    @property
    def soft_label_share(self) -> float:
        """Share of the rows that the teacher has represented."""
        return float(self.has_soft.mean())

    def read_by(self, arm: Arm) -> "StudentRows":
        """The rows with the histories that an arm reads: shuffled vectors, soft labels in their place, or one frozen
        mean a user as the only element."""
        if arm.shuffle:
            return replace(self, logged=self.logged.shuffled())
        if arm.history == "soft":
            return replace(self, logged=self.logged.of_soft_labels())
        if arm.history == "user":
            means = self.user_means
            index = means.index(self.user, self.event_ms)
            logged = replace(self.logged, vectors=means.vectors, event_ms=np.full(len(means.vectors), means.cut_ms))
            return replace(self, logged=logged, index=index, impressions=means.counts[self.user] * (index[:, 0] >= 0))
        return self

    def inputs(self, rows: slice, *, spec: InputSpec) -> dict[str, np.ndarray]:
        """Model inputs of some rows in the spec's order (B = N)."""
        history = None
        if spec.history_length:
            logged, index = self.logged, self.index[rows, : spec.history_length]
            history = HistoryBatch.from_index(
                logged.vectors if spec.dim else logged.vectors[:, :0],
                logged.event_ms,
                index,
                self.impressions[rows],
                surface=logged.surface if "surface" in spec.elements else None,
                ad_hash=logged.ad_hash if "ad_hash" in spec.elements else None,
                outcome=logged.outcomes(index, self.event_ms[rows]) if "outcome" in spec.elements else None,
            )
        user = user_inputs(
            spec,
            user_buckets=self.user_bucket[rows],
            surfaces=self.surface[rows],
            now_ms=self.event_ms[rows],
            context={name: values[rows] for name, values in self.context.items()},
            history=history,
        )
        return in_order(spec, {**user, **self.ads.rows(self.ad[rows])})


def student_rows(
    log: InteractionLog, records: RepresentationLog, calendar: Calendar, period: str, *, history_length: int
) -> StudentRows:
    """Inputs and targets of a period's rows, in time order.

    Histories are as of each row's own time: impressions that happened and whose representation was available strictly
    before it. Labels of the student period count where they were known at its end, those of a later period where they
    can be judged at all. A row that the teacher has not represented has no soft label. Raises InputError when the
    representation log belongs to another schema or to other events, or reaches into the teacher's period, or when the
    period has no rows.
    """
    rows = calendar.rows(log, period)
    if not len(rows):
        raise InputError(f"the log {log.schema.name!r} has no rows in period {period!r}; check its calendar.json")
    logged, place = _checked(log, records, calendar)
    times, tasks = log.event_ms[rows], log.schema.tasks
    end_ms = {
        task.name: calendar.student.end_ms if period == "student" else calendar.judged_ms(period, task)
        for task in tasks
    }
    counts = log.trainable if period == "student" else log.usable
    usable = np.stack([counts(task.name, as_of_ms=end_ms[task.name])[rows] for task in tasks], axis=1)
    labels = np.stack([log.labels[task.name][rows] for task in tasks], axis=1)
    soft = logged.soft[:, [records.tasks.index(task.name) for task in tasks]]
    own = _own(logged, log.event_id[rows])
    vectors, outcomes = records.quantiser.decode(logged.codes), Outcomes.of(log, place)
    cut_ms = max(calendar.student.start_ms, calendar.log.start_ms + DAY_MS)
    index, impressions = records.as_of(logged).histories(log.user_ids[log.user[rows]], times, history_length)
    return StudentRows(
        spec=InputSpec(log.schema, history_length, space_dim(records.space)),
        event_id=log.event_id[rows],
        user=log.user[rows],
        event_ms=times,
        user_bucket=log.user_bucket_table()[log.user[rows]],
        surface=log.surface[rows].astype(np.int64),
        context={name: values[rows] for name, values in log.context.items()},
        ad=log.ad[rows],
        ads=log.ad_table(),
        logged=LoggedVectors(
            vectors=vectors,
            event_ms=logged.event_ms,
            surface=logged.surface.astype(np.uint8),
            ad_hash=logged.ad_hash,
            soft=soft,
            positive=outcomes.positive,
            known_ms=outcomes.known_ms,
        ),
        index=index,
        impressions=impressions,
        user_means=UserMeans.of(log, logged, vectors, cut_ms=cut_ms),
        labels=np.where(usable, labels, 0).astype(np.float32),
        usable=usable,
        known_ms=_known_ms(log, rows),
        soft=soft[own] * (own >= 0)[:, None] if len(soft) else np.zeros(labels.shape, np.float32),
        own=own,
    )


def check_covered(log: InteractionLog, records: RepresentationLog, rows: StudentRows, period: str) -> None:
    """InputError when the representation log ends before the last of these rows, or lacks more than a tenth of them:
    students that learn from a part of it would pass for students of the whole."""
    last = int(log.offset[np.isin(log.event_id, rows.event_id)].max())
    if records.end_offset <= last:
        raise InputError(
            f"{records.folder} ends at offset {records.end_offset}, the period {period!r} at offset {last}; "
            "let python -m precompute.backfill on this log end first"
        )
    if rows.soft_label_share < SOFT_LABEL_SHARE:
        raise InputError(
            f"{records.folder} has a soft label for {rows.soft_label_share:.1%} of the rows of period {period!r}, "
            f"{SOFT_LABEL_SHARE:.0%} are needed; run python -m precompute.backfill on this log"
        )


def base_rates(log: InteractionLog, *, before_ms: int) -> np.ndarray:
    """Mean label of each task over the rows before a time, float32 [K]; one half where no row is known by then."""
    past = log.event_ms < before_ms
    rates = []
    for task in log.schema.tasks:
        known = past & log.trainable(task.name, as_of_ms=before_ms)
        rates.append(log.labels[task.name][known].mean() if known.any() else 0.5)
    return np.array(rates, dtype=np.float32)


def _known_ms(log: InteractionLog, rows: np.ndarray) -> np.ndarray:
    """From when on `InteractionLog.trainable` lets each label train, NEVER where it is not defined: int64 [T, K]."""
    known = []
    for task in log.schema.tasks:
        judged = log.event_ms + task.window_ms if task.window_ms else log.label_ms[task.name]
        known.append(np.where(log.labels[task.name] == UNKNOWN_LABEL, NEVER, np.maximum(judged, log.ingested_ms))[rows])
    return np.stack(known, axis=1)


def _checked(log: InteractionLog, records: RepresentationLog, calendar: Calendar) -> tuple[Representations, np.ndarray]:
    """The representations, if they were made of this log by a teacher that had not trained on them (leak guard 1), and
    the row of the log that each is of, int64 [R]: -1 past the log's end (it came in after the log was read)."""
    if records.schema_fingerprint != log.schema.fingerprint():
        raise InputError(
            f"representation log {records.space} was made on schema {records.schema_fingerprint}, this log has "
            f"{log.schema.fingerprint()}; run python -m precompute.backfill on this log"
        )
    logged = records.read(z=False)
    if len(logged.event_ms) and logged.event_ms.min() < calendar.teacher.end_ms:
        raise InputError(
            f"representation log {records.space} holds impressions of the teacher's own training period; "
            "delete it and run python -m precompute.backfill again"
        )
    place, past_end = _places(log, logged)
    if foreign := int((~past_end & (place < 0)).sum()):
        raise InputError(
            f"{foreign:,} of {len(logged):,} rows of {records.folder} are not events of the log {log.schema.name!r}; "
            "give the log it was made of, or run python -m precompute.backfill on this log into another folder"
        )
    return logged, place


def _places(log: InteractionLog, logged: Representations) -> tuple[np.ndarray, np.ndarray]:
    """The row of the log whose offset and event each representation has, int64 [R], -1 for none; and which of them
    lie past the log's end."""
    if not len(log) or not len(logged):
        return np.full(len(logged), -1), np.ones(len(logged), dtype=bool)
    order = np.argsort(log.offset, kind="stable")
    found = order[np.searchsorted(log.offset, logged.offset, sorter=order).clip(max=len(order) - 1)]
    same = (log.offset[found] == logged.offset) & (log.event_id[found] == logged.event_id)
    return np.where(same, found, -1), logged.offset > log.offset[order[-1]]


def _own(logged: Representations, event_id: np.ndarray) -> np.ndarray:
    """The representation of each event, matched by event id: int64 [T], -1 for none."""
    if not len(logged.event_id):
        return np.full(len(event_id), -1)
    order = np.argsort(logged.event_id, kind="stable")
    found = order[np.searchsorted(logged.event_id, event_id, sorter=order).clip(max=len(order) - 1)]
    return np.where(logged.event_id[found] == event_id, found, -1)
