"""The salt of `--redact-ids`: from the environment, from a file, or random beside the lake.

`$TRACELENS_REDACT_SALT` goes first: for who has many lakes whose ids must match, or keeps secrets elsewhere. Else it is
in `<lake>.redact-salt` beside the lake (not in it: a copy of the lake must not bring the key to its ids along), to be
read by its owner alone; the first ingest with `--redact-ids` makes it. Without the salt labels can't be matched and
further logs can't be joined; with it a guessed id can be checked. A lake in a bucket has no file beside it: there the
environment alone gives the salt.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from tracelens.errors import InputError
from tracelens.lake.place import is_remote

VARIABLE = "TRACELENS_REDACT_SALT"
#: Fewer bytes could be tried out.
LEAST = 16
_LONGEST = 4096


def path_of(lake: Path) -> Path:
    """Where the salt of a lake lies when nobody gave one."""
    lake = lake.absolute()
    return lake.parent / f"{lake.name}.redact-salt"


def salt_of(lake: Path, *, make: bool) -> bytes | None:
    """The salt of a lake; None where there is none and none is to be made.

    Raises:
        InputError: a salt that is too short, or that others can read; no place for a new one.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return _checked(given.encode("utf-8", "surrogateescape"), f"${VARIABLE}")
    if is_remote(lake):
        if make:
            raise InputError(f"a lake in a bucket keeps no salt beside it: set ${VARIABLE} for --redact-ids")
        return None
    path = path_of(lake)
    try:
        if not path.exists():
            if not make:
                return None
            _create(path)
        mode = path.stat().st_mode
        text = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"the salt of the lake's request ids at {path} can't be read or made: {error.strerror}; set ${VARIABLE}"
        ) from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"others can read {path}, the salt of the lake's request ids: chmod 600 it")
    return _checked(text.strip(), str(path))


def _checked(salt: bytes, where: str) -> bytes:
    if not LEAST <= len(salt) <= _LONGEST:
        raise InputError(f"the salt in {where} has {len(salt)} bytes: give {LEAST} to {_LONGEST}, random ones")
    return salt


def _create(path: Path) -> None:
    """Make the file whole or not at all; of two processes that make it at once, the first one's counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as out:
            out.write(secrets.token_hex(32) + "\n")
            out.flush()
            os.fsync(out.fileno())
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink()
