"""Apache Spark as an executor: starts an application, runs tasks on it, and tells in plain words what goes wrong.

PySpark is imported when an application is started and not before: tracelens runs without it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens import __version__, logs
from tracelens.errors import FaultError, InputError, TracelensError, place_of

log = logging.getLogger(__name__)
#: A cluster that gives no executor within this time has none to give, seconds.
PATIENCE = 120.0
_KNOCK = 5.0
_LOOK = 0.2
# Bytes of what a JVM says at its start, and characters of what is told of it.
_LISTEN = 1 << 16
_LONGEST = 300
_STDERR = 2
# Spark's own settings of the site (spark-defaults.conf) win over these.
_DEFAULTS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
_RAISED = re.compile(r"^\s*((?:\w+\.)*\w*(?:Error|Exception|Interrupt))(?::|$)", re.MULTILINE)
_STANDALONE = re.compile(r"spark://(?P<hosts>[^/]*)")
# What Spark 4 takes; with anything else its JVM starts, and ends in a stack trace.
_COUNT = r"\s*[1-9]\d*\s*"
_MASTER = re.compile(
    rf"local|local\[(?:\*|[1-9]\d*)(?:\s*,{_COUNT})?\]|local-cluster\[{_COUNT},{_COUNT},{_COUNT}\]|yarn|k8s://.+"
)
# How the JVM says why it ends, before or beside a stack trace.
_SAID = re.compile(r"^(?:Exception in thread \S+ |Caused by: |: )?(?:[\w$]+\.)+[\w$]*(?:Exception|Error): (.+)$", re.M)
_OLD_JAVA = ("UnsupportedClassVersionError", "Unrecognized option", "Unrecognized VM option")
_DIED = (
    "exited unexpectedly",
    "ExecutorLostFailure",
    "executor lost",
    "exited caused by",
    "Executor heartbeat timed out",
)
_MEMORY = ("MemoryError", "OutOfMemoryException", "OutOfMemoryError")
# What can be trouble of the machine or the lake, besides errors of the system: Spark tries elsewhere before it says so.
_OF_THE_PLACE = (*_MEMORY, "IOException", "HTTPException", "InvalidInputException")
_NO_JAVA = (
    "--executor spark needs Java 17 or newer on this machine and there is none: install a Java run-time "
    "(openjdk-17-jre-headless) or set JAVA_HOME"
)

_LET_GO = "the master took no application; is it a Spark master, and of the same version?"


@dataclass(frozen=True, slots=True)
class _Refused:
    """What a task says is wrong: an answer like any other, for to run it again would not help."""

    text: str


@dataclass(frozen=True, slots=True)
class _Faulted:
    """A fault of ours in a task: another machine would only meet it again. The trace may quote a record."""

    text: str
    trace: str

    def error(self, at: str) -> FaultError:
        """What is raised here; the trace is seen with --debug alone."""
        error = FaultError(
            f"a fault of tracelens {__version__} in a task of Spark{at}: {self.text}; run again with --debug and "
            "report what it prints"
        )
        error.__cause__ = RuntimeError(f"in the task:\n{self.trace}")
        return error


class Spark:
    """A Spark application: it starts with the first task, for that takes seconds, and stops at the end of `with`.

    Args:
        master: as `spark-submit --master` takes it: `local[4]`, `spark://host:7077`, `yarn`, `k8s://…`. None takes
            `spark.master` of the site's spark-defaults.conf.

    Raises:
        InputError: PySpark or Java is not there, or the master can't be reached; already at `with`.
    """

    def __init__(self, master: str | None) -> None:
        self._master = master
        self._context: Any = None

    def __enter__(self) -> Spark:
        if importlib.util.find_spec("pyspark") is None:
            raise InputError(
                "--executor spark needs PySpark, which is not installed here: pip install 'tracelens[spark]'"
            )
        _check_java()
        _check_master(self._master)
        return self

    def __exit__(self, *raised: object) -> None:
        if self._context is not None:
            self._context.stop()
            self._context = None

    def _started(self) -> Any:
        if self._context is None:
            self._start()
        return self._context

    def _start(self) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        # Workers on this machine are of this Python; those of a cluster are the site's affair (spark.pyspark.python).
        if (self._master or "").startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = SparkConf().setAppName(f"tracelens {__version__}")
        if self._master is not None:
            conf.setMaster(self._master)
        for name, value in _DEFAULTS.items():
            conf.setIfMissing(name, value)
        begun = time.monotonic()
        with _ears() as (heard, kept):
            try:
                # A JVM of this process stays for the next application.
                gateway = None if SparkContext._gateway else launch_gateway(conf, dict(kept))
                self._context = SparkContext(conf=conf, gateway=gateway)
                self._wait()
            except TracelensError:
                self.__exit__()
                raise
            except Exception as error:
                self.__exit__()
                raise InputError(f"Spark does not start{self._at()}: {_start_reason(error, heard())}") from error
        seconds = time.monotonic() - begun
        logs.info(log, "spark started", master=self._context.master, slots=self.slots, seconds=seconds)

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""
        return int(self._started().defaultParallelism)

    def run(self, function: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        """Give `function(common, task)` of every task, in the order of the tasks.

        The results stay on the executors' disks until they are asked for, so that no more than one of them is in the
        memory of this process.

        Raises:
            InputError: what a task says is wrong, or that Spark gave up on it.
            FaultError: a task met a fault of ours.
        """
        from pyspark import StorageLevel

        if not tasks:
            return
        context = self._started()
        shared = context.broadcast((function, common))
        results = context.parallelize(list(tasks), len(tasks)).map(_Told(shared)).persist(StorageLevel.DISK_ONLY)
        try:
            results.foreach(_nothing)
            for result in results.toLocalIterator():
                if isinstance(result, _Refused):
                    raise InputError(result.text)
                if isinstance(result, _Faulted):
                    raise result.error(self._at())
                yield result
        except (TracelensError, GeneratorExit):
            raise
        except Exception as error:
            raise InputError(f"Spark gave up on a task{self._at()}: {_reason(error)}") from error
        finally:
            with contextlib.suppress(Exception):  # the application may be gone, which is told already
                results.unpersist()
                shared.unpersist()

    def _at(self) -> str:
        return f" at {self._master}" if self._master else ""

    def _wait(self) -> None:
        """Wait for the first executor of a cluster: without one a job would wait for ever, and say nothing."""
        if re.fullmatch(r"local(\[.*\])?", self._context.master):
            return
        begun = time.monotonic()
        while self._context._jsc.sc().getExecutorMemoryStatus().size() < 2:  # this process is one of them
            if self._context._jsc.sc().isStopped():
                raise InputError(f"Spark does not start{self._at()}: {_LET_GO}")
            if time.monotonic() - begun > PATIENCE:
                raise InputError(
                    f"no executor came within {PATIENCE:.0f} s{self._at()}: all of the cluster is taken, or no worker "
                    "has the memory and cores that spark.executor.memory and spark.executor.cores ask for"
                )
            time.sleep(_LOOK)


class _Told:
    """Runs one task in an executor; what it says is wrong comes back as its answer, and so does a fault of ours."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def __call__(self, task: Any) -> Any:
        function, common = self._shared.value
        try:
            return function(common, task)
        except TracelensError as error:
            return _Refused(str(error))
        except (OSError, MemoryError, ImportError):
            raise
        except Exception as error:
            kind = type(error).__name__
            if kind in _OF_THE_PLACE:
                raise
            place = place_of(error)
            where = f"at tracelens/{place}" if place else "outside its own code"
            return _Faulted(f"{kind} {where}", "".join(traceback.format_exception(error)))


