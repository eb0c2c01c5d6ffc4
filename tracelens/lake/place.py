"""Where a lake is: a folder, or a prefix of a bucket (`s3://bucket/prefix`, also `gs://`, `az://`, `abfs://`).

Both go by the name of a `Path`, so that nobody has to know which it is; `storage.storage_of` does.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError

if TYPE_CHECKING:
    _Base = Path
else:
    _Base = type(Path())

#: Scheme -> the extra of tracelens that reads and writes it.
SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
# `Path` makes one of two slashes.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9]*):/+(.*)", re.DOTALL)


class ObjectPath(_Base):
    """A prefix of a bucket; its text is the URL."""

    def __str__(self) -> str:
        return url_of(self) or super().__str__()

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"


def pattern_of(path: str) -> str:
    """The pattern that matches a path alone: what is special in one stands for itself."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def path_of(pattern: str) -> str:
    """The path that `pattern_of` made a pattern of."""
    return re.sub(r"\[([*?\[])\]", r"\1", pattern)


def lake_path(text: str | os.PathLike[str]) -> Path:
    """The place that a text names: a URL of a known scheme, else a folder.

    Raises:
        InputError: a URL of another scheme, without a bucket, or with a user, a key or an option in it.
    """
    told = os.fspath(text)
    match = _URL.fullmatch(told)
    scheme, rest = (match[1].lower(), match[2]) if match is not None else ("", "")
    if match is None or (scheme not in SCHEMES and "://" not in told):
        return Path(text)
    if scheme not in SCHEMES:
        known = ", ".join(f"{s}://" for s in ("s3", "gs", "az", "abfs"))
        raise InputError(f"no lake can be at {scheme}://…: name a folder, or a bucket with {known}")
    bucket = rest.partition("/")[0]
    # Azure's own URLs are container@account; everywhere else an @ ends a name and a key.
    if "@" in rest and (not scheme.startswith("abfs") or ":" in bucket):
        raise InputError(f"write no keys into a URL ({scheme}://…@…); {CREDENTIALS[SCHEMES[scheme]]}")
    # DuckDB's own options and Azure's tokens are written so; as a part of the prefix they would be told and stored.
    if "=" in rest.partition("?")[2]:
        raise InputError(f"write no keys or options into a URL ({scheme}://…?…=…); {CREDENTIALS[SCHEMES[scheme]]}")
    # A key and its secret, or a host and its port: neither is repeated.
    if ":" in bucket:
        raise InputError(
            f"no bucket's name has a colon: write {scheme}://bucket/prefix; {CREDENTIALS[SCHEMES[scheme]]}"
            + ("; another store's address goes into $AWS_ENDPOINT_URL" if SCHEMES[scheme] == "s3" else "")
        )
    if not bucket:
        raise InputError(f"{scheme}://: name a bucket, as in {scheme}://bucket/prefix")
    if not {".", ".."}.isdisjoint(rest.split("/")):
        raise InputError(f"{scheme}://{rest}: a bucket has no folders to go up in: write the prefix without . and ..")
    return ObjectPath(f"{scheme}:/{rest.rstrip('/')}")


def is_remote(path: Path) -> bool:
    """Whether a lake's place is a prefix of a bucket."""
    return url_of(path) is not None


def check_shared(lake: Path) -> None:
    """Refuse a lake that the executors of a cluster can't read: they open its files by their paths.

    Raises:
        InputError: the lake is in a bucket.
    """
    if is_remote(lake):
        raise InputError(
            f"--executor spark reads and writes no lake in a bucket ({lake}): copy or mount it as a folder that has "
            "the same path on every machine, and give that as --lake; or leave --executor out"
        )


def url_of(path: Path) -> str | None:
    """The URL of a prefix of a bucket; None for a folder."""
    match = _URL.fullmatch(_Base.__str__(path).replace(os.sep, "/"))
    scheme = match[1].lower() if match is not None else ""
    return f"{scheme}://{match[2]}" if match is not None and scheme in SCHEMES else None


def extra_of(path: Path) -> str:
    """The extra of tracelens that a prefix of a bucket needs."""
    return SCHEMES[(url_of(path) or "").partition(":")[0]]


#: Where keys are looked for, by extra.
CREDENTIALS = {
    "s3": "keys come from $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, ~/.aws, or the machine's role",
    "gcs": "keys come from $GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`, or the machine",
    "azure": "the account comes from $AZURE_STORAGE_ACCOUNT_NAME, its key from $AZURE_STORAGE_ACCOUNT_KEY or a login",
}
