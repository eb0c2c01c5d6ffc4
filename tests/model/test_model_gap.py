"""The gap closes: over every form, with plain rounds, cuts, negative overhead, and whatever was not logged."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tracelens.model.acceptance import DraftAcceptRatio, TokenAcceptProb
from tracelens.model.gap import NAMES, EmittedShare, Gap, Observed, Plan, decompose, log_mean

PLAN = Plan("article", DraftAcceptRatio(0.72), 0.1, 5)
# The second site of the article: alpha 0.6 at K = 5, a draft token of 0.29 plain steps of 10 ms.
SEEN = Observed(
    draft_accept_ratio=0.6, token_accept_prob=0.8, tau_verified=4.0, tau_drafted=3.9, tau_committed=3.8,
    mean_drafted=4.9, draft_lengths=(5,), length_weights=(1.0,), draft_ms_per_token=2.9, target_ms=12.0, step_ms=28.0,
    sample_ms=0.5, rollback_ms=0.2, repack_ms=0.1, plain_ms=10.0,
)  # fmt: skip


def logs(gap: Gap) -> dict[str, float]:
    return {term.name: term.log for term in gap.terms}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    form = draw(st.sampled_from(["article", "article_tokens", "bonus", "iid"]))
    value = draw(st.floats(0.01, 1.0))
    kinds = {"iid": TokenAcceptProb, "article_tokens": EmittedShare}
    return Plan(form, kinds.get(form, DraftAcceptRatio)(value), draw(st.floats(0.0, 3.0)), draw(st.integers(1, 16)))


@st.composite
def strata(draw: st.DrawFn) -> Observed:
    """Plain rounds, cuts, phases that overlap (negative overhead), and any figure that was not logged."""
    tau = draw(st.floats(1.0, 12.0))
    drafted = draw(st.floats(0.5, tau))
    values: dict[str, Any] = {
        "draft_accept_ratio": draw(st.floats(0.0, 1.0)),
        "token_accept_prob": draw(st.floats(0.0, 1.0)),
        "tau_verified": tau,
        "tau_drafted": drafted,
        "tau_committed": draw(st.floats(0.5, drafted)),
        "mean_drafted": draw(st.floats(0.1, 16.0)),
        "drafting_share": draw(st.one_of(st.just(0.0), st.floats(0.01, 1.0))),
        "draft_lengths": (1, 3, 5),
        "length_weights": tuple(draw(st.lists(st.floats(0.0, 9.0), min_size=3, max_size=3))),
        **{name: draw(st.floats(0.01, 100.0)) for name in ("draft_ms_per_token", "target_ms", "step_ms", "plain_ms")},
        **{name: draw(st.floats(0.0, 9.0)) for name in ("sample_ms", "rollback_ms", "repack_ms")},
        "tpot_ms": draw(st.floats(0.1, 90.0)),
        "plain_tpot_ms": draw(st.floats(0.1, 90.0)),
        "extra_ms": draw(st.dictionaries(st.sampled_from(["prefill_interference", "emit_lag"]), st.floats(0.0, 20.0))),
    }
    for name in draw(st.sets(st.sampled_from(sorted(set(values) - {"extra_ms"})))):
        values[name] = () if name in ("draft_lengths", "length_weights") else None
    if not values["draft_lengths"] or not values["length_weights"]:
        values["draft_lengths"] = values["length_weights"] = ()
    return Observed(**values)


@given(plans(), strata())
@settings(max_examples=400, deadline=None)
def test_the_terms_close_and_unmeasured_causes_are_named(plan: Plan, seen: Observed) -> None:
    gap = decompose(plan, seen)
    assert [t.name for t in gap.terms] == [name for name in NAMES if name in logs(gap)]
    assert all(math.isfinite(term.log) for term in gap.terms)
    assert gap.speedup_claimed == pytest.approx(plan.tokens / plan.cost, rel=1e-12)
    if gap.speedup_observed is None:
        assert gap.basis is None
        return
    whole = math.log(gap.speedup_observed / gap.speedup_claimed)
    assert math.fsum(term.log for term in gap.terms) == pytest.approx(whole, abs=1e-9)
    assert gap.token_ms is not None
    assert gap.plain_token_ms is not None
    assert gap.plain_token_ms / gap.token_ms == pytest.approx(gap.speedup_observed, rel=1e-12)
    hidden = {name for term in gap.terms for name in term.includes}
    assert hidden == set(gap.unmeasured)
    # A cause that was not logged is inside another term, never a term of 0.
    assert not hidden & {term.name for term in gap.terms if term.measured and not term.includes} - {"k_shift"}


def test_rounds_without_a_draft_are_no_shorter_drafts() -> None:
    """Every draft is as long as planned; 6 in 7 rounds have none: what they lose and save is theirs alone."""
    plan = Plan("bonus", DraftAcceptRatio(0.5), 0.1, 5)
    seen = Observed(draft_accept_ratio=0.5, tau_verified=3.5, tau_drafted=3.5, tau_committed=(3.5 + 6) / 7,
                    mean_drafted=5 / 7, drafting_share=1 / 7, draft_ms_per_token=1.0, target_ms=10.0,
                    step_ms=10 + 5 / 7, plain_ms=10.0)  # fmt: skip
    found = logs(decompose(plan, seen))
    moved = {name: log for name, log in found.items() if abs(log) > 1e-9}
    assert set(moved) == {"plain_steps"}
    assert moved["plain_steps"] == pytest.approx(math.log((9.5 / 7) / 3.5) + math.log(1.5 / (1 + 0.5 / 7)))


def test_where_no_round_drafts_that_is_the_cause() -> None:
    seen = Observed(tau_committed=1.0, mean_drafted=0.0, drafting_share=0.0, step_ms=10.2, plain_ms=10.0)
    gap = decompose(PLAN, seen)
    found = logs(gap)
    assert set(found) == {"convention", "plain_steps", "unattributed"}
    assert not {"alpha_shift", "k_shift", "rho_drift"} & set(gap.unmeasured)
    weight = log_mean(1.02, 1.5)
    assert found["plain_steps"] == pytest.approx(math.log(1 / 4.6) + 0.5 / weight)
    assert found["unattributed"] == pytest.approx(-0.02 / weight)


def test_every_cause_has_its_factor() -> None:
    gap = decompose(PLAN, SEEN)
    cost, planned = 2.8, 1.5
    weight = log_mean(cost, planned)
    expected = {
        "convention": math.log((1 + 3.6) / 3.6),
        "alpha_shift": math.log((1 + 0.6 * 5) / (1 + 3.6)),
        "k_shift": math.log(4.0 / 4.0) - 0.1 * (4.9 - 5) / weight,
        "terminal_cuts": math.log(3.9 / 4.0),
        "plain_steps": math.log(3.8 / 3.9),
        "verify_inflation": -0.2 / weight,
        "rho_drift": -(0.29 - 0.1) * 4.9 / weight,
        "sampling": -0.05 / weight,
        "rollback": -0.02 / weight,
        "repack": -0.01 / weight,
        "unattributed": -(cost - (1.2 + 0.29 * 4.9) - 0.08) / weight,
    }
    assert logs(gap) == pytest.approx(expected, abs=1e-12)
    assert gap.speedup_observed == pytest.approx(10 * 3.8 / 28)
    assert gap.basis == "step"
    assert gap.unmeasured == ()
    assert all(term.measured for term in gap.terms)


def test_a_plan_that_came_true_has_no_gap() -> None:
    seen = Observed(draft_accept_ratio=0.72, tau_verified=4.6, tau_drafted=4.6, tau_committed=4.6, mean_drafted=5.0,
                    draft_ms_per_token=1.0, target_ms=10.0, step_ms=15.0, plain_ms=10.0)  # fmt: skip
    gap = decompose(Plan("bonus", DraftAcceptRatio(0.72), 0.1, 5), seen)
    assert gap.speedup_observed == pytest.approx(gap.speedup_claimed)
    assert logs(gap) == pytest.approx(dict.fromkeys(logs(gap), 0.0), abs=1e-12)


def test_the_geometric_law_is_held_against_its_own_yield() -> None:
    """i.i.d.: alpha_shift and k_shift by E(p, d); what is left of tau_verified is the shape of acceptance."""
    seen = dataclasses.replace(SEEN, draft_lengths=(3, 5), length_weights=(1.0, 3.0))
    found = logs(decompose(Plan("iid", TokenAcceptProb(0.9), 0.1, 5), seen))

    def e(p: float, k: int) -> float:
        return (1 - p ** (k + 1)) / (1 - p)

    mixed = (e(0.8, 3) + 3 * e(0.8, 5)) / 4
    assert found["alpha_shift"] == pytest.approx(math.log(e(0.8, 5) / e(0.9, 5)))
    assert found["shape"] == pytest.approx(math.log(4.0 / mixed))
    assert "convention" not in found


def test_tpot_splits_what_lies_beyond_the_steps() -> None:
    seen = dataclasses.replace(SEEN, tpot_ms=9.0, plain_tpot_ms=11.0, extra_ms={"prefill_interference": 1.0})
    gap = decompose(PLAN, seen)
    inside = 28.0 / 3.8
    weight = log_mean(9.0, inside)
    found = {term.name: term for term in gap.terms}
    assert gap.basis == "tpot"
    assert gap.speedup_observed == pytest.approx(11 / 9)
    assert found["prefill_interference"].log == pytest.approx(-1.0 / weight)
    assert found["other"].log == pytest.approx(-(9.0 - inside - 1.0) / weight)
    assert found["other"].includes == ("emit_lag", "preemption")
    assert found["baseline_beyond_steps"].log == pytest.approx(math.log(11 / 10))


def test_without_step_times_the_cost_is_one_unattributed_term() -> None:
    """Engines that log TPOT and counts alone: what a round cost follows from both, its parts do not."""
    seen = Observed(draft_accept_ratio=0.6, tau_verified=4.0, tau_drafted=4.0, tau_committed=4.0, mean_drafted=5.0,
                    tpot_ms=8.0, plain_tpot_ms=12.0)  # fmt: skip
    gap = decompose(PLAN, seen)
    rest = next(term for term in gap.terms if term.name == "unattributed")
    cost = 4.0 / 1.5
    assert rest.log == pytest.approx(-math.log(cost / 1.5))
    assert not rest.measured
    assert rest.includes == ("verify_inflation", "rho_drift", "sampling", "rollback", "repack")
    assert "verify_inflation" not in logs(gap)


def test_without_any_time_the_yield_alone_is_told() -> None:
    gap = decompose(PLAN, Observed(draft_accept_ratio=0.6, tau_verified=4.0))
    assert gap.speedup_observed is None
    assert set(logs(gap)) == {"convention", "alpha_shift", "k_shift"}
    assert set(gap.unmeasured) >= {"terminal_cuts", "plain_steps", "verify_inflation", "rho_drift"}


def test_without_a_whole_step_the_speedup_is_an_upper_bound() -> None:
    gap = decompose(PLAN, dataclasses.replace(SEEN, step_ms=None))
    assert gap.basis == "upper_bound"
    assert gap.speedup_observed == pytest.approx(38.0 / (2.9 * 4.9 + 12 + 0.8))


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_the_logarithmic_mean_lies_between_geometric_and_arithmetic_mean(x: float, y: float) -> None:
    mean = log_mean(x, y)
    assert math.sqrt(x * y) * (1 - 1e-9) <= mean <= (x + y) / 2 * (1 + 1e-9)
    assert mean == pytest.approx(log_mean(y, x), rel=1e-9)


@given(st.floats(1e-3, 1e3), st.floats(-1e-3, 1e-3))
def test_the_logarithmic_mean_of_close_numbers_keeps_its_digits(y: float, relative: float) -> None:
    assume(relative != 0)
    x = y * (1 + relative)
    assume(x != y)
    assert log_mean(x, y) * math.log1p((x - y) / y) == pytest.approx(x - y, rel=1e-9)


@pytest.mark.parametrize(
    ("form", "value"),
    [("article", TokenAcceptProb(0.7)), ("bonus", TokenAcceptProb(0.7)), ("iid", DraftAcceptRatio(0.7)),
     ("article_tokens", DraftAcceptRatio(0.7)), ("article", EmittedShare(0.7))],
)  # fmt: skip
def test_no_form_takes_the_acceptance_of_another(form: str, value: Any) -> None:
    with pytest.raises(TypeError, match=form):
        Plan(form, value, 0.1, 5)


@pytest.mark.parametrize(("alpha", "rho", "k"), [(0.0, 0.1, 5), (0.7, -0.1, 5), (0.7, 0.1, 0), (0.7, math.nan, 5)])
def test_a_plan_out_of_its_range_is_refused(alpha: float, rho: float, k: int) -> None:
    with pytest.raises(ValueError, match="a plan needs"):
        Plan("bonus", DraftAcceptRatio(alpha), rho, k)


def test_the_articles_plan_is_2_40x() -> None:
    assert PLAN.speedup == pytest.approx(2.4)
    assert Plan("article_tokens", EmittedShare(1.1), 0.1, 5).speedup == pytest.approx(5.5 / 1.5)
