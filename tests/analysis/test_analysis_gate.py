"""The gate: decisions with their reasons, waste, drag, and the policy that follows."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lakes import write_lake

from tracelens.analysis.gate import GateOptions, GateResult, GateStratum, gate
from tracelens.analysis.policy import policy
from tracelens.analysis.session import Question
from tracelens.cli import run
from tracelens.errors import InputError

DAY = dt.datetime(2026, 11, 1, 10)
RUNS = [{"run_id": "spec", "role": "speculative"}, {"run_id": "off", "role": "baseline"}]


def speculating(
    task: str, p: float, requests: int = 50, *, k: int = 3, seed: int = 1, step: str | None = None, **more: Any
) -> list[dict[str, Any]]:
    """Requests of 12 rounds; a round costs 10 + 2 a draft, ms. `step`: rounds of a request share steps by this name."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(requests):
        own = float(np.clip(rng.normal(p, 0.05), 0.0, 0.99))
        for j in range(12):
            accepted = int(min(rng.geometric(1 - own) - 1, k)) if own > 0 else 0
            found.append(
                {"run_id": "spec", "ts": DAY, "request_id": f"{task}-{i}", "task_type": task, "round_index": j,
                 "drafted": k, "accepted": accepted, "emitted": accepted + 1, "num_speculative_tokens": k,
                 "draft_us": 2_000 * k, "target_us": 10_500, "step_us": 2_000 * k + 11_000 + int(rng.integers(300)),
                 "model": "m", "step_id": None if step is None else f"{step}-{i}-{j}",
                 "step_share": None if step is None else 0.5, "batch_size": None if step is None else 2, **more}
            )  # fmt: skip
    return found


def plain(task: str = "good", requests: int = 40, *, batch: int | None = None) -> list[dict[str, Any]]:
    rng = np.random.default_rng(9)
    return [
        {"run_id": "off", "ts": DAY, "request_id": f"{task}-p{i}", "task_type": task, "round_index": j, "drafted": 0,
         "accepted": 0, "emitted": 1, "step_us": 10_000 + int(rng.integers(300)), "model": "m", "batch_size": batch}
        for i in range(requests) for j in range(12)
    ]  # fmt: skip


def by_task(found: GateResult) -> dict[str, GateStratum]:
    return {str(s.key["task_type"]): s for s in found.strata}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [*speculating("good", 0.9), *speculating("bad", 0.05, seed=2), *speculating("few", 0.9, 8, seed=3)]
    baselines = [row for task in ("good", "bad", "few") for row in plain(task)]
    return write_lake(tmp_path_factory.mktemp("gate"), runs=RUNS, rounds=[*rows, *baselines])


def test_every_class_is_decided_for_itself(lake: Path) -> None:
    found = gate(lake, Question())
    strata = by_task(found)
    assert {name: s.decision for name, s in strata.items()} == {
        "good": "GO", "bad": "NO_GO", "few": "INCONCLUSIVE"}  # fmt: skip
    assert found.decision == "NO_GO"
    assert strata["few"].reasons[0] == "8 requests, fewer than 30"
    assert all(s.reasons for s in (*found.strata, found.total))


def test_break_even_is_the_acceptance_at_which_it_would_pay(lake: Path) -> None:
    """R = 17.15 / 10.15 plain steps, 3 drafts a round: alpha* = (R - 1) / 3."""
    bad = by_task(gate(lake, Question()))["bad"]
    assert bad.round_cost == pytest.approx(17.15 / 10.15, rel=0.002)
    assert bad.break_even_alpha == pytest.approx((17.15 / 10.15 - 1) / 3, rel=0.01)
    assert bad.alpha_distance == pytest.approx((bad.draft_accept_ratio or 0) - (bad.break_even_alpha or 0))
    assert any("break even at α 0.2" in text for text in bad.advice)
    # At alpha* a round gives R tokens, so C is 1.
    assert 1 + 3 * (bad.break_even_alpha or 0) == pytest.approx(bad.round_cost)


def test_one_token_more_or_less(lake: Path) -> None:
    """The article's sensitivity: 53 ms a round, 18 ms a plain step; 3 tokens 1.02x, 4 tokens 1.36x."""
    good = by_task(gate(lake, Question()))["good"]
    assert good.round_cost is not None
    assert good.speedup_one_token_more is not None
    assert good.speedup_one_token_less is not None
    assert good.speedup_one_token_more - good.speedup_one_token_less == pytest.approx(2 / good.round_cost)


