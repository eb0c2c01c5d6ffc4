"""Means of a benchmark's requests: what stands for all of them, and when a gap between chunks is a round."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.engines import bench_means
from tracelens.engines.units import BrokenError

LATENCY = "mean_e2el_ms"
# Tokens and decode time (ms) of each request.
REQUESTS = st.lists(st.tuples(st.integers(2, 400), st.floats(1, 1e5)), min_size=1, max_size=20)


def result(requests: list[tuple[int, float]], *, gaps: int, ttft: float = 50.0) -> dict[str, Any]:
    """What a benchmark prints of these requests."""
    decode = [ms for _, ms in requests]
    return {
        "mean_ttft_ms": ttft,
        "mean_tpot_ms": sum(ms / (n - 1) for n, ms in requests) / len(requests),
        "mean_itl_ms": sum(decode) / gaps,
        LATENCY: ttft + sum(decode) / len(decode),
    }


@given(requests=REQUESTS)
def test_sums_give_decode_time_over_tokens(requests: list[tuple[int, float]]) -> None:
    made = sum(n for n, _ in requests)
    told = bench_means.told(result(requests, gaps=1), len(requests), made, LATENCY)
    assert told["tpot_basis"] == "derived"
    assert told["tpot_us"] == pytest.approx(sum(ms for _, ms in requests) * 1e3 / (made - len(requests)))


@given(requests=REQUESTS)
def test_without_the_sums_the_mean_is_what_was_printed(requests: list[tuple[int, float]]) -> None:
    printed = {k: v for k, v in result(requests, gaps=1).items() if k != LATENCY}
    told = bench_means.told(printed, len(requests), sum(n for n, _ in requests), LATENCY)
    assert (told["tpot_us"], told["tpot_basis"]) == (printed["mean_tpot_ms"] * 1e3, "logged")
    assert (told["completed"], told["ttft_us"]) == (len(requests), 50_000)


@pytest.mark.parametrize(
    ("requests", "gaps", "rounds", "proved"),
    [
        ([(10, 90.0), (10, 180.0)], 6, 6, True),
        ([(10, 90.0), (20, 180.0)], 6, 6, True),
        ([(10, 90.0), (10, 180.0)], 5, 6, False),  # two outputs came in one chunk
        ([(10, 90.0), (20, 180.0)], 28, None, True),  # a gap a token
        ([(10, 90.0), (20, 180.0)], 20, None, False),
    ],
)
def test_gaps_are_rounds_where_their_sum_proves_it(
    requests: list[tuple[int, float]], gaps: int, rounds: int | None, proved: bool
) -> None:
    printed, made = result(requests, gaps=gaps), sum(n for n, _ in requests)
    means = bench_means.told(printed, len(requests), made, LATENCY)
    found = bench_means.round_time(printed, means, rounds, made)
    assert found == ({"round_us": 270_000, "rounds_timed": gaps} if proved else {})


def test_a_mean_over_requests_proves_it_for_requests_of_one_length_only() -> None:
    for requests, proved in (([(10, 90.0), (10, 180.0)], True), ([(10, 90.0), (20, 180.0)], False)):
        made = sum(n for n, _ in requests)
        printed = {k: v for k, v in result(requests, gaps=6).items() if k != LATENCY}
        means = bench_means.told(printed, len(requests), made, LATENCY)
        assert bool(bench_means.round_time(printed, means, 6, made)) is proved


@pytest.mark.parametrize("change", [{"mean_ttft_ms": 0.0}, {"mean_ttft_ms": None}, {"mean_ttft_ms": float("nan")}])
def test_a_reply_that_was_not_streamed_has_no_tpot(change: dict[str, Any]) -> None:
    assert bench_means.told(result([(10, 90.0)], gaps=9) | change, 1, 10, LATENCY) == {}


def test_nothing_completed_and_single_tokens() -> None:
    printed = result([(10, 90.0)], gaps=9)
    assert bench_means.told(printed, 0, 0, LATENCY) == {}
    assert bench_means.told(printed, 4, 4, LATENCY) == {"completed": 4, "ttft_us": 50_000}


@pytest.mark.parametrize("value", ["x", -1.0, float("inf"), 1e300, True])
def test_what_is_no_mean_is_refused(value: Any) -> None:
    with pytest.raises(BrokenError, match="mean_tpot_ms"):
        bench_means.told(result([(10, 90.0)], gaps=9) | {"mean_tpot_ms": value}, 1, 10, LATENCY)


def test_results_without_means_have_no_request() -> None:
    schema = {**bench_means.COLUMNS, "line": pl.Int64, "surface": pl.String}
    rows = [{"line": 1, "surface": "s"}, {"line": 2, "surface": "s", "completed": 3, "ttft_us": 9}]
    frame = pl.DataFrame([{c: r.get(c) for c in schema} for r in rows], schema=schema)
    found = bench_means.requests(frame, "src")
    assert found.select("request_id", "weight", "tpot_us", "ttft_us").rows() == [("src#2", 3.0, None, 9)]
