"""A fault in one reader costs what it was reading: other parts, other sources and the commit stand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ingest_logs import interval, jsonl, log, response, run, start, table

from tracelens import cli
from tracelens.engines import load
from tracelens.errors import InputError, StoppedError
from tracelens.ingest import guard
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.sources import chrome_trace, exposition, metric_json, otlp_wire, spans

SECRET = "what-the-record-said"
SCRAPE = "# TYPE vllm:spec_decode_num_drafts_total counter\n" + "".join(
    f'vllm:spec_decode_{name}_total{{engine="0",model_name="m"}} {n}\n'
    for name, n in (("num_drafts", 10), ("num_draft_tokens", 30), ("num_accepted_tokens", 12))
)
SERIES = '{"metric":{"__name__":"vllm:spec_decode_num_drafts_total","engine":"0"},"values":[1],"timestamps":[1000]}\n'
SPAN = {
    "traceId": "a" * 32, "spanId": "b" * 16, "name": "llm_request", "startTimeUnixNano": "1", "endTimeUnixNano": "2",
}  # fmt: skip
SPANS = json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [SPAN]}]}]}) + "\n"
PROTOBUF = bytes.fromhex(
    "0a610a0a0a080a017912030a017a12530a030a0178124c0a10aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aa1208bbbbbbbbbbbbbbbb2208706172656e742d2d2a0161300239007ce019f881ec1841017ce019"
    "f881ec184a070a017812021801850100010000"
)  # one span
TRACE = json.dumps({"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]})
# What is read, and the function of ours that fails meanwhile.
Broken = tuple[str | bytes, Any, str]


def engine(method: str) -> tuple[Any, str]:
    (vllm,) = [e for e in load() if e.name == "vllm"]
    return type(vllm), method


CASES: dict[str, Broken] = {
    "lines": (log(start(), interval("12:00:10")), *engine("lines")),
    "records": (jsonl(response("bad")), *engine("records")),
    "metrics": (SCRAPE, *engine("metrics")),
    "spans": (SPANS, *engine("spans")),
    "trace": (TRACE, *engine("trace")),
    "assemble": (log(start(), interval("12:00:10")), *engine("assemble")),
    "of_record": (SPANS, spans, "of_record"),
    "exposition": (SCRAPE, exposition.Scrapes, "feed"),
    "exposition's end": (SCRAPE, exposition.Scrapes, "finish"),
    "series": (SERIES, metric_json.Series, "feed"),
    "samples": (" " + SERIES.replace('{"metric"', '{ "metric"'), metric_json, "samples"),
    "chrome trace": (TRACE, chrome_trace, "read"),
    "protobuf": (PROTOBUF, otlp_wire, "messages"),
}
GOOD = log(start(pid=2), interval("12:00:10", pid=2))


def panic() -> BaseException:
    """An exception as a panic inside polars raises it, which is no Exception."""
    return pl.exceptions.PanicException(SECRET)


def failing(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, make: Callable[[], BaseException]) -> list[int]:
    """Let a function fail in the source that has no second process."""
    before = getattr(place, name)
    calls: list[int] = []

    def broken(*args: Any, **more: Any) -> Any:
        if name in ("lines", "assemble") and "pid=2" in str([getattr(a, "to_dicts", str)() for a in args[1:]]):
            return before(*args, **more)
        calls.append(1)
        raise make()

    monkeypatch.setattr(place, name, broken)
    return calls


def unforeseen() -> BaseException:
    return KeyError(SECRET)


@pytest.mark.parametrize("make", [unforeseen, panic])
@pytest.mark.parametrize("case", [c for c in CASES if c != "assemble"])
@pytest.mark.long
def test_a_fault_costs_the_part_that_was_read(
    case: str, make: Callable[[], BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(guard.RAISE)
    content, place, name = CASES[case]
    calls = failing(monkeypatch, place, name, make)
    (tmp_path / "bad").write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "good").write_text(GOOD)
    summary = ingest([str(tmp_path / "bad"), str(tmp_path / "good")], tmp_path / "lake", IngestOptions(jobs=1))
    assert calls, "the case does not come to the function"
    assert summary.sources == 2
    assert summary.rows["windows"] == 1
    kind = type(make()).__name__
    assert {name for name, _ in summary.faults} == {"bad"}
    (reject,) = [r for r in table(tmp_path / "lake", "rejects") if r["reason"].startswith(guard.FAULT)]
    assert kind in reject["reason"]
    everything = str(summary) + str(table(tmp_path / "lake", "rejects"))
    assert SECRET not in everything


def test_what_is_found_beside_the_fault_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guard.RAISE)
    failing(monkeypatch, *engine("records"), lambda: KeyError(SECRET))
    (tmp_path / "mixed").write_text(GOOD + jsonl(response()))
    summary = run(tmp_path / "lake", tmp_path / "mixed")
    assert summary.rows["windows"] == 1
    assert len(summary.faults) == 1


def test_a_fault_in_the_end_costs_that_engine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(guard.RAISE)
    failing(monkeypatch, *engine("assemble"), lambda: ZeroDivisionError(SECRET))
    (tmp_path / "bad").write_text(log(start(), interval("12:00:10")))
    own = {"accepted": 2, "drafted": 3, "k": 3, "request_id": "r", "draft_us": 5, "target_us": 9}
    (tmp_path / "good").write_text(jsonl(own))
    code = cli.run(["ingest", str(tmp_path / "bad"), str(tmp_path / "good"), "--lake", str(tmp_path / "lake")])
    out, err = capsys.readouterr()
    assert code == 4
    assert "a part of bad could not be read" in out
    assert "ZeroDivisionError" in out
    assert "a part of 1 source" in err
    assert "--replace" in err
    assert SECRET not in out + err
    assert len(table(tmp_path / "lake", "rounds")) == 1
    code = cli.run(["ingest", str(tmp_path / "bad"), "--lake", str(tmp_path / "two"), "--json"])
    out, _ = capsys.readouterr()
    assert code == 4
    assert [f["source"] for f in json.loads(out)["faults"]] == ["bad"]


@pytest.mark.parametrize(
    "error", [InputError("x"), StoppedError(), OSError(28, "x"), MemoryError(), KeyboardInterrupt()]
)
def test_what_is_no_fault_of_a_reader_rises(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guard.RAISE)
    with pytest.raises(type(error)), guard.guarded("x", []):
        raise error


def test_tests_see_faults() -> None:
    with pytest.raises(KeyError), guard.guarded("x", []):
        raise KeyError
