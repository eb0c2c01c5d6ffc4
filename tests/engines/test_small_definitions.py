"""One truth, printed as each of the small engines and benchmarks prints it: the same counts come back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from whole_source import ingest, shown

K = 5
START_S = 1_790_000_000.0


def _truth(seed: int, requests: int = 40, p: float = 0.75) -> list[list[int]]:
    """Accepted drafts of every round, request by request: a chain of K drafts, each accepted with probability p."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(requests):
        hits = rng.random((int(rng.integers(5, 20)), K)) < p
        out.append(np.cumprod(hits, axis=1).sum(axis=1).tolist())
    return out


TRUTH = _truth(7)
FLAT = [a for request in TRUTH for a in request]
ROUNDS, ACCEPTED = len(FLAT), sum(FLAT)
DRAFTED, EMITTED = K * ROUNDS, ROUNDS + ACCEPTED
PER_POS = [sum(a > i for a in FLAT) for i in range(K)]


def _hist(accepted: Sequence[int]) -> list[int]:
    return [accepted.count(j) for j in range(max(accepted) + 1)]


def _summed(frame: pl.DataFrame | None) -> tuple[Any, ...]:
    assert frame is not None
    return tuple(frame[c].sum() for c in ("rounds", "drafted", "accepted", "emitted"))


def test_the_truth_is_worth_it() -> None:
    assert 0.3 < ACCEPTED / DRAFTED < 0.6
    assert 0 < PER_POS[-1] < PER_POS[0] < ROUNDS


def test_lmdeploy_line(tmp_path: Path) -> None:
    rates = ", ".join(f"{n / ROUNDS:.3f}" for n in PER_POS)
    text = (
        "[2026-06-01 10:00:10 DP0] Avg thr (in/out): 120.4 / 980.2 tokens/s, Server (succeeded/failed/routed/waiting): "
        "10 / 0 / 4 / 0, Engine (running/waiting): 4 / 0, KV cache: 12.1%, SpecDecoding metrics: "
        f"Draft acceptance rate: {100 * ACCEPTED / DRAFTED:.2f}%, Mean acceptance length: {EMITTED / ROUNDS:.2f}, "
        f"Accepted: {ACCEPTED} tokens, Drafted: {DRAFTED} tokens, Per-position acceptance rate: {rates}\n"
    )
    tables, rejects = ingest(tmp_path, text, "lmdeploy")
    assert rejects == []
    assert shown(tables.windows, "rounds", "drafted", "accepted", "accepted_per_pos", "num_speculative_tokens") == [
        (ROUNDS, DRAFTED, ACCEPTED, PER_POS, K)
    ]


def test_lmdeploy_metrics(tmp_path: Path) -> None:
    labels = 'engine="0",model_name="m"'
    values = {"drafts": ROUNDS, "draft_tokens": DRAFTED, "accepted_tokens": ACCEPTED}
    lines = [f"lmdeploy:spec_decode_num_{n}_total{{{labels}}} {v}.0" for n, v in values.items()]
    lines += [
        f'lmdeploy:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {n}.0'
        for i, n in enumerate(PER_POS)
    ]
    lines += [f"lmdeploy:generation_tokens_total{{{labels}}} {EMITTED + len(TRUTH)}.0"]
    lines += [f"lmdeploy:time_to_first_token_seconds_count{{{labels}}} {len(TRUTH)}.0"]
    tables, rejects = ingest(tmp_path, "# TYPE lmdeploy:x counter\n" + "\n".join(lines) + "\n", "lmdeploy")
    assert rejects == []
    assert shown(tables.windows, "rounds", "drafted", "accepted", "emitted", "accepted_per_pos") == [
        (ROUNDS, DRAFTED, ACCEPTED, EMITTED, PER_POS)
    ]


def _mlc() -> dict[str, Any]:
    accepts = [ROUNDS, *PER_POS]
    probabilities = [n / ROUNDS for n in accepts]
    return {
        "engine_decode_time_sum": 12.5,
        "completion_tokens_sum": EMITTED + len(TRUTH),
        "decode_tokens_sum": EMITTED,
        "spec_decode": {
            "draft_count": [ROUNDS] * (K + 1),
            "accept_count": accepts,
            "accept_prob": {f"accept_prob{{step={i}}}": p for i, p in enumerate(probabilities)},
            "accept_rate": {f"accept_rate{{step={i}}}": accepts[i] / accepts[i - 1] for i in range(1, K + 1)},
            "accept_len": {f"accept_len{{step={i}}}": sum(probabilities[: i + 1]) for i in range(K + 1)},
        },
    }


