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

from tracelens.analysis.compared import IN_ITS_PLACE, TWO_CONVENTIONS, Change, Compared, Comparison
from tracelens.analysis.mixing import Mix
from tracelens.analysis.results import Missing, Warning
from tracelens.analysis.sides import Side
from tracelens.reporters.arrow import table
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
        "control_runs": 3, "control_spread": 0.1234,
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
        "relative_token_time": Change(0.081, 0.012, 0.15, 1.1, 0.02, 0.11, False, within_noise=False),
        "tpot_ms": Change(-1.12, -1.7, -0.54, 0.92, 1e-9, 1e-8, True, within_noise=True),
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
        real=7,
        mix_effect={
            "draft_accept_ratio": Mix("drafted tokens", -0.04, 0.01, -0.05, "strata"),
            "tau_committed": Mix(
                "rounds",
                -0.2,
                -0.25,
                0.05,
                "mix",
                True,
                shifted=HOSTILE,
                share_a=0.21,
                share_b=0.86,
                classes=2,
                along=2,
                along_significant=1,
                paradox=True,
            ),
            "relative_token_time": Mix("plain time of the committed tokens", because="the totals cannot be compared"),
            "tpot_ms": Mix("output tokens", -1.12, -0.7, -0.42, "both"),
        },
        coverage=(Missing("overhead", "no record holds the verify pass", "the recorder"),),
        warnings=(
            Warning("k_differs", "K differs between the sides", {"strata": 1}),
            Warning("one_run", "A is one run", {"runs_a": 1, "runs_b": 2}),
            Warning("simpson", f"tau_committed {HOSTILE}", {"figures": 1}),
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


def lead(result: Comparison) -> tuple[str, ...]:
    return VIEW.sheet(result).lead


def with_total(result: Comparison, **changed: Change) -> Comparison:
    change = {**(result.total.change or {}), **changed}
    return dataclasses.replace(result, total=dataclasses.replace(result.total, change=change))


def test_what_a_token_takes_leads() -> None:
    first = lead(comparison())[0]
    assert first.startswith(
        "Tokens got neither faster nor slower by more than chance between requests: token time C 0.667 → 0.701 "
        "(+0.081 [+0.012, +0.150])."
    ), "changed or not; the interval is that of the change"
    assert (
        "By TPOT they got faster: TPOT 14.37 → 13.25 ms (−1.12 [−1.70, −0.54], within the control noise of 12.3 %)."
    ) in first
    known = Change(-1.12, -1.7, -0.54, 0.92, 1e-9, 1e-8, significant=True)
    moved = with_total(comparison(), relative_token_time=NOT_HAD, tpot_ms=known)
    assert lead(moved)[0].startswith(
        "Tokens got faster by more than chance between requests: TPOT 14.37 → 13.25 ms (−1.12 [−1.70, −0.54])."
    )
    untested = Change(-1.12, because="no spread is known on A, so no test")
    told = lead(with_total(comparison(), relative_token_time=NOT_HAD, tpot_ms=untested))[0]
    assert told.startswith("What a token takes: TPOT 14.37 → 13.25 ms (−1.12): no spread is known on A, so no test.")
    told = lead(with_total(comparison(), relative_token_time=NOT_HAD, tpot_ms=NOT_HAD))[0]
    assert told.startswith(
        "What a token takes cannot be compared (token time C, TPOT: not to be had on A and B: see coverage)."
    )


def test_at_most_three_other_changes_are_named() -> None:
    told = lead(comparison())[1]
    assert told.startswith(
        "7 of the 15 changes tested (2 classes and in total; Holm, 5 %) are more than chance between requests. What "
        "else moved: in total: τ committed 4.20 → 4.00 (−0.20 [−0.40, +0.00]); "
        "in total: α 0.640 → 0.600 (−0.040 [−0.070, −0.010]); "
    )
    assert told.count(" → ") == 3
    assert told.endswith("; 3 more below.")


def test_simpson_is_in_the_first_paragraph() -> None:
    assert "τ committed rises in every class and falls in total, because traffic moved to " in lead(comparison())[0]
    assert "(21 % → 86 % of the rounds)" in lead(comparison())[0]
    effect = Mix(
        "output tokens", 5.0, 7.0, -2.0, "mix", is_reversed=True, shifted="b", share_a=0.25, share_b=0.86, classes=2,
        along=2, along_significant=1, paradox=True,
    )  # fmt: skip
    slower = Change(5.0, 4.0, 6.0, 1.4, 1e-9, 1e-8, significant=True)
    base = with_total(comparison(), relative_token_time=NOT_HAD, tpot_ms=slower)
    told = lead(dataclasses.replace(base, mix_effect={"tpot_ms": effect}))
    assert (
        "Every class got faster (1 of 2 by more than chance); the total slowed because traffic moved to b "
        "(25 % → 86 % of the output tokens)."
    ) in told[0]
    part = dataclasses.replace(effect, along=1, along_significant=1, share_b=0.1)
    told = lead(dataclasses.replace(base, mix_effect={"tpot_ms": part}))
    assert "1 of 2 classes got faster; the total slowed because traffic moved away from b (25 % → 10 % of" in told[0]
    still = with_total(base, tpot_ms=dataclasses.replace(slower, significant=False))
    told = lead(dataclasses.replace(still, mix_effect={"tpot_ms": effect}))
    assert "; the total did not, because traffic moved to b" in told[0]


def test_one_run_and_the_noise_of_runs_are_in_the_lead() -> None:
    told = lead(comparison())
    assert (
        "A is one run: the tests know the chance between requests, not that between runs. "
        "Control noise: 3 runs without speculation differ by 12.3 % among themselves."
    ) in told
    assert not any("noise" in text for text in lead(nothing_moved()))
    table = shown(comparison(), "table", 80)
    assert "moved?" in table
    assert "within" in table
    assert "noise" not in shown(nothing_moved(), "table", 80)


def test_another_k_is_said_once_and_what_it_moves_does_not_lead() -> None:
    k = {"num_speculative_tokens_min": 3, "num_speculative_tokens_max": 3}
    base = comparison()
    total = dataclasses.replace(base.total, a=(dict(base.total.a or {}) | k))
    moved = dataclasses.replace(base, strata=(), total=total, real=3)
    told = " ".join(lead(moved))
    assert told.count("K 3 → 5, so α and τ move by themselves.") == 1
    assert "α 0." not in told
    assert "What else moved: α, τ committed, which K moves by itself." in told
    alone = dataclasses.replace(with_total(moved, tpot_ms=NOT_HAD), real=2)
    assert "Moved: α, τ committed, which K moves by itself." in lead(alone)[1]
    unknown = dataclasses.replace(total, a=dict(total.a or {}) | dict.fromkeys(k))
    assert "K not logged → 5" in lead(dataclasses.replace(moved, total=unknown))[0]


def test_without_a_total_that_moved_the_mix_is_not_split() -> None:
    split = {"draft_accept_ratio": Mix("drafted tokens", 0.01, 0.02, -0.01, "mix")}
    calm = dataclasses.replace(nothing_moved(), mix_effect=split)
    assert "No total moved, so mix against classes is not split." in lead(calm)
    assert "Did the mix" not in shown(calm, "markdown")
    moved = with_total(calm, rho=Change(0.1, 0.05, 0.15, 1.3, 1e-6, 1e-5, significant=True))
    assert "α did not move in total, so mix against classes is not split." in lead(moved)


def test_a_figure_that_stands_for_another_has_its_name() -> None:
    told = shown(comparison(), "markdown")
    assert "speedup: TPOT is tested in its place" in told
    apart = Change(because=f"{TWO_CONVENTIONS}: A emitted, B verified")
    assert "A emitted" not in shown(with_total(comparison(), tau_committed=apart), "markdown"), "a warning says it"


@pytest.mark.parametrize(("tested", "real", "told"), [
    (1, 1, "The one change tested (in total; Holm, 5 %) is more than chance between requests"),
    (1, 0, "The one change tested (in total; Holm, 5 %) is no more than chance between requests."),
    (2, 1, "1 of the 2 changes tested (in total; Holm, 5 %) is more than chance between requests"),
    (2, 0, "None of the 2 changes tested (in total; Holm, 5 %) is more than chance between requests."),
])  # fmt: skip
def test_one_and_many(tested: int, real: int, told: str) -> None:
    change = {"draft_accept_ratio": Change(0.01, 0.002, 0.04, 1.02, 0.01, 0.01, bool(real))}
    base = nothing_moved()
    result = dataclasses.replace(base, total=dataclasses.replace(base.total, change=change), tested=tested, real=real)
    assert lead(result)[1].startswith(told)


def test_json_of_a_change() -> None:
    told = json.loads(shown(comparison(), "json"))
    chat, _, only_b = told["strata"]
    assert chat["change"]["draft_accept_ratio"]["value"] == -0.06
    assert chat["change"]["draft_accept_ratio"]["significant"] is True
    assert chat["change"]["overhead"]["because"].startswith("not to be had")
    assert (only_b["a"], only_b["change"]) == (None, None)
    assert told["mix_effect"]["tau_committed"]["reversed"] is True
    assert (told["mix_effect"]["tau_committed"]["share_a"], told["mix_effect"]["tau_committed"]["along"]) == (0.21, 2)
    assert chat["change"]["tpot_ms"]["within_noise"] is True
    assert chat["change"]["rho"]["within_noise"] is None
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


def test_csv_and_parquet_carry_the_mix_effect_in_the_same_columns() -> None:
    answer = comparison()
    rows = list(csv.DictReader(io.StringIO(shown(answer, "csv"))))
    document = json.loads(shown(answer, "json"))
    names = {name for name in rows[0] if name.startswith("mix_effect_")}
    assert names == {name for name in table(answer, document).column_names if name.startswith("mix_effect_")}
    assert names == {f"mix_effect_{name}" for name in document["mix_effect"]["draft_accept_ratio"]}
    for row in rows:
        effect = document["mix_effect"].get(row["figure"]) if row["row"] == "total" else None
        for part in ("total", "mix", "within"):
            told = None if effect is None else effect[part]
            assert row[f"mix_effect_{part}"] == ("" if told is None else repr(told))
