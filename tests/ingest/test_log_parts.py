"""A log in parts is the log in one go."""

from __future__ import annotations

import hashlib
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_parts import AUTUMN, by_one, in_one_go, parts_kept, same, staged
from roads import ENGINES, Inline

from tests.engines.vllm_lines import c_line, engine_line, iteration, v0_line
from tracelens.ingest import digest, parts, ranges, read
from tracelens.ingest.labels import Labels
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.redact import Redaction
from tracelens.ingest.stage import stage
from tracelens.ingest.write import Job
from tracelens.sources.discover import discover

ROOT = Path(__file__).parents[2]
EVENING = datetime(2026, 12, 31, 23, 59, 40)
SPEC = {"method": "eagle3", "model": "/heads/e3", "num_speculative_tokens": 3}
RESPONSE = (
    '{"id": "chatcmpl-1", "created": 1778068800, "model": "big", "usage": {"prompt_tokens": 9, "completion_tokens": 6},'
    ' "metrics": {"time_to_first_token_ms": 20.0, "generation_time_ms": 100.0, "speculative_decoding":'
    ' {"num_spec_steps": 2, "num_accepted_draft_tokens": 3, "num_draft_tokens": 6, "num_spec_tokens": 3,'
    ' "acceptance_histogram": [1, 0, 0, 1], "per_step_accepted": [0, 3], "per_step_drafted": [3, 3]}}}'
)


class Log:
    """Lines of some servers that write into one file."""

    def __init__(self, begin: datetime) -> None:
        self.now = begin
        self.lines: list[str] = []

    def say(self, message: str, pid: int = 1, name: str = "APIServer") -> None:
        self.lines.append(f"({name} pid={pid}) INFO {self.now:%m-%d %H:%M:%S} [loggers.py:335] {message}")

    def interval(self, engine: int, pid: int = 1, accepted: int = 160) -> None:
        self.say(engine_line(engine, running=accepted % 7), pid)
        self.say(c_line(accepted, 300, [100, 40, accepted - 140], 100), pid)

    def start(self, pid: int = 1, k: int = 3) -> None:
        self.say("vLLM API server version 0.11.0", pid)
        self.say(
            f"non-default args: {{'model': '/m/big', 'speculative_config': {SPEC | {'num_speculative_tokens': k}}}}",
            pid,
        )

    def act(self, kind: int, number: int) -> None:
        """One thing of many that a server says."""
        pid, request = 1 + number % 2, f"chatcmpl-{number % 5}"
        match kind:
            case 0 | 1 | 2:
                self.interval(number % 3, pid, 150 + number % 20)
            case 3:
                self.now += timedelta(seconds=number)
            case 4:
                self.say(
                    f"Received request {request}: params: SamplingParams(n=1, temperature=0.7, top_p=0.9), x: None."
                )
            case 5:
                self.say(f"Finished request {request}.", pid)
            case 6:
                self.say(iteration(number, 3, 12, 7.5), 9, f"EngineCore_DP{number % 2}")
            case 7:
                self.lines += self.lines[-number:]  # printed twice, or copied into itself
            case 8:
                self.start(pid, 1 + number % 3)
            case 9:
                self.lines += ["INFO: 200 OK"] * number
            case 10:
                self.say("SpecDecoding metrics: Accepted: 7 tokens, Draf", pid)
            case 11:
                self.say(f"Generated response {request}: output: 'x', output_token_ids: None, finish_reason: stop", pid)
            case 12:
                self.lines.append(RESPONSE)
            case 13:
                self.say(v0_line(3, number * 40, number * 60, number * 55))


ACTS = st.lists(st.tuples(st.integers(0, 13), st.integers(1, 20)), min_size=1, max_size=30)


@settings(max_examples=40)
@given(ACTS, st.integers(1, 12))
def test_rows_do_not_depend_on_the_parts(acts: list[tuple[int, int]], part: int) -> None:
    log = Log(datetime(2026, 5, 6, 12))
    for kind, number in acts:
        log.act(kind, number)
    same(log.lines, part, year=2026, block=1500)


@settings(max_examples=40)
@given(ACTS, st.integers(1, 12), st.integers(1, 4000))
def test_nor_on_who_reads_them(acts: list[tuple[int, int]], part: int, size: int) -> None:
    log = Log(datetime(2026, 5, 6, 12))
    for kind, number in acts:
        log.act(kind, number)
    said = same(log.lines, part, year=2026, block=1500, range_=size)
    # A start may be told of in two parts, and a server may speak behind responses that stood alone.
    assert not by_one(said) or any(kind in (8, 12) for kind, _ in acts)


