"""What is said where nothing is selected: the filters that were given, and none that were not."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from lakes import write_lake

from tracelens.analysis.asked import word
from tracelens.analysis.compare import compare
from tracelens.analysis.report import ReportOptions, report
from tracelens.analysis.session import Question
from tracelens.errors import InputError

DAY = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
LATER = DAY + dt.timedelta(days=9)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"run_id": run, "request_id": f"{run}{i}", "task_type": task, "drafted": 3, "accepted": 1, "ts": DAY}
        for run, task in (("k3", "chat"), ("k5", "code")) for i in range(3)
    ]  # fmt: skip
    return write_lake(tmp_path_factory.mktemp("absent"), rounds=rows)


GIVEN: list[tuple[dict[str, Any], str]] = [
    ({"where": "false"}, "--where"),
    ({"since": LATER}, "--since"),
    ({"until": DAY}, "--until"),
    ({"runs": ("k3",), "where": "task_type = 'code'"}, "--where and --run"),
    ({"since": DAY, "until": LATER, "where": "false", "runs": ("k3",)}, "--where, --since, --until and --run"),
]


@pytest.mark.parametrize(("options", "names"), GIVEN)
@pytest.mark.long
def test_only_the_filters_that_were_given_are_named(lake: Path, options: dict[str, Any], names: str) -> None:
    (warning,) = report(lake, ReportOptions(**options)).warnings
    assert warning.text == (
        f"Nothing to report: no record meets {names}; "
        "the lake holds 2 runs with records from 2026-05-01 10:00 to 2026-05-01 10:00 UTC."
    )


def test_a_side_of_a_comparison_is_named_as_it_was_written(lake: Path) -> None:
    period = word("2026-05-04..2026-05-05")
    with pytest.raises(
        InputError, match=r"A \(2026-05-04\.\.2026-05-05\): .*no record meets 2026-05-04\.\.2026-05-05;"
    ):
        compare(lake, period, word("k5"))
    with pytest.raises(InputError, match=r"B \(k5\): .*no record meets k5 and --where;"):
        compare(lake, word("k3"), word("k5"), Question(where="task_type = 'chat'"))
