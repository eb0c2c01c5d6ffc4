"""The ways in which a command can fail, each with its exit code (CLI contract)."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


class TracelensError(Exception):
    """Something the user can act on: the message says what, where and what to do next."""

    exit_code = 3


class StoppedError(Exception):
    """Not a failure: whoever asked for a reading no longer wants it, and says so while it goes on."""


class ReaderFaultError(TracelensError):
    """A part of a source could not be read, by a fault of ours; all the rest is in the lake."""

    exit_code = 4


class FaultError(TracelensError):
    """A fault of ours that ended work elsewhere: here there is no exception to show, but its kind and place."""

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


def place_of(error: BaseException) -> str:
    """The last place in our own code that an exception came through, `engines/x.py:12`; empty where there is none."""
    place, frame = "", error.__traceback__
    while frame is not None:
        file = Path(frame.tb_frame.f_code.co_filename)
        if file.is_relative_to(_PACKAGE):
            place = f"{file.relative_to(_PACKAGE).as_posix()}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place
