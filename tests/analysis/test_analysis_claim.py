"""The claim: what is read, what is refused, and the speedup it promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis.claim import Claim, parse_claim
from tracelens.errors import InputError


def test_the_articles_claim() -> None:
    claim = parse_claim("alpha=.72, rho=.1, k=5")
    assert claim == Claim(0.72, 0.1, 5)
    assert claim.speedup == pytest.approx(2.4)
    assert claim.as_mapping() == {"alpha": 0.72, "rho": 0.1, "k": 5, "form": "article", "baseline_ms": None}


@pytest.mark.parametrize(
    ("form", "speedup"),
    [("article", 2.4), ("article_tokens", 2.4), ("bonus", 4.6 / 1.5), ("iid", (1 - 0.72**6) / 0.28 / 1.5)],
)
def test_forms(form: str, speedup: float) -> None:
    assert parse_claim(f"alpha=.72,rho=.1,k=5,form={form},baseline_ms=20").speedup == pytest.approx(speedup)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alpha=.72,rho=.1", "k missing"),
        ("alpha=0,rho=.1,k=5", "alpha must lie above 0"),
        ("alpha=1.1,rho=.1,k=5", "alpha must lie above 0"),
        ("alpha=.7,rho=-.1,k=5", "rho must be 0 or more"),
        ("alpha=.7,rho=.1,k=0", "k must be 1 or more"),
        ("alpha=.7,rho=.1,k=2.5", "whole number"),
        ("alpha=.7,rho=nan,k=2", "finite"),
        ("alpha=high,rho=.1,k=2", "must be a number"),
        ("alpha=.7,rho=.1,k=2,form=magic", "form=magic is unknown"),
        ("alpha=.7,rho=.1,k=2,speed=3", "unknown key speed"),
        ("alpha=.7,rho=.1,k=2,k=3", "given twice"),
        ("alpha=.7,rho=.1,k=2,baseline_ms=0", "baseline_ms must be above 0"),
        ("2.4x", "cannot read"),
        ("", "cannot read"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_claim(text)


def test_tokens_over_k_may_exceed_one() -> None:
    assert parse_claim("alpha=1.2,rho=.1,k=5,form=article_tokens").speedup == pytest.approx(4.0)


def test_a_claim_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "speculation_profile.json"
    path.write_text('{"alpha": 0.72, "rho": 0.1, "k": 5, "baseline_ms": null}', encoding="utf-8")
    assert parse_claim(f"@{path}") == Claim(0.72, 0.1, 5)
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(InputError, match="must hold an object"):
        parse_claim(f"@{path}")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="no JSON"):
        parse_claim(f"@{path}")
    with pytest.raises(InputError, match="cannot read"):
        parse_claim(f"@{tmp_path / 'none.json'}")


# -- speculation profiles ---------------------------------------------------------------------------------------------

RATES = [0.8, 0.6, 0.4, 0.2]
PROFILE: dict[str, Any] = {
    "schema_version": "1.0", "measured": True, "method": "eagle3", "num_speculative_tokens": 4,
    "verification_method": "longest_prefix", "conditional_accept_rates": [0.8, 0.75, 0.666667, 0.5],
    "marginal_accept_rates": RATES, "mean_accept_length": 3.0, "mean_accept_length_per_request": 3.1,
    "accept_length_model": "chain_analytic", "accept_length_by_k": {"4": 3.0},
    "acceptance_length_histogram": {"1": 20, "2": 20, "3": 20, "4": 20, "5": 20}, "per_category": None,
}  # fmt: skip


def profile(folder: Path, **changes: Any) -> Path:
    path = folder / "speculation_profile.json"
    told = PROFILE | changes
    path.write_text(json.dumps({k: v for k, v in told.items() if v != "absent"}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("more", "alpha", "form", "k", "speedup"),
    [
        # 3 tokens a round of 1 + 4 x 0.1 plain steps, with the target's own token in every form that counts it.
        ("", 0.5, "bonus", 4, 3 / 1.4),
        (",form=article", 0.5, "article", 4, 2 / 1.4),
        (",form=article_tokens", 0.75, "article_tokens", 4, 3 / 1.4),
        (",form=iid", 0.741271, "iid", 4, 3 / 1.4),
        # A shorter chain is the beginning of a longer one.
        (",k=2", 0.7, "bonus", 2, 2.4 / 1.2),
        (",k=2,form=iid", 0.784523, "iid", 2, 2.4 / 1.2),
        # What is said behind the file wins.
        (",alpha=.9", 0.9, "bonus", 4, 4.6 / 1.4),
    ],
)
def test_a_claim_from_a_profile(tmp_path: Path, more: str, alpha: float, form: str, k: int, speedup: float) -> None:
    claim = parse_claim(f"@{profile(tmp_path)},rho=.1{more}")
    assert (claim.form, claim.k, claim.rho) == (form, k, 0.1)
    assert claim.alpha == pytest.approx(alpha, abs=1e-4)
    assert claim.speedup == pytest.approx(speedup)


@given(st.floats(1.0001, 5.0), st.sampled_from(["bonus", "article_tokens", "iid"]))
def test_every_form_gives_the_tokens_of_the_profile(
    tmp_path_factory: pytest.TempPathFactory, mean: float, form: str
) -> None:
    path = profile(
        tmp_path_factory.mktemp("claims"), mean_accept_length=mean, marginal_accept_rates=None, accept_length_by_k=None
    )
    assert parse_claim(f"@{path},rho=0,form={form}").speedup == pytest.approx(mean, rel=1e-6)


def test_blocks_are_known_at_the_lengths_they_were_measured_at(tmp_path: Path) -> None:
    path = profile(
        tmp_path, method="dflash", accept_length_model="measured_per_k", accept_length_by_k={"4": 3.0, "2": 2.1}
    )
    assert parse_claim(f"@{path},rho=.1,k=2").alpha == pytest.approx(0.55)
    with pytest.raises(InputError, match="was measured at k=4, which does not tell of k=3"):
        parse_claim(f"@{path},rho=.1,k=3")


def test_a_file_name_may_hold_commas(tmp_path: Path) -> None:
    path = tmp_path / "a,rho=9.json"
    path.write_text('{"alpha": 0.72, "rho": 0.1, "k": 5}', encoding="utf-8")
    assert parse_claim(f"@{path}").rho == 0.1


def test_what_stands_behind_any_file_wins(tmp_path: Path) -> None:
    path = tmp_path / "claim.json"
    path.write_text('{"alpha": 0.72, "k": 5, "rho": 0.1}', encoding="utf-8")
    assert parse_claim(f"@{path},rho=.2,baseline_ms=20") == Claim(0.72, 0.2, 5, baseline_ms=20)


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({}, "", "holds no draft cost; write it as @"),
        (
            {"mean_accept_length": 1, "marginal_accept_rates": [0, 0, 0, 0], "accept_length_by_k": {}},
            ",rho=.1",
            "alpha must",
        ),
        ({"measured": False, "mean_accept_length": None}, ",rho=.1", "is a stub"),
        ({"mean_accept_length": 3.3}, ",rho=.1", "contradicts itself: mean_accept_length is 3.3"),
        ({"marginal_accept_rates": [0.4, 0.6, 0.6, 0.4]}, ",rho=.1", "must not rise"),
        ({"marginal_accept_rates": ["x"]}, ",rho=.1", "an acceptance must be a number"),
        ({"mean_accept_length": "absent"}, ",rho=.1", "has no mean_accept_length"),
        ({"num_speculative_tokens": None}, ",rho=.1", "has no num_speculative_tokens"),
        ({"marginal_accept_rates": None, "mean_accept_length": 6, "accept_length_by_k": {}}, ",rho=.1", "not possible"),
        ({}, ",rho=.1,k=5", "does not tell of k=5"),
        ({}, ",rho=.1,k=0", "k must be 1 or more"),
        ({}, ",rho=.1,k=1.5", "whole number"),
        ({}, ",rho=.1,form=magic", "form=magic is unknown"),
        ({}, ",rho=.1,speed=3", "unknown key speed"),
        ({}, ",rho", "cannot read"),
    ],
)
def test_profiles_that_are_refused(tmp_path: Path, changes: dict[str, Any], more: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_claim(f"@{profile(tmp_path, **changes)}{more}")
