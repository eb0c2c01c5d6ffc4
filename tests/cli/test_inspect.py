"""`tracelens inspect`: what is in these files, without writing any."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run

API = "(APIServer pid=1) INFO 05-06 12:00:{:02d} [loggers.py:335] "
GOOD = "SpecDecoding metrics: Draft acceptance rate: 50.0%, Accepted: 150 tokens, Drafted: 300 tokens"
START = "Initializing a V1 LLM engine (v0.32.0) with config: model='/m/big', speculative_config=None, seed=0"

Tool = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Run the command line in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str, str]:
        code = run(list(args))
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = [API.format(0) + START, API.format(10) + GOOD, API.format(50) + GOOD, API.format(55) + GOOD[:-9], "noise"]
    (folder / "a.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (folder / "b.txt").write_text("hello\n")
    (folder / "c.bin").write_bytes(b"\x7fELF" + bytes(200))
    (folder / "d.log").write_text("")
    return folder


def test_text(tool: Tool, logs: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, err = tool("inspect", "logs", "--year", "2026")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "a.log.gz: 5 lines (gzip)"
    assert lines[1].split()[:2] == ["vllm.start", "1"] or lines[1].split()[:2] == ["vllm.v1_line", "2"]
    assert (
        "  version 0.32.0; model big; 2026-05-06 12:00:10 to 2026-05-06 12:00:50 UTC; 1 record can't be read" in lines
    )
    assert {"b.txt: nothing recognised", "c.bin: not text", "d.log: empty"} <= set(lines)
    assert "Together they allow: draft_accept_ratio" in lines
    assert any(line.startswith("  rho: ") for line in lines)
    assert "      gives draft_accept_ratio" in lines
    assert "      context only" in lines
    assert sorted(tmp_path.rglob("*")) == before


def test_json(tool: Tool, logs: Path) -> None:
    code, out, err = tool("inspect", "logs", "--json", "--year", "2026", "--tz", "Europe/Berlin")
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    sources = {s["name"]: s for s in found["sources"]}
    assert sources["a.log.gz"] == {
        "name": "a.log.gz", "note": None, "compression": "gzip", "encoding": "utf-8", "envelopes": [], "lines": 5,
        "size": "5 lines", "is_reference": False,
        "surfaces": {"vllm.start": 1, "vllm.v1_line": 2}, "versions": ["0.32.0"], "models": ["big"],
        "first": "2026-05-06T10:00:10", "last": "2026-05-06T10:00:50", "rejects": 1,
    }  # fmt: skip
    assert {n: s["note"] for n, s in sources.items()} == {
        "a.log.gz": None, "b.txt": "nothing recognised", "c.bin": "not text", "d.log": "empty",
    }  # fmt: skip
    assert set(found["surfaces"]) == {"vllm.start", "vllm.v1_line"}
    assert found["surfaces"]["vllm.v1_line"]["versions"] == "0.8.3-0.33"
    assert found["surfaces"]["vllm.v1_line"]["gives"] == ["draft_accept_ratio"]
    assert found["surfaces"]["vllm.v1_line"]["unfilled"] == ["hazard", "rollback_len"]
    assert {"rho", "tpot_ms"} <= set(found["surfaces"]["vllm.v1_line"]["lacks"])
    assert found["surfaces"]["vllm.start"]["gives"] == []
    assert found["allowed"] == ["draft_accept_ratio"]
    assert {"hazard", "rho", "tpot_ms"} <= {m["figure"] for m in found["missing"]}
    assert not set(found["allowed"]) & {m["figure"] for m in found["missing"]}


def test_hostile_names_are_made_visible(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m.log").write_text(API.format(10) + GOOD)
    code, out, _ = tool("inspect", str(tmp_path))
    assert code == 0
    assert "\x1b" not in out


def test_nothing_recognised(tool: Tool, logs: Path) -> None:
    code, out, err = tool("inspect", "logs/b.txt")
    assert (code, out) == (1, "b.txt: nothing recognised\n")
    assert err.startswith("Error: nothing recognised")


def test_a_speculation_profile_is_a_reference(tool: Tool, tmp_path: Path) -> None:
    profile = {"num_speculative_tokens": 2, "marginal_accept_rates": [0.7, 0.5], "mean_accept_length": 2.2}
    for indent in (None, 1):
        (tmp_path / "profile.json").write_text(json.dumps(profile, indent=indent))
        code, out, err = tool("inspect", "profile.json")
        assert (code, err) == (0, "")
        assert out.startswith("profile.json: a speculation profile, an offline reference and no log")
        assert "--claim @FILE" in out


def test_a_near_miss_says_what_is_missing(tool: Tool, tmp_path: Path) -> None:
    benchmark = {"type_": "generative_benchmark", "requests": {"successful": []}}
    (tmp_path / "benchmarks.json").write_text(json.dumps({"benchmarks": [benchmark]}, indent=1))
    code, out, _ = tool("inspect", "benchmarks.json")
    assert code == 1
    assert "nothing recognised: a benchmark of GuideLLM without `metrics`" in out


EVENT = {"ph": "X", "cat": "user_annotation", "name": "executor.mtp.decode_step", "pid": 1, "tid": 2, "ts": 5, "dur": 9}
SERVE = {"model_id": "t", "duration": 4.5, "completed": 2, "total_output_tokens": 13, "request_throughput": 0.4}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (json.dumps({"schemaVersion": 1, "traceEvents": [EVENT] * 3}), "3 events"),
        (json.dumps({"schemaVersion": 1, "traceEvents": [EVENT]}), "1 event"),
        (json.dumps(SERVE, indent=1), "1 JSON object"),
        (json.dumps([SERVE, SERVE | {"duration": 9.0}]), "2 JSON objects"),
        (json.dumps(SERVE), "1 line"),
        (json.dumps(SERVE) + "\n" + json.dumps(SERVE | {"duration": 9.0}) + "\n", "2 lines"),
    ],
)
def test_a_source_is_counted_in_what_it_is_made_of(tool: Tool, tmp_path: Path, text: str, size: str) -> None:
    (tmp_path / "x.json").write_text(text)
    found = json.loads(tool("inspect", "x.json", "--json")[1])
    assert found["sources"][0]["size"] == size
    if found["sources"][0]["surfaces"]:
        assert tool("inspect", "x.json")[1].startswith(f"x.json: {size}\n")


def test_a_scrape_counts_from_the_start_of_the_server(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "x.prom").write_text('vllm:generation_tokens_total{engine="0",model_name="m"} 5\n')
    told = " ".join(tool("inspect", "x.prom")[1].split())
    assert "(between two scrapes; the first from the server's start)" in told


@pytest.mark.parametrize("arguments", [["missing"], [], ["logs", "--tz", "Mars"], ["logs", "--engine", "nope"]])
def test_usage_errors(tool: Tool, logs: Path, arguments: list[str]) -> None:
    code, out, err = tool("inspect", *arguments)
    assert (code, out) == (3, "")
    assert "Error: " in err or "Usage" in err
    assert "Traceback" not in err
