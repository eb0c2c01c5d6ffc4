"""Differences of two samples: right against textbook tests, calibrated under Holm, and mix effects that close."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t, ttest_ind

from tracelens.model.changes import (
    Spread,
    difference,
    holm,
    mix_effect,
    mix_parts,
    ratio_spread,
    share_spread,
    welch_freedom,
)
from tracelens.model.intervals import RatioSums, share_interval

SETS = 200
STRATA, REQUESTS = 4, 40


def side(rng: np.random.Generator, alpha: float) -> tuple[RatioSums, RatioSums, RatioSums]:
    """Requests of one class: accepted of drafted, emitted of rounds, ms of tokens, each with its own level."""
    rounds = rng.integers(5, 60, REQUESTS)
    own = rng.beta(12 * alpha, 12 * (1 - alpha), REQUESTS)
    accepted = rng.binomial(5 * rounds, own)
    decode = (accepted + rounds) * rng.normal(20.0, 3.0, REQUESTS)
    tokens = accepted + rounds
    return (
        RatioSums.from_units(accepted, 5 * rounds),
        RatioSums.from_units(tokens, rounds),
        RatioSums.from_units(decode, tokens),
    )


def p_values(rng: np.random.Generator, shift: float = 0.0) -> list[float]:
    """P-values of three figures of every class; `shift` moves the acceptance of the first class on side B."""
    found = []
    for stratum in range(STRATA):
        one = side(rng, 0.5 + 0.1 * stratum)
        other = side(rng, 0.5 + 0.1 * stratum - (shift if stratum == 0 else 0.0))
        for i, spread in enumerate((share_spread, ratio_spread, ratio_spread)):
            a, b = spread(one[i]), spread(other[i])
            assert a is not None
            assert b is not None
            change = difference(a, b)
            assert change is not None
            found.append(change.p_value)
    return found


def test_no_change_is_not_called_more_often_than_the_level_says() -> None:
    """Any false call among 12 tests: 5% of the sets at most; uncorrected it would be far more."""
    p = np.array([p_values(np.random.default_rng(seed)) for seed in range(SETS)])
    corrected = np.array([holm(row).min() < 0.05 for row in p])
    assert corrected.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / SETS)
    assert (p.min(axis=1) < 0.05).mean() > 0.2, "the tests must be able to err, or this test says nothing"
    assert 0.03 <= (p < 0.05).mean() <= 0.08


def test_a_planted_change_is_found_and_nothing_else() -> None:
    calls = np.array([holm(p_values(np.random.default_rng(1000 + seed), shift=0.2)) < 0.05 for seed in range(SETS)])
    assert calls[:, 0].mean() > 0.95
    assert calls[:, 3:].any(axis=1).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / SETS)


def test_the_interval_holds_the_planted_difference() -> None:
    hits = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        a, b = share_spread(side(rng, 0.7)[0]), share_spread(side(rng, 0.6)[0])
        assert a is not None
        assert b is not None
        change = difference(a, b)
        assert change is not None
        hits.append(change.low <= -0.1 <= change.high)
    assert 0.92 <= np.mean(hits) <= 0.98


def test_equal_units_give_welchs_test() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(3, 1, 12), rng.normal(3.5, 2, 30)
    a, b = (ratio_spread(RatioSums.from_units(v, np.ones(v.size))) for v in (x, y))
    assert a is not None
    assert b is not None
    change = difference(a, b)
    assert change is not None
    expected = ttest_ind(y, x, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert change.p_value == pytest.approx(expected.pvalue)
    assert (change.low, change.high) == pytest.approx((interval.low, interval.high))
    assert change.ratio == pytest.approx(y.mean() / x.mean())


def test_sides_swapped_swap_the_sign() -> None:
    a, b = Spread(2.0, 0.01, 8), Spread(2.3, 0.02, 11)
    there, back = difference(a, b), difference(b, a)
    assert there is not None
    assert back is not None
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))
    assert there.p_value == pytest.approx(back.p_value)


def test_one_baseline_on_both_sides_only_scales_the_difference() -> None:
    a, b = Spread(2.0, 0.01, 30, 0.04, 10), Spread(2.5, 0.01, 30, 0.04, 10)
    apart, shared = difference(a, b), difference(a, b, shared=1.0)
    alone = difference(Spread(2.0, 0.01, 30), Spread(2.5, 0.01, 30))
    assert apart is not None
    assert shared is not None
    assert alone is not None
    assert shared.p_value == pytest.approx(alone.p_value), "no baseline makes a change where there is none"
    assert apart.p_value > alone.p_value
    assert apart.high - apart.low > shared.high - shared.low > alone.high - alone.low
    # Var of (b - a)/s with one s: what a and b have, and the relative variance of s on the difference.
    freedom = welch_freedom([(0.01, 30), (0.01, 30), (0.5**2 * 0.04, 10)])
    assert shared.high - shared.value == pytest.approx(math.sqrt(0.02 + 0.5**2 * 0.04) * float(t.ppf(0.975, freedom)))


def test_nothing_differs_so_nothing_is_tested() -> None:
    same = ratio_spread(RatioSums.from_units([5, 10, 15], [1, 2, 3]))
    other = ratio_spread(RatioSums.from_units([6, 12, 18], [1, 2, 3]))
    assert same is not None
    assert other is not None
    assert difference(same, other) is None
    assert ratio_spread(RatioSums.from_units([5], [1])) is None
    assert ratio_spread(None) is None
    assert share_spread(None) is None


def test_a_share_at_the_edge_reaches_as_far_as_its_interval() -> None:
    none, half = RatioSums.from_units([0] * 10, [4] * 10), RatioSums.from_units([2, 1, 3, 2], [4] * 4)
    interval, edge, middle = share_interval(none), share_spread(none), share_spread(half)
    assert interval is not None
    assert edge is not None
    assert middle is not None
    fixed = difference(Spread(0.0, 0.0, edge.freedom), edge)
    assert fixed is not None
    assert fixed.high == pytest.approx(interval.high)
    both = difference(edge, edge)
    assert both is not None
    assert (both.value, both.p_value, both.ratio) == (0.0, 1.0, None)
    assert difference(edge, middle) is not None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]).size == 0
    assert list(holm([0.9, 0.8])) == [1.0, 1.0]
    for bad in ([math.nan], [-0.1], [1.1]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            holm(bad)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_never_lowers_and_keeps_the_order(p: list[float]) -> None:
    adjusted = holm(p)
    assert np.all(adjusted >= np.array(p))
    assert np.all(np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0)


positive = st.floats(0.01, 1e3)
classes = st.lists(st.tuples(positive, positive, positive, positive), min_size=1, max_size=8)


@given(classes, st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_mix_and_within_close(rows: list[tuple[float, ...]], no_a: set[int], no_b: set[int]) -> None:
    """Also where a side lacks classes; then these are mix alone."""
    wa, xa, wb, xb = (np.array(column) for column in zip(*rows, strict=True))
    for absent, weight, value in ((no_a, wa, xa), (no_b - no_a, wb, xb)):
        gone = [i for i in absent if i < len(rows)]
        weight[gone], value[gone] = 0.0, np.nan
    found = mix_effect(wa, xa, wb, xb)
    assert found.mix + found.within == pytest.approx(found.total, rel=1e-9, abs=1e-9 * float(np.nansum(wa * xa) + 1))
    assert found.total == pytest.approx(np.nansum(wb * xb) - np.nansum(wa * xa), rel=1e-9, abs=1e-6)
    both = [i for i in range(len(rows)) if wa[i] and wb[i]]
    if not both:
        assert found.within == 0.0


def test_simpson() -> None:
    """Both classes rise by 0.05, but traffic moves from the easy to the hard one."""
    found = mix_effect([0.8, 0.2], [0.9, 0.3], [0.2, 0.8], [0.95, 0.35])
    assert found.within == pytest.approx(0.05)
    assert found.mix == pytest.approx(-0.6 * 0.6)
    assert found.total == pytest.approx(0.95 * 0.2 + 0.35 * 0.8 - 0.9 * 0.8 - 0.3 * 0.2)
    assert found.total < 0


@given(classes, st.sets(st.integers(0, 7)))
def test_parts_of_the_mix_close(rows: list[tuple[float, ...]], no_a: set[int]) -> None:
    """With shares that add up to 1 on both sides the classes add up to the mix."""
    wa, xa, wb, xb = (np.array(column) for column in zip(*rows, strict=True))
    gone = [i for i in no_a if i < len(rows) - 1]
    wa[gone], xa[gone] = 0.0, np.nan
    wa, wb = wa / wa.sum(), wb / wb.sum()
    parts = mix_parts(wa, xa, wb, xb)
    assert parts.shape == wa.shape
    assert parts.sum() == pytest.approx(mix_effect(wa, xa, wb, xb).mix, rel=1e-9, abs=1e-8)


def test_the_class_that_moved_the_mix() -> None:
    """Traffic moves from a class like the mean to the hard one: the hard one did it."""
    parts = mix_parts([0.2, 0.6, 0.2], [0.9, 0.5, 0.1], [0.2, 0.3, 0.5], [0.9, 0.5, 0.1])
    assert parts[0] == 0.0
    assert int(parts.argmin()) == 2
    assert abs(parts[2]) > 5 * abs(parts[1])
    assert mix_parts([0.0, 0.0], [np.nan, 1.0], [0.0, 0.0], [np.nan, 2.0]).tolist() == [0.0, 0.0]
