"""Names that are nearly right: what was meant is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from lakes import write_lake

from tracelens.analysis.asked import word
from tracelens.analysis.compare import compare
from tracelens.analysis.report import ReportOptions, report
from tracelens.analysis.similar import did_you_mean
from tracelens.errors import InputError

ROWS = [
    {"run_id": run, "drafted": 3, "accepted": 1, "labels": [("tenant", "acme"), ("region", "eu")]}
    for run in ("vllm-k3", "vllm-k5", "off")
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lake(tmp_path_factory.mktemp("similar"), rounds=ROWS, runs=[{"run_id": "off", "role": "baseline"}])


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["tasktype"], "did you mean task_type? "),
        (["Task_Type"], "did you mean task_type? "),
        (["modle", "tasktype"], "did you mean model, task_type? "),
        (["tasktype", "task_typ"], "did you mean task_type? "),
        (["temp"], "did you mean temperature? "),
        (["zzz", "modle"], "did you mean model? "),
        (["zzz"], ""),
        ([""], ""),
        ([], ""),
    ],
)
def test_the_nearest_name(names: list[str], told: str) -> None:
    assert did_you_mean(names, {"task_type", "model", "temperature", "temperature_bucket"}) == told
    assert did_you_mean(names, ()) == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": ("tasktype",)}, r"cannot group by tasktype; did you mean task_type\? known columns: task_type, "),
        ({"by": ("tennant",)}, r"did you mean tenant\? known columns: .*label keys: region, tenant"),
        ({"runs": ("vlm-k3",)}, r"no run vlm-k3 in this lake; did you mean vllm-k3\? runs: off, vllm-k3, vllm-k5"),
        ({"runs": ("vllm-k3,vllm-k5",)}, "name every run by itself; runs: "),
        ({"baseline": "of"}, r"no run of in this lake; did you mean off\? runs: "),
        (
            {"where": "temprature < 1"},
            r'column "temprature" not found in FROM clause! Candidate bindings: .*"temperature".*; '
            r"did you mean temperature\?$",
        ),
        ({"where": "lowr(task_type) = 'x'"}, r'lowr does not exist! Did you mean "lower"\?$'),
        ({"where": "zzzzzzzz = 1"}, r'column "zzzzzzzz" not found in FROM clause! Candidate bindings: [^;]*$'),
    ],
)
@pytest.mark.long
def test_names_in_options(lake: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        report(lake, ReportOptions(**options))  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    assert "LINE 1" not in str(raised.value)


def test_a_label_that_nothing_has_is_named_where_nothing_is_selected(lake: Path) -> None:
    (warning,) = report(lake, ReportOptions(where="labels['tennant'] = 'acme'")).warnings
    assert warning.text.endswith("No label is called tennant: did you mean tenant? label keys: region, tenant.")
    (warning,) = report(lake, ReportOptions(where="labels['tenant'] = 'zzz'")).warnings
    assert "No label is called" not in warning.text
    assert report(lake, ReportOptions(where="labels['tennant'] is null")).total.figures["drafted"] == 6


@pytest.mark.parametrize(
    ("side", "meant"), [("vllm-k33", "vllm-k3"), ("vllm-k3+vllm-k55", "vllm-k5"), ("label:tenant=acne", "tenant=acme")]
)
def test_sides_of_a_comparison(lake: Path, side: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"did you mean {meant}\?"):
        compare(lake, word(side), word("vllm-k3"))