def _nothing(_: Any) -> None:
    """Have a result made and kept."""


@contextlib.contextmanager
def _ears() -> Iterator[tuple[Callable[[], str], dict[str, Any]]]:
    """Where the JVM writes: how to hear what it said while it started, and the streams for `Popen`.

    To a file without a name, which ends with the JVM: it writes stack traces, and warnings that concern nobody, on the
    stderr of whoever waits for an answer. With `-v` they go there. What it says never gets into an answer on stdout.
    """
    if logs.level() is not None:
        yield (lambda: ""), {"stdout": _STDERR}
        return
    with tempfile.TemporaryFile() as file:

        def heard() -> str:
            return os.pread(file.fileno(), _LISTEN, 0).decode("utf-8", "replace")

        yield heard, {"stdout": file, "stderr": file}


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else None
    if not (java.is_file() if java is not None else shutil.which("java")):
        where = f" (JAVA_HOME is {home})" if home else ""
        raise InputError(_NO_JAVA + where)


def _check_form(master: str) -> None:
    if _MASTER.fullmatch(master):
        return
    if master.startswith("sc://"):
        raise InputError(
            f"--master {master}: Spark Connect runs no Python of ours; name the cluster itself: spark://HOST:PORT, "
            "yarn or k8s://…"
        )
    raise InputError(
        f"--master {master or repr(master)}: no master of Spark; write spark://HOST:PORT, yarn, k8s://HOST:PORT or "
        "local[N] with N of 1 or more, or leave it out to take that of spark-defaults.conf"
    )


