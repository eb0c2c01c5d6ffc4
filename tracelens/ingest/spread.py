"""Whole sources staged by an executor: the same parsers, in folders that only the lake's one commit takes files from.

Every attempt at a source writes below a folder of its own. The files of the attempt whose answer came back are moved to
where the commit looks; what a dead or a slow machine has left goes with the folder. So a source that is read twice is
in the lake once, and a machine that dies leaves nothing.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracelens import __version__, logs
from tracelens.errors import InputError
from tracelens.executors import Executor
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import Staged
from tracelens.ingest.stage import stage
from tracelens.ingest.write import Job
from tracelens.lake.store import Store
from tracelens.sources.discover import SourceFile

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Common:
    """What every source of one ingest needs; `scratch` is where attempts write, at the same path everywhere."""

    version: str
    engine: str
    labels: Labels
    scratch: str
    level: int | None


def stage_spread(
    executor: Executor, store: Store, engine: str, labels: Labels, jobs: Sequence[Job], progress: Progress | None
) -> Iterator[Staged]:
    """Stage sources on an executor; each lies in its job's staging folder when it is given.

    Raises:
        InputError: an executor does not see a source or the lake, or is of another version.
    """
    with store.transaction() as aside:  # never committed: its folder goes with all that attempts have left
        common = Common(__version__, engine, labels, str(aside.folder.absolute()), logs.level())
        tasks = [replace(job, file=_anywhere(job.file), staging=Path(common.scratch)) for job in jobs]
        for job, (staged, attempt) in zip(jobs, executor.run(stage_there, common, tasks), strict=True):
            _take(Path(common.scratch, attempt), job.staging)
            if progress is not None:
                progress(job.file.name, job.file.size or 0)
            yield staged


def stage_there(common: Common, job: Job) -> tuple[Staged, str]:
    """In an executor: stage one source below a folder of its own; gives what the commit needs, and the folder's name.

    Raises:
        InputError: another tracelens here, or a source or a lake that can't be seen from here.
    """
    from tracelens.engines import load

    if __version__ != common.version:
        raise InputError(
            f"the executors run tracelens {__version__} and this machine {common.version}: install the same"
        )
    unseen = next((p for p in (common.scratch, job.file.path) if p is None or not Path(p).exists()), None)
    if unseen is not None:
        what = "the lake's staging area" if unseen == common.scratch else f"the source {job.file.name}"
        raise InputError(
            f"the executors do not see {what}: logs and lake must lie in folders that are the same path on every "
            "machine (a shared disk)"
        )
    if common.level is not None:
        logs.to_stderr(common.level)
    attempt = uuid.uuid4().hex
    folder = Path(common.scratch, attempt)
    folder.mkdir()
    try:
        return stage(replace(job, staging=folder), load(common.engine), common.labels), attempt
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _anywhere(file: SourceFile) -> SourceFile:
    """A source by its absolute path: an executor has another working directory."""
    if file.path is None:
        raise InputError("standard input can't be read by --executor spark: name files, or leave --executor out")
    return replace(file, path=file.path.absolute())


def _take(attempt: Path, staging: Path) -> None:
    """Move the files of an attempt to where the commit looks for them."""
    for path in sorted(attempt.rglob("*.parquet")):
        target = staging / path.relative_to(attempt)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
