"""What goes wrong with a bucket, in words for people, without keys: nothing of a library's own message is repeated."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracelens.errors import InputError
from tracelens.lake import disk
from tracelens.lake.place import CREDENTIALS, extra_of

# Names of the exceptions of botocore, google-auth and azure that tell of missing keys: none of them is ours to import.
_NO_KEYS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound",
                      "DefaultCredentialsError", "RefreshError", "ClientAuthenticationError", "TokenRetrievalError",
                      "NoAuthTokenError", "SSOTokenLoadError", "UnauthorizedSSOTokenError"})  # fmt: skip
_AWAY = ("Connect", "Timeout", "Endpoint", "ServerDisconnected", "DNS", "ServiceRequest", "TransportError", "SSL")


class AwayError(InputError):
    """A bucket that does not answer now, and may later."""


@contextmanager
def told(root: Path, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Within it what fails is an `InputError` that names the lake; errors of the classes `passing` stay themselves.

    Raises:
        InputError: no extra, no keys, no such bucket, not allowed.
        AwayError: the bucket can't be reached.
        DiskFullError: no room on this machine.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (InputError, *passing)):
            raise
        if disk.is_full(error):
            raise disk.DiskFullError(Path(tempfile.gettempdir()), of=root, error=error) from error
        # From None: the message of a library may quote a request with its signature.
        raise _told(root, error) from None


def _told(root: Path, error: BaseException) -> InputError:
    extra = extra_of(root)
    chain = list(_chain(error))
    names = [name for e in chain for name in (type(e).__name__, *(c.__name__ for c in type(e).__mro__))]
    if isinstance(error, ImportError):
        return InputError(f"a lake at {root} needs an extra of tracelens: pip install 'tracelens[{extra}]'")
    if any(name in _NO_KEYS for name in names) or (extra == "azure" and isinstance(error, ValueError)):
        return InputError(f"no credentials for the lake at {root}: {CREDENTIALS[extra]}")
    if any(isinstance(e, PermissionError) for e in chain) or _status(chain) in (401, 403):
        return InputError(
            f"the lake at {root} may not be used with these credentials (or they are wrong or out of date): they need "
            f"to list, read, write and delete objects there; {CREDENTIALS[extra]}"
        )
    if any(isinstance(e, FileNotFoundError) for e in chain) or _status(chain) == 404:
        return InputError(f"no lake at {root}: there is no such bucket; make it first, tracelens makes none")
    kind = type(error).__name__
    if any(word in name for name in names for word in _AWAY) or any(isinstance(e, OSError) for e in chain):
        return AwayError(f"the bucket of the lake at {root} can't be reached or does not answer ({kind}): try again")
    return InputError(f"the bucket of the lake at {root} can't be used ({kind}): check the URL and its settings")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(chain: list[BaseException]) -> int | None:
    """The HTTP status that a library tells with its error."""
    for error in chain:
        for name in ("status_code", "status", "code"):
            value = getattr(error, name, None)
            if isinstance(value, int):
                return value
    return None