@settings(max_examples=40)
@given(ACTS, st.integers(1, 12), st.sampled_from([{"year": 2026}, {}, {"year": 2026, "tz": "Europe/Berlin"}]))
def test_nor_do_times(acts: list[tuple[int, int]], part: int, options: dict[str, Any]) -> None:
    log = Log(AUTUMN if "tz" in options else EVENING)
    for kind, number in acts:
        log.act(kind, number)
        if log.now >= AUTUMN + timedelta(seconds=30) and "tz" in options and kind == 3 and number == 20:
            log.now -= timedelta(hours=1)  # the clock falls back
    same(log.lines, part, block=1500, **options)


def long_log(begin: datetime = datetime(2026, 5, 6, 12)) -> Log:
    log = Log(begin)
    log.start()
    for number in range(400):
        log.act(number % 3, number)
        log.act(3, 1 + number % 9)
    return log


def test_a_log_is_written_while_it_is_read() -> None:
    log = long_log()
    with parts_kept() as taken:
        assert not in_one_go(same(log.lines, 100, year=2026))
    assert len(taken) > 5
    assert sum(one["windows"] for one in taken) > 0.8 * len(log.lines) - 100


def test_ids_are_hashed_in_every_part() -> None:
    log = Log(datetime(2026, 5, 6, 12))
    for number in range(60):
        log.act(4, number)
    assert not in_one_go(same(log.lines, 10, year=2026, redaction=Redaction(b"salt" * 8)))


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_the_digest_is_of_the_whole(line_end: str, bom: str) -> None:
    text = bom + "".join(line + line_end for line in long_log().lines)
    assert not in_one_go(same(text.encode(), 100, year=2026))


def test_a_year_that_turns_after_the_first_part() -> None:
    log = long_log(EVENING)
    assert not in_one_go(same(log.lines, 100))
    # The file's date is that of its last line: the first ones, of November, are of the year before.
    log = long_log(datetime(2025, 11, 1))
    log.lines += long_log(EVENING).lines
    log.now = datetime(2026, 6, 1)
    log.interval(1)
    modified = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
    assert in_one_go(same(log.lines, 100, modified=modified))
    assert not in_one_go(same(log.lines, 100, year=2025))


def test_a_start_that_is_told_of_in_two_parts() -> None:
    log = long_log()
    log.say("Initializing a V1 LLM engine (v0.11.0) with config: model='/m/other', speculative_config=None")
    assert in_one_go(same(log.lines, 10, year=2026))


