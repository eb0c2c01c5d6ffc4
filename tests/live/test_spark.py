"""Apache Spark gives what one machine gives: every query to the ninth digit, and the same lake from the same logs.

Needs PySpark and Java; skipped without them, so the gate does not run it (a Spark takes half a minute to start).

    pip install -e '.[dev,spark]'; pytest tests/live/test_spark.py -n 0
    TRACELENS_SPARK_ROUNDS=10000000 pytest tests/live/test_spark.py -n 0    # ten million rounds
    TRACELENS_SPARK_MASTER='local[2]' …                                     # without local-cluster
"""

from __future__ import annotations

import io
import json
import math
import operator
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from many_rounds import many_rounds

from tracelens.analysis import parts
from tracelens.analysis.claim import parse_claim
from tracelens.analysis.gap import gap
from tracelens.analysis.report import report
from tracelens.analysis.session import Question, opened
from tracelens.analysis.sql import named
from tracelens.errors import FaultError, InputError
from tracelens.executors.spark import Spark
from tracelens.ingest.run import IngestOptions, ingest
from tracelens.reporters import reporter
from tracelens.reporters.gap import VIEW
from tracelens.resources import room

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java"),
    pytest.mark.filterwarnings("default"),  # PySpark's own
]
MASTER = os.environ.get("TRACELENS_SPARK_MASTER", "local-cluster[2,1,1024]")
ROUNDS = int(os.environ.get("TRACELENS_SPARK_ROUNDS", "60000"))
CLOSE = 1e-9
SITES = ("canonical", "vllm-site", "rtp-site", "vllm-real")


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.executor.memory=512m pyspark-shell"
    with Spark(MASTER) as started:
        yield started


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("samples") / "lake"
    ingest([str(room("samples") / site) for site in SITES], lake, IngestOptions())
    return lake


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return many_rounds(tmp_path_factory.mktemp("many"), ROUNDS)


