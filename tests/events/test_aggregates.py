"""Aggregates are strictly past, and equal to counting by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.schema import HOUR_MS
from events.aggregates import RATE_EVENTS, AggregateTable, aggregate_features
from events.log import UNKNOWN_LABEL, InteractionLog, UntimedEvents
from events.moments import pseudo_times, ranks_from_end
from events.recipes import tiny
from events.user_windows import PRIOR_EVENTS
from events.world import make_world
from tests.events.small_logs import SCHEMA

USERS, ADS = 3, 4


def random_log(seed: int, *, rows: int = 40, untimed: int = 24) -> InteractionLog:
    """A log with ties in time, late arrivals, delayed and unknown labels, and an untimed history."""
    rng = np.random.default_rng(seed)
    event_ms = np.sort(rng.integers(0, 12, rows)) * HOUR_MS // 2 + 10 * HOUR_MS
    click = rng.integers(0, 2, rows).astype(np.int8)
    conversion = np.where(click == 1, rng.integers(0, 2, rows), UNKNOWN_LABEL).astype(np.int8)
    past_user = np.sort(rng.integers(0, USERS, untimed)).astype(np.int32)
    return InteractionLog(
        schema=SCHEMA,
        user_ids=np.array([f"u{number}" for number in range(USERS)], dtype=object),
        ad_ids=np.array([f"a{number}" for number in range(ADS)], dtype=object),
        user_features={"profile": np.zeros(USERS, dtype=np.float32)},
        ad_features={"category": np.arange(ADS).astype(np.int32) % 3, "quality": np.zeros(ADS, dtype=np.float32)},
        campaign=np.array(["c"] * ADS, dtype=object),
        objective=np.array(["click"] * ADS, dtype=object),
        default_bid=np.ones(ADS, dtype=np.float32),
        offset=np.arange(rows, dtype=np.int64),
        event_id=rng.permutation(rows).astype(np.uint64),
        request_id=np.arange(rows, dtype=np.uint64),
        user=rng.integers(0, USERS, rows).astype(np.int32),
        ad=rng.integers(0, ADS, rows).astype(np.int32),
        surface=rng.integers(0, 2, rows).astype(np.int16),
        event_ms=event_ms,
        ingested_ms=event_ms + rng.integers(0, 2, rows) * rng.integers(0, 3 * HOUR_MS, rows),
        bid=np.ones(rows, dtype=np.float32),
        context={"device": rng.integers(0, 3, rows).astype(np.int32)},
        labels={"click": click, "conversion": conversion},
        label_ms={"click": event_ms + 1, "conversion": event_ms + rng.integers(1, 4 * HOUR_MS, rows)},
        untimed=UntimedEvents(
            user=past_user,
            ad=rng.integers(0, ADS, untimed).astype(np.int32),
            labels={"click": rng.integers(0, 2, untimed).astype(np.int8)},
            before_ms=np.full(untimed, 9 * HOUR_MS, dtype=np.int64),
        ),
    )


def column(table: AggregateTable, name: str) -> np.ndarray:
    return table.values[:, table.names.index(name)]


def same(one: AggregateTable, other: AggregateTable) -> bool:
    return one.names == other.names and one.values.tobytes() == other.values.tobytes()


# ---- counting by hand ---------------------------------------------------------------------------------------------


def rate(labels: Sequence[int], overall: float, weight: float) -> float:
    """How far the rate lies above the overall one, with `weight` events that show no difference."""
    return (sum(labels) + weight * overall) / (len(labels) + weight) - overall


def by_hand(log: InteractionLog, row: int, now: int) -> dict[str, float]:
    """Some columns of one timed row, event by event."""
    untimed = log.untimed
    assert untimed is not None
    past = list(zip(untimed.user.tolist(), untimed.ad.tolist(), untimed.labels["click"].tolist(), strict=True))
    known: list[tuple[int, int, int]] = [(a, -1, y) for _, a, y in past]
    own: list[tuple[int, int | None, int | None]] = [(a, None, y) for u, a, y in past if u == log.user[row]]
    for e in np.lexsort((log.event_id, log.event_ms)):
        if not (log.event_ms[e] < now and log.ingested_ms[e] < now):
            continue
        click = int(log.labels["click"][e]) if log.label_ms["click"][e] < now else None
        if click is not None:
            known.append((int(log.ad[e]), int(log.surface[e]), click))
        if log.user[e] == log.user[row]:
            own.append((int(log.ad[e]), int(log.event_ms[e]), click))
    own.reverse()
    ad, category = int(log.ad[row]), log.ad_features["category"]
    overall = (sum(y for *_, y in known) + 0.5) / (len(known) + 1)

    def clicks(events: Sequence[tuple[int, int | None, int | None]]) -> list[int]:
        return [y for _, _, y in events if y is not None]

    alike = [e for e in own if category[e[0]] == category[ad] != 0]
    return {
        "ad.click": rate([y for a, _, y in known if a == ad], overall, RATE_EVENTS),
        "surface_x_category.click": rate(
            [y for a, s, y in known if s == log.surface[row] and category[a] == category[ad]], overall, RATE_EVENTS
        ),
        "user.all.events": len(own),
        "user.all.click": rate(clicks(own), overall, PRIOR_EVENTS),
        "user.known.click": len(clicks(own)),
        "user.last5.click": rate(clicks(own[:5]), overall, PRIOR_EVENTS),
        "user.same_category.click": rate(clicks(alike), overall, PRIOR_EVENTS),
        "user.1h.events": sum(t is not None and now - t <= HOUR_MS for _, t, _ in own),
        "user.event2.click": own[1][2] if len(own) > 1 and own[1][2] is not None else np.nan,
        "user.idle_s": (now - own[0][1]) / 1000 if own and own[0][1] is not None else np.nan,
    }


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), frozen=st.booleans())
def test_columns_of_timed_rows_equal_counting_by_hand(seed: int, frozen: bool) -> None:
    log = random_log(seed)
    frozen_ms = 13 * HOUR_MS if frozen else None
    table = aggregate_features(log, np.arange(len(log)), frozen_ms=frozen_ms)
    for row in range(len(log)):
        now = int(log.event_ms[row]) if frozen_ms is None else min(int(log.event_ms[row]), frozen_ms)
        for name, expected in by_hand(log, row, now).items():
            np.testing.assert_allclose(
                column(table, name)[row], expected, rtol=1e-6, atol=1e-7, err_msg=f"{name} of row {row}"
            )


def test_columns_of_untimed_events_equal_counting_in_their_common_order() -> None:
    log = random_log(1)
    untimed, order = log.untimed, pseudo_times(log)
    assert untimed is not None
    table = aggregate_features(log, len(log) + np.arange(len(order)))
    click = untimed.labels["click"]
    for h in range(len(order)):
        before = order < order[h]
        overall = (click[before].sum() + 0.5) / (before.sum() + 1)
        alike = click[before & (untimed.ad == untimed.ad[h])]
        own = click[before & (untimed.user == untimed.user[h])]
        if before.any():
            assert column(table, "ad.click")[h] == pytest.approx(rate(list(alike), overall, RATE_EVENTS), abs=1e-7)
            assert column(table, "user.all.click")[h] == pytest.approx(rate(list(own), overall, PRIOR_EVENTS), abs=1e-7)
        assert column(table, "user.all.events")[h] == len(own)
    assert np.isnan(column(table, "surface_x_ad.click")).all()
    assert np.isnan(column(table, "user.idle_s")).all()


# ---- nothing of the present or the future -------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_row_never_reads_its_own_outcome_or_that_of_a_tie(seed: int) -> None:
    log = random_log(seed)
    row = seed % len(log)
    tied = log.event_ms == log.event_ms[row]
    flipped = {name: np.where(tied & (y != UNKNOWN_LABEL), 1 - y, y).astype(np.int8) for name, y in log.labels.items()}
    rows = np.flatnonzero(tied)
    assert same(aggregate_features(log, rows), aggregate_features(replace(log, labels=flipped), rows))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), hour=st.integers(11, 15))
def test_the_future_changes_nothing(seed: int, hour: int) -> None:
    log, cut_ms = random_log(seed), hour * HOUR_MS
    past = np.flatnonzero(log.event_ms <= cut_ms)
    table = aggregate_features(log, past)
    future = np.flatnonzero(log.event_ms >= cut_ms)
    order = np.random.default_rng(seed).permutation(future)
    mixed = {name: y.copy() for name, y in log.labels.items()}
    for y in mixed.values():
        y[future] = y[order]
    assert same(table, aggregate_features(replace(log, labels=mixed), past))
    assert same(table, aggregate_features(log.take(past), past))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_what_is_not_known_or_has_not_arrived_changes_nothing(seed: int) -> None:
    log = random_log(seed)
    now = int(np.median(log.event_ms))
    rows = np.flatnonzero(log.event_ms == now)
    unknown = {
        name: np.where((log.label_ms[name] >= now) & (y != UNKNOWN_LABEL), 1 - y, y).astype(np.int8)
        for name, y in log.labels.items()
    }
    # what had not arrived belongs to somebody else altogether, except for the rows asked about
    hidden = (log.ingested_ms >= now) & (log.event_ms != now)
    user = np.where(hidden, (log.user + 1) % USERS, log.user).astype(np.int32)
    ad = np.where(hidden, (log.ad + 1) % ADS, log.ad).astype(np.int32)
    changed = replace(log, labels=unknown, user=user, ad=ad)
    assert same(aggregate_features(log, rows), aggregate_features(changed, rows))


def test_an_untimed_event_never_reads_its_own_label_or_what_follows_it() -> None:
    log = random_log(3, untimed=80)
    untimed, order, rank = log.untimed, pseudo_times(log), ranks_from_end(log)
    assert untimed is not None
    for h in np.flatnonzero(np.isin(rank, (0, 5, 20)))[:6]:
        later = order >= order[h]
        click = np.where(later, 1 - untimed.labels["click"], untimed.labels["click"]).astype(np.int8)
        changed = replace(log, untimed=replace(untimed, labels={"click": click}))
        event = np.array([len(log) + h])
        assert same(aggregate_features(log, event), aggregate_features(changed, event))


# ---- shape --------------------------------------------------------------------------------------------------------


def test_events_keep_their_order_and_columns_follow_from_the_schema() -> None:
    log = random_log(2)
    events = np.array([len(log) + 3, 7, len(log), 1])
    table = aggregate_features(log, events)
    for place, event in enumerate(events):
        assert aggregate_features(log, np.array([event])).values.tobytes() == table.values[place].tobytes()
    assert aggregate_features(random_log(9), np.zeros(0, dtype=np.int64)).names == table.names
    assert table.values.dtype == np.float32
    assert len(set(table.names)) == len(table.names)


def test_a_log_without_untimed_events_has_no_similarity() -> None:
    log = replace(random_log(2), untimed=None)
    table = aggregate_features(log, np.arange(5))
    assert not any(name.startswith("similar") for name in table.names)


def test_an_unknown_event_is_refused() -> None:
    log = random_log(2)
    with pytest.raises(InputError, match="63 in this log"):
        aggregate_features(log, np.array([64]))


def test_shares_are_of_the_events_that_have_the_key() -> None:
    """Untimed events have no surface: as a share of all events, a surface's would grow with every day of the log."""
    log = make_world(tiny())[0]
    past = np.sort(np.random.default_rng(0).integers(0, len(log.user_ids), 5_000)).astype(np.int32)
    untimed = UntimedEvents(
        user=past,
        ad=np.random.default_rng(1).integers(0, len(log.ad_ids), len(past)).astype(np.int32),
        labels={"click": np.zeros(len(past), dtype=np.int8)},
        before_ms=np.full(len(past), int(log.event_ms.min()), dtype=np.int64),
    )
    rows = np.argsort(log.event_ms, kind="stable")[-200:]
    with_past, without = (aggregate_features(one, rows) for one in (replace(log, untimed=untimed), log))
    column = without.names.index("surface.share")
    late = with_past.values[:, with_past.names.index("surface.share")]
    np.testing.assert_allclose(late, without.values[:, column], rtol=1e-6)
    assert 0.3 < late.max() <= 1


def test_a_rate_of_nothing_is_no_clock() -> None:
    """Without events of its own a rate says nothing: the overall rate of the moment, shown in its place, told trees the
    day, and they overpredicted the days behind their training by a fifth."""
    log = make_world(tiny())[0]
    table = aggregate_features(log, np.argsort(log.event_ms, kind="stable")[-500:])
    unseen = column(table, "user.same_ad.events") == 0
    assert unseen.sum() > 50
    np.testing.assert_array_equal(column(table, "user.same_ad.click")[unseen], 0.0)
