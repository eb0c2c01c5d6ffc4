"""The ways in which a command can fail, each with its exit code (CLI contract)."""

from __future__ import annotations


class TracelensError(Exception):
    """Something the user can act on: the message says what, where and what to do next."""

    exit_code = 3


class StoppedError(Exception):
    """Not a failure: whoever asked for a reading no longer wants it, and says so while it goes on."""


class ReaderFaultError(TracelensError):
    """A part of a source could not be read, by a fault of ours; all the rest is in the lake."""

    exit_code = 4


class InputError(TracelensError, ValueError):
    """Usage or input error: a path, an option, a label file, a lake that cannot be used; a ValueError for Python."""

    exit_code = 3


class NothingRecognisedError(TracelensError):
    """Ingest read everything and found no record of any engine."""

    exit_code = 1


class RejectsError(TracelensError):
    """`--strict`: some records were refused."""

    exit_code = 1
