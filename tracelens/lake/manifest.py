"""Commits of a lake in a bucket: `.commits/<number>.json.gz`, each with all files of the lake as of it.

A commit is done at the moment when its manifest is there: it is made by a PUT that does not overwrite, so that of two
writers who saw the same lake one alone can follow it. The newest one is the lake.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tracelens.errors import InputError
from tracelens.lake.bucket import Bucket
from tracelens.lake.lease import PREFIX
from tracelens.lake.schema import TABLES, is_in_a_table

COMMITS = ".commits"
RETIRED = ".retired"
#: Raised when an older tracelens would misread a manifest.
VERSION = 1
_SUFFIX = ".json.gz"


@dataclass(frozen=True, slots=True)
class Object:
    """Where a file of the lake lies: its key, and its bytes."""

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A lake as of one commit.

    `number` orders the commits, 0 is none; `id` is of the commit, `lake` of the lake. `files` are by name in the lake.
    The commit's own objects are moved after it: `publish` from the staging area to their keys, `retire` out of the way.
    """

    number: int
    id: str
    lake: str
    files: Mapping[str, Object]
    publish: frozenset[str] = field(default_factory=frozenset)
    retire: frozenset[str] = field(default_factory=frozenset)

    def places(self, key: str) -> tuple[str, ...]:
        """Where an object may lie: one after the other, as it is moved after this commit and after later ones."""
        staged = (staged_key(self.id, key),) if key in self.publish else ()
        return (key, *staged, f"{RETIRED}/{key}")


def staged_key(commit: str, key: str) -> str:
    """Where an object lies before its commit."""
    return f"{PREFIX}/{commit}/{key}"


def object_key(name: str, commit: str) -> str:
    """The key of a file that comes with a commit: never one that was there before, as somebody may read that one."""
    return f"{name.removesuffix('.parquet')}-{commit[:12]}.parquet"


def commit_key(number: int) -> str:
    """The key of a manifest."""
    return f"{COMMITS}/{number:012d}{_SUFFIX}"


def number_of(key: str) -> int:
    """The number of a manifest, by its key; 0 where it is none."""
    name = key.removeprefix(f"{COMMITS}/").removesuffix(_SUFFIX)
    return int(name) if name.isdigit() and key.endswith(_SUFFIX) else 0


def encode(manifest: Manifest) -> bytes:
    """A manifest as an object's content."""
    document = {
        "version": VERSION, "number": manifest.number, "id": manifest.id, "lake": manifest.lake,
        "files": {name: [o.key, o.size] for name, o in sorted(manifest.files.items())},
        "publish": sorted(manifest.publish), "retire": sorted(manifest.retire),
    }  # fmt: skip
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 6, mtime=0)


def decode(content: bytes, bucket: Bucket) -> Manifest:
    """Read a manifest.

    Raises:
        InputError: it is broken, or a newer tracelens wrote it.
    """
    try:
        told: dict[str, Any] = json.loads(gzip.decompress(content))
        version = int(told["version"])
        files = {str(n): Object(str(o[0]), int(o[1])) for n, o in told["files"].items()}
        found = Manifest(int(told["number"]), str(told["id"]), str(told["lake"]), files, frozenset(told["publish"]),
                         frozenset(told["retire"]))  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OSError, EOFError) as error:
        raise InputError(
            f"the newest object in {bucket.root}/{COMMITS} can't be read ({type(error).__name__}): it is broken or not "
            "tracelens' own; move it away, and the commit before it is the lake"
        ) from error
    if version > VERSION:
        raise InputError(f"a newer tracelens wrote the lake at {bucket.root}: upgrade tracelens")
    _check_keys(bucket, (*files, *(o.key for o in files.values()), *found.publish, *found.retire))
    return found


def _check_keys(bucket: Bucket, keys: Iterable[str]) -> None:
    """Nothing is fetched to a place outside of the private folder, nor cleared away there, whoever wrote the bucket."""
    for key in keys:
        if not is_in_a_table(key):
            raise InputError(
                f"the lake at {bucket.root} names a file outside of its tables ({key[:200]}): tracelens writes no such "
                f"thing; where you did not make that object, don't use this bucket"
            )


def newest(bucket: Bucket, known: Manifest | None = None) -> Manifest:
    """The lake as of its last commit; without any, the files that lie there: a lake that was copied into the bucket.

    Args:
        known: a manifest that was read before; it is not read again.
    """
    while True:
        number = max(map(number_of, bucket.list(COMMITS)), default=0)
        if not number:
            return _copied(bucket)
        if known is not None and known.number == number:
            return known
        try:
            return decode(bucket.get(commit_key(number)), bucket)
        except FileNotFoundError:
            continue  # an old one by now, and tidied away


def _copied(bucket: Bucket) -> Manifest:
    files: dict[str, Object] = {}
    # Without a ledger it is no lake, and what else the bucket holds need not be listed.
    for table in ("sources", *(t for t in TABLES if t != "sources")):
        found = bucket.list(table)
        files |= {key: Object(key, seen.size) for key, seen in found.items() if key.endswith(".parquet")}
        if not files:
            break
    _check_keys(bucket, files)
    return Manifest(0, "", "", files)