def same(one: Any, other: Any, where: str = "", *, nothing: float = 1e-12) -> None:
    """Equal, and numbers that are no counts to the ninth digit; a difference of such may be as good as nothing."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert list(one) == list(other), where
        for key in one:
            same(one[key], other[key], f"{where}/{key}", nothing=nothing)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        assert len(one) == len(other), where
        for place, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, f"{where}[{place}]", nothing=nothing)
    elif isinstance(one, float) or isinstance(other, float):
        assert math.isclose(one, other, rel_tol=CLOSE, abs_tol=nothing), (where, one, other)
    else:
        assert one == other, where


def as_json(result: Any) -> Any:
    out = io.StringIO()
    reporter("json").render(result, out)
    return json.loads(out.getvalue())


def of_every_query(con: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    found = {}
    for name in named():
        cursor = con.execute((room("queries") / f"{name}.sql").read_text(encoding="utf-8"))
        found[name] = [list(map(plain, row)) for row in cursor.fetchall()]
    return found


def plain(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], dict):  # baseline.sql's prices: in no order
        return sorted(value, key=lambda cells: repr([v for v in cells.values() if not isinstance(v, float)]))
    return float(value) if type(value).__name__ == "Decimal" else value


QUESTIONS = {
    "by task": Question(),
    "by model and batch": Question(by=("model", "batch_bucket"), near_k_delta=0),
    "of some": Question(by=("run_id",), where="temperature > 0 and task_type <> 'math'"),
    "all": Question(by=(), baseline=18.5),
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("lake", ["samples", "many"])
def test_every_query_is_the_same(
    name: str, lake: str, spark: Spark, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 20)
    place, question = request.getfixturevalue(lake), QUESTIONS[name]
    with opened(place, question) as here, opened(place, question, executor=spark) as there:
        same(of_every_query(here.con), of_every_query(there.con))


@pytest.mark.parametrize("lake", ["samples", "many"])
def test_the_report_is_the_same(lake: str, spark: Spark, request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue(lake)
    question = Question(since=QUESTIONS["by task"].since, runs=(), claim=parse_claim("alpha=.72,rho=.1,k=5"))
    same(as_json(report(place, question)), as_json(report(place, question, spark)))
    texts = []
    for executor in (None, spark):
        out = io.StringIO()
        VIEW.render(gap(place, question, executor), "json", out)
        texts.append(json.loads(out.getvalue()))
    same(*texts, nothing=1e-9)  # points of speedup


def test_a_query_in_a_filter_is_refused(many: Path, spark: Spark) -> None:
    with pytest.raises(InputError, match="query of its own"):
        report(many, Question(where="ts > (select min(ts) from facts)"), spark)


def contents(lake: Path) -> dict[str, Any]:
    """Every row of a lake but for when it was written."""
    con = duckdb.connect()
    found = {}
    for name in ("rounds", "windows", "requests", "runs", "rejects", "sources"):
        columns = "* exclude (ingested_at)" if name == "sources" else "*"
        rows = f"select {columns} from read_parquet('{lake}/{name}/**/*.parquet', union_by_name = true)"
        found[name] = con.execute(f"select count(*), bit_xor(hash(x)) from ({rows}) x").fetchall()
    return found


def test_the_lake_is_the_same(samples: Path, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(room("samples"))
    summary = ingest(SITES, Path(os.path.relpath(tmp_path / "lake")), IngestOptions(), executor=spark)
    assert summary.sources == contents(samples)["sources"][0][0]
    assert contents(tmp_path / "lake") == contents(samples)
    again = ingest(SITES, tmp_path / "lake", IngestOptions(), executor=spark)
    assert again.sources == 0
    assert contents(tmp_path / "lake") == contents(samples)
    assert sorted(p.name for p in (tmp_path / "lake" / ".staging").iterdir()) == ["lake.lock", "readers.lock"]


@pytest.mark.skipif(not MASTER.startswith("local-cluster"), reason="there is no executor of its own to kill")
def test_an_executor_that_dies_changes_nothing(samples: Path, spark: Spark, tmp_path: Path) -> None:
    lake, killed = tmp_path / "lake", []

    def kill() -> None:
        # When its first source is being read.
        while not any(lake.glob(".staging/*/*/rounds")):
            time.sleep(0.01)
        told = subprocess.run(["pgrep", "-P", str(os.getpid()), "-d", ","], capture_output=True, text=True, check=True)
        below = subprocess.run(
            ["pgrep", "-f", "CoarseGrainedExecutorBackend", "-P", told.stdout.strip()], capture_output=True, text=True
        )
        killed.append(int(below.stdout.split()[0]))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    ingest([str(room("samples") / site) for site in SITES], lake, IngestOptions(), executor=spark)
    killer.join(10)
    assert killed
    assert contents(lake) == contents(samples)


def asked(lake: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: one JVM belongs to this one already."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "HADOOP_", "YARN_"))}
    command = [sys.executable, "-m", "tracelens", "report", "--json", "--lake", str(lake), "--executor", "spark"]
    return subprocess.run([*command, *options], capture_output=True, text=True, env=env)


def test_java_says_nothing_beside_the_answer(samples: Path) -> None:
    found = asked(samples, "--master", "local[1]")
    assert (found.returncode, found.stderr) == (0, "")
    same(json.loads(found.stdout), as_json(report(samples, Question())))
    assert "spark started" in asked(samples, "--master", "local[1]", "-v").stderr


def test_a_spark_that_does_not_start_says_why_in_a_line(samples: Path) -> None:
    found = asked(samples, "--master", "yarn")
    assert (found.returncode, found.stdout) == (3, "")
    assert re.fullmatch(r"Error: Spark does not start at yarn: .*YARN_CONF_DIR.*\n", found.stderr)


def test_a_task_that_always_dies(spark: Spark) -> None:
    with pytest.raises(InputError, match=r"Spark gave up on a task .* its executor died each time"):
        list(spark.run(operator.call, os._exit, [1]))  # of modules that executors have, too


def test_a_fault_of_ours_in_a_task_is_told_as_one_and_at_once(spark: Spark) -> None:
    with pytest.raises(
        FaultError, match=r"in a task of Spark .*: KeyError at tracelens/executors/spark\.py:"
    ) as raised:
        list(spark.run(operator.getitem, {}, ["a record"]))
    assert "a record" not in str(raised.value)


def test_a_lake_that_no_executor_sees(tmp_path: Path, spark: Spark, many: Path) -> None:
    with opened(many, Question()) as session:
        held = parts.Parts(session.con, many, spark, None)
        held._lake = tmp_path / "elsewhere"
        with pytest.raises(InputError, match=r"executors do not see .*elsewhere"):
            held.keep_of_lake()
