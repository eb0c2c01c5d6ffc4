"""A file of canonical JSON lines by several processes: the same rows, refusals and ledger as by one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from canonical import files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roads import ENGINES, SIFTED, Inline, Outcome, agree, take

from tracelens.ingest import quick, quick_ranges, ranges
from tracelens.ingest.digest import Digest, _above
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.stage import stage
from tracelens.ingest.write import Job
from tracelens.sources import stream
from tracelens.sources.discover import discover

ROUND = {"record": "round", "ts": "2026-04-19T23:59:00Z", "run_id": "a", "drafted": 5, "accepted": 2, "target_ms": 1.5}


def rounds(path: Path, count: int = 3000) -> None:
    lines = [json.dumps(ROUND | {"accepted": i % 6, "target_ms": 1.0 + i % 7 / 8}) for i in range(count)]
    path.write_text("".join(line + "\n" for line in lines))


def by_one(made: Outcome) -> bool:
    return "read by one" in made.why


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=files(dirty=True), size=st.integers(1, 3000))
def test_rows_do_not_depend_on_the_ranges(data: bytes, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("ranges")
    (folder / "a.jsonl").write_bytes(data)
    with patch.object(quick_ranges, "_LARGEST", size), patch.object(ranges, "_STEP", 7):
        agree(folder / "a.jsonl", folder, processes=2)


def test_ranges_are_read_by_several_processes(tmp_path: Path) -> None:
    rounds(tmp_path / "a.jsonl")
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(json.dumps(ROUND | {"ts": "2026-04-20T00:00:01Z", "run_id": "b", "accepted": 9}) + "\n{broken\n")
        file.write(json.dumps(ROUND | {"ts": "2026-04-20T00:00:02Z", "run_id": "b"}) + "\n")
    made, _ = agree(tmp_path / "a.jsonl", tmp_path, processes=2)
    assert made.road == SIFTED  # some lines one by one
    assert not by_one(made)
    assert len({(row["folder"], row["run_id"]) for row in made.rows("rounds")}) == 2
    files = [f for f in made.staged.entry["_files"] if f.startswith("rounds/")] if made.staged.entry else []
    assert len(files) == 6 + 1  # a file a range, and one more where it crosses midnight


def test_an_over_long_line_is_told_with_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stream.BlockStream.__init__.__kwdefaults__, "max_line", 500)
    rounds(tmp_path / "a.jsonl", 900)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(json.dumps(ROUND | {"process": "x" * 600}) + "\n" + json.dumps(ROUND) + "\n")
    made, _ = agree(tmp_path / "a.jsonl", tmp_path, processes=2)
    assert not by_one(made)
    assert [row["line"] for row in made.rows("rejects")] == [901]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"record": "run", "run_id": "z"}, "a record that names the run of the rows below it"),
        (ROUND | {"step_id": "s"}, "a round of a step whose rows are to be counted"),
    ],
)
def test_what_a_line_could_change_for_others_is_for_one_process(line: dict[str, Any], why: str, tmp_path: Path) -> None:
    lines = [json.dumps({k: v for k, v in ROUND.items() if k != "run_id"})] * 3000
    lines[2000] = json.dumps(line)
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    made, _ = agree(tmp_path / "a.jsonl", tmp_path, processes=2)
    assert by_one(made), why


@pytest.mark.parametrize("start", [{"record": "run", "run_id": "z", "model": "m"}, {"record": "run", "run_id": "z"}])
def test_a_record_of_the_run_stands_first(start: dict[str, Any], tmp_path: Path) -> None:
    lines = [json.dumps({k: v for k, v in ROUND.items() if k != "run_id"})] * 3000
    (tmp_path / "a.jsonl").write_text("\n".join(["", json.dumps(start), *lines, "{"]) + "\n")
    made, _ = agree(tmp_path / "a.jsonl", tmp_path, processes=2)
    assert not by_one(made)
    assert {row["run_id"] for row in made.rows("rounds")} == {"z"}


def test_many_lines_of_other_forms_are_for_other_roads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "_FEW", 100)
    monkeypatch.setattr(quick, "_WAITING_LINES", 10)
    lines = [json.dumps(ROUND | ({"process": "p"} if i > 2000 and i % 2 else {})) for i in range(3000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert by_one(agree(tmp_path / "a.jsonl", tmp_path, processes=2)[0])


def test_a_process_that_is_killed(tmp_path: Path) -> None:
    rounds(tmp_path / "a.jsonl")
    with patch.object(Inline, "killed", 4):
        made, _ = agree(tmp_path / "a.jsonl", tmp_path, processes=2)
    assert by_one(made)


def test_a_file_that_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    rounds(path)
    of = Digest.of

    def change(*given: Any) -> Any:
        found = of(*given)
        if path.stat().st_mtime_ns:
            path.write_text(path.read_text().replace('"accepted": 2', '"accepted": 3'))
            os.utime(path, ns=(0, 0))
        return found

    monkeypatch.setattr(Digest, "of", change)
    made = take(path, tmp_path / "staged", quick=True, processes=2)
    assert by_one(made)
    assert 2 not in {row["accepted"] for row in made.rows("rounds")}


@given(st.lists(st.sampled_from([b"\n", b"a\n", b"abc", b"\n\n\n"]), max_size=30), st.integers(1, 9))
def test_lines_above_a_place(texts: list[bytes], size: int) -> None:
    data = b"".join(texts)
    places = [0, *(i + 1 for i, byte in enumerate(data) if byte == 10)]
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert list(_above(iter(pieces), places)) == [data[:place].count(b"\n") for place in places if data or place]


def test_other_processes(tmp_path: Path) -> None:
    rounds(tmp_path / "a.jsonl", 30_000)  # of more than a megabyte
    (file,) = discover([str(tmp_path / "a.jsonl")])[0]
    told = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        job = Job(file, IngestOptions(), {}, (), {}, {}, folder, None, processes)
        with patch.object(ranges, "SMALLEST", 0):
            made = stage(job, ENGINES, Labels())
        assert made.entry is not None
        files = [f for f in made.entry["_files"] if f.startswith("rounds/")]
        assert len(files) == (1 if processes == 1 else 6)
        told.append({k: v for k, v in made.entry.items() if k not in ("ingested_at", "_files")})
    assert told[0] == told[1]
