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


def lead(found: Comparison) -> str:
    return " ".join(VIEW.sheet(found).lead)


def codes(found: Comparison) -> list[str]:
    return [warning.code for warning in found.warnings]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """On B chat accepts less and its step is longer; code is what it was.

    Two runs without speculation, 11% apart, of three very different requests in each class: badly known, but the same
    on both sides.
    """
    rows = [
        *timed(rounds("a", "chat", 0.6), 36.0), *timed(rounds("b", "chat", 0.4), 42.0),
        *timed(rounds("a", "code", 0.8), 36.0), *timed(rounds("b", "code", 0.8), 36.0),
    ]  # fmt: skip
    plain = [
        {"run_id": run, "ts": DAY, "request_id": f"{run}-{i}", "task_type": task, "drafted": 0, "accepted": 0,
         "emitted": 1, "step_us": step + 6000 * (i - 1)}
        for i in range(3) for task in ("chat", "code") for run, step in (("off1", 19_000), ("off2", 21_000))
    ]  # fmt: skip
    runs = [{"run_id": run, "role": "baseline"} for run in ("off1", "off2")]
    return of(write_lake(tmp_path_factory.mktemp("planted"), rounds=[*rows, *plain], runs=runs))


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
    assert cost.value == pytest.approx(6.0 / 20.0, rel=0.1)
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


def test_a_change_within_the_noise_of_runs_is_said(planted: Comparison) -> None:
    assert planted.total.a is not None
    assert planted.total.a["control_spread"] == pytest.approx(0.105, abs=0.01)
    chat, code = (row.change or {} for row in planted.strata)
    assert chat["round_cost"].within_noise is False, "a sixth more"
    assert code["round_cost"].within_noise is True
    assert chat["rho"].within_noise is True
    assert chat["draft_accept_ratio"].within_noise is None, "no time"
    told = lead(planted)
    assert "Each side is one run: the tests know the chance between requests, not that between runs." in told
    assert "Control noise: 2 runs without speculation differ by 10." in told


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
    """A comparison of the same with the same has a chance of 5% for any false call; this one calls none."""
    rows = [row for run in "ab" for task in ("chat", "code") for row in timed(rounds(run, task, 0.6), 36.0)]
    found = of(write_lake(tmp_path, rounds=rows), question=Question(baseline=20.0))
    assert (found.tested, found.real) == (27, 0)
    assert "No total moved, so mix against classes is not split." in lead(found)


