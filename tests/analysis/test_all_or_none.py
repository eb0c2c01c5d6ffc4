"""Where all drafts were accepted, or none: no variance is seen, and no figure may take that for certainty."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from lakes import write_lake

from tracelens.analysis.gate import gate
from tracelens.analysis.report import Question, Report, report

DAY = dt.datetime(2026, 11, 1, 10)
K = 4


def rounds(accepted: int, requests: int = 40, *, step_ms: float = 24.0, plain: int = 0) -> list[dict[str, Any]]:
    """Ten rounds a request, `plain` of them without a draft, each in a step of its own."""
    return [
        {"request_id": f"r{i}", "ts": DAY, "round_index": j, "step_id": f"{i}/{j}", "step_share": 1.0, "batch_size": 1,
         "num_speculative_tokens": K, "drafted": 0 if j < plain else K, "accepted": 0 if j < plain else accepted,
         "emitted": 1 if j < plain else accepted + 1, "draft_us": 4000, "target_us": 18_000,
         "step_us": int(1000 * step_ms)}
        for i in range(requests) for j in range(10)
    ]  # fmt: skip


def found(folder: Path, accepted: int, **more: Any) -> Report:
    return report(write_lake(folder, rounds=rounds(accepted, **more)), Question(by=(), baseline=20.0))


@pytest.mark.long
@pytest.mark.parametrize("plain", [3, 0])
@pytest.mark.parametrize("accepted", [K, 0])
def test_what_stands_on_acceptance_has_its_interval(tmp_path: Path, accepted: int, plain: int) -> None:
    figures = found(tmp_path, accepted, plain=plain).total.figures
    low, high = (figures[f"draft_accept_ratio_{end}"] for end in ("low", "high"))
    assert high - low > 0.05
    # tau = 1 + alpha d, and C = R / tau, at either end of the interval of alpha.
    assert figures["tau_verified_low"] == pytest.approx(1 + K * low)
    assert figures["tau_verified_high"] == pytest.approx(1 + K * high)
    share = 1 - plain / 10
    taus = [1 + share * K * end for end in (low, high)]
    assert [figures[f"tau_committed_{end}"] for end in ("low", "high")] == pytest.approx(taus)
    costs = [figures["round_cost"] / tau for tau in taus]
    assert [figures[f"relative_token_time_{end}"] for end in ("high", "low")] == pytest.approx(costs)
    assert [figures[f"speedup_step_{end}"] for end in ("low", "high")] == pytest.approx([1 / c for c in costs])


def test_the_gate_is_not_certain_either(tmp_path: Path) -> None:
    """All drafts were accepted, and a token took 0.97 of a plain step: of 40 requests that is not sure."""
    lake = write_lake(tmp_path, rounds=rounds(K, step_ms=97.0))
    told = gate(lake, Question(by=(), baseline=20.0)).total
    assert told.relative_token_time == pytest.approx(0.97)
    assert told.decision == "INCONCLUSIVE"


def test_reasons_and_zeros(tmp_path: Path) -> None:
    none = found(tmp_path / "none", 0)
    assert none.total.figures["relative_token_time_article"] is None
    because = {name: m.because for m in none.coverage for name in m.figure.split(", ")}
    assert "no draft token was accepted" in because["relative_token_time_article"]
    every = found(tmp_path / "all", K).total.figures
    # No near-K round: its share of what was saved is 0, and not unknown.
    assert (every["near_k_step_ms"], every["near_k_saved_share"]) == (0.0, 0.0)
    unknown = [{**row, "drafted": None} for row in rounds(2)]
    without = report(write_lake(tmp_path / "unknown", rounds=unknown), Question(by=(), baseline=20.0))
    because = {name: m.because for m in without.coverage for name in m.figure.split(", ")}
    assert "how many requests shared" not in because["near_k_step_ms"]


@pytest.mark.long
@pytest.mark.parametrize("accepted", [K, 0])
@pytest.mark.parametrize("requests", [6, 2])
def test_where_stops_cut_nearly_all_ends_stay_possible(tmp_path: Path, accepted: int, requests: int) -> None:
    """One round a request, and one token of it committed: what stops cut stays in proportion."""
    rows = [{**row, "emitted": 1, "step_us": 24_000 + 100 * i, "round_index": 0}
            for i, row in enumerate(rounds(accepted, requests)[::10])]  # fmt: skip
    found = report(write_lake(tmp_path, rounds=rows), Question(by=(), baseline=20.0)).total.figures
    for name in ("tau_committed", "tau_drafted", "relative_token_time", "speedup_step"):
        low, value, high = (found[f"{name}{end}"] for end in ("_low", "", "_high"))
        assert 0 < low <= value <= high, (name, low, value, high)
