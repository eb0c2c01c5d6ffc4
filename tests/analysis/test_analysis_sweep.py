"""`sweep` over small lakes: what ran, what is replayed, what it costs, which K is best, and what cannot be told."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lakes import write_lake

from tracelens.analysis.claim import Claim
from tracelens.analysis.session import Question
from tracelens.analysis.sweep import SweepEntry, SweepResult, SweepStratum, sweep
from tracelens.errors import InputError
from tracelens.model.acceptance import TokenAcceptProb, expected_tokens
from tracelens.reporters.sweep import VIEW

DAY = dt.datetime(2026, 11, 1, 10)
Rows = list[dict[str, Any]]
#: Planted cost, us: draft 3 ms and 2 a token, verify 20 ms and 0.5 a token, 1 ms around; a plain step takes 20 ms.
DRAFT, VERIFY, REST, PLAIN = (3000, 2000), (20_000, 500), 1000, 20_000


def speculate(run: str, k: int, tokens: np.ndarray, *, timed: bool = True, **more: Any) -> Rows:
    """Rounds over fixed text: tokens[i, t] says whether token t of request i would be accepted as a draft.

    The last token of a request is never drafted. `more` are further columns.
    """
    found = []
    for i, flags in enumerate(tokens.tolist()):
        place, j = 0, 0
        while place < len(flags):
            d = min(k, len(flags) - place - 1)
            a = next((n for n in range(d) if not flags[place + n]), d)
            draft, verify = DRAFT[0] + DRAFT[1] * d, VERIFY[0] + VERIFY[1] * d
            times = {"draft_us": draft if d else None, "target_us": verify, "step_us": draft * (d > 0) + verify + REST}
            found.append(
                {"run_id": run, "ts": DAY, "request_id": f"{i}", "task_type": "chat", "round_index": j, "drafted": d,
                 "accepted": a, "emitted": a + 1, "num_speculative_tokens": k} | (times if timed else {}) | more
            )  # fmt: skip
            place, j = place + a + 1, j + 1
    return found


def run_of(name: str, k: int, **more: Any) -> dict[str, Any]:
    return {"run_id": name, "engine": "vllm", "role": "speculative", "method": "eagle3",
            "num_speculative_tokens": k} | more  # fmt: skip


def markov(seed: int, requests: int = 60, length: int = 120) -> np.ndarray:
    rng = np.random.default_rng(seed)
    easy = rng.random((requests, length)) < 0.5
    for t in range(1, length):
        easy[:, t] = np.where(rng.random(requests) < 0.06, ~easy[:, t - 1], easy[:, t - 1])
    return rng.random((requests, length)) < np.where(easy, 0.95, 0.3)


def of(stratum: SweepStratum, k: int, source: str) -> SweepEntry:
    return next(e for e in stratum.entries if (e.k, e.source) == (k, source))


def ask(tmp_path: Path, rounds: Rows, runs: Sequence[Mapping[str, Any]], *, ks: Sequence[int] = (1, 2, 3, 5, 7),
        question: Question | None = None, **tables: Any) -> SweepResult:  # fmt: skip
    lake = write_lake(tmp_path / "lake", rounds=rounds, runs=runs, **tables)
    result = sweep(lake, question or Question(baseline=PLAIN / 1000), ks)
    sound(result)
    return result


def sound(result: SweepResult) -> None:
    """No NaN or infinity, intervals hold their figure, and every format can be written."""
    for stratum in (*result.strata, result.total):
        for entry in stratum.entries:
            values = [getattr(entry, f.name) for f in fields(entry)]
            assert all(math.isfinite(v) for v in values if isinstance(v, float)), entry
            for name in ("tau_verified", "relative_token_time"):
                low, value, high = (getattr(entry, f"{name}{end}") for end in ("_low", "", "_high"))
                assert low is None or low - 1e-9 <= value <= high + 1e-9, entry
        if stratum.best_k_low is not None:
            assert stratum.best_k is not None
            assert stratum.best_k_high is not None
            assert stratum.best_k_low <= stratum.best_k_high
        assert (stratum.best_k is None) == (stratum.why is not None)
    for chosen in ("table", "markdown", "csv", "json"):
        out = StringIO()
        VIEW.render(result, chosen, out, width=80)
        assert "nan" not in out.getvalue().lower().split()
        if chosen == "json":
            json.loads(out.getvalue(), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    """The same Markov text with K = 7 and 2, timed."""
    text = markov(1)
    rounds = speculate("k7", 7, text) + speculate("k2", 2, text)
    return ask(tmp_path_factory.mktemp("swept"), rounds, [run_of("k7", 7), run_of("k2", 2)], ks=(1, 3, 9))


def test_both_side_by_side(swept: SweepResult) -> None:
    """The replay of K = 2 meets the run over the same text; the geometric law does not."""
    assert [(e.k, e.source) for e in swept.total.entries] == [
        (1, "replayed"), (2, "observed"), (2, "replayed"), (3, "replayed"), (7, "observed"), (7, "replayed"),
        (9, "replayed"),
    ]  # fmt: skip
    ran, told = of(swept.total, 2, "observed"), of(swept.total, 2, "replayed")
    assert told.replay_error == pytest.approx((told.tau_verified or 0) / (ran.tau_verified or 1) - 1)
    assert abs(told.replay_error or 1) < 0.03
    assert told.tau_committed == pytest.approx(ran.tau_committed, rel=0.03)
    assert told.relative_token_time == pytest.approx(ran.relative_token_time, rel=0.03)
    assert of(swept.total, 7, "replayed").tau_verified == pytest.approx(of(swept.total, 7, "observed").tau_verified)
    one = swept.strata[0]
    assert [e.tau_verified for e in one.entries] == pytest.approx([e.tau_verified for e in swept.total.entries])


def test_what_a_round_takes(swept: SweepResult) -> None:
    """The planted line is found, also for lengths that never ran."""
    for k in (1, 3, 9):
        entry = of(swept.total, k, "replayed")
        assert entry.cost_basis == "fitted"
        assert entry.draft_ms == pytest.approx((DRAFT[0] + DRAFT[1] * k) / 1000, rel=1e-6)
        assert entry.target_ms == pytest.approx((VERIFY[0] + VERIFY[1] * k) / 1000, rel=1e-6)
        assert entry.rest_ms == pytest.approx(REST / 1000)
        expected = (entry.round_ms or 0) / (entry.tau_committed or 1) / (PLAIN / 1000)
        assert entry.relative_token_time == pytest.approx(expected)
        assert entry.extrapolated == (k > 7)
    assert swept.total.baseline_basis == "value"


def test_the_best_is_the_least(swept: SweepResult) -> None:
    total = swept.total
    times = {0: 1.0}
    for e in total.entries:
        times.setdefault(e.k, e.relative_token_time or 9.0)
    assert total.best_k == min(times, key=lambda k: times[k])
    assert total.best_relative_token_time == times[total.best_k]
    assert total.best_k_low is not None
    assert total.best_k_high is not None
    assert total.best_k_low <= total.best_k <= total.best_k_high
    assert (total.trace_k, total.why) == (7, None)


def test_the_geometric_law_fails_where_replay_does_not(tmp_path: Path) -> None:
    text = markov(2, 60, 150)
    result = ask(tmp_path, speculate("k7", 7, text), [run_of("k7", 7)], ks=(1, 2, 3))
    rejected = [r["accepted"] < r["drafted"] for r in speculate("k7", 7, text)]
    accepted = sum(r["accepted"] for r in speculate("k7", 7, text))
    prob = TokenAcceptProb(accepted / (accepted + sum(rejected)))
    off = []
    for k in (1, 2, 3):
        rounds = [r for r in speculate("x", k, text) if r["drafted"]]
        truth = 1 + sum(r["accepted"] for r in rounds) / len(rounds)
        assert of(result.total, k, "replayed").tau_verified == pytest.approx(truth, rel=0.03)
        off.append(abs(float(expected_tokens(prob, k)) / truth - 1))
    assert max(off) > 0.03


def test_reproducible_and_many_strata(tmp_path: Path) -> None:
    """The same answer twice; a class that does not draft well is best off."""
    text, poor = markov(3, 30), np.random.default_rng(4).random((30, 60)) < 0.05
    rounds = speculate("k5", 5, text) + speculate("k5", 5, poor, task_type="poem")
    for n, row in enumerate(rounds):
        row["request_id"] = f"{row['task_type']}-{row['request_id']}"
        row["source_line"] = n
    first = ask(tmp_path, rounds, [run_of("k5", 5)])
    assert {s.key["task_type"]: s.best_k == 0 for s in first.strata} == {"chat": False, "poem": True}
    assert (first.strata[1].best_k_low, first.strata[1].best_k_high) == (0, 0)
    assert sweep(tmp_path / "lake", Question(baseline=PLAIN / 1000)) == first


def test_no_times(tmp_path: Path) -> None:
    """tau can be told; time, TPOT and the best K cannot, and the answer says what would tell."""
    total = ask(tmp_path, speculate("k5", 5, markov(6), timed=False), [run_of("k5", 5)]).total
    assert total.best_k is None
    assert total.why
    assert all(e.relative_token_time is None and e.tpot_ms is None and e.round_ms is None for e in total.entries)
    assert all(e.tau_verified for e in total.entries)


def test_a_claim_takes_the_place_of_times(tmp_path: Path) -> None:
    question = Question(claim=Claim(0.7, 0.1, 5))
    total = ask(tmp_path, speculate("k5", 5, markov(6), timed=False), [run_of("k5", 5)], question=question).total
    for e in total.entries:
        assert e.cost_basis == "claim"
        assert e.relative_token_time == pytest.approx((1 + 0.1 * e.k) / (e.tau_committed or 0))
    assert total.best_k is not None
    assert any("assumed from the claim" in note for note in total.notes)


def test_measured_times_go_before_a_claim(tmp_path: Path) -> None:
    question = Question(claim=Claim(0.7, 0.1, 5), baseline=PLAIN / 1000)
    total = ask(tmp_path, speculate("k5", 5, markov(6)), [run_of("k5", 5)], question=question).total
    assert {(e.source, e.cost_basis) for e in total.entries} == {("observed", "observed"), ("replayed", "proportional")}


def test_tpot_alone(tmp_path: Path) -> None:
    """Without step times a round is TPOT x tokens; two K tell how it grows. round = 20 + 4 K ms over tau."""
    text = markov(7, 40)
    rounds, requests = [], []
    for k in (2, 6):
        own = speculate(f"k{k}", k, text, timed=False)
        rounds += own
        for i in range(len(text)):
            mine = [r for r in own if r["request_id"] == f"{i}"]
            tokens = sum(r["emitted"] for r in mine)
            decode = sum((20_000 + 4_000 * r["drafted"]) for r in mine) * (tokens - 1) // tokens
            requests.append({"run_id": f"k{k}", "request_id": f"{i}", "ts_end": DAY, "task_type": "chat",
                             "output_tokens": tokens, "decode_us": decode})  # fmt: skip
    for i in range(40):
        requests.append({"run_id": "off", "request_id": f"b{i}", "ts_end": DAY, "task_type": "chat",
                         "output_tokens": 101, "decode_us": 2_000_000})  # fmt: skip
    runs = [
        run_of("k2", 2),
        run_of("k6", 6),
        run_of("off", 0, role="baseline", num_speculative_tokens=None, method=None),
    ]
    total = ask(tmp_path, rounds, runs, ks=(4,), question=Question(), requests=requests).total
    entry = of(total, 4, "replayed")
    assert (entry.relative_token_time_basis, entry.cost_basis) == ("tpot", "fitted")
    assert entry.round_ms == pytest.approx(36.0, rel=0.03)
    assert entry.tpot_ms == pytest.approx((entry.round_ms or 0) / (entry.tau_committed or 1))
    assert entry.relative_token_time == pytest.approx((entry.tpot_ms or 0) / 20.0)
    ran = of(total, 6, "observed")
    assert ran.relative_token_time_basis == "tpot"
    assert ran.relative_token_time == pytest.approx(1 / (ran.speedup_observed or 1))
    assert total.baseline_basis == "tpot_run_tpot"


#: What lies outside the replay: columns of the rounds, of the run, and a word of the reason.
OUTSIDE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "lookup": ({}, {"method": "ngram"}, "ngram"),
    "heads": ({}, {"method": "medusa"}, "proposes all at once"),
    "tree": ({"num_draft_nodes": 16}, {}, "trees"),
    "sampled": ({"weight": 3.0}, {}, "sampled"),
    "nameless": ({"request_id": None}, {}, "no request id"),
}


def by_confidence() -> Rows:
    """Every third draft is cut short inside its request."""
    rounds = speculate("confident", 5, markov(9, 20))
    for row in rounds[::3]:
        if row["drafted"]:
            row["drafted"] = max(1, min(row["drafted"], row["accepted"]))
            row["accepted"] = min(row["accepted"], row["drafted"])
            row["emitted"] = row["accepted"] + 1
    return rounds


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SweepStratum]:
    """One lake of runs that are each odd in their own way, by name of the run."""
    rounds: Rows = []
    runs = [run_of(name, 5) for name in ("confident", "plain", "single", "one_length", "windows")]
    for name, (more, traits, _) in OUTSIDE.items():
        rounds += speculate(name, 5, markov(8, 20), **more)
        runs.append(run_of(name, 5, **traits))
    rounds += by_confidence() + speculate("plain", 5, markov(10, 5)[:, :1]) + speculate("single", 5, markov(11, 1))
    text = np.random.default_rng(5).random((20, 101)) < 0.8
    rounds += [r for r in speculate("one_length", 5, text) if r["drafted"] == 5]
    for line, row in enumerate(rounds):
        row["source_line"] = line
    window = {"run_id": "windows", "ts_end": DAY, "task_type": "chat", "rounds": 100, "drafted": 500, "accepted": 160,
              "accepted_per_pos": [80, 50, 20, 10, 0], "num_speculative_tokens": 5}  # fmt: skip
    windows = [window | {"source_line": i} for i in range(5)]
    question = Question(by=("run_id",), baseline=PLAIN / 1000)
    folder = tmp_path_factory.mktemp("odd")
    found = ask(folder, rounds, runs, ks=(2, 5), question=question, windows=windows)
    return {str(s.key["run_id"]): s for s in found.strata}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside_the_domain(odd: dict[str, SweepStratum], name: str) -> None:
    """Said in words; the geometric law takes the place of the replay, and what ran stays as it ran."""
    stratum = odd[name]
    assert [(e.k, e.source) for e in stratum.entries] == [(2, "geometric"), (5, "observed")]
    assert any(OUTSIDE[name][2] in note for note in stratum.notes), stratum.notes
    rounds = [r for r in speculate("x", 5, markov(8, 20)) if r["drafted"]]
    accepted, rejected = sum(r["accepted"] for r in rounds), sum(r["accepted"] < r["drafted"] for r in rounds)
    prob = TokenAcceptProb(accepted / (accepted + rejected))
    assert of(stratum, 2, "geometric").tau_verified == pytest.approx(float(expected_tokens(prob, 2)))
    assert stratum.trace_k is None


def test_lengths_that_follow_confidence(odd: dict[str, SweepStratum]) -> None:
    assert of(odd["confident"], 2, "geometric")
    assert any("draft lengths change inside requests" in note for note in odd["confident"].notes)


def test_histograms_alone(odd: dict[str, SweepStratum]) -> None:
    assert [(e.k, e.source) for e in odd["windows"].entries] == [(2, "geometric"), (5, "observed")]
    assert any("histograms" in note for note in odd["windows"].notes)
    assert odd["windows"].best_k is None


def test_no_drafts(odd: dict[str, SweepStratum]) -> None:
    """d = 0 only: no K ran and none can be replayed."""
    assert odd["plain"].entries == ()
    assert "no round drafted" in (odd["plain"].why or "")


def test_one_request(odd: dict[str, SweepStratum]) -> None:
    """One request tells of no spread: figures without intervals."""
    single = odd["single"]
    assert single.best_k is not None
    assert all(e.tau_verified_low is None for e in single.entries if e.source == "replayed")
    assert any("the trace is short" in note for note in single.notes)


def test_one_length_timed_is_proportional(odd: dict[str, SweepStratum]) -> None:
    entry = of(odd["one_length"], 2, "replayed")
    assert entry.cost_basis == "proportional"
    assert entry.draft_ms == pytest.approx((DRAFT[0] + 5 * DRAFT[1]) * 2 / 5 / 1000)
    assert entry.target_ms == pytest.approx((VERIFY[0] + 5 * VERIFY[1]) / 1000)


def test_an_empty_lake(tmp_path: Path) -> None:
    result = ask(tmp_path, [], [])
    assert (result.strata, result.total.entries, result.total.best_k) == ((), (), None)


def test_refusals(tmp_path: Path) -> None:
    lake = write_lake(tmp_path)
    for ks in ((0, 3), (65,), ()):
        with pytest.raises(InputError, match="--k"):
            sweep(lake, Question(), ks)
    with pytest.raises(InputError, match="leave it out of --by"):
        sweep(lake, Question(by=("num_speculative_tokens",)))


def test_no_strata(tmp_path: Path) -> None:
    result = ask(tmp_path, speculate("k5", 5, markov(12)), [run_of("k5", 5)],
                 question=Question(by=(), baseline=20.0))  # fmt: skip
    assert result.strata == ()
    assert result.total.best_k is not None
