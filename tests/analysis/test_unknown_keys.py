"""What neither side of a baseline comparison logs is equal on both; what one side alone logs is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from lakes import Row, write_lake

from tracelens.analysis.report import ReportOptions, report
from tracelens.analysis.results import Report

RUNS = [{"run_id": "off", "role": "baseline"}, {"run_id": "on"}]
KNOWN: dict[str, Any] = {"model": "m", "batch_size": 1, "context_len": 900, "task_type": "chat"}
SUBSETS = [*((name,) for name in KNOWN), tuple(KNOWN)]
#: By batch, context and class: a plain step, and a round; the mix differs between the two runs.
CELLS = [(batch, context, task) for batch in (1, 16) for context in (900, 9000) for task in ("chat", "code")]


def cells(run: str, fixed: Mapping[str, Any]) -> Iterator[tuple[int, int, Row]]:
    """Number, cost (us) and columns of every cell; `fixed` sets columns of all to one value, None where not logged."""
    for place, (batch, context, task) in enumerate(CELLS):
        cost = batch * 700 + context + (3000 if task == "code" else 0)
        own = {"batch_size": batch, "context_len": context, "task_type": task, "model": "m"} | dict(fixed)
        yield place, cost, {"run_id": run, **own}


def rounds(run: str, fixed: Mapping[str, Any]) -> Iterator[Row]:
    for place, cost, own in cells(run, fixed):
        for i in range(2 if run == "off" else 2 + place):
            request = {"request_id": f"{run}-{place}-{i % 3}", **own}
            if run == "off":
                yield {**request, "drafted": 0, "accepted": 0, "emitted": 1, "step_us": 10_000 + cost + 50 * i}
            else:
                yield {**request, "drafted": 4, "accepted": i % 5, "emitted": i % 5 + 1, "draft_us": 3000,
                       "target_us": 10_500 + cost, "step_us": 14_000 + cost + 70 * i}  # fmt: skip


def requests(run: str, fixed: Mapping[str, Any]) -> Iterator[Row]:
    for place, cost, own in cells(run, fixed):
        known = {name: own[name] for name in ("run_id", "task_type", "model")}
        decode = (900_000 if run == "off" else 700_000) + 100 * cost
        yield {**known, "request_id": f"{run}-{place}-0", "output_tokens": 101, "decode_us": decode}


def asked(folder: Path, off: Mapping[str, Any], on: Mapping[str, Any], **options: Any) -> Report:
    tables = {name: [*make("off", off), *make("on", on)] for name, make in (("rounds", rounds), ("requests", requests))}
    return report(write_lake(folder, runs=RUNS, **tables), ReportOptions(**options))


def numbers(found: Report) -> list[dict[str, Any]]:
    """Figures of all and of every stratum that are one number; the batch alone tells whether a step was shared."""
    return [
        {n: value for n, value in row.figures.items() if isinstance(value, int | float) and not n.startswith("near_k")}
        for row in (found.total, *found.strata)
    ]


@pytest.mark.parametrize("names", SUBSETS, ids="+".join)
@pytest.mark.long
def test_a_column_that_nobody_logs_is_one_value_that_all_have(tmp_path: Path, names: tuple[str, ...]) -> None:
    unknown, known = dict.fromkeys(names), {name: KNOWN[name] for name in names}
    without, told = (asked(tmp_path / way, side, side) for way, side in (("a", unknown), ("b", known)))
    assert without.total.figures["baseline_bucket_share"] == 1.0
    assert without.total.figures["baseline_matched_share"] == 1.0
    for one, other in zip(numbers(without), numbers(told), strict=True):
        assert one == pytest.approx(other, rel=1e-9), names
    codes = {w.code for w in without.warnings}
    assert not codes & {"baseline_unmatched", "baseline_key_unknown", "baseline_other_class", "baseline_class_unknown"}


def test_every_bucket_meets_its_own_without_a_model(tmp_path: Path) -> None:
    found = asked(tmp_path, {"model": None}, {"model": None}, by=("batch_bucket", "context_bucket", "task_type"))
    steps = [s.figures["baseline_ms"] for s in found.strata if s.figures["rounds"]]
    # In the order of the cells: 10.025 ms, 0.7 a request of the batch, 1 a thousand tokens of context, 3 for code.
    expected = [10.025 + 0.7 * b + c / 1000 + 3 * (task == "code") for b, c, task in CELLS]
    assert steps == pytest.approx(expected)


@pytest.mark.parametrize("name", ["model", "batch_size", "context_len"])
@pytest.mark.parametrize(("off", "who"), [(True, "what ran without speculation"), (False, "what speculates")])
@pytest.mark.long
def test_a_column_of_one_side_alone_is_named(tmp_path: Path, name: str, off: bool, who: str) -> None:
    lacks: dict[str, Any] = {name: None}
    found = asked(tmp_path, lacks if off else {}, {} if off else lacks)
    told = [w for w in found.warnings if w.code == "baseline_key_unknown"]
    assert [(w.evidence, w.text.startswith(f"{who} does not log {name}")) for w in told] == [({name: 1.0}, True)]
    assert "--set model=" in told[0].text if name == "model" else f'"{name}"' in told[0].text
    assert "baseline_unmatched" not in {w.code for w in found.warnings}
    assert found.total.figures["baseline_matched_share"] == 1.0


def test_what_one_side_lacks_leaves_the_other_keys(tmp_path: Path) -> None:
    """Without batches on one side, contexts are still matched, and the other way round."""
    for lacking, by, ends in (
        ("batch_size", "context_bucket", (0.9, 9.0)),
        ("context_len", "batch_bucket", (0.7, 11.2)),
    ):
        found = asked(tmp_path / lacking, {}, {lacking: None}, by=(by, "task_type"), where="task_type = 'chat'")
        timed = [s.figures["baseline_ms"] for s in found.strata if s.figures["rounds"]]
        mean_of_other = {"batch_size": (0.7 + 11.2) / 2, "context_len": (0.9 + 9.0) / 2}[lacking]
        assert timed == pytest.approx([10.025 + end + mean_of_other for end in ends])


def test_batches_that_no_plain_step_has_are_named(tmp_path: Path) -> None:
    found = asked(tmp_path, {"batch_size": 1}, {"batch_size": 64})
    text = next(w.text for w in found.warnings if w.code == "baseline_unmatched")
    assert "it has none at batch 33–64: run it at the same load" in text
    assert "context" not in text.split("it has none at")[1]
