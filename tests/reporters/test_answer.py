"""What the first lines and the small print of a report say."""

from __future__ import annotations

import io

import pytest

from tracelens.analysis.results import Report, Stratum
from tracelens.reporters.answer import answer
from tracelens.reporters.markdown import MarkdownReporter
from tracelens.reporters.terminal import TerminalReporter

from .fixture import figures


def one(by: tuple[str, ...] = ("task_type",), **changed: object) -> Report:
    row = Stratum(dict.fromkeys(by, "code"), figures(**changed))
    return Report(by=by, strata=(row,), total=Stratum({}, row.figures), coverage=(), warnings=())


def shown(report: Report, width: int = 80) -> str:
    out = io.StringIO()
    TerminalReporter(width).render(report, out)
    return out.getvalue()


def test_both_baselines_are_named_where_they_differ() -> None:
    steps = {"baseline_ms": 32.2, "baseline_basis": "run_step", "tpot_ms": 66.6}
    text = answer(one(**steps, baseline_tpot_ms=38.6, baseline_tpot_basis="run_tpot"))[0]
    assert text.endswith(
        "Baseline of the observed speedup: 38.6 ms, TPOT of a run without speculation (here 66.6 ms); "
        "of the token time: 32.2 ms, mean step of a run without speculation."
    )
    text = answer(one(baseline_ms=24.13, baseline_basis="run_tpot", baseline_tpot_ms=24.14,
                      baseline_tpot_basis="run_tpot"))[0]  # fmt: skip
    assert text.endswith("Baseline: 24.1 ms, TPOT of a run without speculation, which logs no steps.")
    assert answer(one(baseline_basis=None, baseline_ms=None))[0].endswith("Baseline: none, so nothing is compared.")


def test_a_break_even_above_one_is_never() -> None:
    assert "never  " not in shown(one(break_even_alpha=1.0))
    assert " never\n" in shown(one(break_even_alpha=1.004))


def test_the_sum_of_three_needs_three() -> None:
    assert "the sum of the three" in shown(one())
    assert "the sum of the three" not in shown(one(overhead=None))


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_words_of_headers_stay_whole(width: int) -> None:
    for by in (("temperature_bucket",), ("task_type", "temperature_bucket")):
        text = shown(one(by), width)
        assert "temperature_bucket" in text
        assert "temperature_buc\n" not in text
        assert all(len(line) <= width for line in text.splitlines())
    out = io.StringIO()
    MarkdownReporter().render(one(), out)
    assert "break-even α |" in out.getvalue()
