"""What is said where Spark can't start: nothing of it needs PySpark, and no command loads it unasked."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tracelens.cli import run
from tracelens.errors import InputError
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


def test_pyspark_is_not_loaded_unasked() -> None:
    code = "import sys, tracelens.cli.report, tracelens.executors.spark as s; print('pyspark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
