"""A line over the draft length, and the choice of the best one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.model.choice import best_interval, log_normal, quantiles, resampled_sums
from tracelens.model.fit import fit_line, lengths_vary


@given(
    st.floats(0.1, 50), st.floats(-5, 20), st.lists(st.integers(1, 16), min_size=2, max_size=8, unique=True),
    st.lists(st.integers(1, 1000), min_size=8, max_size=8),
)  # fmt: skip
def test_a_line_is_found_exactly(fixed: float, slope: float, lengths: list[int], rounds: list[int]) -> None:
    d, n = np.array(lengths, dtype=float), np.array(rounds[: len(lengths)], dtype=float)
    line = fit_line(np.zeros(d.size), d, n, n * (fixed + slope * d))
    assert line is not None
    assert line.slope_ms == pytest.approx(slope, abs=1e-6)
    assert line.at([0, 1, 20]) == pytest.approx(fixed + slope * np.array([0, 1, 20]), abs=1e-4)


def test_batches_do_not_bend_the_slope() -> None:
    """Long drafts ran in large, slow batches: within a batch a draft token takes 2 ms, pooled it looks like 7."""
    batch, d, n = [1, 1, 8, 8], np.array([1.0, 3.0, 3.0, 5.0]), np.array([90.0, 10.0, 10.0, 90.0])
    time = np.array([10.0, 10.0, 30.0, 30.0]) + 2.0 * d
    within, pooled = fit_line(batch, d, n, n * time), fit_line([0] * 4, d, n, n * time)
    assert within is not None
    assert pooled is not None
    assert within.slope_ms == pytest.approx(2.0)
    assert pooled.slope_ms > 6.0


def test_no_line_without_a_choice_of_lengths() -> None:
    assert fit_line([0, 1], [3, 5], [10, 10], [50, 70]) is None
    assert fit_line([], [], [], []) is None
    assert not lengths_vary([], [])
    assert not lengths_vary([7, 7, 3], [50, 46, 4])
    assert lengths_vary([7, 3], [90, 10])


def test_bootstrap_has_the_spread_of_a_sum() -> None:
    units = np.random.default_rng(3).gamma(2.0, size=(200, 2))
    draws = resampled_sums(units)
    assert draws is not None
    assert draws.mean(axis=0) == pytest.approx(units.sum(axis=0), rel=0.02)
    assert draws.std(axis=0) == pytest.approx(np.sqrt(200) * units.std(axis=0), rel=0.1)
    assert np.array_equal(draws, resampled_sums(units))
    assert resampled_sums(units[:1]) is None


def test_quantiles_and_the_best() -> None:
    assert quantiles([1.0, np.inf]) is None
    low, high = quantiles(np.linspace(0, 1, 1001)) or (0, 0)
    assert (low, high) == pytest.approx((0.025, 0.975))
    sure = best_interval([0, 3, 5], [np.ones(100), np.full(100, 0.8), np.full(100, 0.9)])
    assert sure == (3, 3)
    close = best_interval([0, 3, 5], [np.ones(1000), log_normal(0.8, 0.05, 3), log_normal(0.8, 0.05, 5)])
    assert close == (3, 5)
    assert np.log(log_normal(2.0, 0.1, 1)).std() == pytest.approx(0.1, rel=0.1)
    assert not np.array_equal(log_normal(2.0, 0.1, 1), log_normal(2.0, 0.1, 2))
