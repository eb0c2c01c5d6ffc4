"""Ranges of a large log, and whether several processes are worth their start."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.engines import load
from tracelens.ingest import ranges, run, stage
from tracelens.ingest.fast import Unproved
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.read import Reading
from tracelens.sources.discover import SourceFile, discover

RECORD = (
    "INFO 04-01 00:00:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 3.07, Accepted throughput: "
    "110.30 tokens/s, Drafted throughput: 212.80 tokens/s, Accepted: 1103 tokens, Drafted: 2128 tokens, Per-position "
    "acceptance rate: 0.874, 0.436, 0.382, 0.382, Avg Draft acceptance rate: 51.8%\n"
)
OTHER = 'INFO:     192.0.2.231:45415 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def file_of(path: Path, text: bytes) -> SourceFile:
    path.write_bytes(text)
    return discover([str(path)])[0][0]


@given(st.text("ab\n", max_size=60), st.integers(1, 20), st.integers(0, 70))
def test_ranges_hold_whole_lines_and_all_of_them(
    tmp_path_factory: pytest.TempPathFactory, text: str, least: int, first: int
) -> None:
    data = text.encode()
    file = file_of(tmp_path_factory.mktemp("ranges") / "a.log", data)
    spans = list(ranges.spans_of(file, least, first))
    begins = 0 if first == 0 else data.find(b"\n", first) + 1 or len(data)
    assert b"".join(data[start:end] for start, end in spans) == data[begins:]
    for start, end in spans:
        assert start == 0 or data[start - 1 : start] == b"\n"
        assert end == len(data) or (data[end - 1 : end] == b"\n" and end - start >= least)


@pytest.mark.parametrize(("every", "dense"), [(10, True), (100, True), (500, False), (10_000, False)])
def test_a_log_of_few_records_is_for_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, dense: bool
) -> None:
    monkeypatch.setattr(ranges, "_STEP", 1 << 17)
    block = (RECORD + OTHER * (every - 1)).encode()
    file = file_of(tmp_path / "a.log", block * ((4 << 20) // len(block) + 1))
    assert ranges.is_dense(file, load("auto")) is dense


def test_records_in_one_place_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts, warms up or was idle at either end tells of few rounds there."""
    monkeypatch.setattr(ranges, "_STEP", 1 << 14)
    quiet = OTHER.encode() * 10_000
    file = file_of(tmp_path / "a.log", quiet + RECORD.encode() * 500 + quiet)
    assert ranges.is_dense(file, load("auto"))


@pytest.mark.parametrize("text", [b"", b"\n", b"no line end", OTHER.encode() * 3])
def test_a_short_log_has_no_other_places(tmp_path: Path, text: bytes) -> None:
    assert ranges.is_dense(file_of(tmp_path / "a.log", text), load("auto")) is (text == b"")


@pytest.mark.parametrize("every", [3, 2_000])
def test_ingest_takes_several_for_dense_logs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    (tmp_path / "a.log").write_text((RECORD + OTHER * (every - 1)) * (4_000 // every))
    asked: list[int] = []

    def read(file: SourceFile, *given: object) -> Reading:
        asked.append(1)
        raise Unproved("not here")

    monkeypatch.setattr(ranges, "SMALLEST", 0)
    monkeypatch.setattr(stage, "read_ranges", read)
    outcome = run.ingest([str(tmp_path / "a.log")], tmp_path / "lake", IngestOptions(year=2026, jobs=2))
    assert asked == ([1] if every == 3 else [])
    assert outcome.rows["windows"] == 1  # all alike
