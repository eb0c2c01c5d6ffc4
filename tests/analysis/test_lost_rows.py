"""A file of the lake that somebody deleted is told by whoever asks, not only by `forget --missing`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracelens.analysis.gate import gate
from tracelens.analysis.report import Question, report
from tracelens.compact.run import compact
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.forget import forget_missing


def log(day: int) -> str:
    rounds = [
        {"record": "round", "engine": "e", "request_id": f"req-{day}-{i}", "round_index": 0, "drafted": 4,
         "accepted": i % 5, "ts": f"2026-05-{day:02d}T12:00:{i:02d}.5Z"}
        for i in range(40)
    ]  # fmt: skip
    request = {"record": "request", "engine": "e", "request_id": "r", "output_tokens": 9, "decode_ms": 90,
               "ts_end": f"2026-05-{day:02d}T12:01:00Z"}  # fmt: skip
    return "".join(f"{json.dumps(row)}\n" for row in (*rounds, request))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for day in (6, 7):
        (tmp_path / f"{day}.jsonl").write_text(log(day))
        ingest([str(tmp_path / f"{day}.jsonl")], tmp_path / "lake", IngestOptions(jobs=1))
    return tmp_path / "lake"


def told(lake: Path) -> list[str]:
    warnings = (*report(lake, Question(by=())).warnings, *gate(lake, Question(by=())).warnings)
    return [w.text for w in warnings if w.code == "lost_rows"]


def test_a_deleted_file_is_told_until_its_source_is_forgotten(lake: Path) -> None:
    assert told(lake) == []
    (path,) = (lake / "rounds" / "date=2026-05-06").glob("*.parquet")
    path.unlink()
    found = told(lake)
    assert len(found) == 2
    assert "the 40 rounds of 6.jsonl are gone" in found[0]
    assert "tracelens forget --missing" in found[0]
    forget_missing(lake)
    assert told(lake) == []


def test_files_of_several_sources_hold_what_they_hold(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "8.jsonl").write_text(log(6).replace("req-6", "req-8").replace('"r"', '"s"'))
    ingest([str(tmp_path / "8.jsonl")], lake, IngestOptions(jobs=1))
    compact(lake)
    assert {p.name.partition("-")[0] for p in (lake / "rounds" / "date=2026-05-06").iterdir()} == {"merged"}
    assert told(lake) == []
