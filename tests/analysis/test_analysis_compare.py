"""Comparisons over lakes with planted changes: what moved is found, what did not is not, and the mix is told apart."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from lakes import Row, write_lake

from tracelens.analysis.compare import CHANGES, compare
from tracelens.analysis.compared import Comparison
from tracelens.analysis.session import Question
from tracelens.analysis.sides import Word
from tracelens.reporters.compare import VIEW
from tracelens.reporters.json_ import dumps

DAY = dt.datetime(2026, 5, 1, 10)
ALL = Question(by=())


def rounds(run: str, task: str | None, alpha: float, requests: int = 30, seed: int = 1, **more: Any) -> Iterable[Row]:
    """Requests with an acceptance of their own around `alpha`; K = 4, 12 rounds each."""
    rng = random.Random(f"{run} {task} {seed}")
    for i in range(requests):
        own = min(max(rng.gauss(alpha, 0.05), 0.02), 0.98)
        for j in range(12):
            accepted = sum(rng.random() < own for _ in range(4))
            yield {"run_id": run, "ts": DAY, "request_id": f"{run}-{task}-{i:03}", "task_type": task,
                   "round_index": j, "num_speculative_tokens": 4, "drafted": 4, "accepted": accepted,
                   "emitted": accepted + 1, **more}  # fmt: skip


def timed(rows: Iterable[Row], step: float, draft: float = 8.0, verify: float = 22.0) -> Iterable[Row]:
    """The same rounds with times (ms) that vary by request and round."""
    for row in rows:
        rng = random.Random(f"{row['request_id']} {row['round_index']}")
        noise = 1 + 0.03 * rng.gauss(0, 1)
        yield {**row, "draft_us": round(draft * 1000 * noise), "target_us": round(verify * 1000 * noise),
               "step_us": round(step * 1000 * noise)}  # fmt: skip


def of(lake: Path, a: str = "a", b: str = "b", question: Question | None = None) -> Comparison:
    found = compare(lake, Word(a), Word(b), question)
    text = dumps(VIEW.document(found))
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))
    return found


def codes(found: Comparison) -> list[str]:
    return [warning.code for warning in found.warnings]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """On B chat accepts less and its step is longer; code is what it was. Both meet one measured baseline."""
    rows = [
        *timed(rounds("a", "chat", 0.6), 36.0), *timed(rounds("b", "chat", 0.4), 42.0),
        *timed(rounds("a", "code", 0.8), 36.0), *timed(rounds("b", "code", 0.8), 36.0),
    ]  # fmt: skip
    plain = [
        {"run_id": "off", "ts": DAY, "request_id": f"off-{i}", "task_type": task, "drafted": 0, "accepted": 0,
         "emitted": 1, "step_us": 20_000 + 700 * (i % 7)}
        for i in range(40) for task in ("chat", "code")
    ]  # fmt: skip
    lake = tmp_path_factory.mktemp("planted")
    return of(write_lake(lake, rounds=[*rows, *plain], runs=[{"run_id": "off", "role": "baseline"}]))


def test_planted_changes_are_found(planted: Comparison) -> None:
    chat, code = planted.strata
    assert chat.change is not None
    assert code.change is not None
    real = {name for name, change in chat.change.items() if change.significant}
    assert {"draft_accept_ratio", "tau_committed", "round_cost", "overhead", "relative_token_time"} <= real
    alpha = chat.change["draft_accept_ratio"]
    assert alpha.low is not None
    assert alpha.high is not None
    assert alpha.low <= -0.2 <= alpha.high
    cost = chat.change["round_cost"]
    assert cost.value == pytest.approx(6.0 / 22.1, rel=0.1)
    assert cost.ratio == pytest.approx(42 / 36, rel=0.02)
    assert not chat.change["rho"].significant
    assert not any(change.significant for change in code.change.values())


def test_every_test_is_counted_once(planted: Comparison) -> None:
    changes = [c for row in (*planted.strata, planted.total) if row.change for c in row.change.values()]
    assert planted.tested == sum(c.p_value is not None for c in changes)
    assert planted.real == sum(c.significant is True for c in changes)
    assert all((c.p_adjusted or 0) >= (c.p_value or 0) for c in changes)
    for change in changes:
        assert (change.significant is None) == (change.p_value is None)
        assert change.p_value is not None or change.because
    total = planted.total.change
    assert total is not None
    assert tuple(total) == CHANGES
    assert total["tau_verified"].because == "tau_committed is tested in its place"
    assert total["step_ms"].value == pytest.approx(3.0, rel=0.1)


def test_parts_of_the_mix_close(planted: Comparison) -> None:
    assert planted.total.change is not None
    for name in ("draft_accept_ratio", "tau_committed", "relative_token_time"):
        mix = planted.mix_effect[name]
        assert mix.total is not None
        assert mix.mix is not None
        assert mix.within is not None
        assert mix.mix + mix.within == pytest.approx(mix.total, abs=1e-9)
        assert mix.total == pytest.approx(planted.total.change[name].value, abs=1e-9)
        assert mix.driver == "strata"
    assert planted.mix_effect["tpot_ms"].because is not None


def test_no_change_is_not_called(tmp_path: Path) -> None:
    """Each comparison of the same with the same has a chance of 5% for any false call; two such are one of 400."""
    rows = [row for run in "abc" for task in ("chat", "code") for row in timed(rounds(run, task, 0.6), 36.0)]
    lake = write_lake(tmp_path, rounds=rows)
    found = [of(lake, one, other, Question(baseline=20.0)) for one, other in ("ab", "bc")]
    assert sum(comparison.real > 0 for comparison in found) <= 1
    assert all(comparison.tested == 27 for comparison in found)


def test_simpson(tmp_path: Path) -> None:
    """Acceptance rises in both classes and falls in total, because the traffic turned to the hard one."""
    rows = [*rounds("a", "easy", 0.8, 60), *rounds("a", "hard", 0.3, 15), *rounds("b", "easy", 0.9, 15),
            *rounds("b", "hard", 0.4, 60)]  # fmt: skip
    found = of(write_lake(tmp_path, rounds=rows))
    assert found.total.change is not None
    assert (found.total.change["draft_accept_ratio"].value or 0) < -0.1
    assert all(row.change and (row.change["draft_accept_ratio"].value or 0) > 0.05 for row in found.strata)
    mix = found.mix_effect["draft_accept_ratio"]
    assert mix.is_reversed
    assert mix.driver == "mix"
    warnings = [w for w in found.warnings if w.code == "simpson"]
    assert {w.evidence["figure"] for w in warnings} == {"draft_accept_ratio", "tau_committed"}
    assert "rises in every class and falls in total" in warnings[0].text


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """No times; classes of one side; B has another K and model, and does not log emitted tokens."""
    other = {"num_speculative_tokens": 3, "model": "n", "emitted": None}
    rows = [
        *rounds("a", "old", 0.6, model="m"), *rounds("a", "kept", 0.6, model="m"),
        *rounds("b", "kept", 0.6, **other), *rounds("b", "new", 0.3, **other),
    ]  # fmt: skip
    return of(write_lake(tmp_path_factory.mktemp("odd"), rounds=rows))


def test_classes_of_one_side(odd: Comparison) -> None:
    by_name = {row.key["task_type"]: row for row in odd.strata}
    assert list(by_name) == ["kept", "new", "old"]
    assert (by_name["new"].a, by_name["new"].change) == (None, None)
    assert (by_name["old"].b, by_name["old"].change) == (None, None)
    assert by_name["kept"].change is not None
    assert {"only_a", "only_b"} <= set(codes(odd))
    mix = odd.mix_effect["draft_accept_ratio"]
    assert mix.driver == "mix"
    assert mix.total == pytest.approx((mix.mix or 0) + (mix.within or 0), abs=1e-9)


def test_without_times_costs_are_null_and_said(odd: Comparison) -> None:
    assert odd.total.change is not None
    for name in ("rho", "step_ms", "relative_token_time", "tpot_ms"):
        change = odd.total.change[name]
        assert (change.value, change.significant) == (None, None)
        assert change.because == "not to be had on A and B: see coverage"
    missing = {name.strip() for m in odd.coverage for name in m.figure.split(",")}
    assert {"rho", "step_ms", "tpot_ms"} <= missing <= set(CHANGES)
    assert odd.mix_effect["tpot_ms"].total is None


def test_another_k_is_said(odd: Comparison) -> None:
    text = next(w.text for w in odd.warnings if w.code == "k_differs")
    assert "4 on A, 3 on B" in text
    assert "none of the drafter" in text


def test_two_conventions_are_not_compared(odd: Comparison) -> None:
    assert odd.total.change is not None
    change = odd.total.change["tau_committed"]
    assert (change.value, change.because) == (None, "two conventions: A emitted, B verified")
    assert "two_conventions" in codes(odd)
    assert odd.total.change["tau_verified"].significant is not None, "its twin cannot be tested, so it is"


def test_what_else_differs_is_said(odd: Comparison) -> None:
    assert "model m on A, n on B" in next(w.text for w in odd.warnings if w.code == "other_setup")
    assert "one_run" in codes(odd)


def test_one_request_has_no_test(tmp_path: Path) -> None:
    rows = [*timed(rounds("a", "t", 0.6, 1), 36.0), *timed(rounds("b", "t", 0.4, 30), 40.0)]
    found = of(write_lake(tmp_path, rounds=rows), question=Question(baseline=20.0))
    assert (found.tested, found.real) == (0, 0)
    assert found.total.change is not None
    change = found.total.change["draft_accept_ratio"]
    assert change.value is not None
    assert change.because == "no spread between independent requests is known on A, so no test"


def test_noise_of_a_shared_baseline_hides_nothing(tmp_path: Path) -> None:
    """A baseline of three very different requests: badly known, but the same on both sides."""
    rows = [*timed(rounds("a", None, 0.6), 36.0), *timed(rounds("b", None, 0.6), 38.0)]
    plain = [
        {"run_id": "off", "ts": DAY, "request_id": f"off-{i}", "drafted": 0, "accepted": 0, "emitted": 1,
         "step_us": step}
        for i, step in enumerate((12_000, 20_000, 28_000))
    ]  # fmt: skip
    lake = write_lake(tmp_path, rounds=[*rows, *plain], runs=[{"run_id": "off", "role": "baseline"}])
    found = of(lake, question=ALL)
    assert found.total.change is not None
    assert found.total.a is not None
    change = found.total.change["round_cost"]
    assert change.value == pytest.approx(0.1, rel=0.2)
    assert change.significant
    assert found.total.a["round_cost_high"] > 2 * found.total.a["round_cost"]


@pytest.fixture(scope="module")
def by_tpot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, each with its baseline: 20 and 30 ms; runs of 10, 12 (m) and 10 ms (n) a token."""

    def requests(run: str, model: str, ms: float) -> Iterable[Row]:
        for i in range(40):
            noise = 1 + 0.1 * random.Random(f"{run}{i}").gauss(0, 1)
            yield {"run_id": run, "request_id": f"{run}-{i:03}", "task_type": "t", "output_tokens": 101,
                   "ts_end": DAY, "decode_us": round(ms * 100_000 * noise), "model": model}  # fmt: skip

    rows = [*requests("off", "m", 20), *requests("a", "m", 10), *requests("b", "m", 12), *requests("c", "n", 10),
            *requests("off2", "n", 30)]  # fmt: skip
    runs = [{"run_id": run, "role": "baseline"} for run in ("off", "off2")]
    return write_lake(tmp_path_factory.mktemp("tpot"), requests=rows, runs=runs)


def test_tpot_and_its_speedup(by_tpot: Path) -> None:
    change = of(by_tpot, "a", "b", ALL).total.change
    assert change is not None
    tpot, speedup = change["tpot_ms"], change["speedup_observed"]
    assert tpot.significant
    assert tpot.value == pytest.approx(2.0, abs=0.8)
    assert speedup.because == "tpot_ms is tested in its place"
    assert speedup.low is not None
    assert speedup.high is not None
    assert speedup.low < 20 / 12 - 2 < speedup.high < 0


def test_against_two_baselines_a_speedup_is_tested_itself(by_tpot: Path) -> None:
    change = of(by_tpot, "a", "c", ALL).total.change
    assert change is not None
    assert change["tpot_ms"].significant is False
    assert change["speedup_observed"].significant is True
    assert change["speedup_observed"].value == pytest.approx(1.0, abs=0.3)
