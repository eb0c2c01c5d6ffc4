"""`tracelens gap` and `tracelens gate` on a lake of log lines: what they say when little is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracelens.cli import run

CLAIM = "alpha=.72,rho=.1,k=5"


def test_gap_without_times_tells_the_yield(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gap", "--lake", str(lake), "--claim", CLAIM, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["claim"] == {"alpha": 0.72, "rho": 0.1, "k": 5, "form": "article", "baseline_ms": None}
    assert len(document["strata"]) == 3
    for stratum in (*document["strata"], document["total"]):
        assert stratum["speedup_claimed"] == pytest.approx(2.4)
        assert stratum["speedup_observed"] is None
        assert [t["name"] for t in stratum["terms"]][:2] == ["convention", "alpha_shift"]
        assert "cannot be told" in stratum["verdict"]
    assert "speedup_tpot" in document["coverage"]


@pytest.mark.parametrize("fmt", ["table", "markdown", "csv", "json"])
@pytest.mark.long
def test_gap_in_every_format(lake: Path, capsys: pytest.CaptureFixture[str], fmt: str) -> None:
    assert run(["gap", "--lake", str(lake), "--claim", CLAIM, "--format", fmt]) == 0
    out = capsys.readouterr().out
    assert "NaN" not in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("claim", "told"),
    [(None, "--claim"), ("alpha=0,rho=.1,k=5", "above 0"), ("alpha=.7,rho=-1,k=5", "0 or more"),
     ("alpha=.7,k=5", "rho missing"), ("alpha=.7,rho=.1,k=0", "1 or more"), ("alpha=2,rho=.1,k=5", "up to 1")],
)  # fmt: skip
def test_a_claim_that_cannot_be_used(
    lake: Path, capsys: pytest.CaptureFixture[str], claim: str | None, told: str
) -> None:
    assert run(["gap", "--lake", str(lake), *(["--claim", claim] if claim else [])]) == 3
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_a_gate_that_cannot_tell_is_inconclusive(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gate", "--lake", str(lake), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["decision"] == "INCONCLUSIVE"
    assert {s["decision"] for s in document["strata"]} == {"INCONCLUSIVE"}
    assert all(s["relative_token_time"] is None and s["reasons"] for s in document["strata"])


def test_a_policy_without_times_keeps_what_is(lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    assert run(["gate", "--lake", str(lake), "--emit-policy", str(path), "-o", str(tmp_path / "gate.md")]) == 2
    document = json.loads(path.read_text(encoding="utf-8"))
    assert {s["k"] for s in document["strata"]} == {3}
    assert document["vllm"]["num_speculative_tokens_per_batch_size"] == []
    assert (tmp_path / "gate.md").read_text(encoding="utf-8").startswith("**INCONCLUSIVE")


@pytest.mark.parametrize("option", ["--margin=2", "--min-requests=-1", "--max-near-k=1.5"])
def test_a_threshold_out_of_range_is_a_usage_error(lake: Path, option: str) -> None:
    assert run(["gate", "--lake", str(lake), option]) == 3
