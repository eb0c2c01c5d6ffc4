"""A comparison as a person and a program get it. TRACELENS_UPDATE_SNAPSHOTS=1 writes the files anew: read the diff."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tracelens.analysis.compared import IN_ITS_PLACE, Change, Compared, Comparison
from tracelens.analysis.mixing import Mix
from tracelens.analysis.results import Missing, Warning
from tracelens.analysis.sides import Side
from tracelens.reporters.compare import VIEW

from .fixture import HOSTILE

SNAPSHOTS = Path(__file__).parent / "snapshots"
NOT_HAD = Change(because="not to be had on A and B: see coverage")


def figures(alpha: float, **changed: Any) -> dict[str, Any]:
    base = {
        "requests": 410, "rounds": 61_020, "num_speculative_tokens": 5, "num_speculative_tokens_min": 5,
        "num_speculative_tokens_max": 5, "draft_accept_ratio": alpha, "draft_accept_ratio_low": alpha - 0.02,
        "draft_accept_ratio_high": alpha + 0.02, "tau_committed": 1 + 5 * alpha, "rho": 0.2814,
        "round_cost": 2.802, "overhead": None, "relative_token_time": 2.802 / (1 + 5 * alpha), "tpot_ms": 14.37,
        "speedup_observed": 1.61, "speedup_observed_basis": "tpot", "step_ms": 59.8,
        "baseline_ms": 21.34, "baseline_basis": "run_step", "baseline_tpot_ms": 23.1, "baseline_tpot_basis": "run_tpot",
    }  # fmt: skip
    return base | changed


def changes(alpha: float, *, real: bool) -> dict[str, Change]:
    p = 0.0004 if real else 0.31
    tested = Change(alpha, alpha - 0.03, alpha + 0.03, 0.9, p / 10, p, real)
    return {
        "draft_accept_ratio": tested,
        "tau_committed": dataclasses.replace(tested, value=5 * alpha, low=5 * alpha - 0.2, high=5 * alpha + 0.2),
        "rho": Change(0.0, -0.004, 0.004, 1.0, 0.98, 1.0, False),
        "round_cost": Change(0.031, because="no spread between independent requests is known on A, so no test"),
        "overhead": NOT_HAD,
        "relative_token_time": Change(0.081, 0.012, 0.15, 1.1, 0.02, 0.11, False),
        "tpot_ms": Change(-1.12, -1.7, -0.54, 0.92, 1e-9, 1e-8, True),
        "speedup_observed": Change(-0.12, -0.21, -0.03, 0.9, because=f"tpot_ms is tested {IN_ITS_PLACE}"),
        "step_ms": Change(1.5, 0.5, 2.5, 1.03, because=f"round_cost is tested {IN_ITS_PLACE}"),
    }


def comparison() -> Comparison:
    """Changes that are real and not, a class of one side, a hostile name, another K."""
    other_k = {"num_speculative_tokens": None, "num_speculative_tokens_min": 3, "num_speculative_tokens_max": 7}
    after = {"tpot_ms": 13.25, "speedup_observed": 1.49, "round_cost": 2.833, "step_ms": 61.3}
    return Comparison(
        by=("task_type",),
        a=Side("A", "vllm-k5", "run", ("vllm-k5",)),
        b=Side("B", "version:0.29.1", "build", ("r1", "r2")),
        level=0.95,
        strata=(
            Compared({"task_type": "chat"}, figures(0.61), figures(0.55, **after), changes(-0.06, real=True)),
            Compared(
                {"task_type": HOSTILE}, figures(0.7), figures(0.71, **after, **other_k), changes(0.01, real=False)
            ),
            Compared({"task_type": None}, None, figures(0.4, requests=None), None),
        ),
        total=Compared({}, figures(0.64), figures(0.6, **after), changes(-0.04, real=True)),
        tested=15,
        real=8,
        mix_effect={
            "draft_accept_ratio": Mix("drafted tokens", -0.04, 0.01, -0.05, "strata"),
            "tau_committed": Mix("rounds", -0.2, -0.25, 0.05, "mix", True),
            "relative_token_time": Mix("plain time of the committed tokens", because="the totals cannot be compared"),
            "tpot_ms": Mix("output tokens", -1.12, -0.7, -0.42, "both"),
        },
        coverage=(Missing("overhead", "no record holds the verify pass", "the recorder"),),
        warnings=(
            Warning("k_differs", "K differs between the sides", {"strata": 1}),
            Warning("simpson", f"tau_committed {HOSTILE}", {"figure": "tau_committed", "total": -0.2}),
        ),
    )


def nothing_moved() -> Comparison:
    quiet = {"draft_accept_ratio": Change(0.01, -0.02, 0.04, 1.02, 0.5, 1.0, False)}
    return dataclasses.replace(
        comparison(), by=(), strata=(), total=Compared({}, figures(0.6), figures(0.61), quiet), tested=1, real=0,
        mix_effect={}, coverage=(), warnings=(),
    )  # fmt: skip


def nothing_tested() -> Comparison:
    untested = {"draft_accept_ratio": dataclasses.replace(NOT_HAD, because="no spread is known on A, so no test")}
    total = Compared({}, figures(0.6), figures(float("nan"), tpot_ms=float("inf")), untested)
    return dataclasses.replace(nothing_moved(), total=total, tested=0)


def shown(result: Comparison, chosen: str, width: int | None = None) -> str:
    out = io.StringIO()
    VIEW.render(result, chosen, out, width=width)
    return out.getvalue()


CASES = {
    "compare-80.txt": (comparison, "table", 80),
    "compare-160.txt": (comparison, "table", 160),
    "compare.md": (comparison, "markdown", None),
    "compare.csv": (comparison, "csv", None),
    "compare.json": (comparison, "json", None),
    "compare-nothing-80.txt": (nothing_moved, "table", 80),
    "compare-untested-80.txt": (nothing_tested, "table", 80),
}


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", CASES)
def test_snapshot(name: str) -> None:
    make, chosen, width = CASES[name]
    text = shown(make(), chosen, width)
    path = SNAPSHOTS / name
    if os.environ.get("TRACELENS_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8", newline="")
    assert text == path.read_bytes().decode("utf-8")


@pytest.mark.parametrize("make", [comparison, nothing_moved, nothing_tested])
def test_json_is_valid(make: Any) -> None:
    told = json.loads(shown(make(), "json"), parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))
    assert {"a", "b", "strata", "total", "mix_effect", "coverage", "warnings"} <= set(told)
    assert "\x1b" not in json.dumps(told, ensure_ascii=False).replace("\\u001b", "")


def test_what_a_token_takes_is_said_where_it_did_not_move() -> None:
    told = "What a token takes did not move by more than chance: token time C 0.667 → 0.701"
    assert told not in shown(comparison(), "markdown"), "TPOT moved"
    calm = comparison()
    change = {**(calm.total.change or {}), "tpot_ms": NOT_HAD}
    calm = dataclasses.replace(calm, total=dataclasses.replace(calm.total, change=change))
    assert told in shown(calm, "markdown")


def test_json_of_a_change() -> None:
    told = json.loads(shown(comparison(), "json"))
    chat, _, only_b = told["strata"]
    assert chat["change"]["draft_accept_ratio"]["value"] == -0.06
    assert chat["change"]["draft_accept_ratio"]["significant"] is True
    assert chat["change"]["overhead"]["because"].startswith("not to be had")
    assert (only_b["a"], only_b["change"]) == (None, None)
    assert told["mix_effect"]["tau_committed"]["reversed"] is True
    assert told["mix_effect"]["relative_token_time"]["total"] is None


def test_a_line_of_the_table_is_never_wider_than_the_terminal() -> None:
    for width in (80, 160):
        assert max(map(len, shown(comparison(), "table", width).splitlines())) <= width


def test_csv_has_a_row_for_every_class_and_figure() -> None:
    rows = list(csv.DictReader(io.StringIO(shown(comparison(), "csv"))))
    assert len(rows) == 4 * 16
    first = next(r for r in rows if r["figure"] == "draft_accept_ratio")
    assert (first["a"], first["b"], first["change"], first["change_significant"]) == ("0.61", "0.55", "-0.06", "true")
    only_b = [r for r in rows if r["row"] == "stratum" and r["task_type"] == ""]
    assert {r["change_because"] for r in only_b} == {"this class of traffic is on B only"}
    assert all(not r["task_type"].startswith("=") for r in rows)
