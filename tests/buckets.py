"""A lake in a bucket of this process's memory, whose requests can be counted, and fail at any of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tracelens.lake import lease, objects, place
from tracelens.lake.bucket import Bucket
from tracelens.lake.manifest import COMMITS, RETIRED
from tracelens.lake.schema import TABLES

CHANGING = ("create", "put", "upload", "copy", "delete")
READING = ("list", "get", "tail", "fetch")


class Killed(BaseException):
    """Stands for the end of the process: nobody catches it."""


@contextmanager
def in_memory() -> Iterator[Path]:
    """An empty prefix of a bucket."""
    memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
    one_at_once = threading.Lock()
    pipe = memory.pipe_file

    def piped(*args: Any, **kwargs: Any) -> Any:
        with one_at_once:  # a store looks and writes in one step
            return pipe(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(place.SCHEMES, "memory", "memory")
        patch.setitem(place.CREDENTIALS, "memory", "none are needed")
        patch.setattr(memory, "store", {})
        patch.setattr(memory, "pseudo_dirs", [""])
        patch.setattr(memory, "pipe_file", piped)
        patch.setattr(lease, "PATIENCE", 0.03)
        patch.setattr(lease, "_PAUSE", 0.002)
        objects.objects_of.cache_clear()
        yield place.lake_path("memory://bucket/lake")
        objects.objects_of.cache_clear()


@contextmanager
def killed_at(number: int) -> Iterator[list[int]]:
    """End the process before or after the n-th request that changes the bucket; gives the count of such moments."""
    seen = [0]
    guard = threading.Lock()

    def tick() -> None:
        with guard:
            seen[0] += 1
            dead = 0 < number <= seen[0]
        if dead:  # and nothing that it still tries comes through
            raise Killed

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tick()
            result = real(*args, **kwargs)
            tick()
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING:
            patch.setattr(Bucket, name, watched(getattr(Bucket, name)))
        yield seen


def step(few: int) -> int:
    """Every moment where that is asked for, else one of so many."""
    return 1 if os.environ.get("TRACELENS_EVERY_FAULT") else few


def crashes(act: Callable[[], object], step: int = 1) -> Iterator[int]:
    """Run `act` once for every moment at which it can be killed; yields after each."""
    number = 1
    while True:
        with killed_at(number) as seen:
            try:
                act()
            except Killed:
                pass
            else:
                assert seen[0] < number
                return
        objects.objects_of.cache_clear()  # the next one is another process
        yield number
        number += step


@contextmanager
def counted() -> Iterator[dict[str, list[str]]]:
    """The requests for objects, by kind: their keys."""
    seen: dict[str, list[str]] = {name: [] for name in (*CHANGING, *READING)}

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(bucket: Bucket, key: str = "", *args: Any, **kwargs: Any) -> Any:
            seen[name].append(key)
            return real(bucket, key, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in seen:
            patch.setattr(Bucket, name, watched(name, getattr(Bucket, name)))
        yield seen


def keys(lake: Path) -> set[str]:
    """All objects."""
    return set(Bucket(lake).list())


def bare(lake: Path) -> dict[str, bytes]:
    """What somebody finds who knows of no manifest: the objects in the folders of the tables."""
    bucket = Bucket(lake)
    return {key: bucket.get(key) for key in bucket.list() if key.partition("/")[0] in TABLES}


def leftovers(lake: Path) -> set[str]:
    """What is neither a file of the lake, nor a commit, nor the one lease, nor kept for readers."""
    bucket = Bucket(lake)
    head = objects.Objects(lake).head()
    lake_files = {o.key for o in head.files.values()}
    leases = sorted(key for key in bucket.list(".staging") if lease.is_lease(key))
    fine = {*lake_files, *leases[-1:]}
    return {k for k in bucket.list() if k not in fine and not k.startswith((f"{COMMITS}/", f"{RETIRED}/"))}
