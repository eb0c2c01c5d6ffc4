"""The three formulas in SQL are those of the model, on the worked examples of MODEL.md."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from bare import QUERIES, bare
from lakes import write_lake

from tracelens.model.acceptance import DraftAcceptRatio, TokenAcceptProb
from tracelens.model.speedup import speedup_article, speedup_iid, speedup_with_bonus

DAY = dt.datetime(2026, 11, 1, 10)


def lake(folder: Path, accepted: list[int], k: int, **more: Any) -> Path:
    rounds = [
        {"ts": DAY, "request_id": f"r{i}", "task_type": "t", "round_index": 0, "drafted": k, "accepted": a,
         "emitted": a + 1, "num_speculative_tokens": k, **more}
        for i, a in enumerate(accepted)
    ]  # fmt: skip
    return write_lake(folder, rounds=rounds)


def theory(folder: Path, **variables: float) -> dict[str, Any]:
    con = bare(folder)
    for name, value in variables.items():
        con.execute(f"set variable {name} = {value}")
    result = con.execute((QUERIES / "theory.sql").read_text())
    names = [d[0] for d in result.description or ()]
    found = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    assert [row["stratum"] for row in found] == [{"task_type": "t"}, None]
    assert {k: v for k, v in found[0].items() if k != "stratum"} == {
        k: v for k, v in found[1].items() if k != "stratum"
    }
    return found[1]


@pytest.mark.parametrize(
    ("k", "accepted", "alpha"), [(1, [1, 1, 1, 0, 0], 0.6), (4, [4, 4, 2, 2, 0], 0.6), (4, [4, 2, 2, 0, 0], 0.4)]
)
def test_the_articles_examples(tmp_path: Path, k: int, accepted: list[int], alpha: float) -> None:
    """rho = .2: relative token times 2.0, 0.75 and 1.125, whatever the article prints for the last two."""
    row = theory(lake(tmp_path, accepted, k), rho=0.2)
    expected = (1 + 0.2 * k) / (alpha * k)
    assert row["relative_token_time_article"] == pytest.approx(expected)
    assert expected == pytest.approx({(1, 0.6): 2.0, (4, 0.6): 0.75, (4, 0.4): 1.125}[k, alpha])
    assert row["rho_basis"] == "variable"


def test_the_formulas_are_the_models(tmp_path: Path) -> None:
    row = theory(lake(tmp_path, [5, 3, 0, 1, 5, 2], 5, draft_us=35_000, target_us=18_000), baseline_ms=17.5)
    alpha, p = DraftAcceptRatio(16 / 30), TokenAcceptProb(16 / 20)
    assert (row["k"], row["k_basis"], row["rho_basis"]) == (5, "configured", "baseline_ms")
    assert row["rho"] == pytest.approx(0.4)
    assert row["speedup_article"] == pytest.approx(float(speedup_article(alpha, 0.4, 5)))
    assert row["speedup_with_bonus"] == pytest.approx(float(speedup_with_bonus(alpha, 0.4, 5)))
    assert row["speedup_iid"] == pytest.approx(float(speedup_iid(p, 0.4, 5)))


def test_all_accepted_and_nothing_timed(tmp_path: Path) -> None:
    row = theory(lake(tmp_path, [3, 3], 3), rho=0.1)
    assert row["speedup_iid"] == pytest.approx(4 / 1.3)
    untimed = theory(lake(tmp_path / "other", [3, 1], 3))
    assert (untimed["rho"], untimed["speedup_article"]) == (None, None)
    verify = theory(lake(tmp_path / "third", [3, 1], 3, draft_us=21_000, target_us=18_000))
    assert (verify["rho"], verify["rho_basis"]) == (pytest.approx(7 / 18), "verify_pass")
