"""A JSON document that is cut off or broken anywhere is told, however its writer set white space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import response, run

SPAN = {
    "traceId": "a" * 32, "spanId": "b" * 16, "name": "llm_request", "startTimeUnixNano": "1", "endTimeUnixNano": "2",
    "attributes": [{"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "9"}}],
}  # fmt: skip
DOCUMENTS: dict[str, list[Any]] = {
    "responses": [response("a"), response("b"), response("c")],
    "spans": [{"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [SPAN]}]}]}] * 3,
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_a_cut_array_is_told(kind: str, indent: int | None, share: float, tmp_path: Path) -> None:
    text = json.dumps(DOCUMENTS[kind], indent=indent)
    (tmp_path / "x.json").write_text(text[: int(len(text) * share)], encoding="utf-8")
    assert run(tmp_path / "lake", tmp_path / "x.json").rejects >= 1


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("token", ["nan", "<x>", "", "1 2", "'x'", "\x01"])
def test_a_broken_token_is_told(indent: int | None, token: str, tmp_path: Path) -> None:
    text = json.dumps([{**response("a"), "note": "@"}, response("b")], indent=indent).replace('"@"', token)
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    assert run(tmp_path / "lake", tmp_path / "x.json").rejects >= 1


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_python_writes_for_no_number_is_nothing(indent: int | None, number: float, tmp_path: Path) -> None:
    text = json.dumps([{**response("a"), "note": number}, {**response("b"), "notes": [number, 1.0]}], indent=indent)
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    summary = run(tmp_path / "lake", tmp_path / "x.json")
    assert summary.rejects == 0
    assert summary.rows["requests"] == 2


@pytest.mark.parametrize(
    "first", ["[2026-05-06 12:00:00 TP0] begin", "{'a': 1}", "[INFO] begin", "[12] begin", "[-- x"]
)
@pytest.mark.parametrize("limit", [100, 1 << 20])
def test_a_log_that_begins_like_one_is_a_log(
    first: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracelens.ingest import read

    line = "[2026-05-06 12:00:01] Decode batch, #running-req: 1, gen throughput (token/s): 9.00, #queue-req: 0\n"
    (tmp_path / "x.log").write_text(f"{first}\n" + line * 20, encoding="utf-8")
    monkeypatch.setattr(read, "DOCUMENT_LIMIT", limit)
    done = run(tmp_path / "lake", tmp_path / "x.log")
    assert done.rejects == 0
    assert read.is_lines(first.encode() + b"\n")


@pytest.mark.parametrize(
    "first",
    [
        "[",
        "[ \n",
        "{",
        "{\n",
        '[\n  {"a": 1},',
        '[{"a": 1},',
        "[[1],",
        '["a",',
        "[1,",
        "[-1.5e3 ,",
        "[true,",
        "[null,",
        "[NaN,",
        "[-Infinity,",
    ],
)
def test_how_a_document_begins(first: str) -> None:
    from tracelens.ingest import read

    rest = '{"a": 1}]' if first.startswith("[") else '"a": 1}'
    assert not read.is_lines(f"{first}\n{rest}\n".encode())


@pytest.mark.parametrize("text", ["[5\n]\n", "[\n5\n]\n", "[1e5\n]", "[5]\n", "[\n", "[\n]"])
def test_an_array_of_a_number_is_a_document(text: str) -> None:
    from tracelens.ingest import read

    assert read._JSON.match(text.encode())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('[{"iter": 1}]\n[{"iter": 2}]\n', True),  # polls of TensorRT-LLM's /metrics, one a line
        ('[{"iter": 1}]\n\n{"iter": 2}\n', True),
        ('[{"iter": 1}]\n', False),
        ('[{"iter": 1},\n{"iter": 2}]\n', False),
        ("[\n[1],\n[2]]\n", False),
    ],
)
def test_arrays_on_lines_are_no_document(text: str, lines: bool) -> None:
    from tracelens.ingest import read

    assert read.is_lines(text.encode()) == lines