def _prometheus(metrics: dict[str, Any], prefix: str = "") -> list[str]:
    """As MLC's `prometheus_text` flattens them: numbers first, then what lies deeper; lists are left out."""
    lines = [f"{prefix}{k}\t{v}" for k, v in metrics.items() if isinstance(v, (int, float))]
    for key, value in metrics.items():
        if isinstance(value, dict):
            lines += ["", f"# /{key}", *_prometheus(value, f"{prefix}{key}_")]
    return lines


@pytest.mark.parametrize("form", ["json", "text"])
def test_mlc(tmp_path: Path, form: str) -> None:
    content = json.dumps({"usage": {"extra": _mlc()}}) if form == "json" else "\n".join(_prometheus(_mlc())) + "\n"
    tables, rejects = ingest(tmp_path, content, "mlc")
    assert rejects == []
    assert shown(tables.windows, "rounds", "drafted", "accepted", "emitted", "accepted_per_pos", "plain_steps") == [
        (ROUNDS, DRAFTED, ACCEPTED, EMITTED, PER_POS, 0)
    ]


def test_lightllm(tmp_path: Path) -> None:
    lines = []
    for i, request in enumerate(TRUTH):
        rounds, accepted = len(request), sum(request)
        out = rounds + accepted + 1
        lines.append(
            f"INFO 06-01 10:00:00 [manager.py:435] X-Request-Id: X-Session-Id: start_time:2026-06-01 10:00:00 "
            f"lightllm_req_id:{i} first_token_cost:110.5ms total_cost_time:2400.25ms,out_token_counter:{out} "
            f"mean_per_token_cost_time: 9.1ms prompt_token_num:100 gpu cache hit: False gpu_prompt_cache_len:0 "
            f"mtp_accepted_token_num:{accepted} mtp_total_verify_steps:{rounds} "
            f"mtp_total_verify_tokens:{rounds * (K + 1)} mtp_avg_token_per_step:{out / rounds} "
            f"mtp_avg_accepted_tokens_per_step:{accepted / rounds} mtp_avg_verify_tokens_per_step:{K + 1.0} "
        )
    tables, rejects = ingest(tmp_path, "\n".join(lines) + "\n", "lightllm")
    assert rejects == []
    assert _summed(tables.requests) == (ROUNDS, DRAFTED, ACCEPTED, EMITTED)


def test_omlx(tmp_path: Path) -> None:
    lines = []
    for i, request in enumerate(TRUTH):
        reached = [len(request), *(sum(a > j for a in request) for j in range(K - 1))]
        accepted = [sum(a > j for a in request) for j in range(K)]
        depth = ",".join(f"d{j + 1}={a}/{d}" for j, (a, d) in enumerate(zip(accepted, reached, strict=True)))
        bonus = request.count(K)
        tokens = 2 + sum(request) + len(request)
        lines.append(
            f"2026-09-17 21:14:02,{i:03d} - omlx.mtp - INFO - [-] - MTP[{i}] finish=stop tokens={tokens} "
            f"cycles={len(request)} tok/cycle={tokens / len(request):.2f} accept={sum(request)}/{sum(reached)} "
            f"({100 * sum(request) / sum(reached):.1f}%) depth[{depth}] emits[init=2,draft={sum(request)},"
            f"bonus={bonus},verify={len(request) - bonus}] timing[backbone=5753.0ms mtp=612.0ms sample=1.0ms "
            "cache=2.0ms]"
        )
    tables, rejects = ingest(tmp_path, "\n".join(lines) + "\n", "omlx")
    assert rejects == []
    assert _summed(tables.requests) == (ROUNDS, DRAFTED, ACCEPTED, EMITTED)
    assert [h for (h,) in shown(tables.requests, "accepted_hist")] == [
        [request.count(j) for j in range(K + 1)] for request in TRUTH
    ]


