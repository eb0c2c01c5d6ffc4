"""How a change of a figure is called and written, for the lead and the tables of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tracelens.analysis.compared import Change, Compared
from tracelens.reporters import format as fmt


@dataclass(frozen=True, slots=True)
class Shown:
    """How a figure is called in a table, written, and what it means."""

    head: str
    show: Callable[[Any], str]
    note: str


FIGURES = {
    "relative_token_time": Shown(
        "token time C", fmt.ratio, "token time C = round cost / τ committed, of plain decoding; below 1 it pays"
    ),
    "tpot_ms": Shown("TPOT, ms", fmt.tokens, "TPOT = decode time / (output tokens − 1)"),
    "speedup_observed": Shown(
        "speedup",
        fmt.times,
        "speedup = the observed one, by TPOT where both it and its baseline are known, else by steps",
    ),
    "draft_accept_ratio": Shown("α", fmt.ratio, "α = accepted / drafted, the target's own token excluded"),
    "token_accept_prob": Shown(
        "p", fmt.ratio, "p = accepted / (accepted + rounds cut short), the target's own token excluded"
    ),
    "tau_verified": Shown("τ verified", fmt.tokens, "τ verified = 1 + accepted / rounds with a draft"),
    "tau_committed": Shown(
        "τ committed", fmt.tokens, "τ committed = emitted tokens / all rounds, the target's own token included"
    ),
    "near_k_round_share": Shown(
        "near-K rounds", fmt.ratio, "near-K rounds = share of rounds that lose (almost) the whole draft"
    ),
    "rho": Shown("ρ", fmt.ratio, "ρ = a draft token / a plain step"),
    "rho_verify": Shown("ρ (verify)", fmt.ratio, "ρ (verify) = a draft token / a verify pass"),
    "verify_inflation": Shown("verify v", fmt.ratio, "v = verify pass / plain step"),
    "overhead": Shown("overhead o", fmt.ratio, "o = (step − draft − verify) / plain step"),
    "round_cost": Shown("round cost R", fmt.ratio, "R = step / plain step"),
    "draft_ms": Shown("draft, ms", fmt.tokens, "draft, verify and step: means per request-round without prefill"),
    "target_ms": Shown("verify, ms", fmt.tokens, ""),
    "step_ms": Shown("step, ms", fmt.tokens, ""),
}


def change_of(row: Compared, name: str) -> Change:
    """The change of a figure; one that says why where there is none."""
    if row.change is None:
        return Change(because=f"this class of traffic is on {'A' if row.b is None else 'B'} only")
    return row.change.get(name, Change())


def is_real(row: Compared, name: str) -> bool:
    """Whether a figure moved by more than chance between requests."""
    return bool(change_of(row, name).significant)


def class_name(row: Compared) -> str:
    """The class of traffic of a row."""
    return " / ".join(fmt.label(value, 40, column) for column, value in row.key.items()) or "all traffic"


def k_text(figures: Mapping[str, Any]) -> str:
    """K of a side: 5, or 3–7 where several ran."""
    low, high = figures.get("num_speculative_tokens_min"), figures.get("num_speculative_tokens_max")
    return fmt.count(low) if low == high else f"{fmt.count(low)}–{fmt.count(high)}"


def k_differs(row: Compared) -> bool:
    """Whether the sides drafted with another K, which moves α and τ by itself."""
    return row.a is not None and row.b is not None and k_text(row.a) != k_text(row.b)


def short(name: str) -> str:
    """The name of a figure in a sentence, without its unit."""
    return FIGURES[name].head.partition(", ")[0]


def signed(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """A number with its sign, a real minus among them."""

    def text(value: Any) -> str:
        if not fmt.is_number(value):
            return fmt.DASH
        return f"{'−' if value < 0 else '+'}{show(abs(value))}"

    return text


def percent(share: float) -> str:
    """A share in percent with no more decimals than it has: 5 %."""
    return f"{100 * share:.4g} %"


def noise(row: Compared) -> float | None:
    """How far runs without speculation differ among themselves, by the side where they differ most."""
    spreads = [(side or {}).get("control_spread") for side in (row.a, row.b)]
    return max((s for s in spreads if fmt.is_number(s)), default=None)
