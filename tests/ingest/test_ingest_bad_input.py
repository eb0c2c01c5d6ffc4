"""Every kind of bad input, end to end: what is good is kept, what is bad is counted and named."""

from __future__ import annotations

import gzip
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import everything, interval, jsonl, log, received, response, run, start, stored, table

from tracelens.errors import InputError


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def spec(request: str, **changes: Any) -> dict[str, Any]:
    out = response(request)
    out["metrics"]["speculative_decoding"] |= changes
    return out


def test_bad_records_among_good_ones(tmp_path: Path, lake: Path) -> None:
    records = [
        response("a"),
        '{"metrics": {"speculative_decoding": {"num_spec_steps": 3',
        spec("b", num_spec_steps="3"),
        spec("c", num_draft_tokens=-9),
        spec("d", num_accepted_draft_tokens=10**30),
        spec("e", acceptance_histogram=[0, 0, 0, 3]),
        spec("f", per_step_accepted=[0, 4, 0]),
        "",
        "[1, 2, 3]",
        '"speculative_decoding"',
        response("z"),
    ]
    (tmp_path / "r.jsonl").write_text(jsonl(*records))
    found = run(lake, tmp_path / "r.jsonl")
    assert table(lake, "requests", "source_line", "request_id") == [(1, "a"), (11, "z")]
    assert [r[:2] for r in table(lake, "rejects", "line", "reason")] == [
        (2, "broken JSON: Input data was truncated"),
        (3, "num_spec_steps: not a whole number"),
        (4, "num_draft_tokens: out of range"),
        (5, "num_accepted_draft_tokens: out of range"),
        (6, "sum(j * acceptance_histogram[j]) = num_accepted_draft_tokens does not hold"),
        (7, "per_step_accepted <= per_step_drafted does not hold"),
    ]
    assert (found.sources, found.rejects, found.rows["requests"], found.rows["rounds"]) == (1, 6, 2, 6)
    assert found.surfaces == {"vllm.response": 2}
    assert found.examples[0] == "r.jsonl:2: broken JSON: Input data was truncated"


def test_rows_that_break_an_identity_only_in_the_lake_are_refused_too(tmp_path: Path, lake: Path) -> None:
    line = interval("12:00:10").replace(
        "SpecDecoding metrics: Draft acceptance rate: 50.0%, Accepted: 160 tokens, ", ""
    )
    engine = line.split("Drafted")[0] + (
        "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 1 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 400.0%"
    )
    (tmp_path / "s.log").write_text(log(engine, interval("12:00:20")))
    run(lake, tmp_path / "s.log")
    assert table(lake, "windows", "surface") == [("vllm.v1_line",)]
    assert table(lake, "rejects", "line", "surface", "reason") == [
        (1, "vllm.engine_line", "identity broken: kv_cache_usage <= 1")
    ]


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (b"", "empty"),
        (b"\x7fELF" + bytes(range(256)) * 8, "not text: skipped"),
        (b"PK\x03\x04" + b"\0\1\2" * 200, "not text: skipped"),
        (gzip.compress(b"", mtime=0), "empty"),
    ],
)
def test_what_holds_no_text_is_skipped(tmp_path: Path, lake: Path, content: bytes, note: str) -> None:
    (tmp_path / "x").write_bytes(content)
    found = run(lake, tmp_path / "x")
    assert (found.sources, found.notes, found.surfaces) == (0, (("x", note),), {})
    assert table(lake, "sources") == []


def test_prose_is_a_source_without_records(tmp_path: Path, lake: Path) -> None:
    (tmp_path / "notes.txt").write_text("one\ntwo\n")
    found = run(lake, tmp_path / "notes.txt")
    assert (found.sources, found.surfaces, found.unrecognised, found.rows) == (1, {}, 2, {})


