"""`sweep` over small lakes: what ran, what is replayed, what it costs, which K is best, and what cannot be told."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
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


def ask(lake: Path, question: Question, ks: Sequence[int] = (1, 2, 3, 5, 7)) -> SweepResult:
    result = sweep(lake, question, ks)
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
                assert (low is None) == (high is None), entry
                assert low is None or low - 1e-9 <= value <= high + 1e-9, entry
            for value in (entry.tau_verified_low, entry.tau_verified_high):
                assert value is None or 1.0 <= value <= 1.0 + entry.k, entry
        if stratum.best_k_low is not None:
            assert stratum.best_k is not None
            assert stratum.best_k_high is not None
            assert stratum.best_k_low <= stratum.best_k_high
            assert {stratum.best_k_low, stratum.best_k, stratum.best_k_high} <= {0, *stratum.compared}
            assert all(e.relative_token_time_low is not None for e in stratum.compared.values())
        assert (stratum.best_k is None) == (stratum.why is not None)
    for chosen in ("table", "markdown", "csv", "json"):
        out = StringIO()
        VIEW.render(result, chosen, out, width=80)
        assert "nan" not in out.getvalue().lower().split()
        if chosen == "json":
            json.loads(out.getvalue(), parse_constant=pytest.fail)


BASELINE = Question(baseline=PLAIN / 1000)
#: What lies outside the replay: columns of the rounds, of the run, and a word of the reason.
OUTSIDE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "lookup": ({}, {"method": "ngram"}, "ngram"),
    "heads": ({}, {"method": "medusa"}, "proposes all at once"),
    "tree": ({"num_draft_nodes": 16}, {}, "trees"),
    "sampled": ({"weight": 3.0}, {}, "sampled"),
    "nameless": ({"request_id": None}, {}, "no request id"),
}


def shortened(k: int, tokens: np.ndarray, every: int) -> Rows:
    """One draft in `every` is cut short."""
    rounds = speculate("x", k, tokens)
    for row in rounds[::every]:
        if row["drafted"]:
            row["drafted"] = max(1, min(row["drafted"], row["accepted"]))
            row["accepted"] = min(row["accepted"], row["drafted"])
            row["emitted"] = row["accepted"] + 1
    return rounds


def bent(k: int, tokens: np.ndarray) -> Rows:
    """A round of K = 3 takes 20 ms more than the line through the other K."""
    rounds = speculate("x", k, tokens)
    for row in rounds:
        for name in ("target_us", "step_us"):
            row[name] += 20_000 * (k == 3)
    return rounds


def in_parts(k: int, tokens: np.ndarray) -> Rows:
    """No whole step is timed; sampling takes 3 ms and rollback 1 ms."""
    return speculate("x", k, tokens, step_us=None, sample_us=3000, rollback_us=1000)


def classes() -> dict[str, dict[int, Rows]]:
    """Classes of traffic that are each odd in their own way: rounds by class and K."""
    even = np.random.default_rng(5).random((20, 101)) < 0.8
    found = {
        "chat": {k: speculate("x", k, markov(1)) for k in (7, 2)},
        "law": {7: speculate("x", 7, markov(2, 60, 150))},
        "poem": {5: speculate("x", 5, np.random.default_rng(4).random((30, 60)) < 0.05)},
        "code": {3: speculate("x", 3, np.random.default_rng(6).random((3, 150)) < 0.97)},
        "bent": {k: bent(k, markov(13, 15)) for k in (1, 3, 5)},
        "thirty": {7: speculate("x", 7, markov(14, 3, 35)), 2: speculate("x", 2, markov(15, 20, 60))},
        "ten": {7: speculate("x", 7, markov(16, 1, 30)), 2: speculate("x", 2, markov(15, 20, 60))},
        "one_length": {5: [r for r in speculate("x", 5, even) if r["drafted"] == 5]},
        "plain": {5: speculate("x", 5, markov(10, 5)[:, :1])},
        "single": {5: speculate("x", 5, markov(11, 1))},
        "confident": {5: shortened(5, markov(9, 20), 3)},
        "cut": {5: shortened(5, markov(19, 2, 40), 6)},
        "lucky": {3: speculate("x", 3, markov(17, 20)), 7: speculate("x", 7, np.ones((1, 200), dtype=bool))},
        "parts": {k: in_parts(k, markov(18, 20)) for k in (5, 2)},
    }
    return found | {name: {5: speculate("x", 5, markov(8, 20), **OUTSIDE[name][0])} for name in OUTSIDE}


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rounds: Rows = []
    runs = [run_of("windows", 3)]
    for name, by_k in classes().items():
        for k, written in by_k.items():
            runs.append(run_of(f"{name}-k{k}", k, **(OUTSIDE[name][1] if name in OUTSIDE else {})))
            rounds += [row | {"run_id": f"{name}-k{k}", "task_type": name} for row in written]
    window = {"run_id": "windows", "ts_end": DAY, "task_type": "windows", "rounds": 100, "drafted": 300,
              "accepted": 150, "accepted_per_pos": [80, 50, 20], "num_speculative_tokens": 3}  # fmt: skip
    windows = [window | {"source_line": i} for i in range(5)]
    return write_lake(tmp_path_factory.mktemp("traffic"), rounds=rounds, runs=runs, windows=windows)


@pytest.fixture(scope="module")
def swept(traffic: Path) -> dict[str, SweepStratum]:
    """One sweep over all classes, by name."""
    result = ask(traffic, BASELINE, (1, 2, 3, 5, 9))
    return {str(s.key["task_type"]): s for s in result.strata}


def test_both_side_by_side(swept: dict[str, SweepStratum]) -> None:
    """The replay of K = 2 meets the run over the same text; the geometric law does not."""
    chat = swept["chat"]
    assert [(e.k, e.source) for e in chat.entries] == [
        (1, "replayed"), (2, "observed"), (2, "replayed"), (3, "replayed"), (5, "replayed"), (7, "observed"),
        (7, "replayed"), (9, "replayed"),
    ]  # fmt: skip
    ran, told = of(chat, 2, "observed"), of(chat, 2, "replayed")
    assert told.replay_error == pytest.approx((told.tau_verified or 0) / (ran.tau_verified or 1) - 1)
    assert abs(told.replay_error or 1) < 0.03
    assert told.tau_committed == pytest.approx(ran.tau_committed, rel=0.03)
    assert told.relative_token_time == pytest.approx(ran.relative_token_time, rel=0.03)
    assert of(chat, 7, "replayed").tau_verified == pytest.approx(of(chat, 7, "observed").tau_verified)
    assert (chat.trace_k, chat.why) == (7, None)


def test_what_a_round_takes(swept: dict[str, SweepStratum]) -> None:
    """The planted line is found, also for lengths that never ran."""
    for k in (1, 3, 9):
        entry = of(swept["chat"], k, "replayed")
        assert entry.cost_basis == "fitted"
        assert entry.draft_ms == pytest.approx((DRAFT[0] + DRAFT[1] * k) / 1000, rel=1e-6)
        assert entry.target_ms == pytest.approx((VERIFY[0] + VERIFY[1] * k) / 1000, rel=1e-6)
        assert entry.rest_ms == pytest.approx(REST / 1000)
        expected = (entry.round_ms or 0) / (entry.tau_committed or 1) / (PLAIN / 1000)
        assert entry.relative_token_time == pytest.approx(expected)
        assert entry.extrapolated == (k > 7)
    assert swept["chat"].baseline_basis == "value"


def test_a_line_that_misses_is_told(swept: dict[str, SweepStratum]) -> None:
    """`time_error` is that of the whole round; where a K lies off the line it is said, else not."""
    for name, k in (("chat", 2), ("chat", 7), ("bent", 1), ("bent", 3)):
        told, ran = of(swept[name], k, "replayed"), of(swept[name], k, "observed")
        assert told.time_error == pytest.approx((told.round_ms or 0) / (ran.round_ms or 1) - 1)
    assert abs(of(swept["chat"], 2, "replayed").time_error or 1) < 0.03
    assert (of(swept["bent"], 3, "replayed").time_error or 0) < -0.1
    assert of(swept["chat"], 1, "replayed").time_error is None
    missed = {name for name, s in swept.items() if any("off what ran at K" in note for note in s.notes)}
    assert "bent" in missed
    assert "chat" not in missed


def test_the_best_is_the_least(swept: dict[str, SweepStratum]) -> None:
    """Of what ran, then of what is replayed, for every class."""
    for name, stratum in swept.items():
        times = {0: 1.0}
        for e in stratum.entries:
            known = e.source != "observed" or e.relative_token_time_low is not None
            if e.relative_token_time is not None and not e.extrapolated and known:
                times.setdefault(e.k, e.relative_token_time)
        if len(times) == 1:
            assert stratum.best_k is None, name
            continue
        assert stratum.best_k == min(times, key=lambda k: times[k]), name
        assert stratum.best_relative_token_time == times[stratum.best_k]
    chat = swept["chat"]
    assert chat.best_k_low is not None
    assert chat.best_k_high is not None
    assert chat.best_k_low <= (chat.best_k or 0) <= chat.best_k_high
    assert (swept["poem"].best_k_low, swept["poem"].best_k, swept["poem"].best_k_high) == (0, 0, 0)


def test_an_extrapolated_k_is_never_best(swept: dict[str, SweepStratum]) -> None:
    """The longer the better, but beyond K = 3 nobody saw a draft: a run is asked for."""
    code = swept["code"]
    assert [e.extrapolated for e in code.entries if e.source == "replayed"] == [False, False, False, True, True]
    longer = of(code, 9, "replayed").relative_token_time
    assert longer is not None
    assert longer < (code.best_relative_token_time or 0)
    assert (code.best_k, code.best_k_high) == (3, 3)
    assert any("a run with K 9 would tell" in note for note in code.notes)
    assert not any("would tell" in note and "longer draft" in note for note in swept["chat"].notes)


def test_the_trace_is_the_longest_with_20_rounds(swept: dict[str, SweepStratum]) -> None:
    thirty, ten = swept["thirty"], swept["ten"]
    assert thirty.trace_k == 7
    assert 20 <= (thirty.trace_rounds or 0) < 50
    assert thirty.trace_note == f"replayed from {thirty.trace_rounds} rounds of 3 requests at K 7: " + (
        "a short trace, see the intervals"
    )
    assert ten.trace_k == 2
    assert len([r for r in classes()["ten"][7] if r["drafted"]]) < 20
    assert of(ten, 7, "observed").rounds
    assert "short" not in (swept["chat"].trace_note or "short")


def test_no_interval_goes_beyond_what_can_be(swept: dict[str, SweepStratum]) -> None:
    """Three requests that nearly always accept: the interval ends at 1 + K. `sound` holds all others to that, too."""
    entry = of(swept["code"], 3, "observed")
    assert entry.tau_verified_high == 4.0
    assert (entry.tau_verified or 9) < 4.0


def test_the_geometric_law_fails_where_replay_does_not(swept: dict[str, SweepStratum]) -> None:
    text = markov(2, 60, 150)
    rejected = [r["accepted"] < r["drafted"] for r in speculate("k7", 7, text)]
    accepted = sum(r["accepted"] for r in speculate("k7", 7, text))
    prob = TokenAcceptProb(accepted / (accepted + sum(rejected)))
    off = []
    for k in (1, 2, 3):
        rounds = [r for r in speculate("x", k, text) if r["drafted"]]
        truth = 1 + sum(r["accepted"] for r in rounds) / len(rounds)
        assert of(swept["law"], k, "replayed").tau_verified == pytest.approx(truth, rel=0.03)
        off.append(abs(float(expected_tokens(prob, k)) / truth - 1))
    assert max(off) > 0.03


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside_the_domain(swept: dict[str, SweepStratum], name: str) -> None:
    """Said in words; the geometric law takes the place of the replay, and what ran stays as it ran."""
    stratum = swept[name]
    assert [(e.k, e.source) for e in stratum.entries] == [
        *((k, "geometric") for k in (1, 2, 3)), (5, "observed"), (9, "geometric")
    ]  # fmt: skip
    assert any(OUTSIDE[name][2] in note for note in stratum.notes), stratum.notes
    rounds = [r for r in speculate("x", 5, markov(8, 20)) if r["drafted"]]
    accepted, rejected = sum(r["accepted"] for r in rounds), sum(r["accepted"] < r["drafted"] for r in rounds)
    prob = TokenAcceptProb(accepted / (accepted + rejected))
    assert of(stratum, 2, "geometric").tau_verified == pytest.approx(float(expected_tokens(prob, 2)))
    assert [e.extrapolated for e in stratum.entries] == [False, False, False, False, True]
    assert (stratum.trace_k, stratum.trace_note) == (None, None)


def test_lengths_that_follow_confidence(swept: dict[str, SweepStratum]) -> None:
    """Many cut drafts stand against a replay, a few in a short trace do not."""
    assert of(swept["confident"], 2, "geometric")
    assert any("draft lengths change inside requests" in note for note in swept["confident"].notes)
    rounds = [r for r in classes()["cut"][5] if r["drafted"]]
    assert sum(r["drafted"] < 5 for r in rounds) > 0.1 * len(rounds)
    assert of(swept["cut"], 2, "replayed")


def test_histograms_alone(swept: dict[str, SweepStratum]) -> None:
    windows = swept["windows"]
    assert [(e.k, e.source) for e in windows.entries] == [
        (1, "geometric"), (2, "geometric"), (3, "observed"), (5, "geometric"), (9, "geometric")
    ]  # fmt: skip
    assert any("histograms" in note for note in windows.notes)
    assert windows.best_k is None


def test_no_drafts(swept: dict[str, SweepStratum]) -> None:
    """d = 0 only: no K ran and none can be replayed."""
    assert swept["plain"].entries == ()
    assert "no round drafted" in (swept["plain"].why or "")


def test_one_request(swept: dict[str, SweepStratum]) -> None:
    """One request tells of no spread: figures without intervals, and it is said why."""
    single = swept["single"]
    assert single.best_k is not None
    assert (single.best_k_low, single.best_k_high) == (None, None)
    assert all(e.tau_verified_low is None for e in single.entries if e.source == "replayed")
    assert any("the best K has no interval" in note for note in single.notes)
    assert "of 1 request at K 5" in (single.trace_note or "")
    # In `ten` it is one K of several: the others still have an interval.
    assert swept["ten"].best_k_low is not None
    assert 7 not in swept["ten"].compared
    assert any("K 7 as run has no interval" in note and "not compared" in note for note in swept["ten"].notes)


def test_one_lucky_request_does_not_win(swept: dict[str, SweepStratum]) -> None:
    """All drafts of one long request were accepted: neither what ran nor its replay is best, and it is said."""
    lucky = swept["lucky"]
    ran = of(lucky, 7, "observed").relative_token_time
    assert ran is not None
    assert ran < (lucky.best_relative_token_time or 0)
    assert lucky.best_k in (1, 2, 3)
    assert (lucky.trace_k, lucky.best_k_low is not None) == (3, True)
    assert 7 not in lucky.compared
    assert any("K 7 as run has no interval" in note for note in lucky.notes)


@pytest.mark.parametrize("told", [True, False])
def test_one_odd_draft_changes_nothing(tmp_path: Path, told: bool) -> None:
    """One draft of 600 tokens: no such K is replayed, and times of the others stay on their line."""
    rounds = [r for k in (5, 2) for r in speculate(f"k{k}", k, markov(6, 20, 60))]
    odd = rounds[0] | {"request_id": "odd", "drafted": 600, "accepted": 2, "emitted": 3}
    rounds = [r | {"num_speculative_tokens": r["num_speculative_tokens"] if told else None} for r in [*rounds, odd]]
    runs = [run_of(f"k{k}", k, **({} if told else {"num_speculative_tokens": None})) for k in (5, 2)]
    total = ask(write_lake(tmp_path / "lake", rounds=rounds, runs=runs), replace(BASELINE, by=())).total
    assert total.trace_k == 5
    assert total.best_k in (1, 2, 3, 5)
    assert of(total, 7, "replayed").extrapolated
    for k in (1, 3):
        assert of(total, k, "replayed").draft_ms == pytest.approx((DRAFT[0] + DRAFT[1] * k) / 1000, rel=1e-6)


def test_a_lower_bound_holds_the_same_parts(swept: dict[str, SweepStratum]) -> None:
    """What ran and what is replayed both count logged sampling and rollback, constant over K (MODEL.md 4)."""
    parts = swept["parts"]
    told, ran = of(parts, 5, "replayed"), of(parts, 5, "observed")
    assert told.relative_token_time == pytest.approx(ran.relative_token_time, rel=0.01)
    assert told.round_ms == pytest.approx(ran.round_ms, rel=0.01)
    assert all(e.rest_ms == pytest.approx(4.0) for e in parts.entries)
    assert {e.relative_token_time_basis for e in parts.entries} == {"lower_bound"}
    one = of(parts, 1, "replayed")
    assert one.round_ms == pytest.approx((DRAFT[0] + DRAFT[1] + VERIFY[0] + VERIFY[1]) / 1000 + 4.0, rel=0.01)
    assert parts.best_k_low is not None
    assert any("draft, verify, sampling, rollback alone, a lower bound" in note for note in parts.notes)


def test_one_length_timed_is_proportional(swept: dict[str, SweepStratum]) -> None:
    entry = of(swept["one_length"], 2, "replayed")
    assert entry.cost_basis == "proportional"
    assert entry.draft_ms == pytest.approx((DRAFT[0] + 5 * DRAFT[1]) * 2 / 5 / 1000)
    assert entry.target_ms == pytest.approx((VERIFY[0] + 5 * VERIFY[1]) / 1000)


def test_one_class_alone(traffic: Path, swept: dict[str, SweepStratum]) -> None:
    """The same answer again, which is that of all traffic; what was measured goes before a claim."""
    where = replace(BASELINE, where="task_type = 'poem'", claim=Claim(0.7, 0.1, 5))
    result = ask(traffic, where, (1, 2, 3, 5, 9))
    assert result.strata == (swept["poem"],)
    assert [e.relative_token_time for e in result.total.entries] == pytest.approx(
        [e.relative_token_time for e in swept["poem"].entries]
    )
    assert {(e.source, e.cost_basis) for e in result.total.entries} == {
        ("observed", "observed"), ("replayed", "fitted")
    }  # fmt: skip
    out = StringIO()
    VIEW.render(result, "table", out, width=80)
    assert out.getvalue().count("0 off") == 1


@pytest.fixture(scope="module")
def untimed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rounds = speculate("k5", 5, markov(6), timed=False)
    return write_lake(tmp_path_factory.mktemp("untimed"), rounds=rounds, runs=[run_of("k5", 5)])


def test_no_times(untimed: Path) -> None:
    """tau can be told; time, TPOT and the best K cannot, and the answer says what would tell."""
    total = ask(untimed, Question()).total
    assert total.best_k is None
    assert total.why
    assert all(e.relative_token_time is None and e.tpot_ms is None and e.round_ms is None for e in total.entries)
    assert all(e.tau_verified for e in total.entries)


def test_a_claim_takes_the_place_of_times(untimed: Path) -> None:
    total = ask(untimed, Question(claim=Claim(0.7, 0.1, 5))).total
    for e in total.entries:
        assert e.cost_basis == "claim"
        assert e.relative_token_time == pytest.approx((1 + 0.1 * e.k) / (e.tau_committed or 0))
        assert e.time_error is None
    assert total.best_k in (1, 2, 3, 5)
    assert any("assumed from the claim" in note for note in total.notes)


@pytest.mark.parametrize("emitted", [0, 1])
def test_tokens_that_were_cut(tmp_path: Path, emitted: int) -> None:
    """No token committed: no time of a token, and that is the reason. Few: an interval has two ends or none."""
    rounds = speculate("k5", 5, markov(6, 4, 30))
    for i, row in enumerate(rounds):
        row["emitted"] = emitted if i % 7 == 0 else 0
    lake = write_lake(tmp_path / "lake", rounds=rounds, runs=[run_of("k5", 5)])
    total = ask(lake, replace(BASELINE, by=())).total
    if emitted:
        assert total.best_k == 0
        return
    assert total.best_k is None
    assert "no token was committed" in (total.why or "")


def test_plain_rounds_of_another_run_are_no_k(tmp_path: Path) -> None:
    """A run without K that never drafted counts neither into what ran nor into what is replayed."""
    rounds = [r for r in speculate("k5", 5, markov(6, 20, 60)) if r["drafted"] == 5]
    plain = [
        {"run_id": "other", "ts": DAY, "request_id": f"p{i}", "task_type": "chat", "drafted": 0, "accepted": 0,
         "emitted": 1, "step_us": 90_000}
        for i in range(200)
    ]  # fmt: skip
    lake = write_lake(tmp_path / "lake", rounds=[*rounds, *plain], runs=[run_of("k5", 5), {"run_id": "other"}])
    result = ask(lake, BASELINE)
    for stratum in (*result.strata, result.total):
        ran, told = of(stratum, 5, "observed"), of(stratum, 5, "replayed")
        assert ran.tau_committed == pytest.approx(sum(r["emitted"] for r in rounds) / len(rounds))
        assert told.tau_committed == pytest.approx(ran.tau_committed)
        assert told.relative_token_time == pytest.approx(ran.relative_token_time)


def test_a_baseline_of_one_request_tells_no_spread(tmp_path: Path) -> None:
    """The replayed K must not be surer than what ran: all stand against the same plain step."""
    plain = [
        {"run_id": "off", "ts": DAY, "request_id": "p", "task_type": "chat", "round_index": j, "drafted": 0,
         "accepted": 0, "emitted": 1, "step_us": PLAIN}
        for j in range(50)
    ]  # fmt: skip
    runs = [run_of("k5", 5), {"run_id": "off", "role": "baseline"}]
    lake = write_lake(tmp_path / "lake", rounds=[*speculate("k5", 5, markov(6, 20, 60)), *plain], runs=runs)
    total = ask(lake, Question(by=())).total
    assert total.baseline_ms == pytest.approx(PLAIN / 1000)
    assert all(e.relative_token_time_low is None for e in total.entries)
    assert total.best_k is not None
    assert (total.best_k_low, total.best_k_high) == (None, None)


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
    lake = write_lake(tmp_path / "lake", rounds=rounds, runs=runs, requests=requests)
    result = ask(lake, Question(by=()), (4,))
    total = result.total
    assert result.strata == ()
    entry = of(total, 4, "replayed")
    assert (entry.relative_token_time_basis, entry.cost_basis) == ("tpot", "fitted")
    assert entry.round_ms == pytest.approx(36.0, rel=0.03)
    assert entry.tpot_ms == pytest.approx((entry.round_ms or 0) / (entry.tau_committed or 1))
    assert entry.relative_token_time == pytest.approx((entry.tpot_ms or 0) / 20.0)
    ran = of(total, 6, "observed")
    assert ran.relative_token_time_basis == "tpot"
    assert ran.relative_token_time == pytest.approx(1 / (ran.speedup_observed or 1))
    assert total.baseline_basis == "tpot_run_tpot"
    # Both times are TPOT: the token times are compared.
    told = of(total, 2, "replayed")
    ran = of(total, 2, "observed")
    assert told.time_error == pytest.approx((told.relative_token_time or 0) / (ran.relative_token_time or 1) - 1)


def test_refusals(tmp_path: Path) -> None:
    lake = write_lake(tmp_path)
    for ks in ((0, 3), (65,), ()):
        with pytest.raises(InputError, match="--k"):
            sweep(lake, Question(), ks)
    with pytest.raises(InputError, match="leave it out of --by"):
        sweep(lake, Question(by=("num_speculative_tokens",)))