@pytest.mark.parametrize("size", [None, 20_000])
def test_a_file_that_grows_while_it_is_read(size: int | None, tmp_path: Path) -> None:
    """It is read to where it was when its digest was made."""
    path = tmp_path / "server.log"
    lines = long_log().lines
    path.write_text("".join(line + "\n" for line in lines))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    begun = parts.InParts.begin

    def grow(self: parts.InParts, *given: Any, **named: Any) -> Any:
        if size is None:
            found = begun(self, *given, **named)
        with path.open("a") as file:
            file.write(lines[-1].replace("Accepted: ", "Accepted: 1") + "\ntorn")
        return found if size is None else begun(self, *given, **named)

    with patch.object(parts.InParts, "begin", grow):
        made, rows, said = staged(path, tmp_path / "parts", 10, year=2026, range_=size)
    assert not in_one_go(said)
    assert not by_one(said)
    assert made.entry is not None
    assert (made.entry["lines"], made.entry["sha256"]) == (len(lines), digest)
    assert {row["source_id"] for row in rows["windows"]} == {digest[:16]}


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    lines = long_log().lines
    path.write_text("".join(line + "\n" for line in lines))
    begun = parts.InParts.begin

    def shrink(self: parts.InParts, *given: Any, **named: Any) -> Any:
        found = begun(self, *given, **named)
        os.truncate(path, path.stat().st_size // 2)
        return found

    with patch.object(parts.InParts, "begin", shrink):
        made, _, said = staged(path, tmp_path / "parts", 10, year=2026)
    assert in_one_go(said)
    assert made.entry is not None
    assert made.entry["bytes"] == path.stat().st_size


@pytest.mark.parametrize("rotated", [True, False])
def test_a_file_with_other_lines_now(rotated: bool, tmp_path: Path) -> None:
    """Rotated before its digest was made, or written anew in its place after that; as long as before."""
    path = tmp_path / "server.log"
    text = "".join(line + "\n" for line in long_log().lines)
    path.write_text(text)
    begun = parts.InParts.begin

    def change(self: parts.InParts, *given: Any, **named: Any) -> Any:
        found = None if rotated else begun(self, *given, **named)
        path.write_text(text.replace("Running: 3", "Running: 4"))
        os.utime(path, (1, 1))
        return found or begun(self, *given, **named)

    with patch.object(parts.InParts, "begin", change):
        made, rows, said = staged(path, tmp_path / "parts", 10, year=2026)
    assert in_one_go(said)
    assert made.entry is not None
    assert made.entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert 3 not in {row["running"] for row in rows["windows"]}


def test_line_ends_that_change_in_the_first_block() -> None:
    lines = long_log().lines
    text = "".join(line + ("\n" if i < 20 else "\r\n") for i, line in enumerate(lines)).encode()
    for size in (None, 30_000):
        with patch.object(digest, "_PIECE", 300):
            assert not in_one_go(same(text, 100, year=2026, range_=size))


def test_a_long_first_line_is_a_document_to_all() -> None:
    text = b'{"a": "' + b"x" * 2_000_000 + b'"}\n' + "".join(line + "\n" for line in long_log().lines).encode()
    same(text, 100, year=2026, range_=30_000, block=4 << 20)


def test_a_process_that_is_killed() -> None:
    with patch.object(Inline, "killed", 2):
        assert by_one(same(long_log().lines, 10, year=2026, range_=20_000))


def test_a_fault_of_a_reader_in_a_part_sends_the_log_to_the_other_road(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACELENS_RAISE_FAULTS")
    with patch("tracelens.engines.vllm.log.Log.part", side_effect=ZeroDivisionError):
        assert in_one_go(same(long_log().lines, 10, year=2026))


def test_a_source_that_is_in_the_lake_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("".join(line + "\n" for line in long_log().lines))
    made, _, _ = staged(path, tmp_path / "first", 10, year=2026)
    assert made.entry is not None
    (file,) = discover([str(path)])[0]
    (tmp_path / "second").mkdir()
    job = Job(file, IngestOptions(year=2026), {}, (), {made.entry["sha256"]: "a.log"}, {}, tmp_path / "second")
    with patch.object(parts, "PART", 10), patch.object(read, "BATCH", 1):
        again = stage(job, ENGINES, Labels())
    assert again.note == "already in the lake (as a.log)"
    assert not list((tmp_path / "second").rglob("*.parquet"))


def test_ranges_end_behind_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"a\nlong line\n\n\nb\nno end")
    (file,) = discover([str(path)])[0]
    for size in range(1, 30):
        with patch.object(ranges, "_STEP", 3):
            spans = list(ranges.spans_of(file, size))
        data = path.read_bytes()
        assert b"".join(data[a:b] for a, b in spans) == data
        assert all(data[b - 1 : b] == b"\n" for _, b in spans[:-1])
        assert all(b - a >= size for a, b in spans[:-1])


def test_other_processes_read_a_large_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("".join(line + "\n" for line in long_log().lines))
    (file,) = discover([str(path)])[0]
    told = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        job = Job(file, IngestOptions(year=2026), {}, (), {}, {}, folder, None, processes)
        with patch.object(ranges, "SMALLEST", 0), patch.object(ranges, "RANGE", 20_000):
            read_by: list[int] = []
            made = stage(job, ENGINES, Labels(), read_by.append)
        assert sum(read_by) == path.stat().st_size
        assert len(read_by) > processes - 1
        told.append({k: v for k, v in (made.entry or {}).items() if k not in ("ingested_at", "_files")})
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "text",
    [
        '{"log":"SpecDecoding metrics: Accep","stream":"stdout","time":"2026-04-19T00:00:00Z"}\n' * 20,
        "2026-04-19T00:00:00Z stdout P SpecDecoding metrics: Acc\n2026-04-19T00:00:00Z stdout F epted: 1 tokens\n" * 9,
        '{"record": "round", "accepted": 1, "drafted": 2}\n' * 20,
    ],
)
def test_what_is_no_log_of_single_lines_is_read_by_one(text: str) -> None:
    assert by_one(same(("x\n" + text).encode(), 10, year=2026, range_=400))


@pytest.mark.parametrize(
    "head", [b"\xff\xfea\0\n\0", b"\xef\xbb\xbfx\n", b'{\n "a": 1', b"\x1f\x8b\x08", b'[{"a": 1},']
)
def test_what_may_be_read_by_several(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with patch.object(ranges, "SMALLEST", 10):
        for text, worth in ((head + b" " * 20, False), (b"INFO: x\n" * 2, True), (b"INFO: x\n", False)):
            path.write_bytes(text)
            (file,) = discover([str(path)])[0]
            assert ranges.is_large(file) is worth


@pytest.mark.parametrize(
    "path", sorted((ROOT / "samples" / "vllm-site").rglob("server.log")), ids=lambda p: p.parent.name
)
def test_samples(path: Path) -> None:
    same(path.read_bytes(), 20, range_=50_000)


def test_nothing_is_said_of_short_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        said = same(long_log().lines[:8], 100, year=2026)
    assert not in_one_go(said)
