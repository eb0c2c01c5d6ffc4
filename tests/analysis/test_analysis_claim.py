"""The claim: what is read, what is refused, and the speedup it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

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
