"""What stands in the place of a word or a name and is none reaches neither the lake nor the terminal, on any road."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import run, table

from tracelens.cli import run as cli
from tracelens.ingest import fast, quick

SECRETS = (
    "https://zq:hunter28zz@vault.example/v1?sig=5ekrit",
    "sk-proj-T3BlbkFJq7wXzN2mR8vL",
    "because of Ottoline",
    "stopé",
    "",
)
ROWS = 240


def requests(kind: str) -> list[dict[str, Any]]:
    """Requests that ended for the same reason, for one that is no word in some of them, or in all."""
    found = []
    for i in range(ROWS):
        row = {"record": "request", "request_id": f"r-{i}", "ts_end": "2026-05-06T12:00:03Z", "output_tokens": 31}
        bad = kind == "all" or (kind == "some" and i % 3 == 0) or (kind == "last" and i == ROWS - 1)
        found.append(row | {"finish_reason": SECRETS[0 if kind == "all" else i % len(SECRETS)] if bad else "stop"})
    return found


@pytest.mark.parametrize("kind", ["none", "some", "last", "all"])
@pytest.mark.parametrize("road", ["by columns", "by SQL", "line by line"])
def test_why_a_request_ended_is_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, road: str, kind: str) -> None:
    monkeypatch.setattr(fast, "SMALLEST", 1 if road != "line by line" else 1 << 30)
    taken = []
    plan_of, write = quick.plan_of, fast.write
    monkeypatch.setattr(
        quick, "plan_of", lambda *a: taken.append(road) or plan_of(*a) if road == "by columns" else None
    )
    monkeypatch.setattr(fast, "write", lambda *a, **k: taken.append(road) or write(*a, **k))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in requests(kind)))
    run(tmp_path / "lake", tmp_path / "a.jsonl")
    found = [reason for (reason,) in table(tmp_path / "lake", "requests", "finish_reason")]
    expected = [row["finish_reason"] if row["finish_reason"] == "stop" else None for row in requests(kind)]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert bool(taken) is (road != "line by line")


def test_inspect_shows_no_name_that_ingest_would_not_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = Path(__file__).parent.parent / "data" / "surfaces" / "aiperf-run.jsonl"
    text = sample.read_text(encoding="utf-8")
    names = {v for line in text.splitlines() for v in _names(json.loads(line))}
    assert names
    for name in names:
        text = text.replace(json.dumps(name), json.dumps("[915311, 772904, 661208]"))
    (tmp_path / "a.jsonl").write_text(text)
    assert cli(["inspect", str(tmp_path / "a.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "aiperf.run" in said
    assert "915311" not in said


def _names(value: Any, key: str = "") -> set[str]:
    if isinstance(value, dict):
        return {name for k, v in value.items() for name in _names(v, k)}
    if isinstance(value, list):
        return {name for v in value for name in _names(v, key)}
    return {value} if isinstance(value, str) and "model" in key else set()
