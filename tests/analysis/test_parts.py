"""A lake in parts answers as the lake in one piece; executors are this process here (tests/live has Spark itself)."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lakes import Row, write_lake

from tracelens.analysis import parts
from tracelens.analysis.report import report
from tracelens.analysis.session import Question
from tracelens.cli import run
from tracelens.errors import InputError
from tracelens.executors.spark import Spark
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.place import lake_path
from tracelens.reporters import reporter

DAY = dt.datetime(2026, 11, 1, 23, 50)


class Elsewhere:
    """Runs every task as another process would see it."""

    slots = 2

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def run(self, function: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        for task in tasks:
            self.tasks.append(task)
            given = pickle.loads(pickle.dumps((common, task)))
            yield pickle.loads(pickle.dumps(function(*given)))


def rows(run: str, k: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Rounds in steps of four requests that run past midnight, so that both days hold some of each; their requests."""
    rng = np.random.default_rng(seed)
    rounds: list[Row] = []
    requests: list[Row] = []
    for step in range(60):
        spent = int(rng.integers(18_000, 22_000))
        for i in range(4):
            accepted = int(rng.integers(0, k + 1))
            common = {"run_id": run, "model": "m", "request_id": f"{run}-{seed}-{i + 4 * (step // 30)}"}
            rounds.append(
                {**common, "source_id": f"{run}-{seed}", "ts": DAY + dt.timedelta(seconds=20 * step), "drafted": k,
                 "accepted": accepted, "emitted": accepted + 1, "step_id": f"s{step}", "step_share": 0.25,
                 "batch_size": 4, "draft_us": 900 * k if k else None, "target_us": spent - 900 if k else None,
                 "step_us": spent + 900 * k, "context_len": 500 + 40 * step, "round_index": step}
            )  # fmt: skip
            if step % 30 == 29:
                requests.append(
                    {**common, "source_id": f"{run}-{seed}", "ts_end": DAY, "output_tokens": 30 * (1 + k // 2),
                     "task_type": ("chat", "code")[i % 2], "decode_us": 30 * spent, "surface": "test.requests"}
                )  # fmt: skip
    return rounds, requests


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = [rows("k4", 4, 1), rows("k4", 4, 2), rows("off", 0, 3)]
    windows = [
        {"run_id": "k2", "model": "m", "ts_end": DAY, "rounds": 100, "drafted": 200, "accepted": 90 + i,
         "num_speculative_tokens": 2}
        for i in range(4)
    ]  # fmt: skip
    return write_lake(
        tmp_path_factory.mktemp("parts") / "lake",
        rounds=[row for rounds, _ in found for row in rounds],
        requests=[row for _, requests in found for row in requests],
        windows=windows,
        runs=[{"run_id": "k4"}, {"run_id": "off", "role": "baseline"}, {"run_id": "k2"}],
        sources=[{"source_id": f"k4-{i}", "rows": [("rounds", 240)]} for i in (1, 2)],
    )


def as_json(result: Any) -> Any:
    out = io.StringIO()
    reporter("json").render(result, out)
    return json.loads(out.getvalue())


def same(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for pair in zip(one, other, strict=True):
            same(*pair, where)
    elif isinstance(one, float) or isinstance(other, float):
        assert math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12), (where, one, other)
    else:
        assert one == other, where


def test_parts_answer_as_the_whole(lake: Path) -> None:
    """Requests lie in both parts, task types are known to the requests alone, one run is of windows."""
    elsewhere, question = Elsewhere(), Question(baseline="off")
    whole = as_json(report(lake, question))
    same(whole, as_json(report(lake, question, elsewhere)))
    assert {task for task in elsewhere.tasks if isinstance(task, str)} == {"rest"}
    assert len(set(elsewhere.tasks)) > 2, "the rest, and at least two days"
    assert [s["key"]["task_type"] for s in whole["strata"]] == ["chat", "code", None]
    assert whole["total"]["speedup_step"] is not None


@pytest.mark.long
def test_and_where_every_round_knows_its_task(tmp_path: Path) -> None:
    """Nothing is joined with requests there, in any part."""
    found = [rows("k4", 4, 1), rows("off", 0, 3)]
    told = {"temperature": 0.5, "top_p": 1.0}
    rounds = [{**row, **told, "task_type": ("chat", "code")[n % 2]} for some, _ in found for n, row in enumerate(some)]
    runs = [{"run_id": "k4"}, {"run_id": "off", "role": "baseline"}]
    place = write_lake(tmp_path / "lake", rounds=rounds, runs=runs)
    whole = as_json(report(place, Question(baseline="off")))
    same(whole, as_json(report(place, Question(baseline="off"), Elsewhere())))
    assert [s["key"]["task_type"] for s in whole["strata"]] == ["chat", "code"]


def test_a_query_in_a_filter_is_refused(lake: Path) -> None:
    with pytest.raises(InputError, match="holds a query of its own"):
        report(lake, Question(where="ts > (select min(ts) from rounds)"), Elsewhere())


@pytest.mark.parametrize("url", ["s3://bucket/lake", "gs://bucket/lake", "az://container/lake"])
@pytest.mark.parametrize("command", ["report", "report --format html", "gap", "ingest ."])
def test_a_lake_in_a_bucket_is_refused_before_spark(
    command: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Spark, "__enter__", lambda self: pytest.fail("Spark was asked for"))
    monkeypatch.chdir(tmp_path)
    assert run([*command.split(), "--executor", "spark", "--master", "local[1]", "--lake", url]) == 3
    told = " ".join(capsys.readouterr().err.split())
    assert f"no lake in a bucket ({url}): copy or mount it as a folder" in told
    assert "or leave --executor out" in told


def test_python_is_refused_a_lake_in_a_bucket(tmp_path: Path) -> None:
    """Nothing is asked of the bucket: there is none."""
    elsewhere, bucket = Elsewhere(), lake_path("s3://bucket/lake")
    with pytest.raises(InputError, match="no lake in a bucket"):
        report(bucket, Question(), elsewhere)
    with pytest.raises(InputError, match="no lake in a bucket"):
        ingest([str(tmp_path)], bucket, IngestOptions(), executor=elsewhere)
    assert not elsewhere.tasks


def test_an_executor_of_another_version(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(common: Any, task: Any) -> Any:
        monkeypatch.setattr(parts, "__version__", "0.0.1")
        return parts.answer(common, task)

    class Older(Elsewhere):
        def run(self, function: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> Iterator[Any]:
            return super().run(other, common, tasks)

    monkeypatch.setattr(pickle, "dumps", lambda x: x)
    monkeypatch.setattr(pickle, "loads", lambda x: x)
    with pytest.raises(InputError, match=r"run tracelens 0\.0\.1 .* do not add up"):
        report(lake, Question(), Older())


def test_files_of_a_source_lie_side_by_side(tmp_path: Path) -> None:
    files = []
    for day in range(3):
        for source in "ab":
            path = tmp_path / f"date=2026-11-0{day + 1}" / f"{source}-0.parquet"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x" * 10)
            files.append(str(path))
    dealt = parts._dealt(files, 2)
    assert sorted(path for part in dealt for path in part) == sorted(files)
    assert [{Path(path).name for path in part} for part in dealt] == [{"a-0.parquet"}, {"b-0.parquet"}]
