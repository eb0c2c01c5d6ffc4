"""The first paragraphs of a comparison tell first what does most to the time of a token."""

from __future__ import annotations

from typing import Any

from tracelens.analysis.compared import Change, Compared, Comparison
from tracelens.analysis.sides import Side
from tracelens.reporters.compare_lead import lead

REAL = {"p_value": 1e-9, "p_adjusted": 1e-8, "significant": True}


def row(key: dict[str, Any], a: dict[str, Any], b: dict[str, Any], rounds: int = 100) -> Compared:
    """Every figure of both sides moved by more than chance, but for the token time."""
    change = {name: Change(b[name] - a[name], None, None, b[name] / a[name], **REAL) for name in a}
    change["relative_token_time"] = Change(0.01, None, None, 1.01, 0.5, 0.9, False)
    shared = {"rounds": rounds, "mean_drafted": 4.0, "relative_token_time": 0.7, "num_speculative_tokens_min": 4,
              "num_speculative_tokens_max": 4}  # fmt: skip
    return Compared(key, shared | a, shared | b, change)


def told(total: Compared, *strata: Compared) -> str:
    a, b = (Side(name, name.lower(), "run", (name.lower(),)) for name in "AB")
    real = sum(bool(c.significant) for r in (total, *strata) for c in (r.change or {}).values())
    return lead(Comparison(("task_type",), a, b, 0.95, strata, total, real + 1, real, {}, (), ()))[1]


def order(text: str, *names: str) -> list[str]:
    return sorted((name for name in names if f"{name} " in text), key=lambda name: text.index(f"{name} "))


A = {"near_k_round_share": 0.5, "overhead": 0.060, "verify_inflation": 1.03, "round_cost": 1.50, "step_ms": 30.0,
     "draft_accept_ratio": 0.6, "draft_ms": 4.0}  # fmt: skip


def test_the_largest_effect_is_told_first_and_trivia_are_below() -> None:
    after = {**A, "near_k_round_share": 0.9, "overhead": 0.061, "round_cost": 1.60, "step_ms": 32.0, "draft_ms": 4.5,
             "draft_accept_ratio": 0.4, "verify_inflation": 1.04}  # fmt: skip
    text = told(row({}, A, after))
    names = ("α", "round cost R", "draft", "verify v", "overhead o", "near-K rounds", "step")
    assert order(text, *names) == ["α", "round cost R", "draft"], text
    assert "4 more below" in text


def test_a_class_counts_by_its_share_of_the_traffic() -> None:
    total = row({}, {"overhead": 0.06, "round_cost": 1.5}, {"overhead": 0.09, "round_cost": 1.501}, 1000)
    small = row({"task_type": "small"}, {"draft_accept_ratio": 0.6}, {"draft_accept_ratio": 0.5}, 10)
    large = row({"task_type": "large"}, {"draft_accept_ratio": 0.6}, {"draft_accept_ratio": 0.55}, 990)
    text = told(total, small, large)
    assert order(text, "large: α", "overhead o", "small: α") == ["large: α", "overhead o", "small: α"], text


def test_a_class_that_went_the_way_of_all_is_no_news() -> None:
    total = row({}, {"round_cost": 1.5, "overhead": 0.06}, {"round_cost": 1.8, "overhead": 0.0601}, 100)
    chat = row({"task_type": "chat"}, {"round_cost": 1.5}, {"round_cost": 1.8}, 50)
    code = row({"task_type": "code"}, {"round_cost": 1.5}, {"round_cost": 1.2}, 50)
    text = told(total, chat, code)
    assert "chat" not in text
    assert order(text, "in total: round cost R", "code: round cost R", "overhead o") == [
        "in total: round cost R", "code: round cost R", "overhead o"
    ]  # fmt: skip
