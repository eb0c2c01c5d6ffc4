"""Records of requests of which some only list their rounds: a log level that was changed, a client that lists a few."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from lakes import write_lake

from tracelens.analysis.report import Report, ReportOptions, report

DAY = dt.datetime(2026, 11, 1, 10)
#: Of the last request only the rounds are told, and it is not like the others.
REQUESTS = [
    {"request_id": f"req-{i:04d}", "ts_end": DAY, "surface": "vllm.response", "output_tokens": 13, "rounds": 10,
     "drafted": 30, "accepted": 30 if i == 9 else 0, "emitted": 40 if i == 9 else 10, "num_speculative_tokens": 3,
     "accepted_hist": [0, 0, 0, 10] if i == 9 else [10, 0, 0, 0], "decode_us": 120_000}
    for i in range(10)
]  # fmt: skip


def rounds(of: range) -> list[dict[str, Any]]:
    return [
        {"request_id": f"req-{i:04d}", "ts": DAY, "surface": "vllm.response", "round_index": j, "drafted": 3,
         "accepted": 3 if i == 9 else 0, "emitted": 4 if i == 9 else 1, "num_speculative_tokens": 3}
        for i in of for j in range(10)
    ]  # fmt: skip


def asked(folder: Path, of: range) -> tuple[Report, str]:
    found = report(write_lake(folder, requests=REQUESTS, rounds=rounds(of)), ReportOptions(by=()))
    return found, next((w.text for w in found.warnings if w.code == "some_rounds"), "")


@pytest.mark.parametrize("of", [range(9, 10), range(5, 10)])
def test_the_requests_own_counts_go_first(tmp_path: Path, of: range) -> None:
    found, text = asked(tmp_path, of)
    figures = found.total.figures
    assert (figures["requests"], figures["drafted"], figures["accepted"]) == (10, 300, 30)
    assert (figures["draft_accept_ratio"], figures["tau_committed"]) == (pytest.approx(0.1), pytest.approx(1.3))
    assert figures["tpot_requests"] == figures["requests"]
    assert figures["grain"] == "request"
    assert f"({10 * len(of)}% of the drafted tokens" in text
    assert "the requests' own counts are used" in text


def test_nearly_all_rounds_are_better_than_none(tmp_path: Path) -> None:
    found, text = asked(tmp_path, range(1, 10))
    assert (found.total.figures["drafted"], found.total.figures["grain"]) == (270, "round")
    assert "(90% of the drafted tokens" in text
    assert "left out" in text


def test_all_rounds_are_all(tmp_path: Path) -> None:
    found, text = asked(tmp_path, range(10))
    assert (found.total.figures["drafted"], found.total.figures["grain"], text) == (300, "round", "")


def test_rounds_of_another_record_are_no_part_of_these(tmp_path: Path) -> None:
    """A sample of rounds that the recorder wrote beside all requests: `several_grains` tells of it."""
    some = [{**row, "surface": "generic.round"} for row in rounds(range(9, 10))]
    found = report(write_lake(tmp_path, requests=REQUESTS, rounds=some), ReportOptions(by=()))
    assert {"several_grains"} <= {w.code for w in found.warnings}
    assert "some_rounds" not in {w.code for w in found.warnings}
