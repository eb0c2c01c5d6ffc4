"""Alarms about counts fire on what they are for, and on nothing else: each has a lake just beside it that is silent."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alarm_lakes import DAY, Rows, drawn, reported, rounds, said
from lakes import write_lake

from tracelens.analysis.report import ReportOptions

# ---------------------------------------------------------------- acceptance


def test_every_draft_accepted(tmp_path: Path) -> None:
    found = said(write_lake(tmp_path, rounds=rounds(np.full(50, 4))))["acceptance_too_good"]
    assert found.evidence["draft_accept_ratio"] == 1.0
    assert found.evidence["drafted"] == 200
    assert "every drafted token" in found.text
    assert "--where" in found.text


def test_too_good_needs_evidence(tmp_path: Path) -> None:
    lost_one_in_20 = np.where(np.arange(1000) % 20 == 0, 3, 4)
    runs = {
        "a few": np.full(19, 4),  # 76 tokens: a drafter of 0.95 does so often enough
        "0.9875 of 800": lost_one_in_20[:200],
        "very good": drawn(0.97, 1000),
    }
    rows = [row for name, accepted in runs.items() for row in rounds(accepted, run_id=name)]
    assert "acceptance_too_good" not in said(write_lake(tmp_path / "silent", rounds=rows))
    found = said(write_lake(tmp_path / "many", rounds=[*rows, *rounds(lost_one_in_20, run_id="0.9875 of 4,000")]))
    assert found["acceptance_too_good"].evidence["run"] == "0.9875 of 4,000"


def test_too_good_in_one_class_alone(tmp_path: Path) -> None:
    rows = rounds(np.full(60, 4), task_type="repeated") + [
        {**row, "request_id": f"chat-{row['request_id']}"} for row in rounds(drawn(0.6, 2000), task_type="chat")
    ]
    lake = write_lake(tmp_path, rounds=rows)
    assert "acceptance_too_good" not in said(lake)
    found = reported(lake, ReportOptions())["acceptance_too_good"]
    assert "task_type=repeated" in found.text


def test_forced_acceptance_is_told_once(tmp_path: Path) -> None:
    codes = reported(write_lake(tmp_path, rounds=rounds(np.full(500, 4), forced_acceptance=True)))
    assert "forced_acceptance" in codes
    assert "acceptance_too_good" not in codes


@pytest.mark.parametrize("where", ["runs", "rounds", "windows", "requests"])
def test_forced_acceptance_is_told_wherever_it_stands(tmp_path: Path, where: str) -> None:
    forced: dict[str, list[dict[str, Any]]] = {
        "runs": [{"run_id": "f", "forced_acceptance": True}],
        "rounds": [{"run_id": "f", "drafted": 4, "accepted": 4, "forced_acceptance": True}],
        "windows": [{"run_id": "f", "rounds": 9, "drafted": 36, "accepted": 36, "forced_acceptance": True}],
        "requests": [{"run_id": "f", "rounds": 9, "drafted": 36, "accepted": 36, "forced_acceptance": True}],
    }
    logged = [*rounds(drawn(0.6, 200)), *([{"run_id": "f", "drafted": 4, "accepted": 4}] if where == "runs" else [])]
    tables = {where: forced[where], "rounds": logged + (forced["rounds"] if where == "rounds" else [])}
    found = reported(write_lake(tmp_path, **tables))
    assert found["forced_acceptance"].evidence == {"rows": 1}


def test_nothing_accepted(tmp_path: Path) -> None:
    found = said(write_lake(tmp_path / "none", rounds=rounds(np.zeros(100))))["acceptance_near_zero"]
    assert "draft head" in found.text
    assert "#17082" not in found.text
    zeros = write_lake(tmp_path / "trt", rounds=rounds(np.zeros(100), engine="tensorrt-llm"))
    assert "#17082" in said(zeros)["acceptance_near_zero"].text
    poor = write_lake(tmp_path / "poor", rounds=rounds(drawn(0.15, 500)))
    few = write_lake(tmp_path / "few", rounds=rounds(np.zeros(90)))
    assert not {"acceptance_near_zero"} & {*said(poor), *said(few)}


def test_the_bonus_token_counted_as_accepted(tmp_path: Path) -> None:
    """Each round has one accepted more, the target's own, and K is one more too: alpha alone looks sound."""
    more = drawn(0.6, 800) + 1
    rows = [{**row, "emitted": row["accepted"]} for row in rounds(more, k=5)]
    codes = reported(write_lake(tmp_path / "bad", rounds=rows))
    assert codes["bonus_counted"].evidence["hazard_1"] == 1.0
    assert "emitted equals accepted" in codes["accepted_beyond_emitted"].text
    good = reported(write_lake(tmp_path / "good", rounds=rounds(drawn(0.6, 800))))
    assert not {"bonus_counted", "accepted_beyond_emitted"} & set(good)