def _check_master(master: str | None) -> None:
    """Knock at a standalone master: Spark itself would try for minutes before it says a word.

    Raises:
        InputError: Spark knows no such master, or nobody answers at any of its addresses.
    """
    if master is None:
        return
    found = _STANDALONE.fullmatch(master)
    if found is None:
        _check_form(master)
        return
    failed: list[str] = []
    for address in found["hosts"].split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise InputError(f"--master {master}: write spark://HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _KNOCK).close()
        except OSError as error:
            failed.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise InputError(f"--master {master}: nobody answers ({'; '.join(failed)}); is the Spark master up, and reachable?")


def _start_reason(error: Exception, heard: str) -> str:
    """Why Spark does not start, in a line: its own words where it got so far to say some, or the JVM's."""
    text = f"{error}\n{heard}"
    if any(mark in text for mark in _OLD_JAVA):
        return "Spark 4 needs Java 17 or newer, and the Java of this machine is older: install one, or set JAVA_HOME"
    if "stopped SparkContext" in text:  # after a minute of silence, or of an answer that is none
        return _LET_GO
    said = _SAID.findall(str(error)) or _SAID.findall(heard)
    if said:
        return "; ".join(dict.fromkeys(line.rstrip(".")[:_LONGEST] for line in (said[0], said[-1])))
    lines = [line.strip() for line in (heard.splitlines() or str(error).splitlines()) if line.strip()]
    told = next((line for line in lines if line.startswith("Error")), lines[-1] if lines else type(error).__name__)
    return f"{told[:_LONGEST]} (-v shows what Java says)"


def _reason(error: Exception) -> str:
    """The last line of what a task or Spark says, without stack traces: those are for --debug."""
    text = str(error)
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", text)
    if missing:
        return (
            f"the Python of the executors has no module {missing[1]}: install the same tracelens there, or name their "
            "Python by spark.pyspark.python"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return "the executors run another Python than this process: name theirs by spark.pyspark.python"
    if "maxResultSize" in text:
        return "the partial results are larger than spark.driver.maxResultSize: raise it"
    # Only the kind of what a task raised: its text could quote a record.
    raised = _RAISED.findall(text.partition("Driver stacktrace")[0])
    kind = next((name for name in reversed(raised) if "spark" not in name and not name.startswith("java.")), None)
    kind = kind.rpartition(".")[2] if kind else None
    if kind in _MEMORY:
        return (
            f"{kind}: it ran out of memory; give executors more (spark.executor.memoryOverhead, fewer cores each), or "
            "narrow the question (--since, --until, --run)"
        )
    if kind is None and any(mark in text for mark in _DIED):
        return (
            "its executor died each time; most often the system or the cluster ended it for its memory: give executors "
            "more (spark.executor.memoryOverhead), and look into their logs"
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return f"{kind or first[:_LONGEST]} (--debug shows all)"
