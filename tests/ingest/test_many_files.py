"""Many small files are spread over processes, too."""

from __future__ import annotations

import gzip
import json
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest
from ingest_logs import interval

from tracelens import cli
from tracelens.ingest import run
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake import progress
from tracelens.reporters import ingested


@pytest.mark.parametrize(("files", "spread"), [(63, False), (64, True)])
def test_files_count_beside_their_bytes(files: int, spread: bool, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for i in range(files):
        (logs / f"{i}.log").write_text("x\n" if i else interval("12:00:00") + "\n")
    with patch("concurrent.futures.ProcessPoolExecutor", side_effect=ZeroDivisionError):
        options = IngestOptions(year=2026, jobs=2)
        if spread:
            with pytest.raises(ZeroDivisionError):
                run.ingest([str(logs)], tmp_path / "lake", options)
        else:
            assert run.ingest([str(logs)], tmp_path / "lake", options).rows["windows"] == 1


def test_known_files_are_passed_over_by_every_process(tmp_path: Path) -> None:
    """Plain ones at once, and compressed ones by the worker that reads them; new ones among them are taken."""
    logs, packed = tmp_path / "logs", tmp_path / "packed"
    for folder in (logs, packed):
        folder.mkdir()
    for i in range(70):
        text = interval(f"12:{i // 60:02d}:{i % 60:02d}") + "\n"
        (logs / f"{i}.log").write_text(text)
        if i >= 3:
            (packed / f"{i}.log.gz").write_bytes(gzip.compress(text.encode()))
    options = IngestOptions(year=2026, jobs=2)
    first = run.ingest([str(logs)], tmp_path / "lake", options)
    assert (first.sources, first.rows["windows"]) == (70, 70)
    with patch.object(run, "adoptable_runs", side_effect=ZeroDivisionError), patch.object(run, "is_json_log") as looked:
        again = run.ingest([str(logs)], tmp_path / "lake", options)
    assert (again.sources, again.skipped, looked.called) == (0, 70, False)
    (packed / "new.log").write_text(interval("13:00:00") + "\n")
    third = run.ingest([str(packed)], tmp_path / "lake", options)
    assert (third.sources, third.skipped, third.rows["windows"]) == (1, 67, 1)
    assert dict(third.notes)["5.log.gz"] == "already in the lake (as 5.log)"


def test_a_lake_of_many_files_is_told_of_compact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        record = {"record": "round", "drafted": number + 1, "accepted": 1}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(record) + "\n")
    monkeypatch.setattr(progress, "MANY_FILES", 6)  # an empty one of each table among them
    told = []
    for names in (["0.jsonl", "1.jsonl"], ["2.jsonl"]):
        done = ingest([str(tmp_path / name) for name in names], tmp_path / "lake", IngestOptions(jobs=1))
        out = StringIO()
        ingested.write_text(done, (), tmp_path / "lake", out)
        told.append(out.getvalue().splitlines()[-2])
    assert "compact" not in told[0]
    assert told[1] == f"6 files: tracelens compact --lake {tmp_path / 'lake'} makes few of them, and reports quick"


def test_a_report_over_many_files_says_what_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"record": "round", "drafted": 2, "accepted": 1, "request_id": "a", "task_type": "code"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    ingest([str(tmp_path / "a.jsonl")], tmp_path / "lake", IngestOptions(jobs=1))
    command = ["--lake", str(tmp_path / "lake")]
    assert cli.run(["report", *command]) == 0
    assert "compact" not in capsys.readouterr().err
    monkeypatch.setattr(progress, "MANY_FILES", 4)
    for name in ("report", "sweep", "query"):
        told = 0 if name == "query" else 1
        cli.run([name, *(["from rounds"] if name == "query" else []), *command])
        err = capsys.readouterr().err
        assert err.count("the lake has 4 files, which take long to open: tracelens compact makes few of them") == told