# ---------------------------------------------------------------- identities


def requests(excess: int, n: int = 40, **columns: Any) -> Rows:
    return [
        {"request_id": f"req-{i:04}", "surface": "vllm.response", "rounds": 20, "drafted": 80, "accepted": 50,
         "num_speculative_tokens": 4, "emitted": 70 - excess, "output_tokens": 71 - excess, "ts_end": DAY, **columns}
        for i in range(n)
    ]  # fmt: skip


@pytest.mark.parametrize(("excess", "fires"), [(0, False), (4, False), (9, False), (10, True), (30, True)])
@pytest.mark.long
def test_accepted_beyond_emitted(tmp_path: Path, excess: int, fires: bool) -> None:
    """A stop cuts a round (4 tokens), and one more that ran ahead (5); nothing cuts ten."""
    codes = said(write_lake(tmp_path, requests=requests(excess)))
    assert ("accepted_beyond_emitted" in codes) == fires
    if fires:
        assert codes["accepted_beyond_emitted"].evidence["tokens_too_many"] == 40 * excess
        assert codes["accepted_beyond_emitted"].evidence["records"] == 40


def test_a_few_broken_records_are_no_broken_count(tmp_path: Path) -> None:
    rows = requests(0, 36) + [{**row, "request_id": f"odd-{i}"} for i, row in enumerate(requests(30, 4))]
    assert "accepted_beyond_emitted" not in said(write_lake(tmp_path, requests=rows))


def test_rolled_up_rows_may_hold_many_cuts(tmp_path: Path) -> None:
    assert "accepted_beyond_emitted" not in said(write_lake(tmp_path, requests=requests(30, weight=10.0)))


def test_windows_pool_many_cuts(tmp_path: Path) -> None:
    row = {"rounds": 100, "drafted": 400, "accepted": 250, "num_speculative_tokens": 4}
    lines = [{**row, "source_line": i, "ts_end": DAY + dt.timedelta(seconds=10 * i)} for i in range(8)]
    cut = write_lake(tmp_path / "cut", windows=[{**line, "emitted": 300} for line in lines])
    assert "accepted_beyond_emitted" not in said(cut)
    broken = write_lake(tmp_path / "broken", windows=[{**line, "emitted": 240} for line in lines])
    assert said(broken)["accepted_beyond_emitted"].evidence["records"] == 8


def test_rounds_that_do_not_add_up_to_their_request(tmp_path: Path) -> None:
    logged = rounds(drawn(0.6, 1000))
    sums: Rows = []
    for i in range(40):
        mine = logged[25 * i : 25 * i + 25]
        sums.append({"request_id": f"req-{i:04}", "surface": "vllm.response", "rounds": 25, "drafted": 100,
                     "accepted": sum(row["accepted"] for row in mine), "ts_end": DAY})  # fmt: skip
    whole = write_lake(tmp_path / "whole", rounds=logged, requests=sums)
    assert "rounds_differ_from_requests" not in said(whole)
    lossy = [row for i, row in enumerate(logged) if i % 7]
    found = said(write_lake(tmp_path / "lossy", rounds=lossy, requests=sums))["rounds_differ_from_requests"]
    assert found.evidence["requests"] == 40
    assert found.evidence["accepted_of_rounds"] < found.evidence["accepted_of_requests"]
    edge = write_lake(tmp_path / "edge", rounds=logged[10:], requests=sums)
    assert "rounds_differ_from_requests" not in said(edge), "one request is cut where the log begins"
