"""What a change does to the time of a token: alone, exactly the change of ln C."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.analysis.compared import Compared
from tracelens.analysis.leverage import leverage, share_of_traffic

SHARE = st.floats(0.02, 0.98)
COST = st.floats(0.01, 3.0)


def side(alpha: float, rho: float, verify: float, other: float, d: float, *, plain_ms: float = 20.0) -> dict[str, Any]:
    """Figures of a side by the formulas of the model."""
    cost, tau = verify + rho * d + other, 1 + alpha * d
    return {
        "draft_accept_ratio": alpha, "rho": rho, "verify_inflation": verify, "overhead": other, "mean_drafted": d,
        "round_cost": cost, "tau_committed": tau, "relative_token_time": cost / tau, "step_ms": cost * plain_ms,
        "draft_ms": rho * d * plain_ms, "target_ms": verify * plain_ms, "rho_verify": rho / verify,
        "near_k_round_share": 1 - alpha,
    }  # fmt: skip


def pair(a: dict[str, Any], b: dict[str, Any]) -> Compared:
    return Compared({}, a, b, None)


@settings(deadline=None)
@given(SHARE, SHARE, COST, COST, COST, COST, st.integers(1, 8))
def test_a_part_that_moves_alone_moves_the_token_by_its_leverage(
    alpha: float, moved_alpha: float, rho: float, moved_rho: float, verify: float, other: float, d: int
) -> None:
    before = side(alpha, rho, verify, other, d)
    for name, after in (
        ("draft_accept_ratio", side(moved_alpha, rho, verify, other, d)),
        ("tau_committed", side(moved_alpha, rho, verify, other, d)),
        ("rho", side(alpha, moved_rho, verify, other, d)),
        ("draft_ms", side(alpha, moved_rho, verify, other, d)),
        ("rho_verify", side(alpha, moved_rho, verify, other, d)),
        ("verify_inflation", side(alpha, rho, moved_rho, other, d)),
        ("target_ms", side(alpha, rho, moved_rho, other, d)),
        ("overhead", side(alpha, rho, verify, moved_rho, d)),
        ("round_cost", side(alpha, rho, verify, moved_rho, d)),
    ):
        row = pair(before, after)
        token = math.log(after["relative_token_time"] / before["relative_token_time"])
        assert leverage(row, name) == pytest.approx(abs(token), abs=1e-9), name
        assert leverage(row, "relative_token_time") == pytest.approx(abs(token), abs=1e-9)
        assert leverage(row, "near_k_round_share") == 0.0


def test_the_chance_of_one_token_counts_through_the_tokens_of_a_round() -> None:
    row = pair({"token_accept_prob": 0.5, "mean_drafted": 2}, {"token_accept_prob": 0.0, "mean_drafted": 2})
    assert leverage(row, "token_accept_prob") == pytest.approx(math.log(1.75))


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("rho", {"rho": 0.1, "round_cost": 2.0}, {"rho": 0.2, "round_cost": 2.0}),
        ("rho", {"rho": 0.1, "mean_drafted": 3}, {"rho": 0.2, "mean_drafted": 3}),
        ("verify_inflation", {"verify_inflation": 1.0}, {"verify_inflation": 1.1}),
        ("tpot_ms", {"tpot_ms": 0.0}, {"tpot_ms": 1.0}),
        ("tpot_ms", {"tpot_ms": None}, {"tpot_ms": 1.0}),
    ],
)
def test_what_cannot_be_told_is_none(name: str, a: dict[str, Any], b: dict[str, Any]) -> None:
    assert leverage(pair(a, b), name) is None
    assert leverage(Compared({}, a, None, None), name) is None


def test_the_share_of_a_class_is_of_rounds_else_of_tokens() -> None:
    total = pair({"rounds": 80, "plain_steps": 20}, {"rounds": 50})
    assert share_of_traffic(pair({"rounds": 20, "plain_steps": 20}, {"rounds": 10}), total) == pytest.approx(0.3)
    tokens = pair({"output_tokens": 100}, {"output_tokens": 100, "rounds": None})
    assert share_of_traffic(pair({"output_tokens": 20}, {"output_tokens": 40}), tokens) == pytest.approx(0.3)
    assert share_of_traffic(pair({}, {}), pair({}, {})) == 1.0
    assert share_of_traffic(total, total) == 1.0
