"""A sweep byte for byte. TRACELENS_UPDATE_SNAPSHOTS=1 writes the files anew: read the diff."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path

import pytest

from tracelens.analysis.results import Missing, Warning
from tracelens.analysis.sweep import SweepEntry, SweepResult, SweepStratum
from tracelens.analysis.sweep_trace import told
from tracelens.reporters.sweep import VIEW

SNAPSHOTS = Path(__file__).parent / "snapshots"
CASES = {
    "sweep-80.txt": ("table", 80),
    "sweep-160.txt": ("table", 160),
    "sweep.md": ("markdown", None),
    "sweep.csv": ("csv", None),
    "sweep.json": ("json", None),
}
_REPLAY_NOTE = "replayed: the requests commit the same tokens at any K"


def _notes(rounds: int, requests: int, *more: str) -> tuple[str, ...]:
    return (told(5, rounds, requests), _REPLAY_NOTE, *more)


def _ran(k: int, tau: float, time: float, rounds: int) -> SweepEntry:
    return SweepEntry(
        k, "observed", tau, tau - 0.08, tau + 0.08, tau - 0.03, 2.9 * k, 20.5, 0.7, 21.2 + 2.9 * k, time, time - 0.02,
        time + 0.02, "step", 19.0 * time, 1 / time, "observed", False, None, None, rounds, 120,
    )  # fmt: skip


def _told(
    k: int, tau: float, time: float, error: float | None = None, off: float | None = None, *, longer: bool = False
) -> SweepEntry:
    return SweepEntry(
        k, "replayed", tau, tau - 0.1, tau + 0.1, tau - 0.03, 2.9 * k, 20.5, 0.7, 21.2 + 2.9 * k, time, time - 0.03,
        time + 0.03, "step", 19.0 * time, None, "fitted", longer, error, off, 8123, 120,
    )  # fmt: skip


def result() -> SweepResult:
    """Chat is best short, code long, a poem off; lists could be anything; lookup drafts have no times."""
    chat = SweepStratum(
        {"task_type": "chat"},
        (_told(1, 1.61, 0.93), _told(2, 1.98, 0.91), _ran(5, 2.38, 1.06, 8123), _told(5, 2.38, 1.061, 0.0, 0.001)),
        2, 1, 3, 0.91, None, 5, 8123, 60, 19.8, "run_step", _notes(8123, 60),
    )  # fmt: skip
    code = SweepStratum(
        {"task_type": "code"},
        (_ran(3, 3.22, 0.617, 5511), _told(3, 3.16, 0.632, -0.0186, 0.0723), _ran(5, 4.18, 0.6, 10311),
         _told(7, 4.9, 0.58, longer=True)),
        5, 3, 5, 0.6, None, 5, 10311, 70, 19.8, "run_step",
        _notes(10311, 70, "extrapolated: longer than any draft that it is told from"),
    )  # fmt: skip
    poem = SweepStratum(
        {"task_type": "poem"}, (_told(1, 1.1, 1.05), _ran(5, 1.12, 1.4, 3000)), 0, 0, 0, 1.0, None, 5, 3000, 40, 19.8,
        "run_step", _notes(3000, 40),
    )  # fmt: skip
    lists = SweepStratum(
        {"task_type": "list"}, (_told(1, 1.5, 0.99), _ran(5, 2.2, 0.96, 31)), 5, 0, 5, 0.96, None, 5, 31, 3, 19.8,
        "run_step", _notes(31, 3),
    )  # fmt: skip
    lookup = SweepStratum(
        {"task_type": None},
        (SweepEntry(1, "geometric", 1.7, 1.6, 1.8, 1.5, rounds=900, requests=80),
         SweepEntry(4, "observed", 2.9, 2.7, 3.1, 2.0, rounds=900, requests=80)),
        None, None, None, None, "no record holds the time of a whole step; time it in a hook", None, None, None,
        19.8, "run_step", ("no replay: the drafter (ngram) looks its drafts up",),
    )  # fmt: skip
    total = SweepStratum(
        {}, (_told(1, 1.8, 0.84), _ran(5, 3.4, 0.72, 18000)), 5, 1, 5, 0.72, None, 5, 18000, 180, 19.8, "run_step",
        _notes(18000, 180),
    )  # fmt: skip
    return SweepResult(
        ("task_type",), (1, 2, 3, 5, 7), (chat, code, poem, lookup, lists), total,
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


def lead(shown: SweepResult) -> list[str]:
    """The sentences before the tables."""
    out = io.StringIO()
    VIEW.render(shown, "table", out, width=400)
    return out.getvalue().split("\n\n")[0].splitlines()


def test_the_answer_comes_first() -> None:
    assert lead(result()) == [
        "All traffic: best K 5 [1–5], token time 0.720 of plain decoding (as run).",
        "task_type=chat: best K 2 [1–3], token time 0.910 (replayed); the K that most rounds ran with, K 5: 1.060"
        " (as run).",
        "task_type=code: best K 5 [3–5], token time 0.600 (as run).",
        "task_type=poem: best is off (plain decoding), K 0 [0–0]; K 1 comes nearest, token time 1.050 (replayed); the"
        " K that most rounds ran with, K 5: 1.400 (as run).",
        "task_type=(not known): best K not to be told: no record holds the time of a whole step; time it in a hook.",
        "task_type=list: best K cannot be told (0 to 5); the estimate is K 5, token time 0.960 (as run).",
    ]


def alone(*entries: SweepEntry, best: tuple[int, int | None, int | None], time: float = 1.0) -> SweepResult:
    """One class, which is all traffic."""
    total = dataclasses.replace(
        result().total, entries=entries, best_k=best[0], best_k_low=best[1], best_k_high=best[2],
        best_relative_token_time=time,
    )  # fmt: skip
    chat = dataclasses.replace(total, key={"task_type": "chat"})
    return dataclasses.replace(result(), strata=(chat,), total=total)


def test_what_ran_comes_nearest_as_it_ran() -> None:
    """A replay that is better than the run of the same K counts nowhere."""
    shown = alone(_ran(1, 1.5, 1.911, 900), _told(1, 1.5, 1.7), _ran(3, 1.8, 1.796, 400), best=(0, 0, 0))
    (told,) = lead(shown)
    assert "K 3 comes nearest, token time 1.796 of plain decoding (as run)" in told
    assert "the K that most rounds ran with, K 1: 1.911 (as run)" in told


@pytest.mark.parametrize(
    ("best", "words"),
    [
        ((5, 5, 5), "K 5 is better"),
        ((0, 0, 0), "off is better"),
        ((5, 0, 5), "which is better cannot be told; the estimate is for K 5"),
        ((0, None, None), "the estimate, which has no interval, is for off"),
    ],
)
def test_one_k_alone_is_compared_with_off(best: tuple[int, int | None, int | None], words: str) -> None:
    (told,) = lead(alone(_ran(5, 3.4, 0.99, 900), _told(9, 4.0, 0.8, longer=True), best=best))
    assert told == (
        "All traffic (task_type=chat alone): only K 5 and off (plain decoding) can be compared: token time 0.990 of"
        f" plain decoding (as run); {words}."
    )


def test_nobody_can_tell_and_off_is_the_estimate() -> None:
    (told,) = lead(alone(_told(1, 1.5, 1.02), _ran(5, 2.2, 1.1, 31), best=(0, 0, 5)))
    assert "best K cannot be told (0 to 5); the estimate is off (plain decoding); K 1 comes nearest" in told


def test_costs_of_a_claim_ran_nowhere() -> None:
    ran, told = (
        dataclasses.replace(e, cost_basis="claim", relative_token_time_basis="claim")
        for e in (_ran(5, 3.4, 0.72, 900), _told(2, 2.5, 0.6))
    )
    (first,) = lead(alone(told, ran, best=(2, 2, 2), time=0.6))
    assert "token time 0.600 of plain decoding (tokens replayed, costs assumed from the claim)" in first
    assert "K 5: 0.720 (tokens as run)" in first
    (first,) = lead(alone(told, ran, best=(5, 5, 5), time=0.72))
    assert "(tokens as run, costs assumed from the claim)" in first


def test_one_class_is_shown_once() -> None:
    """Once where it is all traffic; twice where step times carry no class, which the total alone has."""
    shown = alone(_ran(2, 2.5, 0.8, 90), _told(5, 3.4, 0.72), best=(5, 2, 5), time=0.72)
    apart = dataclasses.replace(shown, warnings=(Warning("times_without_class", "step times carry no class", {}),))
    for answer, times in ((shown, 1), (apart, 2)):
        out = io.StringIO()
        VIEW.render(answer, "table", out, width=100)
        assert out.getvalue().count("0 off") == times
        assert len(lead(answer)) == times


def test_the_own_k_of_the_trace_is_not_shown_again() -> None:
    """Its replay stays in JSON, and is shown where it alone has a time."""
    own = (_ran(5, 3.4, 0.72, 900), _told(5, 3.4, 0.72, 0.0, 0.0))
    timeless = dataclasses.replace(own[0], relative_token_time=None)
    for entries, shown in ((own, False), ((timeless, own[1]), True)):
        out = io.StringIO()
        VIEW.render(alone(*entries, best=(5, 5, 5), time=0.72), "table", out, width=100)
        assert ("5 replayed" in out.getvalue()) == shown
    out = io.StringIO()
    VIEW.render(alone(*own, best=(5, 5, 5), time=0.72), "json", out)
    assert [e["source"] for e in json.loads(out.getvalue())["total"]["ks"]] == ["observed", "replayed"]


def test_many_classes_stay_readable() -> None:
    """Notes on single classes, and traces, are cut; the number left out is said."""
    many = tuple(
        dataclasses.replace(result().strata[0], key={"task_type": f"t{i}"}, notes=_notes(8123, 60, f"note {i}"))
        for i in range(40)
    )
    out = io.StringIO()
    VIEW.render(dataclasses.replace(result(), strata=many), "table", out, width=300)
    told = out.getvalue()
    assert "21 more notes on few classes: see --format json" in told
    assert "29 more classes: see --format json" in told


def test_the_contract_of_the_document() -> None:
    out = io.StringIO()
    VIEW.render(result(), "json", out)
    told = json.loads(out.getvalue())
    assert told["strata"][0]["key"] == {"task_type": "chat"}
    assert told["strata"][0]["best_k"] == 2
    assert {"k", "source", "tau_verified", "round_ms", "relative_token_time", "tpot_ms"} <= set(told["total"]["ks"][0])
    assert [(e["k"], e["source"]) for e in told["strata"][0]["ks"][2:]] == [(5, "observed"), (5, "replayed")]
