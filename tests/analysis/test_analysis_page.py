"""What a page is made of agrees with the report, and does not grow with the rounds."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from lakes import write_lake

from tracelens.analysis.claim import parse_claim
from tracelens.analysis.page import Page, page
from tracelens.analysis.session import Question

DAY = dt.datetime(2026, 5, 1, 10)


def _rounds(run: str, start: dt.datetime, k: int) -> list[dict[str, Any]]:
    return [
        {"run_id": run, "ts": start + dt.timedelta(seconds=10 * i), "request_id": f"{run}-{i % 7}", "round_index": i,
         "drafted": k, "accepted": (i * 7) % (k + 1), "emitted": (i * 7) % (k + 1) + 1, "num_speculative_tokens": k,
         "step_id": f"{run}-{i}", "step_share": 1.0, "batch_size": 1 + i % 5, "task_type": ("a", "b")[i % 2],
         "context_len": 100 * i, "draft_us": 3000 * k, "target_us": 20_000, "step_us": 30_000}
        for i in range(60)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    later = DAY + dt.timedelta(days=3)
    rounds = [*_rounds("one", DAY, 3), *_rounds("two", later, 5)]
    return write_lake(tmp_path_factory.mktemp("page"), rounds=rounds)


@pytest.fixture(scope="module")
def found(lake: Path) -> Page:
    return page(lake, Question(baseline=20.0))


def test_parts_add_up_to_the_report(found: Page) -> None:
    rounds = found.report.total.figures["rounds"]
    assert sum(m.rounds or 0 for m in found.times) == rounds == 120
    assert sum(c.rounds for c in found.heat) == rounds
    assert sum(r.rounds or 0 for r in found.top) == rounds  # fewer requests than are listed
    assert (found.covered.runs, found.covered.run_names) == (2, ("one", "two"))
    assert (found.covered.first, found.covered.last) == (DAY, DAY + dt.timedelta(days=3, seconds=590))


def test_costs_over_time_are_those_of_the_rounds(found: Page) -> None:
    for moment in found.times:
        k = moment.num_speculative_tokens
        assert k in (3, 5)
        assert moment.rho == pytest.approx(0.15)
        assert moment.rho_verify == pytest.approx(0.15)
        assert moment.verify_inflation == pytest.approx(1.0)
        assert moment.overhead == pytest.approx((10 - 3 * k) / 20)
    assert [m.run_id for m in found.times if m.is_first] == ["one", "two"]


def test_the_heat_map_weighs_to_the_total(found: Page) -> None:
    tau = sum(c.rounds * (c.tau_committed or 0) for c in found.heat) / 120
    assert tau == pytest.approx(found.report.total.figures["tau_committed"])
    assert all(c.relative_token_time == pytest.approx(30 / 20 / c.tau_committed) for c in found.heat if c.tau_committed)


def test_the_worst_requests_come_first(found: Page) -> None:
    wasted = [r.wasted_draft_ms for r in found.top]
    assert None not in wasted
    assert wasted == sorted(wasted, reverse=True, key=lambda ms: ms or 0.0)


def test_without_a_claim_there_is_no_gap(found: Page) -> None:
    assert found.gap is None
    assert found.sweep is not None


def test_strata_by_k_have_no_sweep(lake: Path) -> None:
    told = page(lake, Question(by=("num_speculative_tokens",)))
    assert told.sweep is None
    assert "leave it out of --by" in (told.no_sweep or "")


def test_nothing_selected_is_an_empty_page(lake: Path) -> None:
    told = page(lake, Question(where="task_type = 'none'"))
    assert (told.times, told.heat, told.top, told.covered.runs) == ((), (), (), 0)
    assert told.report.warnings[0].code == "nothing_selected"


def _requests(run: str) -> list[dict[str, Any]]:
    return [
        {"run_id": run, "request_id": f"{run}-{i}", "ts_start": DAY, "task_type": ("a", "b")[i % 2],
         "output_tokens": 60, "decode_us": 900_000 + 1000 * i}
        for i in range(7)
    ]  # fmt: skip


@pytest.mark.long
def test_a_tpot_of_whole_requests_is_no_class_by_batch(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, rounds=_rounds("one", DAY, 3), requests=_requests("one"))
    told = page(lake, Question(by=("task_type", "batch_bucket"), baseline=20.0))
    keys = [tuple(s.key.values()) for s in told.report.strata]
    assert keys
    assert all(bucket is not None for _, bucket in keys)
    assert [tuple(s.key.values()) for s in told.gate.strata] == keys
    (warning,) = [w for w in told.report.warnings if w.code == "times_without_class"]
    assert "TPOT is of a whole request and carries no batch_bucket" in warning.text
    assert told.report.total.figures["tpot_ms"] is not None
    # By class alone it is the class's own.
    assert all(s.figures["tpot_ms"] for s in page(lake, Question(baseline=20.0)).report.strata)


def test_requests_of_another_class_stay(tmp_path: Path) -> None:
    other = [{**row, "task_type": "c", "request_id": f"c-{i}"} for i, row in enumerate(_requests("one"))]
    lake = write_lake(tmp_path, rounds=_rounds("one", DAY, 3), requests=other)
    told = page(lake, Question(by=("task_type", "batch_bucket"), baseline=20.0))
    assert ("c", None) in [tuple(s.key.values()) for s in told.report.strata]


def test_every_answer_holds_what_was_asked(lake: Path) -> None:
    told = page(lake, Question(runs=("one",), baseline=20.0, claim=parse_claim("alpha=.7,rho=.1,k=3")))
    assert told.gap is not None
    assert told.sweep is not None
    for answer in (told.report, told.gap, told.gate, told.sweep):
        assert answer.selection == {
            "run": ["one"], "where": None, "since": None, "until": None, "baseline": 20.0, "near_k": 1
        }  # fmt: skip
