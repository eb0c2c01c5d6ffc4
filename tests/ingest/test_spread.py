"""Sources staged elsewhere: attempts that died or came twice leave nothing behind (tests/live has Spark itself)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tracelens.errors import InputError
from tracelens.ingest import spread
from tracelens.ingest.run import IngestOptions, ingest

LINE = '{"request_id": "r%d", "ts": "2026-11-01T10:00:00Z", "drafted": 4, "accepted": %d, "emitted": %d}\n'


class Elsewhere:
    """Runs every task twice: the first attempt is one whose machine died after it had written."""

    slots = 2

    def run(self, function: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        for task in tasks:
            given = pickle.loads(pickle.dumps((common, task)))
            function(*given)
            yield pickle.loads(pickle.dumps(function(*given)))


def logs(folder: Path) -> Path:
    folder.mkdir()
    for name in range(3):
        text = "".join(LINE % (i, i % 5, i % 5 + 1) for i in range(name, 40 + name))
        (folder / f"{name}.jsonl").write_text(text + LINE % (99, 9, 1))
    return folder


def contents(lake: Path) -> list[Any]:
    found = []
    for name in ("rounds", "runs", "rejects", "sources"):
        columns = "* exclude (ingested_at)" if name == "sources" else "*"
        rows = f"select {columns} from read_parquet('{lake}/{name}/**/*.parquet', union_by_name = true)"
        found.append(duckdb.sql(f"select count(*), bit_xor(hash(x)) from ({rows}) x").fetchall())
    return found


def test_the_lake_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs(tmp_path / "logs")
    ingest([str(tmp_path / "logs")], tmp_path / "here", IngestOptions())
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    summary = ingest(["logs"], Path("there"), IngestOptions(), lambda name, _: told.append(name), executor=Elsewhere())
    assert (summary.sources, summary.rejects, sorted(told)) == (3, 3, ["0.jsonl", "1.jsonl", "2.jsonl"])
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert sorted(p.name for p in (tmp_path / "there" / ".staging").iterdir()) == ["lake.lock", "readers.lock"]
    assert ingest(["logs"], Path("there"), IngestOptions(), executor=Elsewhere()).sources == 0


def test_a_machine_that_sees_no_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs(tmp_path / "logs")
    monkeypatch.setattr(spread, "_anywhere", lambda file: type(file)(tmp_path / "gone", file.name, "", None, None))
    with pytest.raises(InputError, match=r"executors do not see the source 0\.jsonl"):
        ingest([str(tmp_path / "logs")], tmp_path / "lake", IngestOptions(), executor=Elsewhere())
    assert not list(tmp_path.glob("lake/.staging/*/"))


def test_standard_input_is_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.ingest.run.is_json_log", lambda file: False)
    with pytest.raises(InputError, match="standard input can't be read by --executor spark"):
        ingest(["-"], tmp_path / "lake", IngestOptions(), executor=Elsewhere())
