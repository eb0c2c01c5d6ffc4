"""Where a command does its work: the options `--executor` and `--master`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from tracelens.errors import InputError
from tracelens.executors import Executor

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
def executor(name: str, master: str | None) -> Iterator[Executor | None]:
    """The executor that was asked for, while the command works; None is this process.

    Raises:
        InputError: an unknown name, a master without Spark, or a Spark that does not start.
    """
    if name not in ("local", "spark"):
        raise InputError(f"--executor {name}: give local or spark")
    if name == "local":
        if master is not None:
            raise InputError(f"--master {master} is Spark's: add --executor spark")
        yield None
        return
    from tracelens.executors.spark import Spark

    with Spark(master) as started:
        yield started
