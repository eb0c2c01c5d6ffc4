"""First-order intervals of composite figures: against the one-ratio formula, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tracelens.model.intervals import RatioSums, ratio_interval, ratio_variance
from tracelens.model.linear import Ratio, Source, gradient, influence, interval, standard_error, unit_source


def units(seed: int, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.geometric(0.05, count).astype(float)
    return rng.binomial(x.astype(int), rng.beta(6, 4, count)).astype(float), x


def test_one_ratio_is_the_ratio_interval() -> None:
    y, x = units(1)
    source = unit_source([Ratio(y, x)], x)
    assert source is not None
    value = y.sum() / x.sum()
    # The gradient of the ratio itself to its logarithm is its value.
    found = interval(value, [value], [source])
    expected = ratio_interval(RatioSums.from_units(y, x))
    assert found is not None
    assert expected is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_a_shift_is_no_chance() -> None:
    y, x = units(2)
    source = unit_source([Ratio(y, x, 1.0)], x)
    variance = ratio_variance(RatioSums.from_units(y, x))
    assert source is not None
    assert variance is not None
    assert math.sqrt(source.covariance[0, 0]) * (1 + y.sum() / x.sum()) == pytest.approx(math.sqrt(variance))


def test_what_two_ratios_share_cancels() -> None:
    """(y/x) / (2y/x) never varies: its gradient is +1, -1."""
    y, x = units(3)
    source = unit_source([Ratio(y, x), Ratio(2 * y, x)], x)
    assert source is not None
    spread = standard_error([1.0, -1.0], [source])
    assert spread is not None
    assert spread[0] == pytest.approx(0.0, abs=1e-12)


def test_a_ratio_without_data_has_no_influence() -> None:
    assert not influence(None, 3).any()
    assert not influence(Ratio([0, 0, 0], [1, 2, 3]), 3).any()
    assert not influence(Ratio([1, 0, 0], [0, 0, 0]), 3).any()


def test_one_unit_knows_no_spread() -> None:
    assert unit_source([Ratio([1.0], [2.0])], [2.0]) is None
    assert unit_source([Ratio([1.0, 0.0], [2.0, 0.0])], [2.0, 0.0]) is None
    assert interval(1.0, [1.0], []) is None


def test_gradient_is_to_the_logarithm() -> None:
    found = gradient(lambda q: np.array([q[0] * q[1], math.log(q[1])]), [3.0, 5.0])
    assert found == pytest.approx(np.array([[15.0, 15.0], [0.0, 1.0]]), abs=1e-8)


def test_gradient_at_the_border_comes_from_below() -> None:
    def only_below(q: np.ndarray) -> np.ndarray:
        assert q[0] <= 1.0
        return np.array([q[0] ** 2])

    assert gradient(only_below, [1.0], [1.0]) == pytest.approx(np.array([[2.0]]), abs=1e-4)


def test_a_spread_nobody_knows_takes_only_what_hangs_on_it() -> None:
    sources = [Source(np.diag([0.01, 0.0]), 9.0), Source(np.diag([0.0, math.inf]), 1.0)]
    assert interval(2.0, [1.0, 0.0], sources) is not None
    assert interval(2.0, [1.0, 0.5], sources) is None


def test_two_sources_pool_their_freedom() -> None:
    """Welch and Satterthwaite: equal variances of 10 and 10 degrees have 20."""
    one = Source(np.array([[0.01]]), 10.0)
    spread = standard_error([1.0], [one, one])
    assert spread == pytest.approx((math.sqrt(0.02), 20.0))


@pytest.mark.parametrize("count", [12, 60])
def test_a_product_of_ratios_is_covered(count: int) -> None:
    """ln of tau / cost, both by the same requests, from 1000 samples."""
    rng = np.random.default_rng(count)
    hits = []
    for _ in range(1000):
        x = rng.geometric(0.04, count).astype(float)
        speed = rng.normal(0.0, 0.1, count)
        tokens, cost = x * np.exp(0.3 + speed), x * np.exp(0.8 + 0.5 * speed + rng.normal(0.0, 0.05, count))
        source = unit_source([Ratio(tokens, x), Ratio(cost, x)], x)
        assert source is not None
        value = math.log(tokens.sum() / cost.sum())
        found = interval(value, [1.0, -1.0], [source])
        assert found is not None
        truth = (0.3 + 0.01 / 2) - (0.8 + (0.25 * 0.01 + 0.0025) / 2)
        hits.append(found.low <= truth <= found.high)
    assert 0.92 <= np.mean(hits) <= 0.98
