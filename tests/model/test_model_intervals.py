"""Intervals: published forms, identities, and the share of planted truths they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tracelens.model.acceptance import TokenAcceptProb
from tracelens.model.intervals import (
    Estimate,
    RatioSums,
    inverse,
    positive_interval,
    quotient,
    ratio_estimate,
    ratio_interval,
    ratio_variance,
    t_quantile,
    two_way_variance,
)
from tracelens.model.rollback import near_k_iid_share, near_k_share


def test_t_quantile() -> None:
    assert t_quantile(0.95, 9) == pytest.approx(2.262157, abs=1e-6)
    assert t_quantile(0.95, math.inf) == pytest.approx(1.959964, abs=1e-6)


def test_a_mean_is_a_ratio_with_equal_sizes() -> None:
    y = np.array([1.0, 2.0, 4.0, 5.0])
    sums = RatioSums.from_units(y, np.ones(4))
    assert ratio_variance(sums) == pytest.approx(y.var(ddof=1) / 4)
    interval = ratio_interval(sums)
    assert interval is not None
    assert interval.high - y.mean() == pytest.approx(t_quantile(0.95, 3) * math.sqrt(y.var(ddof=1) / 4))


def test_too_little_data_has_no_interval() -> None:
    assert ratio_interval(None) is None
    assert ratio_interval(RatioSums.from_units([3.0], [2.0])) is None
    assert RatioSums.of({"m": 0, "y": None, "x": None, "yy": None, "xy": None, "xx": None}) is None
    assert positive_interval(None) is None
    assert positive_interval(Estimate(2.0)) is None


def test_quotients_add_relative_variances() -> None:
    result = quotient(Estimate(6.0, 0.01, 9), Estimate(2.0, 0.03, 19))
    assert result.value == 3.0
    assert result.relative_variance == pytest.approx(0.04)
    assert 9 < result.freedom < 28
    assert quotient(Estimate(6.0, 0.01, 9), Estimate(2.0)).freedom == pytest.approx(9)
    assert inverse(result).value == pytest.approx(1 / 3)


def test_two_way_variance_without_sharing_is_the_one_way() -> None:
    rng = np.random.default_rng(1)
    unit = np.repeat(np.arange(20), 5)
    y, x = rng.normal(10, 1, 100), np.ones(100)
    alone = two_way_variance(y, x, unit, np.arange(100))
    sums = RatioSums.from_units(np.bincount(unit, y), np.bincount(unit, x))
    assert alone == pytest.approx(ratio_variance(sums))


def covers(rng: np.random.Generator, truth: float, requests: int = 40) -> bool:
    """One small lake: requests of very different lengths, each with its own acceptance around the truth."""
    n = rng.geometric(1 / 25, requests)
    own = np.clip(rng.normal(truth, 0.12, requests), 0.01, 0.99)
    accepted = rng.binomial(n * 5, own)
    interval = ratio_interval(RatioSums.from_units(accepted, n * 5), bounds=(0, 1))
    assert interval is not None
    return interval.low <= truth <= interval.high


def test_intervals_by_request_hold_the_truth() -> None:
    hits = [covers(np.random.default_rng(seed), 0.6) for seed in range(2000)]
    assert 0.92 <= np.mean(hits) <= 0.98


def test_intervals_by_round_would_not() -> None:
    def naive(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        n = rng.geometric(1 / 25, 40)
        own = np.clip(rng.normal(0.6, 0.12, 40), 0.01, 0.99)
        rounds = np.concatenate([rng.binomial(5, p, k) for p, k in zip(own, n, strict=True)])
        interval = ratio_interval(RatioSums.from_units(rounds, np.full(rounds.size, 5)))
        assert interval is not None
        return bool(interval.low <= 0.6 <= interval.high)

    assert np.mean([naive(seed) for seed in range(300)]) < 0.85


def test_step_times_shared_by_batch_mates_need_both_clusterings() -> None:
    two_way, one_way = [], []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        steps, batch, turns = 60, 8, 60
        # 64 requests in 8 batches of 8; every step of a batch lasts as long for all of it.
        group = np.repeat(np.arange(8), batch)
        request = np.repeat(np.arange(64), turns)
        step = np.repeat(group, turns) * steps + np.tile(np.arange(turns), 64)
        time = 50 + rng.normal(0, 6, 8 * steps)[step]
        variance = two_way_variance(time, np.ones(time.size), request, step)
        single = RatioSums.from_units(np.bincount(request, time), np.bincount(request))
        assert variance is not None
        half = t_quantile(0.95, 63) * math.sqrt(variance)
        two_way.append(abs(time.mean() - 50) <= half)
        interval = ratio_interval(single)
        assert interval is not None
        one_way.append(interval.low <= 50 <= interval.high)
    assert 0.92 <= np.mean(two_way) <= 0.98
    assert np.mean(one_way) < 0.7


def test_composite_ratio_of_independent_parts_holds_the_truth() -> None:
    hits = []
    for seed in range(600):
        rng = np.random.default_rng(seed)
        step = ratio_estimate(RatioSums.from_units(*sized(rng, 53.0, 40)))
        plain = ratio_estimate(RatioSums.from_units(*sized(rng, 18.0, 25)))
        assert step is not None
        assert plain is not None
        interval = positive_interval(quotient(step, plain))
        assert interval is not None
        hits.append(interval.low <= 53 / 18 <= interval.high)
    assert 0.92 <= np.mean(hits) <= 0.98


def sized(rng: np.random.Generator, mean: float, units: int) -> tuple[np.ndarray, np.ndarray]:
    size = rng.integers(5, 60, units)
    return size * rng.normal(mean, 0.1 * mean, units), size


def test_near_k_under_independent_acceptance() -> None:
    p = TokenAcceptProb(0.7)
    assert near_k_iid_share(p, [5, 5, 1]) == pytest.approx((2 * (1 - 0.49) + 0.3) / 3)
    assert near_k_iid_share(p, [5], delta=0) == pytest.approx(0.3)
    assert near_k_iid_share(p, []) is None
    rng = np.random.default_rng(3)
    d = rng.integers(1, 7, 50_000)
    a = np.minimum(rng.geometric(0.3, d.size) - 1, d)
    assert near_k_share(a, d) == pytest.approx(near_k_iid_share(p, d), abs=0.01)
    assert near_k_share([], []) is None