@pytest.fixture(scope="module")
def simpson(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Acceptance rises in both classes and falls in total, because the traffic turned to the hard one.

    A plain step takes 20 ms in the easy and 21.5 ms in the hard class, so the totals stand over two baselines.
    """
    rows = [*rounds("a", "easy", 0.8, 60), *rounds("a", "hard", 0.3, 15), *rounds("b", "easy", 0.9, 15),
            *rounds("b", "hard", 0.4, 60)]  # fmt: skip
    plain = [
        {"run_id": "off", "ts": DAY, "request_id": f"off-{task}-{i}", "task_type": task, "drafted": 0, "accepted": 0,
         "emitted": 1, "step_us": step + 100 * (i % 7)}
        for i in range(20) for task, step in (("easy", 20_000), ("hard", 21_500))
    ]  # fmt: skip
    runs = [{"run_id": "off", "role": "baseline"}]
    lake = write_lake(tmp_path_factory.mktemp("simpson"), rounds=[*timed(rows, 36.0), *plain], runs=runs)
    return of(lake)


def test_simpson(simpson: Comparison) -> None:
    assert simpson.total.change is not None
    assert (simpson.total.change["draft_accept_ratio"].value or 0) < -0.1
    assert all(row.change and (row.change["draft_accept_ratio"].value or 0) > 0.05 for row in simpson.strata)
    mix = simpson.mix_effect["draft_accept_ratio"]
    assert mix.is_reversed
    assert mix.paradox
    assert mix.driver == "mix"
    assert (mix.shifted, mix.classes, mix.along) == ("hard", 2, 2)
    assert (mix.share_a, mix.share_b) == (pytest.approx(0.2), pytest.approx(0.8))


def test_simpson_is_one_warning(simpson: Comparison) -> None:
    (warning,) = [w for w in simpson.warnings if w.code == "simpson"]
    assert "draft_accept_ratio, tau_committed rise in every class and fall in total" in warning.text
    assert warning.evidence == {"figures": sum(mix.paradox for mix in simpson.mix_effect.values())}


def test_simpson_is_the_answer(simpson: Comparison) -> None:
    first = VIEW.sheet(simpson).lead[0]
    assert first.startswith("Tokens got slower by more than chance between requests: token time C 0.")
    assert "Every class got faster; the total slowed because traffic moved to hard (" in first


def test_a_figure_is_tested_everywhere_or_nowhere(simpson: Comparison, planted: Comparison) -> None:
    """The totals of `simpson` stand over two baselines, its classes over one each."""
    for found, alone in ((simpson, True), (planted, False)):
        tested = [
            {name for name, change in (row.change or {}).items() if change.p_value is not None}
            for row in (*found.strata, found.total)
        ]
        assert tested[0] == tested[1] == tested[2]
        assert ({"draft_ms", "step_ms"} <= tested[0]) is alone
        assert "speedup_observed" not in tested[0], "by steps it is the inverse of relative_token_time"
        assert "tau_verified" not in tested[0]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """No times; classes of one side; B has another K and model, and does not log emitted tokens.

    A has one request of the class `single`.
    """
    other = {"num_speculative_tokens": 3, "model": "n", "emitted": None}
    rows = [
        *rounds("a", "old", 0.6, model="m"), *rounds("a", "kept", 0.6, model="m"),
        *rounds("b", "kept", 0.6, **other), *rounds("b", "new", 0.3, **other),
        *rounds("a", "single", 0.6, 1, model="m"), *rounds("b", "single", 0.4, **other),
    ]  # fmt: skip
    return of(write_lake(tmp_path_factory.mktemp("odd"), rounds=rows))


def test_classes_of_one_side(odd: Comparison) -> None:
    by_name = {row.key["task_type"]: row for row in odd.strata}
    assert list(by_name) == ["kept", "new", "old", "single"]
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
    told = lead(odd)
    assert told.count("K 4 → 3") == 1
    assert "α 0." not in told, "its change is expected"


def test_two_conventions_are_not_compared(odd: Comparison) -> None:
    assert odd.total.change is not None
    change = odd.total.change["tau_committed"]
    assert (change.value, change.because) == (None, "two conventions: A emitted, B verified")
    (warning,) = [w for w in odd.warnings if w.code == "two_conventions"]
    assert "tau_committed: A emitted, B verified" in warning.text
    assert "--baseline" not in warning.text, "no baseline changes that"
    assert odd.total.change["tau_verified"].significant is not None, "its twin cannot be tested, so it is"


def test_what_else_differs_is_said(odd: Comparison) -> None:
    assert "model m on A, n on B" in next(w.text for w in odd.warnings if w.code == "other_setup")
    assert "one_run" in codes(odd)


def test_one_request_has_no_test(odd: Comparison) -> None:
    change = next(row.change for row in odd.strata if row.key["task_type"] == "single")
    assert change is not None
    assert all(c.significant is None for c in change.values())
    alpha = change["draft_accept_ratio"]
    assert alpha.value is not None
    assert alpha.because == "no spread between independent requests is known on A, so no test"


def test_noise_of_a_shared_baseline_hides_nothing(planted: Comparison) -> None:
    chat = planted.strata[0]
    assert chat.a is not None
    assert chat.change is not None
    change = chat.change["round_cost"]
    assert change.significant
    assert chat.a["round_cost_high"] - chat.a["round_cost"] > (change.value or 0)


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
    """The one class is all of the traffic, so that its tests are those of the total, once."""
    found = of(by_tpot, "a", "b")
    change = found.total.change
    assert change is not None
    assert found.strata[0].change == change
    assert found.tested == sum(c.p_value is not None for c in change.values()) == 1
    assert VIEW.sheet(found).lead[0].startswith("Tokens got slower by more than chance between requests: TPOT")
    assert VIEW.sheet(found).lead[1] == (
        "The one change tested (in total; Holm, 5 %) is more than chance between requests."
    )
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
