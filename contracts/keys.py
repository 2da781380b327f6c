"""Names in Valkey and the name of an embedding space.

`emb:<space>:<generation>:{<uid>}:h` holds a user's history record and `...:p` the pair record; the braces are a cluster
hash tag, so one MGET reads both from one node. `emb:<space>:live` holds the live generation.
"""

import re
from urllib.parse import quote

from contracts.errors import InputError

_SPACE = re.compile(r"[a-z0-9]+-[0-9a-f]{6}-d(\d+)-(fp16|int8|int4|kint4)")
_GENERATION = re.compile(r"g\d{6}")


def space_name(teacher: str, checkpoint_sha256: str, dim: int, dtype: str) -> str:
    """Name of the space that one teacher run, one width and one quantiser make, e.g. `gem-3f9a1c-d32-int8`."""
    return check_space(f"{teacher}-{checkpoint_sha256[:6]}-d{dim}-{dtype}")


def check_space(space: str) -> str:
    """The space itself; InputError when it is not a space name."""
    if not _SPACE.fullmatch(space):
        raise InputError(f"{space!r} is no embedding space; one looks like gem-3f9a1c-d32-int8")
    return space


def space_dim(space: str) -> int:
    """Width d of the vectors of a space."""
    match = _SPACE.fullmatch(check_space(space))
    assert match is not None
    return int(match[1])


def space_dtype(space: str) -> str:
    """Quantiser of a space: fp16, int8, int4 or kint4."""
    match = _SPACE.fullmatch(check_space(space))
    assert match is not None
    return match[2]


def generation_name(number: int) -> str:
    """Generation number as it stands in keys: g000001, g000002, ..."""
    return f"g{number:06d}"


def generation_number(generation: str) -> int:
    """Inverse of `generation_name`."""
    if not _GENERATION.fullmatch(generation):
        raise InputError(f"{generation!r} is no generation; one looks like g000001")
    return int(generation[1:])


def live_key(space: str) -> str:
    """Pointer to the live generation of a space."""
    return f"emb:{space}:live"


def registry_key(space: str) -> str:
    """Hash of all generations of a space: generation -> JSON with its state, times and counts."""
    return f"emb:{space}:generations"


def meta_key(space: str) -> str:
    """JSON of what a reader needs beyond the name of the space: dtype, dim, and the centres and version of its
    quantiser. Written before a generation of it goes live."""
    return f"emb:{space}:meta"


def watermark_key(space: str, generation: str) -> str:
    """Decimal Unix ms up to which events are published in a generation: the newest event_ms among the rows of the
    representation log that were visible (available and past) when it was last published. It never goes back, follows
    from the log, and is written after the records. A history's age is now - max(record's computed_ms, watermark)."""
    return f"emb:{space}:{generation}:watermark"


def history_key(space: str, generation: str, user_id: str) -> str:
    """Key of a user's history record; the user id is percent-encoded."""
    return f"emb:{space}:{generation}:{{{quote(user_id, safe='')}}}:h"


def pair_key(space: str, generation: str, user_id: str) -> str:
    """Key of a user's pair record, in the same cluster slot as the history record."""
    return f"emb:{space}:{generation}:{{{quote(user_id, safe='')}}}:p"
