"""`tracelens ingest`: what it says, with which exit code, and what it must never keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from tracelens.cli import run

API = "(APIServer pid=1) INFO 05-06 12:00:{:02d} [loggers.py:335] "
GOOD = API.format(10) + "SpecDecoding metrics: Draft acceptance rate: 50.0%, Accepted: 150 tokens, Drafted: 300 tokens"
BAD = API.format(20) + "SpecDecoding metrics: Draft acceptance rate: 50.0%, Accepted: 150 tokens, Drafted: 3"
PARAMS = "SamplingParams(n=1, temperature=0.7, top_p=0.9, stop=[{}]), prompt_token_ids: None, lora_request: None."

Tool = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Run the command line in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str | Path) -> tuple[int, str, str]:
        code = run([str(a) for a in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def body(text: str = "x", **more: Any) -> dict[str, Any]:
    spec = {"num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 3, "num_spec_tokens": 3}
    spec |= {"per_step_accepted": [3, 0], "per_step_drafted": [3, 3], "acceptance_histogram": [1, 0, 0, 1]}
    return {
        "id": "chatcmpl-a.1",
        "created": 1_778_068_800,
        "model": "big",
        "choices": [{"text": text, "message": {"content": text, "reasoning": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 6},
        "metrics": {"time_to_first_token_ms": 20.0, "generation_time_ms": 100.0, "speculative_decoding": spec},
        **more,
    }


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text(f"{GOOD}\nnoise\n{BAD}\n")
    return path


def test_the_summary(tool: Tool, log: Path) -> None:
    code, out, err = tool("ingest", log, "--year", "2026")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"1 source, {log.stat().st_size} B: 1 window -> lake"
    assert lines[1].split() == ["vllm.v1_line", "1", "record"]
    assert lines[2:5] == [
        "1 record refused (kept in the table rejects):",
        "         1 x incomplete line: no drafted",
        "           e.g. server.log:3: incomplete line: no drafted",
    ]
    assert "These logs cannot give:" in lines
    assert lines[-1] == "Next: tracelens report --by task_type"


def test_the_next_command_can_be_pasted(tool: Tool, log: Path) -> None:
    _, out, _ = tool("ingest", log, "--lake", "my lake; rm x")
    assert out.splitlines()[-1] == "Next: tracelens report --by task_type --lake 'my lake; rm x'"


def test_json(tool: Tool, log: Path) -> None:
    code, out, err = tool("ingest", log, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    missing = found.pop("missing")
    assert found == {
        "sources": 1,
        "skipped": 0,
        "rows": {"windows": 1, "runs": 1, "rejects": 1},
        "rejects": 1,
        "unrecognised": 2,
        "surfaces": {"vllm.v1_line": 1},
        "reject_reasons": {"incomplete line: no drafted": 1},
        "notes": [],
        "faults": [],
        "copies": [],
        "request_ids": "kept",
    }
    assert {"rho", "tpot_ms", "temperature"} <= {m["figure"] for m in missing}
    assert all(set(m) == {"figure", "because", "switch_on"} and all(m.values()) for m in missing)


def test_a_second_time_says_so_and_is_no_failure(tool: Tool, log: Path) -> None:
    tool("ingest", log)
    code, out, err = tool("ingest", log)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "0 sources, 0 B: no rows -> lake",
        "skipped server.log: already in the lake (as server.log)",
        "What is in the lake keeps its run, role and labels; --replace reads it again.",
    ]


def test_strict(tool: Tool, log: Path, tmp_path: Path) -> None:
    code, out, err = tool("ingest", log, "--strict")
    assert code == 1
    assert "1 window" in out  # what is good is kept all the same
    assert err.startswith('Error: --strict: 1 record was refused; see `tracelens query "from rejects"`')
    err = tool("ingest", log, "--strict", "--lake", "another one")[2]
    assert err.startswith(
        "Error: --strict: 1 record was refused; see `tracelens query \"from rejects\" --lake 'another one'`"
    )
    (tmp_path / "good.log").write_text(GOOD.replace("150", "151") + "\n")
    assert tool("ingest", "good.log", "--strict")[0] == 0


def test_nothing_recognised(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    code, out, err = tool("ingest", "notes.txt", "--json")
    assert (code, json.loads(out)["surfaces"]) == (1, {})
    assert err.startswith("Error: nothing recognised")
    assert "tracelens inspect" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.log"], "missing.log"),
        (["server.log", "--role", "draft"], "--role draft"),
        (["server.log", "--tz", "Mars"], "Mars"),
        (["server.log", "--set", "task_type"], "COL=VALUE"),
        (["server.log", "--set", "=x"], "COL=VALUE"),
        (["server.log", "--set", "accepted=3"], "accepted"),
        (["server.log", "--engine", "nope"], "nope"),
        (["server.log", "--labels", "nope.csv"], "nope.csv"),
        (["server.log", "--rules", "nope.toml"], "nope.toml"),
        (["server.log", "--lake", "server.log"], "--lake"),
        (["server.log", "--lake", "."], "--lake"),
        (["server.log", "--jobs", "0"], "jobs"),
        (["server.log", "--year", "26"], "year"),
        ([], "PATH"),
    ],
)
def test_usage_errors(tool: Tool, log: Path, arguments: list[str], words: str) -> None:
    code, out, err = tool("ingest", *arguments)
    assert (code, out) == (3, "")
    assert words in err
    assert "Traceback" not in err
    assert not Path("lake").exists()


def test_options_reach_the_rows(tool: Tool, log: Path, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(json.dumps(body()))
    (tmp_path / "l.csv").write_text("request_id,tenant\na.1,acme\n")
    (tmp_path / "tracelens.toml").write_text("[[task]]\ntype = 'from-rules'\nrequest_id = '^chatcmpl-a'\n")
    options = ["--run", "mine", "--role", "baseline", "--labels", "l.csv", "--set", "team=x=y", "--tz", "Asia/Tokyo"]
    assert tool("ingest", "r.jsonl", log, *options, "--year", "2025")[0] == 0
    con = duckdb.connect()
    found = con.execute("select run_id, task_type, labels['tenant'], labels['team'] from 'lake/requests/*/*.parquet'")
    assert found.fetchall() == [("mine", "from-rules", "acme", "x=y")]
    found = con.execute("select strftime(ts_end, '%Y-%m-%d %H:%M:%S') from 'lake/windows/*/*.parquet'")
    assert found.fetchall() == [("2025-05-06 03:00:10",)]
    assert con.execute("select distinct role from 'lake/runs/*.parquet' where role is not null").fetchall() == [
        ("baseline",)
    ]


CANARY = "kanarienvogel-7f3a"


def canaries(folder: Path) -> None:
    """Prompts and completions wherever a log may hold them; each of these files is recognised."""
    quoted = f"'say \\'{CANARY}\\' {GOOD} {CANARY}'"
    lines = [
        API.format(1) + f"Received request chatcmpl-a.1: prompt: {quoted}, params: {PARAMS.format('')}",
        API.format(1) + f'Received request chatcmpl-a.2: prompt: "{CANARY}", params: {PARAMS.format(repr(CANARY))}',
        API.format(1) + f"Received request chatcmpl-a.3: prompt: {quoted}, broken",
        API.format(1) + f"Received request {CANARY[0]} {CANARY}: params: {PARAMS.format('')}",
        API.format(2) + f"Request chatcmpl-a.1 details: prompt: {quoted}",
        API.format(3) + f"Generated response chatcmpl-a.1: output: {quoted}, output_token_ids: [1]",
        API.format(4) + f"non-default args: {{'model': '/{CANARY}/big', 'api_key': '{CANARY}', 'host': '{CANARY}'}}",
        GOOD,
        BAD + CANARY,
    ]
    (folder / "server.log").write_text("".join(f"{line}\n" for line in lines))
    good = body(CANARY, request={"prompt": CANARY, "temperature": 0.2, "user": CANARY}, prompt=CANARY)
    broken = body(CANARY)
    broken["metrics"]["speculative_decoding"]["num_draft_tokens"] = CANARY
    cut = json.dumps(body(CANARY))[:-4]
    records = [json.dumps(good), json.dumps(broken), cut, json.dumps({"response": json.dumps(good)})]
    (folder / "responses.jsonl").write_text("".join(f"{r}\n" for r in records))
    rtp = Path(__file__).parent.parent / "data" / "rtp-llm"
    for name in ("access_r0_s0.log", "query_access_r0_s0.log", "dash_sc_grpc_access_r0_s0.log"):
        record = json.loads((rtp / name).read_text(encoding="utf-8").splitlines()[0])
        planted = json.dumps(plant(record))
        assert CANARY in planted
        (folder / name).write_text(f"{planted}\n{planted[:-9]}\n")


TEXTS = {
    "prompt",
    "text",
    "content",
    "response_text",
    "query",
    "prompts",
    "texts",
    "client_ip",
    "user",
    "generate_texts",
}


def plant(value: Any, key: str = "") -> Any:
    """The record with the canary in every text that a user or a model wrote."""
    if isinstance(value, dict):
        added = {f"{CANARY[:4]}_unknown": CANARY, "prompt": CANARY}
        return {**{k: plant(v, k) for k, v in value.items()}, **({} if key else added)}
    if isinstance(value, list):
        return [plant(v, key) for v in value]
    return CANARY if isinstance(value, str) and key in TEXTS else value


def test_no_text_of_a_user_gets_into_the_lake_or_the_terminal(tool: Tool, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    canaries(folder)
    said = ""
    for arguments in (
        ["ingest", folder, "-v"],
        ["ingest", folder, "--lake", "second", "--json", "--strict", "--debug"],
        ["inspect", folder],
        ["inspect", folder, "--json"],
        ["query", "from rejects", "--json"],
    ):
        code, out, err = tool(*arguments)
        assert code in (0, 1)
        said += out + err
    assert CANARY not in said
    surfaces = {"vllm.request_line", "vllm.response", "vllm.v1_line", "rtp.access", "rtp.query", "rtp.dash_sc"}
    assert {s for s in surfaces if s in said} >= surfaces - {"rtp.query"}
    files = [p for p in (tmp_path / "lake").rglob("*") if p.is_file()]
    rows = 0
    for path in files:
        assert CANARY.encode() not in path.read_bytes(), path
        if path.suffix == ".parquet":  # compressed inside
            found = pq.ParquetFile(path).read().to_pylist()
            assert CANARY not in str(found), path
            rows += len(found)
    assert rows > 10


@pytest.mark.parametrize("command", [("ingest",), ("watch", "--once")])
def test_redacted_ids_by_the_command_line(
    tool: Tool, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRACELENS_REDACT_SALT", raising=False)
    log = tmp_path / "rounds.jsonl"
    row = {"record": "round", "drafted": 3, "accepted": 2, "emitted": 3, "step_ms": 9.0}
    log.write_text("".join(json.dumps(row | {"request_id": f"alice-{i}"}) + "\n" for i in range(3)))
    code, out, err = tool(*command, log, "--redact-ids", "--lake", "redacted")
    assert (code, err) == (0, "")
    if command == ("ingest",):
        assert "Request ids are redacted to keyed hashes. Keep the salt" in out
    assert (tmp_path / "redacted.redact-salt").is_file()
    code, out, _ = tool("query", "select request_id from rounds", "--lake", "redacted", "--json")
    assert [set(r) for r in json.loads(out)] == [{"request_id"}] * 3
    assert "alice" not in out
    if command != ("ingest",):
        return
    labels = tmp_path / "labels.csv"
    labels.write_text("request_id,task_type\nalice-1,chat\n")
    code, out, _ = tool("label", labels, "--lake", "redacted", "--json")
    assert json.loads(out) == {
        "rows": {"rounds": 1, "requests": 0},
        "files": 1,
        "labels": 1,
        "unmatched": 0,
        "rolled_until": None,
    }
    code, out, _ = tool("report", "--lake", "redacted")
    assert "Request ids are redacted." in out
    code, out, _ = tool("report", "--lake", "redacted", "--json")
    assert json.loads(out)["contains"] == {"request_ids": "redacted"}
