"""The lock of a lake in a bucket: numbered lease objects, each made by a PUT that does not overwrite.

The holder of the highest number may write. He writes his lease anew every few seconds (a beat); who waits takes over
with the next number when no beat came for a while, or it says `released`. No clock of two machines is compared: a
waiter measures with his own. A holder who was only slow is kept from committing by `check` and by the manifest
(objects.py), so that a wrong takeover costs him an error and nobody a row.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from contextlib import suppress
from typing import Any

from tracelens import logs
from tracelens.errors import InputError
from tracelens.lake import progress
from tracelens.lake.bucket import Bucket

log = logging.getLogger(__name__)
PREFIX = ".staging"
_NAME = f"{PREFIX}/lease-"
#: Seconds between two beats, and without one until a waiter takes over.
BEAT = 4.0
PATIENCE = 20.0
#: Who waits longer than this is told why, seconds.
NOTICE = 2.0
_PAUSE = 0.25


class LostLeaseError(InputError):
    """Another writer took over, and nothing of ours was committed."""


class Lease:
    """The right to write, until `release`. `taken_over`: from a writer who did not let it go."""

    def __init__(self, bucket: Bucket, number: int, owner: str, *, taken_over: bool) -> None:
        self._bucket, self._number, self._owner = bucket, number, owner
        self.taken_over = taken_over
        self._ended = threading.Event()
        self._beats = 0
        self._thread = threading.Thread(target=self._beat, name="tracelens-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Whether we still hold it; what was listed or read before this was so under our lease alone.

        Raises:
            LostLeaseError: somebody has taken over.
        """
        if max(_numbers(self._bucket), default=self._number) > self._number:
            raise LostLeaseError(
                f"another writer took over the lake at {self._bucket.root}, as this one did not answer for "
                f"{PATIENCE:.0f} s: nothing was written; run it again"
            )

    def release(self) -> None:
        """Let others write; where the bucket is away they wait for it in vain for a while, and take over."""
        self._ended.set()
        self._thread.join()
        with suppress(InputError):
            self._bucket.put(_key(self._number), self._content(released=True))

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            self._beats += 1
            with suppress(InputError):
                self._bucket.put(_key(self._number), self._content(released=False))

    def _content(self, *, released: bool) -> bytes:
        return _content(self._owner, self._beats, released=released)


def acquire(bucket: Bucket) -> Lease:
    """Wait for the right to write, and take it."""
    owner = uuid.uuid4().hex
    seen: tuple[int, bytes] | None = None
    begun, since, told = time.monotonic(), 0.0, False
    while True:
        numbers = _numbers(bucket)
        last = max(numbers, default=0)
        state = _state(bucket, last) if last else b""
        if state is None:
            continue  # taken over and tidied just now
        now = time.monotonic()
        if seen != (last, state):
            seen, since = (last, state), now
        released = not last or bool(_told(state).get("released"))
        if released or now - since >= PATIENCE:
            if bucket.create(_key(last + 1), _content(owner, 0, released=False)):
                for number in numbers:
                    bucket.delete(_key(number))
                return Lease(bucket, last + 1, owner, taken_over=not released)
            continue
        if not told and now - begun > NOTICE:
            told = True
            logs.info(log, "another writer holds the lake, or was killed", lake=str(bucket.root), waits=PATIENCE)
            progress.notice(
                f"waiting for the lake at {bucket.root}: another writer holds it, or was killed and loses it after "
                f"{PATIENCE:.0f} s without a sign"
            )
        time.sleep(_PAUSE)


def is_lease(key: str) -> bool:
    """Whether an object of the staging area is a lease."""
    return key.startswith(_NAME)


def _key(number: int) -> str:
    return f"{_NAME}{number:012d}.json"


def _content(owner: str, beats: int, *, released: bool) -> bytes:
    return json.dumps({"owner": owner, "beats": beats, "released": released}).encode()


def _told(state: bytes) -> dict[str, Any]:
    try:
        found = json.loads(state)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _numbers(bucket: Bucket) -> list[int]:
    names = [key[len(_NAME) :].partition(".")[0] for key in bucket.list(PREFIX) if is_lease(key)]
    return [int(name) for name in names if name.isdigit()]


def _state(bucket: Bucket, number: int) -> bytes | None:
    try:
        return bucket.get(_key(number))
    except FileNotFoundError:
        return None