def test_a_broken_compressed_file_gives_what_can_be_read(tmp_path: Path, lake: Path) -> None:
    lines = [interval(f"12:{i // 60:02d}:{i % 60:02d}", accepted=i % 7, drafted=300 + i) for i in range(600)]
    whole = gzip.compress(log(*lines).encode(), mtime=0)
    (tmp_path / "s.log.gz").write_bytes(whole[: len(whole) // 2])
    found = run(lake, tmp_path / "s.log.gz")
    assert 0 < found.rows["windows"] < 600
    assert found.rejects >= 1


def test_a_missing_path_is_an_error_and_makes_no_lake(tmp_path: Path, lake: Path) -> None:
    (tmp_path / "s.log").write_text(log(interval("12:00:10")))
    with pytest.raises(InputError, match=r"missing\.log"):
        run(lake, tmp_path / "s.log", tmp_path / "missing.log")
    with pytest.raises(InputError, match="matches"):
        run(lake, f"{tmp_path}/*.nothing")
    assert not lake.exists()


def test_an_unreadable_folder_is_told(tmp_path: Path, lake: Path) -> None:
    shut = tmp_path / "logs" / "shut"
    shut.mkdir(parents=True)
    (shut / "s.log").write_text(log(interval("12:00:10")))
    (tmp_path / "logs" / "open.log").write_text(log(interval("12:00:20")))
    shut.chmod(0)
    try:
        if os.access(shut / "s.log", os.R_OK):
            pytest.skip("this user reads everything")
        found = run(lake, tmp_path / "logs")
    finally:
        shut.chmod(0o700)
    assert [name for name, _ in found.notes] == ["shut"]
    assert found.rows["windows"] == 1


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (interval("12:00:10", accepted=2**70), False),
        (interval("12:00:10", drafted=2**62, accepted=1), False),
        (interval("99:99:99"), False),
        (interval("12:00:10").replace("05-06", "13-45"), True),  # no date, and yet counts
        (start(k=10**12), False),
        (received("cmpl-1", temperature=-1.0), False),
        (received("cmpl-1").replace("0.7", "1e400"), False),
        ("\x00" * 100 + interval("12:00:10"), True),
        ("\ufeff" + interval("12:00:10"), True),
        (interval("12:00:10") + "\r", True),
    ],
)
def test_absurd_lines_never_stop_an_ingest(tmp_path: Path, lake: Path, line: str, kept: bool) -> None:
    (tmp_path / "s.log").write_text(log(line, interval("12:00:20", accepted=7)), encoding="utf-8")
    run(lake, tmp_path / "s.log")
    windows = [r for r in table(lake, "windows") if r["surface"] == "vllm.v1_line"]
    assert [r["accepted"] for r in windows] == [160, 7] if kept else [r["accepted"] for r in windows][-1] == 7


def test_stdin(tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(log(start(), interval("12:00:10")).encode())

    monkeypatch.setattr(sys, "stdin", Stdin)
    found = run(lake, "-")
    assert (found.sources, found.rows["windows"]) == (1, 1)
    assert table(lake, "sources", "name", "lines") == [("<stdin>", 2)]


HOSTILE = [
    "<script>alert(1)</script>",
    "'; drop table rounds; --",
    "../../etc/passwd",
    "a/b\\c",
    "=1+1",
    "\x1b[31m",
    "ü\n",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_are_data(tmp_path: Path, lake: Path, value: str) -> None:
    (tmp_path / "r.jsonl").write_text(jsonl(response("a")))
    sets = {"task_type": value, "team": value, value: "x"}
    run(lake, tmp_path / "r.jsonl", sets=sets, run=value)
    row = table(lake, "requests")[0]
    assert (row["task_type"], dict(row["labels"]), row["run_id"]) == (value, {"team": value, value: "x"}, value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lake", "r.jsonl"]
    assert all(".." not in name and "script" not in name for name in stored(lake))


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"accepted": "5"}, "measured"),
        ({"source_id": "x"}, "measured"),
        ({"run_id": "x"}, "with --run"),
        ({"role": "baseline"}, "with --role"),
        ({"labels": "x"}, "measured"),
        ({"temperature": "hot"}, "is a number"),
        ({"temperature": "nan"}, "is a number from 0"),
        ({"temperature": "-1"}, "is a number from 0"),
        ({"top_p": "1.5"}, "from 0 to 1"),
        ({"num_speculative_tokens": "99999999999"}, "is a number from 0"),
        ({"num_speculative_tokens": "2.5"}, "is a number"),
        ({"forced_acceptance": "maybe"}, "true or false"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_read(
    tmp_path: Path, lake: Path, sets: dict[str, str], words: str
) -> None:
    (tmp_path / "r.jsonl").write_text(jsonl(response("a")))
    with pytest.raises(InputError, match=words):
        run(lake, tmp_path / "r.jsonl", sets=sets)
    assert not lake.exists()


def test_settings_fill_and_override(tmp_path: Path, lake: Path) -> None:
    (tmp_path / "s.log").write_text(log(start(), interval("12:00:10"), received("cmpl-a", 0.7)))
    sets = {"temperature": "0.5", "num_speculative_tokens": "9", "forced_acceptance": "TRUE", "method": "mine"}
    run(lake, tmp_path / "s.log", sets=sets)
    assert table(lake, "requests", "temperature", "forced_acceptance") == [(0.5, True)]
    assert table(lake, "windows", "num_speculative_tokens", "method", "forced_acceptance") == [(9, "mine", True)]


@pytest.mark.parametrize("options", [{"tz": "Mars/Olympus"}, {"engine": "no-such-engine"}])
def test_unknown_options_are_refused(tmp_path: Path, lake: Path, options: dict[str, str]) -> None:
    (tmp_path / "s.log").write_text(log(interval("12:00:10")))
    with pytest.raises(InputError):
        run(lake, tmp_path / "s.log", **options)
    assert not lake.exists()


def test_only_the_engine_asked_for_reads(tmp_path: Path, lake: Path) -> None:
    (tmp_path / "s.log").write_text(log(interval("12:00:10")))
    assert run(lake, tmp_path / "s.log", engine="rtp-llm").surfaces == {}
    assert everything(lake)["windows"] == []
