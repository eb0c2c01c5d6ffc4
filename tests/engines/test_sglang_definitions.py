"""One truth, and every number that a release of SGLang makes of it: the same counts come back from each."""

from __future__ import annotations

import random
from typing import Any

import pytest
from test_sglang import decoded, ingest, line
from test_sglang_metrics import FINISHED, SCHEDULER, front_end, read, scheduler, shown

K = 5
BATCH = 4
PASSES = 40


def truth(seed: int) -> list[int]:
    """Rounds by accepted drafts: each position is accepted with 0.75 where the ones before it were."""
    chance = random.Random(seed)
    hist = [0] * (K + 1)
    for _ in range(BATCH * PASSES):
        accepted = 0
        while accepted < K and chance.random() < 0.75:
            accepted += 1
        hist[accepted] += 1
    return hist


@pytest.fixture(params=range(4))
def hist(request: pytest.FixtureRequest) -> list[int]:
    return truth(request.param)


def sums(hist: list[int]) -> tuple[int, int]:
    return sum(hist), sum(j * n for j, n in enumerate(hist))


def test_a_decode_line_of_every_convention(hist: list[int]) -> None:
    """0.4.2-0.5.3 print no rate; 0.5.4-0.5.10 count the target's own token; from 0.5.11 it is accepted over drafted."""
    rounds, accepted = sums(hist)
    length = (accepted + rounds) / rounds
    args = f"speculative_num_steps={K}, speculative_eagle_topk=1, speculative_num_draft_tokens={K + 1}"
    start = f"[2026-03-12 09:00:00] server_args=ServerArgs(speculative_algorithm='EAGLE3', {args})"
    rates = (None, (accepted + rounds) / (rounds * (K + 1)), accepted / (rounds * K))
    assert rates[1] is not None
    assert rates[2] is not None
    assert abs(rates[1] - rates[2]) > 0.01  # two numbers under one name
    found = []
    for rate in rates:
        (row,) = decoded(ingest(start, line("10:00:01", BATCH, length, rate))[0]).iter_rows(named=True)
        assert row["rounds"] == rounds
        assert abs(row["accepted"] - accepted) <= 0.5 + 0.005 * rounds  # of two decimals
        assert row["drafted"] == rounds * K
        found.append(row["accepted"])
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("accepted_key", "drafted_key", "hist_key"),
    [
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    ],
)
def test_a_request(hist: list[int], accepted_key: str, drafted_key: str, hist_key: str) -> None:
    """`spec_accept_length` is completion tokens over rounds, the first token in them, which no round gave: not used."""
    rounds, accepted = sums(hist)
    meta: dict[str, Any] = {
        "id": "r", "prompt_tokens": 9, "completion_tokens": accepted + rounds + 1, "spec_verify_ct": rounds,
        accepted_key: accepted, drafted_key: rounds * K, hist_key: hist,
        "spec_accept_length": (accepted + rounds + 1) / rounds, "spec_accept_rate": accepted / (rounds * K),
    }  # fmt: skip
    requests = ingest({"event": "request.finished", "out": {"meta_info": meta}})[0].requests
    assert requests is not None
    columns = ("rounds", "drafted", "accepted", "emitted", "accepted_hist", "num_speculative_tokens")
    assert requests.select(columns).rows() == [(rounds, rounds * K, accepted, accepted + rounds, hist, K)]


def test_metrics(hist: list[int]) -> None:
    rounds, accepted = sums(hist)
    told = {"length": 1 + accepted / rounds, "steps": K, "verified": K + 1, "throughput": 9.0}
    page = scheduler(accepted + rounds, PASSES, **told)
    before = scheduler(0, 0, **told)
    columns = ("rounds", "drafted", "accepted", "emitted")
    assert shown(read(before + page)[0], SCHEDULER, *columns) == [(rounds, rounds * K, accepted, accepted + rounds)]
    page += front_end(accepted + rounds + BATCH, BATCH, rounds)
    assert shown(read(page)[0], FINISHED, *columns) == [(rounds, rounds * K, accepted, accepted + rounds)]


def test_benchmarks(hist: list[int]) -> None:
    rounds, accepted = sums(hist)
    length = round(1 + accepted / rounds, 3)
    server = {"model_path": "m", "speculative_algorithm": "EAGLE", "speculative_num_steps": K}
    serving = {
        "duration": 1.0, "completed": BATCH, "total_output_tokens": accepted + rounds + BATCH,
        "total_output_tokens_retokenized": 1, "accept_length": length, "server_info": server,
    }  # fmt: skip
    windows = ingest(serving)[0].windows
    assert windows is not None
    (row,) = windows.iter_rows(named=True)
    assert (row["rounds"], row["drafted"], row["accepted"]) == (rounds, rounds * K, accepted)
