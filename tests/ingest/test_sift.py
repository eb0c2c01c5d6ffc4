"""Files of canonical JSON lines that are not clean: good lines fast, the others one by one, as if all were slow."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from canonical import LINES, WRONG, files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ingest_logs import interval, start
from roads import CLEAN, SIFTED, SLOW, agree, lines

from benchmarks.data import json_lines
from tracelens.ingest import fast
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest

ROUND = {"record": "round", "ts": "2026-04-19T00:00:00Z", "request_id": "r", "drafted": 5, "accepted": 2, "draft_us": 7}
WINDOW = {
    "ts_end": 1776556800.25,
    "rounds": 10,
    "drafted": 30,
    "accepted": 6,
    "accepted_per_pos": [3, 2, 1],
    "window_s": 9.5,
}
REQUEST = {
    "ts": "2026-04-19 00:00:00",
    "request_id": "r",
    "output_tokens": 9,
    "rounds": 4,
    "accepted": 5,
    "tpot_ms": 1.5,
}
OPTIONS: list[dict[str, Any]] = [
    {}, {}, {"run": "R"}, {"adopt": {"acme": "A-1"}}, {"tz": "UTC"}, {"tz": "Europe/Berlin"},
    {"sets": {"temperature": "0.5"}},
    {"sets": {"model": "zz", "replica": "9"}, "role": "baseline"},
]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rounds.jsonl"


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    data=files(dirty=True), options=st.sampled_from(OPTIONS), walked=st.booleans(), processes=st.sampled_from([1, 2])
)
def test_dirty_files(
    data: bytes, options: dict[str, Any], walked: bool, processes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("dirty")
    (folder / "a.jsonl").write_bytes(data)
    agree(folder / "a.jsonl", folder, walked=walked, processes=processes, **options)


@pytest.mark.parametrize("record", [ROUND, WINDOW, REQUEST], ids=["round", "window", "request"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.long
def test_every_wrong_value_in_every_key(record: dict[str, Any], end: str, log: Path) -> None:
    # With CRLF no line is of a form that can be taken apart: those files are for the decoder.
    text: list[str] = []
    for key in (*record, "temperature", "step_share", "emitted", "weight", "has_prefill", "engine", "table", "new"):
        for wrong in WRONG:
            cells = {k: json.dumps(v) for k, v in record.items()} | {key: wrong}
            text += ["{" + ",".join(f'"{k}":{v}' for k, v in cells.items()) + "}", json.dumps(record)]
    log.write_bytes(end.join([json.dumps(record)] * 64 + text).encode())
    quick, _ = agree(log, log.parent)
    assert quick.road == SIFTED, quick.why
    assert len(quick.rows("rejects")) > 200


@pytest.mark.parametrize("record", [ROUND, WINDOW, REQUEST], ids=["round", "window", "request"])
@pytest.mark.parametrize("walked", [True, False])
def test_every_kind_of_other_line(record: dict[str, Any], walked: bool, log: Path) -> None:
    good = json.dumps(record)
    # A second run record sends the file to the slow road: then the place of a row tells its run.
    others = [line for line in LINES if "data:" not in line and '"run_id":"c"' not in line]
    log.write_text("".join(f"{good}\n{line}\n" for line in [*[good] * 40, *others]) + good[:40])
    quick, _ = agree(log, log.parent, walked=walked)
    assert quick.road == SIFTED, quick.why


def test_runs_are_what_all_rows_agree_on_whatever_road_they_took(log: Path) -> None:
    header = {"record": "run", "run_id": "a", "engine": "acme", "method": "eagle"}
    rows = [ROUND | {"run_id": "a", "engine": "acme", "model": "m"}] * 80
    odd = {"drafted": 5.0, "ts": "2026-04-19T09:00:00+01:00"}
    for model in ("m", "other", None):
        log.write_text(lines(header, *rows, rows[0] | odd | {"model": model}, rows[0] | odd | {"run_id": "b"}))
        quick, _ = agree(log, log.parent / str(model))
        found = {r["run_id"]: (r["model"], r["method"]) for r in quick.rows("runs")}
        assert quick.road == SIFTED
        assert found == {"a": ("m" if model == "m" else None, "eagle"), "b": ("m", None)}


def test_a_run_record_speaks_for_rows_that_name_no_run(log: Path) -> None:
    a, b = ({"record": "run", "run_id": name, "engine": "acme", "role": "baseline"} for name in "ab")
    unnamed = {"record": "run", "engine": "acme", "started": "2026-04-19T00:00:00Z"}
    rows = [ROUND | {"engine": "acme"}] * 80
    for number, (records, road, runs) in enumerate([
        ((a, *rows), SIFTED, {"a": 80}),
        ((*rows, a, *rows), SIFTED, {"a": 160}),
        ((a, *rows, b, *rows[:3]), SLOW, {"a": 80, "b": 3}),
        ((*rows, ROUND | {"run_id": "c"}, a), SIFTED, {"a": 80, "c": 1}),
        ((unnamed, *rows), SLOW, None),
    ]):  # fmt: skip
        log.write_text(lines(*records))
        quick, _ = agree(log, log.parent / str(number))
        assert quick.road == road, (number, quick.why)
        found = Counter(r["run_id"] for r in quick.rows("rounds"))
        assert len(found) == 1 if runs is None else found == runs
        assert {r["run_id"]: r["engine"] for r in quick.rows("runs") if r["run_id"] in "ab"} == {
            name: "acme" for name in (runs or {}) if name in "ab"
        }
        told = {r["run_id"]: r["role"] for r in quick.rows("runs")}
        assert all(told[name] == "baseline" for name in (runs or {}) if name in "ab")


def test_a_broken_identity_has_its_line_and_place(log: Path) -> None:
    log.write_text(lines(*[ROUND] * 80, ROUND | {"accepted": 6}, *[ROUND] * 5))
    quick, _ = agree(log, log.parent)
    (row,) = quick.rows("rejects")
    place = 80 * (len(json.dumps(ROUND)) + 1)
    assert (quick.road, row["line"], row["byte_offset"]) == (SIFTED, 81, place)
    assert row["reason"] == "identity broken: accepted <= drafted"


def test_a_step_in_two_places_is_for_the_slow_road(log: Path) -> None:
    rows = [ROUND | {"step_id": f"s{i // 2}"} for i in range(80)]
    log.write_text(lines(*rows, ROUND | {"step_id": "s0", "drafted": 5.0}))
    quick, _ = agree(log, log.parent)
    assert quick.road == SLOW
    log.write_text(lines(*rows, ROUND | {"step_id": "s0", "drafted": 5.5}))
    quick, _ = agree(log, log.parent / "refused")
    assert quick.road == SIFTED


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"log": json.dumps(ROUND) + "\n", "stream": "stdout", "time": "2026-04-20T00:00:00Z"}),
        json.dumps({"log": json.dumps(ROUND)[:50], "stream": "stdout", "time": "2026-04-20T00:00:00Z"}),
        f"2026-04-20T00:00:00.5Z stdout F {json.dumps(ROUND)}",
    ],
)
def test_a_line_in_an_envelope_is_for_the_slow_road(line: str, log: Path) -> None:
    log.write_text(lines(*[ROUND] * 80, line, ROUND))
    assert agree(log, log.parent)[0].road == SLOW


def test_lines_of_other_engines_among_them(log: Path) -> None:
    response = {"id": "x", "metrics": {"generation_time_ms": 5.0, "speculative_decoding": {"num_spec_steps": 1}}}
    log.write_text(lines(*[ROUND] * 80, response, start(), interval("12:00:10"), ROUND | {"accepted": 7}))
    quick, _ = agree(log, log.parent, year=2026)
    assert quick.road == SIFTED
    assert len(quick.rows("windows")) == 1


def test_copies_staged_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.ingest.run._PARALLEL_BYTES", 0)
    for name in ("a", "b"):
        json_lines(tmp_path / f"{name}.jsonl", fast.SMALLEST + 5000, 0.01)
    json_lines(tmp_path / "c.jsonl", fast.SMALLEST + 5000, 0.0, seed=9)
    summary = ingest([str(tmp_path)], tmp_path / "lake", IngestOptions(jobs=2))
    assert summary.sources == 2
    assert not [p for p in (tmp_path / "lake" / ".staging").iterdir() if p.is_dir()]
    again = ingest([str(tmp_path / "a.jsonl")], tmp_path / "lake", IngestOptions(jobs=1))
    assert (again.sources, again.skipped) == (0, 1)


def test_a_carriage_return_inside_a_line(log: Path) -> None:
    good = json.dumps(ROUND)
    log.write_bytes((f"{good}\r\n" * 80 + good.replace(", ", ",\r", 1) + f"\r\n{good}\r\r\n{good}\r").encode())
    quick, _ = agree(log, log.parent)
    assert quick.road == SIFTED
    assert len(quick.rows("rounds")) == 82


def test_nothing_to_sift(log: Path) -> None:
    log.write_text(lines(*[ROUND] * 80, ROUND | {"temperature": None}))
    quick, _ = agree(log, log.parent)
    assert quick.road == SIFTED
    log.write_text(lines(*[ROUND] * 80))
    assert agree(log, log.parent / "clean")[0].road == CLEAN
