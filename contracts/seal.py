"""A digest inside the file that it vouches for, checked on the bytes before anything parses them.

A reader of Arrow files trusts offsets in the file: damaged ones can end the process instead of raising. So the ad
catalogue carries, in its schema's metadata, `gem-sha256:` and the sha256 of the file with that digest's 64 digits set
to zero. Arrow writes the schema at the start and again in the footer, so the seal stands twice: a flipped bit in one
leaves the other. The file stays a plain Arrow file; one without a seal (made by other programs) has nothing to check.
"""

import re
from hashlib import sha256

from contracts.errors import InputError

SEAL_KEY = "gem_sha256"
OPEN_SEAL = "gem-sha256:" + "0" * 64
"""The metadata value to write; `seal` then puts the digest in its place."""
_SEAL = re.compile(rb"gem-sha256:[0-9a-f]{64}")
_COPIES = 2


def seal(content: bytes) -> bytes:
    """The file's bytes with the digest where `OPEN_SEAL` stands."""
    return content.replace(OPEN_SEAL.encode(), b"gem-sha256:" + sha256(content).hexdigest().encode())


def check_seal(content: bytes) -> None:
    """InputError, without the file's name and the mend, when the bytes are not those that were sealed."""
    seals = _SEAL.findall(content)
    if not seals:
        return
    if len(seals) != _COPIES or seals[0] != seals[1]:
        raise InputError(f"its seal ({SEAL_KEY}) is damaged")
    if sha256(content.replace(seals[0], OPEN_SEAL.encode())).hexdigest() != seals[0][-64:].decode():
        raise InputError(f"its bytes differ from its sha256 ({SEAL_KEY} in its metadata)")
