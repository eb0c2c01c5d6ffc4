"""Whether it pays: one verdict a basis, both told where they differ, and what the gate decides beside them."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis.claim import parse_claim
from tracelens.analysis.results import Report, Stratum
from tracelens.analysis.verdict import apart, sentence
from tracelens.reporters import answer, tables
from tracelens.reporters.charts import strata
from tracelens.reporters.charts.drawn import Drawn
from tracelens.reporters.terminal import TerminalReporter
from tracelens.reporters.verdicts import disagreement, gate_apart, token_times, verdict

from .fixture import figures, report
from .why_fixture import gap, gate

OPEN_BY_STEPS: dict[str, Any] = {
    "relative_token_time": 1.056, "relative_token_time_low": 0.96, "relative_token_time_high": 1.16,
    "relative_token_time_basis": "step", "speedup_tpot": 0.91, "speedup_tpot_low": 0.83, "speedup_tpot_high": 0.99,
    "speedup_observed": 0.91, "speedup_observed_low": 0.83, "speedup_observed_high": 0.99,
}  # fmt: skip
ONLY_TPOT: dict[str, Any] = {
    **OPEN_BY_STEPS, "relative_token_time": None, "relative_token_time_low": None, "relative_token_time_high": None,
    "relative_token_time_basis": None, "speedup_step": None, "speedup_observed_basis": "tpot",
}  # fmt: skip
ONLY_STEPS: dict[str, Any] = {
    **OPEN_BY_STEPS, "speedup_tpot": None, "speedup_tpot_low": None, "speedup_tpot_high": None,
    "speedup_observed": 0.947, "speedup_observed_basis": "step",
}  # fmt: skip


def of(*rows: dict[str, Any], total: dict[str, Any]) -> Report:
    found = tuple(Stratum({"task_type": f"c{i}"}, figures(**row)) for i, row in enumerate(rows))
    return dataclasses.replace(report(), strata=found, total=Stratum({}, figures(**total)))


def test_both_verdicts_where_they_differ() -> None:
    assert verdict(OPEN_BY_STEPS) == "open"
    assert disagreement(OPEN_BY_STEPS) == {"step": "open", "tpot": "loses"}
    assert tables.VERDICT.cell(OPEN_BY_STEPS)[0] == "open (steps) / no (TPOT)"
    told = answer.answer(of(OPEN_BY_STEPS, total=OPEN_BY_STEPS))[0]
    assert "speculation costs more than it gives by TPOT, open by steps" in told
    out = io.StringIO()
    TerminalReporter(160).render(of(OPEN_BY_STEPS, total={}), out)
    assert "where the verdicts by steps and by TPOT differ both are told" in out.getvalue().replace("\n", " ")


@pytest.mark.parametrize("changed", [{"speedup_tpot": None}, {"speedup_tpot_low": None, "speedup_tpot_high": None},
                                     {"relative_token_time_low": 1.01}])  # fmt: skip
def test_one_verdict_where_one_basis_says_nothing_else(changed: dict[str, Any]) -> None:
    assert disagreement(OPEN_BY_STEPS | changed) == {}
    assert "(steps)" not in tables.VERDICT.cell(OPEN_BY_STEPS | changed)[0]


@given(st.floats(0.05, 20), st.floats(0.001, 0.5))
def test_a_tpot_is_the_same_verdict_upside_down(c: float, half: float) -> None:
    by_steps = {"relative_token_time": c, "relative_token_time_low": c * (1 - half),
                "relative_token_time_high": c * (1 + half)}  # fmt: skip
    by_tpot = {"speedup_tpot": 1 / c, "speedup_tpot_low": 1 / (c * (1 + half)),
               "speedup_tpot_high": 1 / (c * (1 - half))}  # fmt: skip
    one, other = token_times(by_steps)["step"], token_times(by_tpot)["tpot"]
    assert other.value == pytest.approx(one.value)
    edges = (c * (1 - half), c * (1 + half))
    if all(abs(edge - 1) > 1e-9 for edge in edges):
        assert one.verdict == other.verdict == ("pays" if edges[1] < 1 else "loses" if edges[0] > 1 else "open")


def test_one_basis_for_all_marks_where_all_have_it() -> None:
    # Two classes have TPOT alone, the total both: the whole chart is by TPOT.
    found = strata.classes(of(ONLY_TPOT, ONLY_TPOT, total=OPEN_BY_STEPS), None)
    assert {c.basis for c in found} == {"tpot"}
    assert found[0].time == pytest.approx(1 / 0.91)
    assert found[0].verdict == "loses"
    assert not any(c.mixed for c in found)
    drawn = strata.token_time(found)
    assert isinstance(drawn, Drawn)
    assert any("By TPOT" in note for note in drawn.notes)


def test_each_mark_tells_its_basis_where_none_is_common() -> None:
    found = strata.classes(of(ONLY_TPOT, ONLY_STEPS, total=OPEN_BY_STEPS), None)
    assert [(c.label, c.told) for c in found[1:]] == [("c0", "t 1.10"), ("c1", "1.06")]
    drawn = strata.token_time(found)
    assert isinstance(drawn, Drawn)
    assert any(note.startswith("t: by TPOT") for note in drawn.notes)
    rows = {row["label"]: row["text"] for row in drawn.panels[0].to_dict()["data"]["values"]}
    assert rows["c0"] == "t 1.10 costs more"
    assert rows["c1"] == "1.06 open"


def test_the_outcome_table_marks_a_tpot_beside_steps() -> None:
    mixed = of(ONLY_TPOT, ONLY_STEPS, total=ONLY_STEPS)
    columns = tables.present(tables.NARROW[0], tables.rows_of(mixed))
    cells = [next(c for c in columns if c.names == ("speedup_observed",)).cell(s.figures)[0] for s in mixed.strata]
    assert cells == ["t 0.91x", "0.95x"]
    assert any("t: speedup_tpot" in note for note in tables.notes(columns, tables.rows_of(mixed)))
    alike = of(ONLY_TPOT, total=ONLY_TPOT)
    columns = tables.present(tables.NARROW[0], tables.rows_of(alike))
    assert next(c for c in columns if c.names == ("speedup_observed",)).cell(alike.total.figures)[0] == "0.91x"


def test_the_worst_class_is_first() -> None:
    fast, slow = figures(relative_token_time=0.5), figures(relative_token_time=1.4)
    found = strata.classes(of(fast, slow, {**fast, "relative_token_time": None, "speedup_tpot": None}, total={}), None)
    assert [c.label for c in found] == ["all traffic", "c1", "c0", "c2"]


@pytest.mark.parametrize(
    ("verdict", "changed", "decision", "why"),
    [
        ("pays", {"decision": "INCONCLUSIVE", "relative_token_time_high": 0.99, "reasons": ("relative token time …",)},
         "INCONCLUSIVE", "within the 2 % margin"),
        ("loses", {"decision": "INCONCLUSIVE", "relative_token_time_low": 1.01, "reasons": ("relative token time …",)},
         "INCONCLUSIVE", "within the 2 % margin"),
        ("pays", {"decision": "INCONCLUSIVE", "reasons": ("18 requests, fewer than 30", "relative token time …")},
         "INCONCLUSIVE", "18 requests, fewer than 30"),
        ("pays", {}, "", ""),
        ("open", {"decision": "INCONCLUSIVE"}, "", ""),
        ("pays", {"relative_token_time": None}, "", ""),
    ],
)  # fmt: skip
def test_the_gate_beside_a_verdict(verdict: str, changed: dict[str, Any], decision: str, why: str) -> None:
    stratum = dataclasses.replace(gate().strata[0], **changed)
    assert gate_apart(verdict, stratum, 0.02) == (decision, why)


def test_a_single_smaller_cause_is_named() -> None:
    took = {"verify_inflation": -0.5, "rho_drift": -0.4, "terminal_cuts": -0.3, "sampling": -0.03}
    base = gap().strata[0].terms[0]
    terms = tuple(dataclasses.replace(base, name=name, points=points) for name, points in took.items())
    told = sentence(
        dataclasses.replace(gap().strata[0], terms=terms), parse_claim("alpha=.72,rho=.1,k=5,baseline_ms=20")
    )
    assert "rejection sampling takes 0.03" in told
    assert "another one" not in told


@given(st.floats(0.0001, 5), st.floats(0.0001, 5))
def test_two_numbers_that_differ_are_shown_apart(planned: float, observed: float) -> None:
    one, other = apart(planned, observed).split(" → ")
    assert one != other or abs(planned - observed) < 1.0001e-4
    assert apart(0.0801, 0.0849) == "0.080 → 0.085"
    assert apart(0.08, 0.08) == "0.08 → 0.08"
