"""The gap in plain words: what was planned, what was observed, which causes took how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.analysis.claim import Claim
from tracelens.analysis.costs import LEAST_MATCHED
from tracelens.analysis.results import GapStratum, GapTerm

# Smaller causes are in the table, and in the sentence together.
_LEAST_POINTS = 0.02
_LEAST_FACTOR = 0.01
_TOLD = 3

_CAUSES = {
    "convention": "counting the target's own token, which the plan left out,",
    "alpha_shift": "acceptance",
    "k_shift": "drafts of another length than K",
    "shape": "acceptance along the draft that is not geometric",
    "terminal_cuts": "tokens verified and then cut at a stop",
    "plain_steps": "rounds without a draft",
    "verify_inflation": "the verify pass",
    "rho_drift": "draft cost",
    "sampling": "rejection sampling",
    "rollback": "KV repair after rollbacks",
    "repack": "candidate assembly and batch re-arrangement",
    "unattributed": "the rest of the round",
    "prefill_interference": "prefill in the same steps",
    "emit_lag": "accepted tokens sent late",
    "preemption": "preemption",
    "other": "time beyond the steps",
    "baseline_beyond_steps": "the baseline's own time beyond its steps",
}
_PLURAL = ("k_shift", "terminal_cuts", "plain_steps", "repack", "emit_lag")
_SIGNS = {"alpha_shift": "α", "rho_drift": "ρ"}


def cause(name: str) -> str:
    """A term's name in words."""
    return _CAUSES[name].rstrip(",")


def sentence(stratum: GapStratum, claim: Claim) -> str:
    """One paragraph: planned, observed, what took and what gave how much, the largest first."""
    planned = f"planned {stratum.speedup_claimed:.2f}x"
    observed, basis = stratum.speedup_observed, stratum.speedup_observed_basis
    if observed is None:
        return _without_times(stratum, claim, planned)
    low, high = stratum.speedup_observed_low, stratum.speedup_observed_high
    bounds = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    most = "at most " if basis == "upper_bound" else ""
    told = [t for t in stratum.terms if t.points is not None]
    takes = sorted((t for t in told if (t.points or 0) < 0), key=lambda t: t.points or 0)
    gives = sorted((t for t in told if (t.points or 0) > 0), key=lambda t: -(t.points or 0))
    parts = [_list(takes, "take", claim), _list(gives, "give", claim)]
    why = "; ".join(part for part in parts if part) or "no cause moved it by 0.02 or more"
    if stratum.figures.get("rounds") == 0:
        why = f"no round drafted a token, so the engine decoded plainly; {why}"
    text = f"{planned}, observed {most}{observed:.2f}x{bounds}: {why}"
    if stratum.baseline.measured and stratum.baseline_ms is not None:
        text += f". The plan was made against a plain step of {claim.baseline_ms:g} ms; "
        text += f"here it is {stratum.baseline_ms:.1f} ms"
    hidden = [name for name in stratum.unmeasured if name in _CAUSES]
    if hidden:
        text += f". Not told apart in these logs: {', '.join(cause(name) for name in hidden)}"
    if basis == "upper_bound":
        text += ". No whole step is logged, so what lies between its phases is missing and the speedup is lower"
    return f"{text}."


def _list(terms: Sequence[GapTerm], verb: str, claim: Claim) -> str:
    """The largest causes by name, the others counted: a sentence, not a table."""
    large = [t for t in terms if abs(t.points or 0) >= _LEAST_POINTS]
    named, rest = large[:_TOLD], [t for t in terms if t not in large[:_TOLD]]
    parts = [
        f"{_named(t, claim)} {verb}{'' if t.name in _PLURAL else 's'} {abs(t.points or 0):.2f}{_open(t)}" for t in named
    ]
    together = sum(abs(t.points or 0) for t in rest)
    if named and together >= _LEAST_POINTS:
        one = f"{_named(rest[0], claim)} {verb}{'' if rest[0].name in _PLURAL else 's'}"
        count = f"{len(rest)} smaller causes {verb}" if len(rest) > 1 else one
        parts.append(f"{count} {together:.2f}{_open(rest[0]) if len(rest) == 1 else ''}")
    return ", ".join(parts)


def _named(term: GapTerm, claim: Claim) -> str:
    text = _CAUSES[term.name]
    if term.name == "verify_inflation" and term.observed is not None:
        return f"{text} at {term.observed:.2f} plain steps"
    if term.name == "k_shift" and term.observed is not None:
        return f"{text} ({claim.k} → {term.observed:.2f} a draft)"
    if term.name == "unattributed" and "alpha_shift" in term.includes:
        return "acceptance and the cost of a round together"
    if term.name == "unattributed" and term.planned is not None and term.observed is not None:
        return f"the cost of a round, {term.planned:.2f} → {term.observed:.2f} plain steps,"
    if term.name in _SIGNS and term.planned is not None and term.observed is not None:
        sign = "p" if term.name == "alpha_shift" and claim.form == "iid" else _SIGNS[term.name]
        own = " (its own token taken off)" if claim.form == "article_tokens" and term.name == "alpha_shift" else ""
        return f"{text} {sign} {apart(term.planned, term.observed)}{own}"
    return text


def apart(planned: float, observed: float) -> str:
    """Two numbers with as many decimals as show that they differ, 2 to 4."""
    digits = next((n for n in (2, 3) if f"{planned:.{n}f}" != f"{observed:.{n}f}"), 4)
    if planned == observed or f"{planned:.4f}" == f"{observed:.4f}":
        digits = 2
    return f"{planned:.{digits}f} → {observed:.{digits}f}"


def _open(term: GapTerm) -> str:
    low, high = term.points_low, term.points_high
    return " (its interval holds 0)" if low is not None and high is not None and low < 0 < high else ""


def _without_times(stratum: GapStratum, claim: Claim, planned: str) -> str:
    moved = [t for t in stratum.terms if abs(t.factor - 1.0) >= _LEAST_FACTOR]
    yields = ", ".join(f"{_named(t, claim)} x{t.factor:.2f}" for t in moved)
    told = f" What the counts tell of the tokens a round: {yields}." if yields else ""
    return f"{planned}; the observed speedup cannot be told: {_why_untold(stratum.figures)}.{told}"


def _why_untold(figures: Mapping[str, Any]) -> str:
    """Why nothing is compared: a baseline of too little of the traffic, no baseline, or no times."""
    names = ("baseline_matched_share", "baseline_tpot_matched_share")
    shares = [share for name in names if (share := figures.get(name)) is not None]
    if shares and max(shares) < LEAST_MATCHED:
        return (
            f"the baseline is of the engine and model of {max(shares):.0%} of this traffic alone, and below "
            f"{LEAST_MATCHED:.0%} nothing is compared"
        )
    has_times = figures.get("step_ms") is not None or figures.get("tpot_ms") is not None
    if has_times and not shares:
        return "there is no time of a token without speculation to compare with (ingest a run with --role baseline)"
    if figures.get("prefill_step_ms") is not None and figures.get("step_ms") is None:
        return "every step that was timed held prefill, too, and such steps tell nothing of decoding"
    return "no time of a token with and without speculation is in these logs"
