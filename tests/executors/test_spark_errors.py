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


def test_a_master_without_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="write spark://HOST:PORT"):
        started(monkeypatch, "spark://somewhere")


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
    ],
)
def test_reasons_are_short_and_quote_no_record(text: str, said: str) -> None:
    import re

    reason = spark._reason(RuntimeError(text))
    assert re.search(said, reason)
    assert "secret" not in reason


def test_pyspark_is_not_loaded_unasked() -> None:
    code = "import sys, tracelens.cli.report, tracelens.executors.spark as s; print('pyspark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
