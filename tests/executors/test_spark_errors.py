"""What is said where Spark can't start: nothing of it needs PySpark, and no command loads it unasked."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracelens.cli import FAULT, _failed, run
from tracelens.errors import FaultError, InputError
from tracelens.executors import spark
from tracelens.executors.spark import Spark


def started(monkeypatch: pytest.MonkeyPatch, master: str | None, *, pyspark: bool = True, java: bool = True) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(spark.shutil, "which", lambda name: "/usr/bin/java" if java else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if pyspark else None)
    with Spark(master):
        pass


def test_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"pip install 'tracelens\[spark\]'"):
        started(monkeypatch, None, pyspark=False)


def test_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="needs Java 17 or newer"):
        started(monkeypatch, "local[2]", java=False)


def test_with_a_java_home_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InputError, match="JAVA_HOME is"), Spark("local[2]"):
        pass


def test_a_master_that_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        started(monkeypatch, f"spark://127.0.0.1:{port}")  # somebody answers; what it is, Spark finds out
    with pytest.raises(InputError, match=rf"nobody answers \(127\.0\.0\.1:{port}: .*is the Spark master up"):
        started(monkeypatch, f"spark://127.0.0.1:{port}")


@pytest.mark.parametrize("master", ["spark://somewhere", "spark://", "spark://host:port"])
def test_a_master_without_a_port(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="write spark://HOST:PORT"):
        started(monkeypatch, master)


@pytest.mark.parametrize("master", ["", "host:7077", "mesos://host:5050", "local[0]", "local[x]", "local[]", "k8s://"])
def test_a_master_that_spark_does_not_know(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^--master .+: no master of Spark; write spark://HOST:PORT, yarn"):
        started(monkeypatch, master)


def test_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Spark Connect runs no Python of ours"):
        started(monkeypatch, "sc://host:15002")


@pytest.mark.parametrize(
    "master",
    [None, "local", "local[*]", "local[16]", "local[2,3]", "local[*, 4]", "local-cluster[2,1,1024]", "yarn",
     "k8s://https://host:6443"],
)  # fmt: skip
def test_a_master_that_spark_knows(master: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, master)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["report", "--executor", "dask"], "give local or spark"),
        (["report", "--master", "local[2]"], "add --executor spark"),
        (["ingest", ".", "--executor", "spark", "--jobs", "2"], "--jobs is for work on this machine"),
    ],
)
def test_options(options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*options, "--lake", str(tmp_path)]) == 3
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ModuleNotFoundError: No module named 'tracelens.x'\n", "have no module tracelens|has no module tracelens"),
        ('Job aborted.\n  File "x.py", line 3\nKeyError: secret prompt\n\nDriver stacktrace:\nat x', "^KeyError"),
        ("Total size of results is bigger than spark.driver.maxResultSize", "raise it"),
        ("\nJob 1 cancelled\n\tat org.apache", "^Job 1 cancelled"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker", "another Python"),
        ("x\n: y: Lost task 0.3: ExecutorLostFailure (executor 3 exited\nDriver stacktrace:", "^its executor died"),
        ("x\n: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).", "^its executor died"),
        ("Traceback:\n  File x\nMemoryError\n\nDriver stacktrace:", "^MemoryError: it ran out of memory; give"),
        ("File x\n_duckdb.OutOfMemoryException: secret\n\nDriver stacktrace:", "^OutOfMemoryException: it ran out"),
    ],
)
def test_reasons_are_short_and_quote_no_record(text: str, said: str) -> None:
    import re

    reason = spark._reason(RuntimeError(text))
    assert re.search(said, reason)
    assert "secret" not in reason


GATEWAY = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
CALLED = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "


@pytest.mark.parametrize(
    ("error", "heard", "said"),
    [
        (GATEWAY, "WARN x\nException in thread \"main\" org.apache.spark.SparkException: X must be set\n\tat x",
         "X must be set"),
        (GATEWAY, "Error: could not find libjava.so\nspark-class: line 97: CMD: bad array subscript\n",
         "Error: could not find libjava.so (-v shows what Java says)"),
        (GATEWAY, "Error: LinkageError occurred\njava.lang.UnsupportedClassVersionError: x (class file version 61.0)",
         "Spark 4 needs Java 17 or newer, and the Java of this machine is older: install one, or set JAVA_HOME"),
        (f"{CALLED}io.x.ClientException: An error.\n\tat x\nCaused by: java.net.ConnectException: Refused", "",
         "An error; Refused"),
        (f"{CALLED}java.lang.OutOfMemoryError: Java heap space\n\tat x", "WARN x", "Java heap space"),
        (f"{CALLED}java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n\tat x", "",
         "the master took no application; is it a Spark master, and of the same version?"),
        (GATEWAY, "", f"{GATEWAY} (-v shows what Java says)"),
    ],
)  # fmt: skip
def test_why_spark_does_not_start_is_a_line(error: str, heard: str, said: str) -> None:
    assert spark._start_reason(RuntimeError(error), heard) == said


class Cluster:
    """What `Spark.run` asks of a Spark context; each task runs when its result is asked for."""

    def broadcast(self, value: Any) -> Any:
        return SimpleNamespace(value=value, unpersist=lambda: None)

    def parallelize(self, tasks: list[Any], _: int) -> Any:
        def mapped(told: Callable[[Any], Any]) -> Any:
            results = SimpleNamespace(
                foreach=lambda act: None, toLocalIterator=lambda: map(told, tasks), unpersist=lambda: None
            )
            results.persist = lambda level: results
            return results

        return SimpleNamespace(map=mapped)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Spark:
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(StorageLevel=SimpleNamespace(DISK_ONLY=None)))
    found = Spark("local[2]")
    found._context = Cluster()
    return found


def task(common: Exception | None, task: int) -> int:
    if common is not None:
        raise common
    return 2 * task


def test_answers_come_in_order(cluster: Spark) -> None:
    assert list(cluster.run(task, None, [3, 1])) == [6, 2]


@pytest.mark.parametrize("error", [KeyError("secret"), AssertionError("secret"), ZeroDivisionError("secret")])
def test_a_fault_of_ours_in_a_task_is_one(cluster: Spark, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FaultError) as raised:
        list(cluster.run(task, error, [1]))
    assert _failed(raised.value, debug=False) == FAULT == 4
    told = capsys.readouterr().err
    kind = type(error).__name__
    assert f"in a task of Spark at local[2]: {kind} at tracelens/executors/spark.py:" in told
    assert "run again with --debug" in told
    assert "secret" not in told
    assert _failed(raised.value, debug=True) == FAULT
    assert f"{kind}: " in capsys.readouterr().err


class IOException(Exception):  # noqa: N818 - as DuckDB calls it
    """What DuckDB raises where a file can't be read."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("no such zone"), "^no such zone$"),
        (OSError(5, "Input/output error"), "^Spark gave up on a task at local"),
        (MemoryError(), "^Spark gave up on a task at local"),
        (ModuleNotFoundError("No module named 'tracelens'"), "^Spark gave up on a task at local"),
        (IOException("x"), "^Spark gave up on a task at local"),
    ],
)
def test_what_the_user_can_mend_is_no_fault_of_ours(cluster: Spark, error: Exception, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        list(cluster.run(task, error, [1]))
    assert raised.value.exit_code == 3


def test_pyspark_is_not_loaded_unasked() -> None:
    code = "import sys, tracelens.cli.report, tracelens.executors.spark as s; print('pyspark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
