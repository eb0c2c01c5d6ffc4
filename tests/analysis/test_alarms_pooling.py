"""Runs of several settings under one verdict are told; restarts, replicas and one run that varies its K are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lakes import Row, write_lake

from tracelens.analysis.report import ReportOptions, report
from tracelens.analysis.results import Warning
from tracelens.analysis.sweep import sweep


def rounds(run: str, ks: tuple[int, ...], **more: Any) -> list[Row]:
    """Four requests that take the lengths in turn."""
    return [
        {"run_id": run, "request_id": f"{run}-{i % 4}", "task_type": "ab"[i % 2], "drafted": ks[i % len(ks)],
         "num_speculative_tokens": ks[i % len(ks)], "accepted": 1, "emitted": 2, **more}
        for i in range(12)
    ]  # fmt: skip


def told(lake: Path, **options: Any) -> list[Warning]:
    found = report(lake, ReportOptions(**options)).warnings
    assert "pooled" not in [w.code for w in found[1:]], "it touches every figure, so it comes first"
    return [w for w in found if w.code == "pooled"]


A, B = {"engine": "vllm", "model": "m"}, {"engine": "rtp-llm", "model": "x"}
SEVERAL = {
    "K": (
        rounds("a", (3,), **A) + rounds("b", (5,), **A),
        "2 runs, K 3-5, are pooled: choose with --run, or --by run_id",
    ),
    "engines": (
        rounds("a", (3,), **A) + rounds("b", (3,), **{**A, "engine": "rtp-llm"}),
        "2 runs of 2 engines, K 3, are pooled: choose with --run, or --by run_id",
    ),
    "models": (
        rounds("a", (3,), **A) + rounds("b", (3,), **{**A, "model": "x"}),
        "2 runs of 2 models, K 3, are pooled: choose with --run, or --by run_id",
    ),
    "all": (
        rounds("a", (1,), **A) + rounds("b", (7,), **B) + rounds("c", (3,), **A),
        "3 runs of 2 engines and 2 models, K 1-7, are pooled: choose with --run, or --by run_id",
    ),
    "models of one run": (
        rounds("a", (3,), **A) + rounds("a", (3,), **{**A, "model": "x"}),
        "2 models, K 3, are pooled: group --by model",
    ),
}


@pytest.mark.parametrize("case", SEVERAL)
@pytest.mark.long
def test_several_settings_are_told_first(tmp_path: Path, case: str) -> None:
    rows, text = SEVERAL[case]
    lake = write_lake(tmp_path, rounds=rows)
    (warning,) = told(lake)
    assert warning.text == text
    by = text.rpartition("--by ")[2].split(",")
    assert told(lake, by=tuple(by)) == [], "its own way out"
    assert told(lake, by=("task_type",), where="model = 'm' and engine = 'vllm' and run_id = 'a'") == []


@pytest.mark.long
def test_a_choice_or_a_grouping_takes_them_apart(tmp_path: Path) -> None:
    lake = write_lake(tmp_path, rounds=[*rounds("a", (3,), **A), *rounds("b", (5,), **A), *rounds("c", (5,), **B)])
    assert told(lake)
    assert told(lake, by=())
    assert told(lake, by=("engine",)), "vllm still holds K 3 and K 5"
    assert told(lake, by=("num_speculative_tokens",)), "K 5 still holds two engines"
    assert told(lake, runs=("a", "b")), "both were chosen, and are pooled all the same"
    for options in (
        {"by": ("run_id",)}, {"by": ("engine", "num_speculative_tokens")}, {"runs": ("b",)}, {"where": "run_id = 'c'"},
    ):  # fmt: skip
        assert told(lake, **options) == [], options


@pytest.mark.parametrize(
    "rows",
    [
        rounds("a", (3,), **A) + rounds("b", (3,), **A),
        rounds("a", (3,), **A, replica="0") + rounds("a", (3,), **A, replica="1"),
        rounds("a", (1, 3, 5), **A),
        # Two runs that adapt K to the load, not to the same lengths.
        rounds("a", (1, 3, 5), **A) + rounds("b", (2, 3), **A),
        # A run that does not name its model may be of the same.
        rounds("a", (3,), **A) + rounds("b", (3,), engine="vllm"),
        # What ran without speculation is no part of the selection.
        [*rounds("a", (3,), **A), {"run_id": "off", "engine": "vllm", "drafted": 0, "emitted": 1, "model": "y"}],
    ],
    ids=["restarts", "replicas", "one run", "adaptive", "no model", "baseline"],
)
@pytest.mark.long
def test_one_setting_is_no_pool(tmp_path: Path, rows: list[Row]) -> None:
    lake = write_lake(tmp_path, rounds=rows, runs=[{"run_id": "off", "role": "baseline"}])
    assert told(lake) == []


@pytest.mark.long
def test_a_sweep_asks_for_several_lengths_and_not_for_several_engines(tmp_path: Path) -> None:
    ks = write_lake(tmp_path / "ks", rounds=[*rounds("a", (3,), **A), *rounds("b", (5,), **A)])
    assert "pooled" not in [w.code for w in sweep(ks).warnings]
    engines = write_lake(tmp_path / "engines", rounds=[*rounds("a", (3,), **A), *rounds("b", (5,), **B)])
    assert sweep(engines).warnings[0].code == "pooled"
