"""A sweep byte for byte. TRACELENS_UPDATE_SNAPSHOTS=1 writes the files anew: read the diff."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from tracelens.analysis.results import Missing, Warning
from tracelens.analysis.sweep import SweepEntry, SweepResult, SweepStratum
from tracelens.reporters.sweep import VIEW

SNAPSHOTS = Path(__file__).parent / "snapshots"
CASES = {
    "sweep-80.txt": ("table", 80),
    "sweep-160.txt": ("table", 160),
    "sweep.md": ("markdown", None),
    "sweep.csv": ("csv", None),
    "sweep.json": ("json", None),
}
_TRACE_NOTE = "replayed from the rounds at K 5: their requests commit the same tokens at any K"


def _ran(k: int, tau: float, time: float, rounds: int) -> SweepEntry:
    return SweepEntry(
        k, "observed", tau, tau - 0.08, tau + 0.08, tau - 0.03, 2.9 * k, 20.5, 0.7, 21.2 + 2.9 * k, time, time - 0.02,
        time + 0.02, "step", 19.0 * time, 1 / time, "observed", False, None, rounds, 120,
    )  # fmt: skip


def _told(k: int, tau: float, time: float, error: float | None = None, *, longer: bool = False) -> SweepEntry:
    return SweepEntry(
        k, "replayed", tau, tau - 0.1, tau + 0.1, tau - 0.03, 2.9 * k, 20.5, 0.7, 21.2 + 2.9 * k, time, time - 0.03,
        time + 0.03, "step", 19.0 * time, None, "fitted", longer, error, 8123, 120,
    )  # fmt: skip


def result() -> SweepResult:
    """Chat is best short, code long, a poem off, and retrieval drafts by lookup and has no times."""
    chat = SweepStratum(
        {"task_type": "chat"},
        (_told(1, 1.61, 0.93), _told(2, 1.98, 0.91), _ran(5, 2.38, 1.06, 8123), _told(5, 2.38, 1.061, 0.0)),
        2, 1, 3, 0.91, None, 5, 8123, 19.8, "run_step", (_TRACE_NOTE,),
    )  # fmt: skip
    code = SweepStratum(
        {"task_type": "code"},
        (_ran(3, 3.22, 0.617, 5511), _told(3, 3.16, 0.632, -0.0186), _ran(5, 4.18, 0.6, 10311),
         _told(7, 4.9, 0.58, longer=True)),
        7, 5, 7, 0.58, None, 5, 10311, 19.8, "run_step",
        (_TRACE_NOTE, "extrapolated: longer than any draft of the trace"),
    )  # fmt: skip
    poem = SweepStratum(
        {"task_type": "poem"}, (_told(1, 1.1, 1.05), _ran(5, 1.12, 1.4, 3000)), 0, 0, 0, 1.0, None, 5, 3000, 19.8,
        "run_step", (_TRACE_NOTE,),
    )  # fmt: skip
    lookup = SweepStratum(
        {"task_type": None},
        (SweepEntry(1, "geometric", 1.7, 1.6, 1.8, 1.5, rounds=900, requests=80),
         SweepEntry(4, "observed", 2.9, 2.7, 3.1, 2.0, rounds=900, requests=80)),
        None, None, None, None, "no record holds the time of a whole step; time it in a hook", None, None, 19.8,
        "run_step", ("no replay: the drafter (ngram) looks its drafts up",),
    )  # fmt: skip
    total = SweepStratum(
        {}, (_told(1, 1.8, 0.84), _ran(5, 3.4, 0.72, 18000)), 5, 3, 5, 0.72, None, 5, 18000, 19.8, "run_step",
        (_TRACE_NOTE,),
    )  # fmt: skip
    return SweepResult(
        ("task_type",), (1, 2, 3, 5, 7), (chat, code, poem, lookup), total,
        (Missing("rollback_ms", "no record holds the time of KV repair", "write canonical JSON lines"),),
        (Warning("few_requests", "only 25 requests", {"requests": 25}),),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", CASES)
def test_snapshot(name: str) -> None:
    chosen, width = CASES[name]
    out = io.StringIO()
    VIEW.render(result(), chosen, out, width=width)
    path = SNAPSHOTS / name
    if os.environ.get("TRACELENS_UPDATE_SNAPSHOTS"):
        path.write_text(out.getvalue(), encoding="utf-8", newline="")
    assert out.getvalue() == path.read_bytes().decode("utf-8")


def test_no_line_is_too_long() -> None:
    out = io.StringIO()
    VIEW.render(result(), "table", out, width=80)
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_the_answer_comes_first() -> None:
    out = io.StringIO()
    VIEW.render(result(), "table", out, width=300)
    told = out.getvalue().splitlines()
    assert told[0] == "All traffic: best K 5 [3–5], token time 0.720 of plain decoding (as run)."
    assert told[1] == "task_type=chat: best K 2 [1–3], token time 0.910 (replayed); K 5 as run: 1.060."
    assert told[2] == "task_type=code: best K 7 [5–7], token time 0.580 (extrapolated); K 5 as run: 0.600."
    assert told[3].startswith("task_type=poem: best off (K 0) [0–0]; replayed K 1 comes nearest, token time 1.050")
    assert told[4].startswith("task_type=(not known): best K not to be told: no record holds")


def test_the_contract_of_the_document() -> None:
    out = io.StringIO()
    VIEW.render(result(), "json", out)
    told = json.loads(out.getvalue())
    assert told["strata"][0]["key"] == {"task_type": "chat"}
    assert told["strata"][0]["best_k"] == 2
    assert {"k", "source", "tau_verified", "round_ms", "relative_token_time", "tpot_ms"} <= set(told["total"]["ks"][0])
    assert [(e["k"], e["source"]) for e in told["strata"][0]["ks"][2:]] == [(5, "observed"), (5, "replayed")]
