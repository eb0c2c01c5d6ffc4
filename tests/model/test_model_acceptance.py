"""Acceptance figures against published counts (oracles O1-O13) and against planted truth.

Numbers that do not follow from their own counts are documentation, not tests:

| source | printed | follows | why |
|---|---|---|---|
| vLLM 0.6.3 log (issue 9539), O9 | acceptance .642 | prefix ratio .464 | V0 counts matches behind a rejection |
| cost-model repo E3, O7 | 388 tokens of counts | 384 emitted | the last round of a request is cut |
| vLLM PR 26498, O4 | a + n = 17055 | 16994 emitted | the same: terminal overcount |
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.model.acceptance import (
    DraftAcceptRatio,
    TokenAcceptProb,
    draft_accept_ratio,
    expected_tokens,
    hazards,
    histogram_from_per_position,
    prob_from_mean_accepted,
    token_accept_prob,
)


def expand(hist: list[int], drafted: int) -> tuple[np.ndarray, np.ndarray]:
    accepted = np.repeat(np.arange(len(hist)), hist)
    return accepted, np.full(accepted.shape, drafted)


@pytest.mark.parametrize(
    ("hist", "drafted", "n", "a", "ratio", "tau", "prob"),
    [
        pytest.param([39, 1, 0, 3], 129, 43, 10, 0.0775194, 1.2325581, 0.2, id="O1 vLLM docs, PR 48915"),
        pytest.param([11, 14, 11, 4, 0, 3], 215, 43, 63, 0.2930233, 2.4651163, 0.6117, id="O2 SGLang PR 33518"),
        pytest.param([5, 0, 0, 10], 45, 15, 30, 2 / 3, 3.0, 0.857, id="O11 TensorRT-LLM note"),
    ],
)
def test_a_histogram_gives_the_published_figures(
    hist: list[int], drafted: int, n: int, a: int, ratio: float, tau: float, prob: float
) -> None:
    assert sum(hist) == n
    assert sum(j * h for j, h in enumerate(hist)) == a
    alpha = draft_accept_ratio(a, drafted)
    p = token_accept_prob(a, n - hist[-1])
    assert alpha is not None
    assert p is not None
    assert alpha.value == pytest.approx(ratio, abs=5e-8)
    assert 1 + a / n == pytest.approx(tau, abs=5e-8)
    assert p.value == pytest.approx(prob, abs=5e-4)


def test_o2_tokens_close_exactly() -> None:
    assert 63 + 43 == 106


def test_o3_llama_cpp_counts() -> None:
    rounds, accepted, drafted = 87, 167, 259
    assert [round(p * rounds) for p in (0.805, 0.632, 0.483)] == [70, 55, 42]
    assert accepted == 70 + 55 + 42
    assert drafted == 3 * rounds - 2
    assert accepted / drafted == pytest.approx(0.64479, abs=5e-6)
    assert 1 + accepted / rounds == pytest.approx(2.92, abs=5e-3)
    assert 325.555 / drafted == pytest.approx(1.257, abs=5e-4)
    rest = (2296.72 - 325.555) / rounds
    assert rest == pytest.approx(22.66, abs=5e-3)
    assert 325.555 / drafted / rest >= 0.0554


@pytest.mark.parametrize(
    ("n", "a", "d", "ratio", "tau"),
    [
        pytest.param(4687, 12368, 46870, 0.26388, 3.64, id="O4 vLLM PR 26498 MTBench"),
        pytest.param(20468, 48266, 204680, 0.23581, 3.36, id="O5 the same, SpecBench"),
        pytest.param(2729, 5709, 8187, 0.6973, 3.09, id="O6 SGLang PR 16694"),
        pytest.param(30, 81, 90, 0.9, 3.7, id="O8 mlx-vlm PR 1788"),
    ],
)
def test_published_totals(n: int, a: int, d: int, ratio: float, tau: float) -> None:
    assert a / d == pytest.approx(ratio, abs=5e-5)
    assert 1 + a / n == pytest.approx(tau, abs=5e-3)


def test_o4_overcounts_what_was_cut() -> None:
    assert 12368 + 4687 - 16994 == 61
    assert pytest.approx(2.64, abs=5e-3) == 12368 / 4687


def test_o7_positions_are_marginal_not_conditional() -> None:
    accepted = histogram_from_per_position(156, [112, 70, 42])
    result = hazards(*expand([int(h) for h in accepted], 3))
    assert pytest.approx(0.479, abs=5e-4) == 224 / 468
    assert result.survival == pytest.approx([0.718, 0.449, 0.269], abs=5e-4)
    assert result.hazard == pytest.approx([0.718, 0.625, 0.600], abs=5e-4)


def test_o9_vllm_v0_matches_are_no_prefix() -> None:
    drafted, matched, emitted, k = 13311, 8547, 10616, 3
    rounds = drafted // k
    assert rounds == 4437
    assert matched / drafted == pytest.approx(0.642, abs=5e-4)
    assert emitted / (rounds * (k + 1)) == pytest.approx(0.598, abs=5e-4)
    accepted = emitted - rounds
    assert accepted == 6179
    assert accepted / drafted == pytest.approx(0.464, abs=5e-4)
    assert emitted / rounds == pytest.approx(2.393, abs=5e-4)


def test_o10_model_optimizer() -> None:
    result = hazards(*expand([40, 30, 30], 2))
    assert result.survival == pytest.approx([0.6, 0.3])
    assert result.hazard == pytest.approx([0.6, 0.5])
    assert 1 + result.survival.sum() == pytest.approx(1.9)


def test_hazards_with_mixed_lengths_are_kaplan_meier() -> None:
    result = hazards([1, 1, 3, 0, 2], [1, 3, 3, 3, 2])
    assert list(result.at_risk) == [5, 3, 1]
    assert list(result.reached) == [4, 2, 1]
    assert result.hazard == pytest.approx([4 / 5, 2 / 3, 1.0])


def test_hazards_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="accepted <= drafted"):
        hazards([4], [3])


@given(st.lists(st.tuples(st.integers(1, 7), st.floats(0, 1)), min_size=1, max_size=60))
def test_identities_of_any_rounds(rows: list[tuple[int, float]]) -> None:
    drafted = np.array([d for d, _ in rows])
    accepted = np.array([round(d * share) for d, share in rows])
    result = hazards(accepted, drafted)
    known = result.hazard[~np.isnan(result.hazard)]
    assert np.all((known >= 0) & (known <= 1))
    assert np.all(np.diff(result.survival[~np.isnan(result.survival)]) <= 1e-12)
    if np.unique(drafted).size == 1 and not np.isnan(result.survival).any():
        assert result.survival.sum() == pytest.approx(accepted.mean())
    back = hazards(accepted[::-1], drafted[::-1])
    assert np.array_equal(back.reached, result.reached)


def test_expected_tokens() -> None:
    assert float(expected_tokens(TokenAcceptProb(1.0), 4)) == 5.0
    assert float(expected_tokens(TokenAcceptProb(0.0), 4)) == 1.0
    assert float(expected_tokens(TokenAcceptProb(0.8), 5)) == pytest.approx(3.68928)
    assert expected_tokens(TokenAcceptProb(0.5), [1, 2]) == pytest.approx([1.5, 1.75])


def test_the_geometric_law_takes_no_draft_ratio() -> None:
    with pytest.raises(TypeError, match="TokenAcceptProb"):
        expected_tokens(DraftAcceptRatio(0.5), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("k", "mean", "prob"), [(2, 1.40, 0.785), (4, 2.00, 0.741)])
def test_inversion_of_the_mean_accepted_length(k: int, mean: float, prob: float) -> None:
    assert prob_from_mean_accepted(mean, k).value == pytest.approx(prob, abs=5e-4)


def test_inversion_refuses_an_impossible_mean() -> None:
    with pytest.raises(ValueError, match="outside"):
        prob_from_mean_accepted(3.1, 3)


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan")])
def test_shares_stay_shares(value: float) -> None:
    with pytest.raises(ValueError, match=r"0\.\.1"):
        DraftAcceptRatio(value)
    with pytest.raises(ValueError, match=r"0\.\.1"):
        TokenAcceptProb(value)


def test_nothing_drafted_gives_nothing() -> None:
    assert draft_accept_ratio(0, 0) is None
    assert token_accept_prob(0, 0) is None


def test_planted_iid_truth_is_found_by_the_probability_and_missed_by_the_ratio() -> None:
    rng = np.random.default_rng(7)
    d = rng.integers(1, 8, 40_000)
    a = np.minimum(rng.geometric(1 - 0.7, d.size) - 1, d)
    p = token_accept_prob(a.sum(), (a < d).sum())
    alpha = draft_accept_ratio(a.sum(), d.sum())
    assert p is not None
    assert alpha is not None
    assert p.value == pytest.approx(0.7, abs=0.01)
    assert alpha.value < 0.55
    assert hazards(a, d).hazard == pytest.approx(np.full(7, 0.7), abs=0.04)