def test_thresholds(lake: Path) -> None:
    strata = by_task(gate(lake, Question(), GateOptions(min_requests=5, max_near_k=0.3)))
    assert strata["bad"].decision == "NO_GO"
    assert any("near-K rounds" in reason for reason in strata["bad"].reasons)
    assert by_task(gate(lake, Question(), GateOptions(margin=0.9)))["bad"].decision == "INCONCLUSIVE"
    for wrong in (GateOptions(margin=-1), GateOptions(min_requests=-1), GateOptions(max_near_k=2)):
        with pytest.raises(InputError, match=r"--(margin|min-requests|max-near-k)"):
            gate(lake, Question(), wrong)


def test_without_times_nothing_is_decided(tmp_path: Path) -> None:
    rows = [{**row, "draft_us": None, "target_us": None, "step_us": None} for row in speculating("good", 0.9)]
    found = gate(write_lake(tmp_path, rounds=rows), Question())
    assert found.decision == "INCONCLUSIVE"
    assert found.total.relative_token_time is None
    assert "cannot be had" in found.total.reasons[0]
    assert any("relative_token_time" in m.figure for m in found.coverage)


def test_without_steps_tpot_decides(tmp_path: Path) -> None:
    rounds = [{**row, "draft_us": None, "target_us": None, "step_us": None} for row in speculating("good", 0.9)]
    rng = np.random.default_rng(5)
    requests = [
        {"run_id": name, "ts_end": DAY, "request_id": f"{prefix}{i}", "task_type": "good", "output_tokens": 40,
         "decode_us": int(39 * ms * 1000 * rng.uniform(0.95, 1.05)), "model": "m"}
        for name, prefix, ms in (("spec", "good-", 6.0), ("off", "p", 10.0)) for i in range(50)
    ]  # fmt: skip
    (found,) = gate(write_lake(tmp_path, runs=RUNS, rounds=rounds, requests=requests), Question()).strata
    assert (found.decision, found.basis) == ("GO", "tpot")
    assert found.relative_token_time == pytest.approx(0.6, rel=0.02)
    assert found.baseline_basis == "run_tpot"
    assert found.break_even_alpha is not None  # from the cost that TPOT and the tokens of a round imply


