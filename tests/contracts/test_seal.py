"""The seal: whatever bit of a sealed file flips, the bytes are refused before anybody parses them."""

import pytest

from contracts.errors import InputError
from contracts.seal import OPEN_SEAL, check_seal, seal

FILE = b"start " + OPEN_SEAL.encode() + b" middle " + OPEN_SEAL.encode() + b" end"


def test_a_sealed_file_is_as_long_and_passes() -> None:
    sealed = seal(FILE)
    assert len(sealed) == len(FILE)
    assert OPEN_SEAL.encode() not in sealed
    check_seal(sealed)


def test_a_file_without_a_seal_has_nothing_to_check() -> None:
    check_seal(b"made elsewhere")


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    sealed = seal(FILE)
    for at in range(len(sealed)):
        with pytest.raises(InputError, match="gem_sha256"):
            check_seal(sealed[:at] + bytes([sealed[at] ^ 1 << bit]) + sealed[at + 1 :])
