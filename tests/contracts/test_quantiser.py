"""Quantisers: codes that come back, packing that loses nothing, and centres that are the best nearby and the same."""

import json
import struct
from fractions import Fraction
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from contracts.errors import CorruptRecordError, InputError
from contracts.quantiser import CENTRES, DTYPES, INT8, Quantiser, fit_centres

EVEN = Quantiser("kint4", tuple((np.arange(CENTRES) - 7.5) / 8))
QUANTISERS = (Quantiser("fp16"), INT8, Quantiser("int4"), EVEN)
numbers = st.floats(-1, 1, width=32)


def fields_of(shape: tuple[int, int]) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float32, shape, elements=numbers)


def nearest_by_loop(values: np.ndarray, centres: tuple[float, ...]) -> list[int]:
    """The rule as it is written: the nearest centre, of two alike the lower."""
    exact = [Fraction(centre) for centre in centres]
    return [
        min(range(CENTRES), key=lambda code: (abs(Fraction(value) - exact[code]), code)) for value in values.tolist()
    ]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(QUANTISERS), st.integers(0, 6), st.integers(1, 9), st.data())
def test_packed_codes_come_back_and_decoding_is_idempotent(quantiser, n, dim, data):
    vectors = data.draw(fields_of((n, dim)))
    codes = quantiser.encode(vectors)
    packed = quantiser.pack(codes)
    assert len(packed) == quantiser.packed_bytes(n, dim) == n * -(-dim * quantiser.bits // 8)
    again = quantiser.unpack(packed, n, dim)
    assert again.dtype == codes.dtype
    np.testing.assert_array_equal(again, codes)
    decoded = quantiser.decode(again)
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(quantiser.encode(decoded), codes)


@pytest.mark.parametrize("quantiser", QUANTISERS, ids=DTYPES)
def test_a_row_starts_at_a_byte_whatever_the_width(quantiser):
    codes = quantiser.encode(np.random.default_rng(0).uniform(-1, 1, (7, 5)))
    assert quantiser.pack(codes) == b"".join(quantiser.pack(row[None]) for row in codes)


def test_two_codes_lie_in_a_byte_the_earlier_one_low():
    assert Quantiser("int4").pack(np.array([[1, -1, 7]], np.int8)) == bytes([0xF1, 0x07])
    assert EVEN.pack(np.array([[1, 15, 7]], np.uint8)) == bytes([0xF1, 0x07])


@settings(max_examples=40, deadline=None)
@given(arrays(np.float32, (30,), elements=numbers))
def test_uniform_codes_err_by_half_a_step_at_most(values):
    for dtype, steps in (("int8", 127), ("int4", 7)):
        quantiser = Quantiser(dtype)
        assert np.abs(quantiser.decode(quantiser.encode(values)) - values).max() <= 0.5 / steps + 1e-7


@settings(max_examples=40, deadline=None)
@given(arrays(np.float32, (20,), elements=numbers), st.integers(0, 99))
def test_a_number_gets_the_nearest_centre_and_a_tie_the_lower_one(values, seed):
    ties = np.array([(low + high) / 2 for low, high in zip(EVEN.centres, EVEN.centres[1:], strict=False)], np.float32)
    assert EVEN.encode(ties).tolist() == list(range(CENTRES - 1))
    fitted = Quantiser("kint4", fit_centres(np.tanh(np.random.default_rng(seed).normal(size=200))))
    for quantiser in (EVEN, fitted):
        assert quantiser.encode(values).tolist() == nearest_by_loop(values, quantiser.centres)


@pytest.mark.parametrize("quantiser", QUANTISERS, ids=DTYPES)
def test_numbers_beyond_the_ends_become_the_ends(quantiser):
    inside, outside = quantiser.encode(np.array([-1, 1.0])), quantiser.encode(np.array([-3, 2.0]))
    np.testing.assert_array_equal(inside, outside)


@pytest.mark.parametrize("quantiser", QUANTISERS, ids=DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(quantiser, value):
    with pytest.raises(InputError, match="not finite"):
        quantiser.encode(np.array([0.5, value]))


@pytest.mark.parametrize(
    ("quantiser", "packed", "n", "dim"),
    [
        (INT8, b"\x80", 1, 1),
        (Quantiser("int4"), b"\x08", 1, 1),
        (Quantiser("int4"), b"\x11", 1, 1),
        (EVEN, b"\x11", 1, 1),
        (Quantiser("fp16"), b"\x01\x3c", 1, 1),
        (Quantiser("fp16"), b"\x00\x7e", 1, 1),
        (INT8, b"\x00", 1, 2),
        (EVEN, b"\x00\x00", 1, 2),
        (INT8, b"\x00", 0, 1),
    ],
)
def test_bytes_that_no_writer_makes_are_corrupt(quantiser, packed, n, dim):
    with pytest.raises(CorruptRecordError):
        quantiser.unpack(packed, n, dim)


@pytest.mark.parametrize("quantiser", [*QUANTISERS, Quantiser("kint4", fit_centres(np.linspace(-1, 1, 333)))])
def test_a_quantiser_comes_back_from_json_bit_for_bit(quantiser):
    again = Quantiser.from_json(json.loads(json.dumps(quantiser.to_json())))
    assert again == quantiser
    assert again.version == quantiser.version


def test_the_version_follows_from_name_and_centres():
    expected = sha256(b"kint4" + struct.pack("<16f", *EVEN.centres)).hexdigest()[:8]
    assert EVEN.version == expected
    versions = {quantiser.version for quantiser in QUANTISERS}
    assert len(versions) == 4
    nudged = (*EVEN.centres[:15], float(np.nextafter(np.float32(EVEN.centres[15]), np.float32(2))))
    assert Quantiser("kint4", nudged).version != EVEN.version


@pytest.mark.parametrize(
    ("dtype", "centres"),
    [
        ("int2", ()),
        ("", ()),
        ("int8", EVEN.centres),
        ("kint4", ()),
        ("kint4", EVEN.centres[:15]),
        ("kint4", (*EVEN.centres, 1.0)),
        ("kint4", EVEN.centres[::-1]),
        ("kint4", (*EVEN.centres[:15], EVEN.centres[14])),
        ("kint4", (*EVEN.centres[:15], float("nan"))),
        ("kint4", (*EVEN.centres[:15], float("inf"))),
        ("kint4", (*EVEN.centres[:15], 0.95)),
    ],
    ids=["int2", "none", "centres", "no centres", "15", "17", "falling", "twice", "nan", "inf", "no fp32"],
)
def test_what_is_no_quantiser_is_refused(dtype, centres):
    with pytest.raises(InputError):
        Quantiser(dtype, centres)


@pytest.mark.parametrize("fields", [{}, [], None, {"dtype": "int8"}, {"dtype": "int8", "centres": ["x"]}])
def test_fields_of_something_else_are_refused(fields):
    with pytest.raises(InputError, match="dtype and centres"):
        Quantiser.from_json(fields)


def error(values: np.ndarray, centres: tuple[float, ...]) -> float:
    quantiser = Quantiser("kint4", centres)
    return float(((quantiser.decode(quantiser.encode(values)) - values).astype(np.float64) ** 2).mean())


def test_fitted_centres_err_less_than_even_ones_and_do_not_depend_on_the_order():
    random = np.random.default_rng(0)
    values = np.tanh(0.5 * random.normal(size=(400, 32))).astype(np.float32)
    centres = fit_centres(values)
    assert fit_centres(random.permutation(values.ravel())) == centres
    plain = Quantiser("int4")
    assert error(values, centres) < 0.7 * ((plain.decode(plain.encode(values)) - values) ** 2).mean()


def test_no_centre_can_move_alone_for_the_better():
    """A fixed point of Lloyd: every centre is the mean of the numbers that it stands for."""
    values = np.tanh(np.random.default_rng(1).normal(size=5_000)).astype(np.float32)
    quantiser = Quantiser("kint4", fit_centres(values))
    codes = quantiser.encode(values)
    assert set(codes.tolist()) == set(range(CENTRES))
    for code, centre in enumerate(quantiser.centres):
        assert values[codes == code].astype(np.float64).mean() == pytest.approx(centre, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=CENTRES, unique=True), st.integers(1, 5))
def test_few_distinct_numbers_are_their_own_centres(values, times):
    quantiser = Quantiser("kint4", fit_centres(np.repeat(np.array(values, np.float32), times)))
    np.testing.assert_array_equal(quantiser.decode(quantiser.encode(np.array(values))), np.array(values, np.float32))


@settings(max_examples=40, deadline=None)
@given(arrays(np.float32, st.integers(1, 200), elements=st.one_of(numbers, st.sampled_from([-1.0, -0.0, 0.0, 1.0]))))
def test_any_numbers_give_a_quantiser(values):
    """Ties, masses at one place, negative zeros: sixteen ascending centres, whatever the shape."""
    centres = fit_centres(values)
    assert Quantiser("kint4", centres).centres == fit_centres(values.reshape(1, -1)) == centres


@pytest.mark.parametrize("values", [np.zeros((0, 32)), np.array([0.5, np.nan]), np.array([np.inf])])
def test_centres_of_nothing_or_of_no_numbers_are_refused(values):
    with pytest.raises(InputError, match="at least one number"):
        fit_centres(values)