def test_requests_that_log_their_tpot_and_no_rounds_are_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RTP-LLM before August 2026, say: the sample is the requests whose TPOT is compared."""
    rng = np.random.default_rng(4)
    requests = [
        {"run_id": name, "ts_end": DAY, "request_id": f"{name}-{task}-{i}", "task_type": task, "output_tokens": 101,
         "decode_us": 100 * (micros + int(rng.integers(-300, 300))), "model": "m"}
        for task, several in (("many", 40), ("few", 8))
        for name, micros in (("spec", 6_000), ("off", 10_000))
        for i in range(several)
    ]  # fmt: skip
    for row in requests:
        row |= {"tpot_us": row["decode_us"] / 100, "tpot_basis": "derived"}
    lake = write_lake(tmp_path, runs=RUNS, requests=requests)
    strata = by_task(gate(lake, Question()))
    run(["gate", "--lake", str(lake)])
    assert "requests: those whose TPOT is logged" in capsys.readouterr().out
    assert (strata["many"].decision, strata["many"].requests) == ("GO", 40)
    assert (strata["few"].decision, strata["few"].reasons[0]) == ("INCONCLUSIVE", "8 requests, fewer than 30")


def test_a_class_that_makes_the_others_pay(tmp_path: Path) -> None:
    """Two classes share every step, 4 verified positions each: one commits 3.5 tokens, the other 1."""
    one = speculating("good", 0.9, step="s")
    other = speculating("bad", 0.0, step="s")
    # One in ten of the bad rounds drafts nothing, so that positions of a step vary.
    for i, row in enumerate(other):
        row["target_us"] = 10_500
        if i % 10 == 0:
            row.update(drafted=0, accepted=0, emitted=1)
    for a, b in zip(one, other, strict=True):
        positions = a["drafted"] + b["drafted"] + 2
        a["target_us"] = b["target_us"] = 8_000 + 500 * positions
    found = by_task(gate(write_lake(tmp_path, runs=RUNS, rounds=[*one, *other, *plain("good"), *plain("bad")]),
                         Question()))  # fmt: skip
    tokens, wasted = (sum(row["emitted"] for row in rows) for rows in (one, other))
    positions = {"good": 4 * len(one), "bad": sum(row["drafted"] + 1 for row in other)}
    share = positions["bad"] / sum(positions.values())
    assert found["bad"].drag == pytest.approx(share / (wasted / (tokens + wasted)))
    assert found["good"].drag is not None
    assert found["good"].drag < 1 < found["bad"].drag
    assert any("drag" in text for text in found["bad"].advice)
    # Every verified position of a step costs 0.5 ms: a slope that the data tells.
    steps = sum(a["step_us"] for a in one) / 1000
    assert found["bad"].step_gain == pytest.approx(0.5 * positions["bad"] / steps, rel=0.05)
    assert found["bad"].verify_waste == pytest.approx(1 - wasted / positions["bad"])
    padded = 4 * len(other)
    assert found["bad"].padding_waste == pytest.approx(1 - positions["bad"] / padded)
    assert found["good"].padding_waste == pytest.approx(0.0)


def test_switching_off_is_priced_in_engine_time(lake: Path) -> None:
    bad = by_task(gate(lake, Question()))["bad"]
    assert bad.off_gain_share is None  # steps are not shared out in this lake: nobody knows engine time


def test_switching_off_with_engine_time(tmp_path: Path) -> None:
    rows = [{**row, "step_share": 0.5, "batch_size": 2} for row in speculating("bad", 0.05, seed=2)]
    (bad,) = gate(write_lake(tmp_path, runs=RUNS, rounds=[*rows, *plain("bad", batch=2)]), Question()).strata
    engine = sum(row["step_us"] for row in rows) / 2000
    tokens = sum(row["emitted"] for row in rows) / 2
    assert bad.off_gain_ms == pytest.approx(engine - tokens * 10.15, rel=0.002)
    assert bad.off_gain_share == pytest.approx((bad.off_gain_ms or 0) / engine)
    assert any("would save about" in text for text in bad.advice)


def test_steps_with_prefill_are_none_that_speculation_could_save(tmp_path: Path) -> None:
    """Plain decoding has them, too: they change nothing of what is told of speculation, nor of shared steps."""
    one, other = speculating("good", 0.9, step="s"), speculating("bad", 0.05, seed=2, step="s")
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        a["drafted"], a["accepted"], a["emitted"] = (0, 0, 1) if i % 7 == 0 else (3, a["accepted"], a["emitted"])
        a["target_us"] = b["target_us"] = 8_000 + 500 * (a["drafted"] + b["drafted"])
        a["step_us"] = b["step_us"] = a["target_us"] + 6_500
    prefill = [{**row, "step_us": 140_000, "target_us": 139_000, "has_prefill": True, "step_id": f"p-{row['step_id']}",
                "round_index": 100 + row["round_index"]} for row in (*one, *other)]  # fmt: skip
    rest = [*plain("good", batch=2), *plain("bad", batch=2)]
    bare = gate(write_lake(tmp_path / "a", runs=RUNS, rounds=[*one, *other, *rest]), Question())
    both = gate(write_lake(tmp_path / "b", runs=RUNS, rounds=[*one, *other, *prefill, *rest]), Question())
    for a, b in zip((*bare.strata, bare.total), (*both.strata, both.total), strict=True):
        assert b.off_gain_share == pytest.approx(a.off_gain_share)
        assert b.off_gain_ms == pytest.approx(a.off_gain_ms)
        assert b.step_gain == pytest.approx(a.step_gain)
        # One plain token instead of C of one: what is saved is the share of a token's time that is above it.
        assert b.off_gain_share == pytest.approx(1 - 1 / (b.relative_token_time or 1))
    assert by_task(both)["bad"].step_gain


def test_an_empty_lake_is_inconclusive(tmp_path: Path) -> None:
    found = gate(write_lake(tmp_path), Question())
    assert found.decision == "INCONCLUSIVE"
    assert found.strata == ()


def test_the_policy_follows_the_decisions(lake: Path) -> None:
    question = Question()
    found = policy(lake, question, gate(lake, question))
    chosen = {str(c.key["task_type"]): c for c in found.strata}
    assert chosen["bad"].k == 0
    assert chosen["few"].k == 3  # inconclusive: kept
    assert chosen["good"].k is not None
    assert chosen["good"].k > 0
    assert found.schedule == ()  # no batch sizes in this lake
    assert json.loads(json.dumps(found.document()))["vllm"]["num_speculative_tokens"] == found.total.k


@pytest.mark.long
def test_vllms_schedule_has_no_holes(tmp_path: Path) -> None:
    """Speculation pays alone and not in a batch of 40: K, then 0, from 1 on, both ends of a range included."""
    small = speculating("good", 0.9, batch_size=1, step_share=1.0)
    large = [
        {**row, "request_id": row["request_id"] + "-b", "batch_size": 40, "step_us": 60_000, "target_us": 50_000}
        for row in speculating("good", 0.9, step_share=1.0, seed=4)
    ]
    rows = [*small, *large, *plain("good", batch=1), *plain("good", batch=40)]
    lake = write_lake(tmp_path, runs=RUNS, rounds=rows)
    found = policy(lake, Question(), gate(lake, Question()))
    assert [entry[0] for entry in found.schedule] == [1, 33]
    assert found.schedule[-1] == (33, 64, 0)
    assert found.schedule[0][1] == 32
    assert found.schedule[0][2] > 0
    assert found.document()["vllm"]["num_speculative_tokens"] == found.schedule[0][2]


@pytest.mark.long
def test_a_batch_size_with_few_requests_takes_the_k_of_all(tmp_path: Path) -> None:
    """Four requests in batches of 40: whatever they say, it decides nothing."""
    rows = [*speculating("good", 0.9, batch_size=1, step_share=1.0), *plain("good", batch=1), *plain("good", batch=40)]
    few = [
        {**row, "request_id": row["request_id"] + "-b", "batch_size": 40, "step_us": 60_000}
        for row in speculating("good", 0.9, 4, step_share=1.0, seed=4)
    ]
    lake = write_lake(tmp_path, runs=RUNS, rounds=[*rows, *few])
    found = policy(lake, Question(), gate(lake, Question()))
    small, large = found.batches
    assert (large.decision, large.k) == ("INCONCLUSIVE", found.total.k)
    assert "4 requests, fewer than 30" in large.why
    assert small.decision == "GO"


def test_two_baselines_that_differ_decide_nothing_between_them(tmp_path: Path) -> None:
    """C is 0.93 over both, 1.05 over the quicker: the machines differ by a quarter."""
    slow = [{**row, "run_id": "off-2", "step_us": row["step_us"] + 2_500} for row in plain("good")]
    runs = [*RUNS, {"run_id": "off-2", "role": "baseline"}]
    rows = speculating("good", 0.42, 80)
    lake = write_lake(tmp_path, runs=runs, rounds=[*rows, *plain("good"), *slow])
    for named in (None, "off", "off-2"):
        (stratum,) = gate(lake, Question(baseline=named)).strata
        assert stratum.control_spread == pytest.approx(0.246, abs=0.01)
        assert stratum.decision == "INCONCLUSIVE"
        assert "differ by 24" in stratum.reasons[0]


def test_forced_acceptance_decides_nothing(tmp_path: Path) -> None:
    rows = [*speculating("good", 0.9, forced_acceptance=True), *plain("good")]
    lake = write_lake(tmp_path, runs=RUNS, rounds=rows)
    (stratum,) = gate(lake, Question()).strata
    assert stratum.decision == "INCONCLUSIVE"
    assert "forced" in stratum.reasons[0]
    assert policy(lake, Question(), gate(lake, Question())).strata[0].k == 3


def test_where_cuts_take_the_gain_the_advice_says_so(tmp_path: Path) -> None:
    """Two rounds a request, the second cut to one token: alpha above break-even, and still a loss."""
    rows = [
        {**row, "emitted": 1 if row["round_index"] % 2 else row["emitted"], "step_us": row["step_us"] + 5_000}
        for row in speculating("good", 0.75, k=3)
    ]
    (stratum,) = gate(write_lake(tmp_path, runs=RUNS, rounds=[*rows, *plain("good")]), Question()).strata
    assert stratum.decision == "NO_GO"
    assert stratum.alpha_distance is not None
    assert stratum.alpha_distance > 0
    assert any("lost to cuts" in text for text in stratum.advice)
    assert not any("would break even" in text for text in stratum.advice)


@pytest.mark.long
def test_one_request_with_another_k_changes_no_policy(tmp_path: Path) -> None:
    lucky = [
        {**row, "run_id": "spec-7", "request_id": "lucky", "accepted": 7, "emitted": 8}
        for row in speculating("good", 0.9, 1, k=7)
    ]
    runs = [*RUNS, {"run_id": "spec-7", "role": "speculative"}]
    lake = write_lake(tmp_path, runs=runs, rounds=[*speculating("good", 0.6, 60), *lucky, *plain("good")])
    (choice,) = policy(lake, Question(), gate(lake, Question())).strata
    assert choice.k != 7


def test_the_policy_and_the_answer_go_to_two_places(lake: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    assert run(["gate", "--lake", str(lake), "-o", path, "--emit-policy", path]) == 3
    assert run(["gate", "--lake", str(lake), "--json", "--emit-policy", "-"]) == 3


def test_drafts_in_one_record_and_plain_steps_in_another(tmp_path: Path) -> None:
    """n-gram rounds list drafts alone; the request counts all passes: break-even is over all of them."""
    rounds = [
        {**row, "engine": "vllm", "surface": "vllm.response", "draft_us": None, "target_us": None, "step_us": None}
        for row in speculating("good", 0.5, k=3)
    ]
    made = sum(row["emitted"] for row in rounds)
    requests = [
        {"run_id": "spec", "ts_end": DAY, "request_id": f"good-{i}", "task_type": "good", "model": "m",
         "engine": "vllm", "surface": "vllm.response", "rounds": 12, "iterations": 60,
         "drafted": 36, "accepted": sum(r["accepted"] for r in rounds if r["request_id"] == f"good-{i}"),
         "emitted": 48 + sum(r["emitted"] for r in rounds if r["request_id"] == f"good-{i}"),
         "output_tokens": 49 + sum(r["emitted"] for r in rounds if r["request_id"] == f"good-{i}"),
         "decode_us": 1_000_000 + i}
        for i in range(50)
    ]  # fmt: skip
    plain_requests = [
        {"run_id": "off", "ts_end": DAY, "request_id": f"p{i}", "task_type": "good", "model": "m", "engine": "vllm",
         "surface": "vllm.response", "output_tokens": 101, "decode_us": 1_000_000 + i} for i in range(50)
    ]  # fmt: skip
    lake = write_lake(tmp_path, runs=RUNS, rounds=rounds, requests=[*requests, *plain_requests])
    (stratum,) = gate(lake, Question()).strata
    tau = (made + 48 * 50) / (60 * 50)
    assert stratum.round_cost == pytest.approx(tau * (stratum.relative_token_time or 0), rel=1e-6)
    assert stratum.break_even_alpha == pytest.approx(((stratum.round_cost or 0) - 1) / (36 / 60), rel=1e-6)


@pytest.mark.parametrize(("where", "code"), [("task_type = 'good'", 0), ("task_type = 'bad'", 1),
                                             ("task_type = 'few'", 2), ("no such", 3)])  # fmt: skip
@pytest.mark.long
def test_exit_codes(lake: Path, where: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gate", "--lake", str(lake), "--where", where, "--json"]) == code
    if code < 3:
        document = json.loads(capsys.readouterr().out)
        assert document["decision"] == ["GO", "NO_GO", "INCONCLUSIVE"][code]
        assert set(document["strata"][0]) >= {
            "key", "decision", "relative_token_time", "draft_accept_ratio", "break_even_alpha", "reasons"}  # fmt: skip


def test_the_policy_is_written(lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.json"
    assert run(["gate", "--lake", str(lake), "--emit-policy", str(path), "--format", "markdown"]) == 1
    document = json.loads(path.read_text(encoding="utf-8"))
    assert [s["k"] for s in document["strata"] if s["key"]["task_type"] == "bad"] == [0]
    assert capsys.readouterr().out.startswith("**NO_GO: 1 GO, 1 NO_GO, 1 INCONCLUSIVE of 3 classes")
