"""The three-valued decision: only a whole interval on one side of 1 decides, and only with enough requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.model.decision import (
    GO,
    INCONCLUSIVE,
    NO_GO,
    Decision,
    by_interval,
    by_lower_bound,
    by_near_k,
    by_sample,
    worst,
)
from tracelens.model.intervals import RatioSums, ratio_interval


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [(0.80, 0.97, GO), (0.80, 0.98, INCONCLUSIVE), (0.90, 1.10, INCONCLUSIVE), (1.02, 1.30, INCONCLUSIVE),
     (1.03, 1.30, NO_GO), (None, None, INCONCLUSIVE), (0.5, None, INCONCLUSIVE)],
)  # fmt: skip
def test_the_whole_interval_decides(low: float | None, high: float | None, name: str) -> None:
    assert by_interval(1.0, low, high).name == name


@given(st.floats(0.1, 3.0), st.floats(0.0, 1.0), st.floats(0.0, 0.5))
def test_a_wider_margin_never_decides_more(value: float, half: float, margin: float) -> None:
    strict = by_interval(value, value - half, value + half, margin=margin + 0.1).name
    loose = by_interval(value, value - half, value + half, margin=margin).name
    assert strict in (INCONCLUSIVE, loose)


@pytest.mark.parametrize(("value", "noise", "name"), [
    (0.90, 0.24, INCONCLUSIVE), (0.90, 0.05, GO), (1.10, 0.24, INCONCLUSIVE), (1.10, 0.05, NO_GO), (0.5, 0.24, GO),
    (0.90, None, GO)])  # fmt: skip
def test_control_noise_leaves_nothing_to_decide(value: float, noise: float | None, name: str) -> None:
    """As near to 1 as the baselines are to each other: against another of them it could be the other way round."""
    assert by_interval(value, value - 0.02, value + 0.02, noise=noise).name == name


def test_a_lower_bound_can_say_no_and_nothing_else() -> None:
    assert by_lower_bound(1.2).name == NO_GO
    assert by_lower_bound(0.5).name == INCONCLUSIVE


@pytest.mark.parametrize(
    ("requests", "effective", "few"), [(29, 29.0, True), (30, 19.9, True), (30, 20.0, False), (None, None, True)]
)
def test_few_requests_decide_nothing(requests: float | None, effective: float | None, few: bool) -> None:
    found = by_sample(requests, effective)
    assert (found is not None) is few
    if found is not None:
        assert found.name == INCONCLUSIVE


@pytest.mark.parametrize(
    ("share", "low", "high", "name"),
    [(0.3, 0.25, 0.35, GO), (0.5, 0.45, 0.55, INCONCLUSIVE), (0.6, 0.52, 0.7, NO_GO), (0.6, None, None, NO_GO),
     (None, None, None, INCONCLUSIVE)],
)  # fmt: skip
def test_near_k(share: float | None, low: float | None, high: float | None, name: str) -> None:
    assert by_near_k(share, low, high, most=0.5).name == name


def test_the_worst_decides_and_says_so_first() -> None:
    found = worst([Decision(GO, ("a",)), Decision(NO_GO, ("b",)), Decision(INCONCLUSIVE, ("c",))])
    assert (found.name, found.reasons) == (NO_GO, ("b", "a", "c"))
    assert worst([Decision(GO, ()), Decision(INCONCLUSIVE, ())]).name == INCONCLUSIVE
    assert worst([]).name == INCONCLUSIVE


@pytest.mark.parametrize(("truth", "right", "wrong"), [(0.85, GO, NO_GO), (1.15, NO_GO, GO)])
def test_decisions_are_right(truth: float, right: str, wrong: str) -> None:
    """400 samples of 60 requests around a true C: never the opposite, nearly always the right one."""
    rng = np.random.default_rng(3)
    names = []
    for _ in range(400):
        tokens = rng.geometric(0.02, 60).astype(float)
        time = tokens * truth * np.exp(rng.normal(-0.02, 0.2, 60))
        sums = RatioSums.from_units(time, tokens)
        interval = ratio_interval(sums)
        assert interval is not None
        names.append(by_interval(sums.y / sums.x, interval.low, interval.high).name)
    assert names.count(wrong) == 0
    assert names.count(right) / len(names) > 0.8


def test_a_true_1_is_seldom_decided() -> None:
    rng = np.random.default_rng(4)
    decided = 0
    for _ in range(400):
        tokens = rng.geometric(0.02, 60).astype(float)
        time = tokens * np.exp(rng.normal(-0.02, 0.2, 60))
        sums = RatioSums.from_units(time, tokens)
        interval = ratio_interval(sums)
        assert interval is not None
        decided += by_interval(sums.y / sums.x, interval.low, interval.high).name != INCONCLUSIVE
    assert decided / 400 < 0.05
