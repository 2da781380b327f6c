"""Utilities and order: the design's formulas, and one total order whatever the input."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.objective import (
    NO_BID,
    NOT_FINITE,
    OK,
    UNKNOWN_AD,
    Utility,
    chain_probability,
    rank_order,
    reference_order,
    utility,
)

CHAINS = np.array([[True, False, False], [True, True, False], [True, False, True]])


def test_p_is_the_product_over_the_chain_of_the_ads_objective():
    probabilities = np.array([[0.5, 0.25, 0.125]] * 3, dtype=np.float32)
    assert chain_probability(probabilities, CHAINS, np.array([0, 1, 2])).tolist() == [0.5, 0.125, 0.0625]


def test_a_task_outside_the_chain_cannot_spoil_a_candidate():
    probabilities = np.array([[0.5, np.nan, 0.25]], dtype=np.float32)
    assert chain_probability(probabilities, CHAINS, np.array([2])).tolist() == [0.125]


def test_ecpm_is_bid_times_p():
    value = utility(np.array([0.5, 0.25]), np.array([2.0, 8.0]), ecpm=True, known=np.array([True, False]))
    assert value.score.tolist() == [1.0, 2.0]
    assert value.status.tolist() == [OK, UNKNOWN_AD]


def test_without_a_bid_p_still_ranks_and_ecpm_does_not():
    p, bids, known = np.array([0.5]), np.array([np.nan]), np.array([False])
    assert utility(p, bids, ecpm=False, known=known).status.tolist() == [UNKNOWN_AD]
    value = utility(p, bids, ecpm=True, known=known)
    assert (value.score.tolist(), value.status.tolist(), value.p.tolist()) == ([0.0], [NO_BID], [0.5])


def test_a_score_that_is_not_finite_falls_to_the_end_alone():
    p = np.array([np.nan, 0.1, np.inf])
    value = utility(p, np.array([9.0, 1.0, 9.0]), ecpm=True, known=np.ones(3, dtype=bool))
    assert value.status.tolist() == [NOT_FINITE, OK, NOT_FINITE]
    assert value.score.tolist() == [0.0, 0.1, 0.0]
    assert rank_order(value, np.array([9.0, 1.0, 9.0]), ["a", "b", "c"]) == [1, 0, 2]


def test_ties_go_to_the_bid_and_then_to_the_bytes_of_the_id():
    value = Utility(np.full(4, 0.5), np.full(4, 0.5), np.zeros(4, dtype=int))
    assert rank_order(value, np.array([1.0, 2.0, 1.0, np.nan]), ["b", "z", "a", "0"]) == [1, 2, 0, 3]


candidate = st.tuples(
    st.sampled_from([0.0, 0.25, 0.5, 1.0, float("nan")]),
    st.sampled_from([0.0, 1.0, 2.0, float("nan")]),
    st.booleans(),
)


@given(st.lists(candidate, max_size=12), st.booleans(), st.randoms())
def test_the_order_is_total_and_does_not_depend_on_the_order_of_the_request(rows, ecpm, random):
    ids = [f"ad{'é' * (i % 3)}{i}" for i in range(len(rows))]
    shuffled = list(range(len(rows)))
    random.shuffle(shuffled)
    answers = []
    for positions in (list(range(len(rows))), shuffled):
        p, bids, known = (
            np.array([rows[i][k] for i in positions], dtype=t) for k, t in enumerate((float, float, bool))
        )
        names = [ids[i] for i in positions]
        value = utility(p, bids, ecpm=ecpm, known=known)
        order = rank_order(value, bids, names)
        assert order == reference_order(value, np.nan_to_num(bids), names)
        assert np.isfinite(value.score).all()
        assert np.isfinite(value.p).all()
        ranked = [names[i] for i in order]
        answers.append(ranked)
        keys = [(value.status[i] >= NO_BID, -value.score[i], -np.nan_to_num(bids[i]), names[i].encode()) for i in order]
        assert keys == sorted(keys)
    assert answers[0] == answers[1]
