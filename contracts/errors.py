"""Errors that a person reads: one sentence that names the thing and the mend, and the exit code that goes with it."""


class GemError(Exception):
    """Work failed midway; what was finished is kept and the command can be run again (exit code 1)."""

    exit_code = 1


class InputError(GemError):
    """Bad usage or bad input: the message says which file, field or option, and how to mend it (exit code 2)."""

    exit_code = 2


class CorruptRecordError(GemError):
    """Stored bytes that fail a check (magic, length, CRC); a reader treats the record as missing."""


class WrongKeyError(CorruptRecordError):
    """A well-formed record that belongs to another key: a miss, never somebody else's data."""


class UnsupportedRecordError(GemError):
    """A record whose format, kind or dtype code this version reserves but does not read."""
