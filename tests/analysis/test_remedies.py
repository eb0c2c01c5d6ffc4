"""What would give a figure: for logs that are canonical JSON already, the fields to print; each reason by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from lakes import Row, write_lake

from tracelens.analysis.coverage import _BECAUSE, _TIMES, GROUPS, NEEDS
from tracelens.analysis.report import ReportOptions, report
from tracelens.analysis.results import Missing, Report
from tracelens.analysis.switches import switch_on
from tracelens.lake.schema import table
from tracelens.reporters.answer import remedies

CANONICAL = {"surface": "generic.round", "engine": "acme"}
BARE: dict[str, Any] = {"drafted": 4, "accepted": 2, "emitted": 3, **CANONICAL}
#: A value of every field that a remedy may ask for.
VALUES: dict[str, Any] = {
    "request_id": "r", "output_tokens": 101, "decode_us": 2_000_000, "temperature": 0.5, "step_id": "s", "drafted": 4,
    "accepted": 2, "emitted": 3, "num_speculative_tokens": 4, "round_index": 0, "task_type": "chat",
}  # fmt: skip
RECORD = re.compile(r'print (\{"record":"(\w+)",…,(.*?)\}) a ')


def gaps(found: Report) -> dict[str, Missing]:
    return {name: item for item in found.coverage for name in item.figure.split(", ")}


def asked_for(remedy: str) -> tuple[str, list[str]]:
    """The kind of record and the columns that a remedy asks for."""
    match = RECORD.search(remedy)
    assert match is not None, remedy
    names = re.findall(r'"(\w+)":', match[3])
    return match[2], [re.sub("_ms$", "_us", name) for name in names]


@pytest.mark.parametrize("need", sorted({need for needs in NEEDS.values() for need in needs} | set(GROUPS.values())))
def test_every_need_of_a_canonical_log_has_fields_of_the_schema(need: str) -> None:
    text = switch_on(need, ["acme"], {"acme"})
    if need in (
        "single_requests",
        "some_accepted",
        "baseline",
        "baseline_tpot",
        "matched",
        "matched_tpot",
        "task_type",
        "phases_alike",
        "steps_alike",
    ):
        assert text == switch_on(need, ["acme"])
        return
    assert "canonical JSON" not in text, "that is what the log is already"
    kind, names = asked_for(text)
    assert set(names) <= {column.name for column in table(f"{kind}s").columns}


@pytest.mark.parametrize(
    "figure", ["draft_ms", "target_ms", "step_ms", "sample_ms", "rollback_ms", "repack_ms", "emit_lag_ms", "tpot_ms"]
)
@pytest.mark.long
def test_what_the_remedy_asks_for_gives_the_figure(tmp_path: Path, figure: str) -> None:
    rows: list[Row] = [{**BARE, "request_id": "r"} for _ in range(3)]
    item = gaps(report(write_lake(tmp_path / "before", rounds=rows)))[figure]
    kind, names = asked_for(item.switch_on)
    given = {name: VALUES.get(name, 5000) for name in names}
    tables: dict[str, list[Row]] = {"rounds": rows}
    if kind == "round":
        tables["rounds"] = [{**row, **given} for row in rows]
    else:
        tables["requests"] = [{"engine": "acme", "surface": "generic.request", **given}]
    after = report(write_lake(tmp_path / "after", **tables))
    assert figure not in gaps(after)
    assert after.total.figures[figure] is not None


def test_reasons_stand_apart_and_times_of_one_record_together(tmp_path: Path) -> None:
    found = report(write_lake(tmp_path, rounds=[{**BARE, "step_us": 9000, "draft_us": 2000, "target_us": 5000}]))
    told = gaps(found)
    assert told["rollback_ms"] == told["repack_ms"]
    assert (
        told["rollback_ms"].switch_on
        == 'print {"record":"round",…,"sample_ms":…,"rollback_ms":…,"repack_ms":…} a round'
    )
    assert told["tpot_ms"].because == "no record holds the decode time of a request"
    assert "emit_lag" not in told["tpot_ms"].switch_on
    for item in found.coverage:
        reasons = {text for text in _BECAUSE.values() if text in item.because}
        times = any(text in item.because for text in _TIMES.values())
        assert len(reasons) + times == 1, item
    lines = remedies(found.coverage)
    assert next(line for line in lines if "tpot_p95_ms" in line).startswith(
        "speedup_tpot, tpot_ms, tpot_p50_ms, tpot_p9"
    )


def test_each_reason_stays_with_its_figures_under_one_remedy() -> None:
    items = [
        Missing("rollback_ms, repack_ms", "no record holds the time of KV repair", "a hook"),
        Missing("emit_lag_ms", "no record says when tokens were sent", "a hook"),
        Missing("rho", "no record holds the time of drafting in 1 of 2 strata: task_type=a", "a hook"),
        Missing("tpot_ms", "no record holds the decode time of a request", "keep access logs"),
    ]
    assert remedies(items) == [
        "rollback_ms, repack_ms: no record holds the time of KV repair; emit_lag_ms: no record says when tokens were "
        "sent; rho: no record holds the time of drafting in 1 of 2 strata: task_type=a → a hook",
        "tpot_ms: no record holds the decode time of a request → keep access logs",
    ]


def test_an_engine_with_logs_of_its_own_keeps_its_switch(tmp_path: Path) -> None:
    """One engine by its own log, one by canonical lines: each has its own way."""
    rows = [
        {**BARE, "run_id": "a"},
        {"drafted": 4, "accepted": 2, "surface": "rtp.stream", "engine": "rtp-llm", "run_id": "b"},
    ]
    told = gaps(report(write_lake(tmp_path, rounds=rows), ReportOptions(by=())))
    assert told["tpot_ms"].switch_on == (
        'acme: print {"record":"request",…,"request_id":…,"output_tokens":…,"decode_ms":…} a finished request; '
        "rtp-llm: keep access logs with aux_info (cost_time, first_token_cost_time)"
    )