def _said(request: Sequence[int], sparse: bool) -> dict[str, Any]:
    """What vLLM says of a request; as AIPerf keeps it, the histogram is a mapping."""
    hist = _hist(request)
    accepted, rounds = sum(request), len(request)
    return {
        "mean_acceptance_length": 1 + accepted / rounds,
        "draft_acceptance_rate": accepted / (K * rounds),
        "acceptance_histogram": {str(j): n for j, n in enumerate(hist) if n} if sparse else hist,
        "num_spec_steps": rounds, "num_accepted_draft_tokens": accepted, "num_draft_tokens": K * rounds,
        "num_spec_tokens": K, "per_step_accepted": list(request), "per_step_drafted": [K] * rounds,
    }  # fmt: skip


def test_aiperf(tmp_path: Path) -> None:
    lines = [
        json.dumps({
            "metadata": {
                "benchmark_phase": "profiling", "x_request_id": f"r{i}",
                "request_start_ns": int(START_S) * 10**9},
            "metrics": {"output_sequence_length": {"value": sum(r) + len(r) + 1, "unit": "tokens"}},
            "spec_decode_acceptance": {"engine": "vllm", **_said(r, sparse=True)},
        })
        for i, r in enumerate(TRUTH)
    ]  # fmt: skip
    tables, rejects = ingest(tmp_path, "\n".join(lines) + "\n", "aiperf", "profile_export.jsonl")
    assert rejects == []
    assert _summed(tables.requests) == (ROUNDS, DRAFTED, ACCEPTED, EMITTED)
    assert tables.rounds is not None
    assert tables.rounds["accepted"].to_list() == FLAT
    assert (tables.rounds["drafted"].sum(), tables.rounds["emitted"].sum()) == (DRAFTED, EMITTED)


def test_guidellm(tmp_path: Path) -> None:
    requests = [
        {
            "request_id": f"r{i}", "output_tokens": sum(r) + len(r) + 1,
            "info": {"timings": {"request_start": START_S, "request_end": START_S + 2}},
            "response_metrics": {"speculative_decoding": _said(r, sparse=False)},
        }
        for i, r in enumerate(TRUTH)
    ]  # fmt: skip
    report = {
        "metadata": {"guidellm_version": "0.8.1"},
        "benchmarks": [{"type_": "generative_benchmark", "metrics": {}, "requests": {"successful": requests}}],
    }
    tables, rejects = ingest(tmp_path, json.dumps(report, indent=1), "guidellm", "benchmarks.json")
    assert rejects == []
    assert _summed(tables.requests) == (ROUNDS, DRAFTED, ACCEPTED, EMITTED)
    assert tables.rounds is not None
    assert tables.rounds["accepted"].to_list() == FLAT


def _answer(i: int, turns: Sequence[Sequence[int]], engine: str) -> str:
    tokens = [sum(t) + len(t) for t in turns]
    choice: dict[str, Any] = {
        "index": 0, "turns": ["x"] * len(turns), "new_tokens": tokens, "wall_time": [1.5] * len(turns),
    }  # fmt: skip
    if engine == "eagle":
        choice["idxs"] = [len(t) - 1 for t in turns]
    else:
        choice["decoding_steps"] = [len(t) for t in turns]
        choice["accept_lengths"] = [a + 1 for t in turns for a in t]
    value = {"question_id": 81 + i, "model_id": "m-temperature-0.0", "choices": [choice], "tstamp": START_S}
    return json.dumps(value | ({} if engine == "eagle" else {"category": "writing"}))


@pytest.mark.parametrize("engine", ["spec-bench", "eagle"])
def test_answers(tmp_path: Path, engine: str) -> None:
    pairs = [TRUTH[i : i + 2] for i in range(0, len(TRUTH), 2)]
    content = "\n".join(_answer(i, turns, engine) for i, turns in enumerate(pairs)) + "\n"
    tables, rejects = ingest(tmp_path, content, engine, "m.jsonl")
    assert rejects == []
    assert tables.requests is not None
    assert shown(tables.requests, "rounds", "accepted", "emitted") == [
        (len(r), sum(r), sum(r) + len(r)) for r in TRUTH
    ]  # fmt: skip
    if engine == "spec-bench":
        assert [h for (h,) in shown(tables.requests, "accepted_hist")] == [_hist(r) for r in TRUTH]
        assert set(tables.requests["task_type"]) == {"writing"}
