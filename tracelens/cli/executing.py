"""Where a command does its work: the options `--executor` and `--master`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tracelens.errors import InputError
from tracelens.executors import Executor
from tracelens.lake.place import check_shared

ExecutorName = Annotated[
    str, typer.Option("--executor", metavar="local|spark", help="Work here, or on an Apache Spark cluster.")
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        show_default="spark.master of spark-defaults.conf",
        help="Spark's master: spark://HOST:PORT, yarn, k8s://…, or local[N].",
    ),
]


@contextmanager
def executor(name: str, master: str | None, lake: Path) -> Iterator[Executor | None]:
    """The executor that was asked for, while the command works on a lake; None is this process.

    Raises:
        InputError: an unknown name, a master without Spark, a lake in a bucket, or a Spark that does not start.
    """
    if name not in ("local", "spark"):
        raise InputError(f"--executor {name}: give local or spark")
    if name == "local":
        if master is not None:
            raise InputError(f"--master {master} is Spark's: add --executor spark")
        yield None
        return
    check_shared(lake)  # before anybody is told to install what would not help
    from tracelens.executors.spark import Spark

    with Spark(master) as started:
        yield started
