"""A compaction that is killed, or whose disk fails, at any step that it takes to the disk; and is run again."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from compact_lakes import AFTER, jsonl, rounds_of, run

from tracelens.compact import roll
from tracelens.compact.run import compact
from tracelens.lake.connection import connect
from tracelens.lake.disk import DiskFullError
from tracelens.lake.snapshot import reading

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kill -9 and advisory locks")
TOTALS = (
    "select sum(weight), sum(weight * accepted), sum(weight * step_us), count(distinct source_id),"
    " count(distinct date), sum(coalesce(rolled_requests, 1)) filter (rolled_requests is not null or round_index = 0)"
    " from rounds"
)
_SEED = "import sys; sys.path.insert(0, {tests!r}); from test_compact_crash import die; die({lake!r}, {at})"


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit for each day; nobody pulls the plug, so the disk need not be waited for."""
    monkeypatch.setattr(roll, "BATCH", 1)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    rounds = rounds_of("r", 12, k=3, seed=5)
    for i in range(3):
        (folder / f"{i}.jsonl").write_text(jsonl([r for r in rounds if int(r["request_id"][-5:]) % 3 == i]))
        run(folder / "lake", folder / f"{i}.jsonl")
    return folder / "lake"


def told(lake: Path) -> tuple[Any, ...]:
    con = connect(lake, grouped=False)
    try:
        return con.execute(TOTALS).fetchall()[0]
    finally:
        con.close()


def files(lake: Path) -> int:
    with reading(lake) as found:
        return sum(not name.endswith("/empty.parquet") for name in found.files)


class Crash(BaseException):
    """Stands for the end of the process."""


@contextmanager
def failing(at: int, error: BaseException | None = None) -> Iterator[list[int]]:
    """Fail before or after the n-th step to the disk; gives the count of steps."""
    seen = [0]

    def tick() -> None:
        seen[0] += 1
        if seen[0] == at:
            raise error or Crash

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tick()
            result = real(*args, **kwargs)
            tick()
            return result

        return call

    names = ((Path, "replace"), (Path, "unlink"), (Path, "write_text"), (Path, "mkdir"), (os, "fsync"))
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in names:
            patch.setattr(owner, name, watched(getattr(owner, name)))
        yield seen


def sampled(steps: int, some: int) -> list[int]:
    """Every step where that is asked for, else some of them."""
    every = list(range(1, steps + 1))
    return every if os.environ.get("TRACELENS_EVERY_FAULT") else every[:: max(1, steps // some)]


def steps_of(made: Path, tmp_path: Path) -> int:
    lake = Path(shutil.copytree(made, tmp_path / "calm"))
    with failing(-1) as seen:
        compact(lake, AFTER)
    return seen[0]


def test_a_crash_at_any_step_leaves_a_whole_lake(made: Path, tmp_path: Path) -> None:
    before, steps = told(made), steps_of(made, tmp_path)
    calm = files(tmp_path / "calm")
    assert steps > 100
    for at in sampled(steps, 4):
        lake = Path(shutil.copytree(made, tmp_path / f"lake{at}"))
        with failing(at), pytest.raises(Crash):
            compact(lake, AFTER)
        assert told(lake) == before, at
        compact(lake, AFTER)
        assert told(lake) == before, at
        assert files(lake) == calm, at
        assert [p for p in (lake / ".staging").iterdir() if p.is_dir()] == [], at


def test_a_full_disk_is_told(made: Path, tmp_path: Path) -> None:
    lake = Path(shutil.copytree(made, tmp_path / "lake"))
    before = told(lake)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with failing(5, full), pytest.raises(DiskFullError, match="no room for the lake"):
        compact(lake, AFTER)
    assert told(lake) == before
    compact(lake, AFTER)
    assert told(lake) == before


def die(lake: str, at: int) -> None:
    """Compact a lake, and be killed at a step."""
    os.fsync = lambda handle: None
    steps = 0

    def hook(event: str, args: Any) -> None:
        nonlocal steps
        if event in ("os.rename", "os.remove", "os.mkdir") and lake in str(args[0]):
            steps += 1
            if steps == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    compact(Path(lake), AFTER)


@pytest.mark.long
def test_kill_9(made: Path, tmp_path: Path) -> None:
    before = told(made)
    for at in (12, 25):
        lake = Path(shutil.copytree(made, tmp_path / f"lake{at}"))
        command = _SEED.format(tests=str(Path(__file__).parent), lake=str(lake), at=at)
        done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert told(lake) == before
        compact(lake, AFTER)
        assert told(lake) == before
