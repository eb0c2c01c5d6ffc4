"""The gap between a planned and an observed speedup, split so that the terms multiply to it exactly (MODEL.md 5).

A plan yields Y0 tokens a round at the cost R0 = 1 + rho0 K0 (in plain steps). What was observed is a chain of yields
from Y0 to the committed tokens of a round, a cost R built from parts, and what lies beyond the steps. Yields give
ln(level after / level before). Cost parts d with sum d = R - R0 give -d / L(R, R0), L the logarithmic mean, so that
they add up to -ln(R / R0) whatever their signs (Ang 2004, the logarithmic mean Divisia index).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracelens.model.acceptance import DraftAcceptRatio, TokenAcceptProb, expected_tokens
from tracelens.model.speedup import speedup_article, speedup_iid, speedup_with_bonus

Floats = NDArray[np.float64]

_NOTHING = 1e-12  # of a logarithm: rounding
#: Terms in the order in which they are printed.
NAMES = (
    "convention", "alpha_shift", "k_shift", "shape", "terminal_cuts", "plain_steps", "verify_inflation", "rho_drift",
    "sampling", "rollback", "repack", "unattributed", "prefill_interference", "emit_lag", "preemption", "other",
    "baseline_beyond_steps",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EmittedShare:
    """Emitted tokens of a round over K, the target's own among them: what some articles print as their alpha.

    Raises:
        ValueError: below 0.
    """

    value: float

    def __post_init__(self) -> None:
        if not self.value >= 0.0:
            raise ValueError(f"emitted tokens over K must be 0 or more, not {self.value}")


Acceptance = DraftAcceptRatio | TokenAcceptProb | EmittedShare

# The only acceptance that a form may be fed with.
_TAKES: dict[str, type] = {
    "article": DraftAcceptRatio,
    "article_tokens": EmittedShare,
    "bonus": DraftAcceptRatio,
    "iid": TokenAcceptProb,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned speedup: a form, the acceptance that this form takes, rho0 and K0.

    Raises:
        TypeError: the acceptance is of another kind than the form takes.
        ValueError: an unknown form; acceptance 0 or less, K0 below 1, rho0 below 0.
    """

    form: str
    acceptance: Acceptance
    rho: float
    k: int

    def __post_init__(self) -> None:
        takes = _TAKES.get(self.form)
        if takes is None:
            raise ValueError(f"form {self.form} is unknown; the forms are {', '.join(_TAKES)}")
        if not isinstance(self.acceptance, takes):
            raise TypeError(f"form {self.form} takes a {takes.__name__}, not {type(self.acceptance).__name__}")
        if not (self.acceptance.value > 0 and self.k >= 1 and self.rho >= 0 and math.isfinite(self.rho)):
            raise ValueError("a plan needs acceptance above 0, K of 1 or more and rho of 0 or more")

    @property
    def tokens(self) -> float:
        """Planned yield Y0, tokens a round, by the convention of the form."""
        match self.acceptance:
            case TokenAcceptProb():
                return float(expected_tokens(self.acceptance, self.k))
            case _:
                return self.acceptance.value * self.k + (1.0 if self.form == "bonus" else 0.0)

    @property
    def cost(self) -> float:
        """Planned cost R0 = 1 + rho0 K0, plain steps a round."""
        return 1.0 + self.rho * self.k

    @property
    def speedup(self) -> float:
        """`speedup_claimed`, by the formula of the form."""
        match self.acceptance:
            case TokenAcceptProb():
                return float(speedup_iid(self.acceptance, self.rho, self.k))
            case DraftAcceptRatio() if self.form == "bonus":
                return float(speedup_with_bonus(self.acceptance, self.rho, self.k))
            case DraftAcceptRatio():
                return float(speedup_article(self.acceptance, self.rho, self.k))
        return self.tokens / self.cost


@dataclass(frozen=True, slots=True)
class Observed:
    """What was measured in one stratum; None is "not measured".

    `drafting_share` is the share of all rounds that had a draft: mean_drafted / drafting_share is the mean draft of
    those. Times are ms. `draft_lengths` and `length_weights` are the draft lengths d of its rounds and how many had
    each (only the i.i.d. form asks for them). `plain_ms` is t_AR, `tpot_ms` and `plain_tpot_ms` are TPOT with and
    without speculation. `extra_ms` maps `prefill_interference` and `emit_lag` to ms a token beyond the steps.
    """

    draft_accept_ratio: float | None = None
    token_accept_prob: float | None = None
    tau_verified: float | None = None
    tau_drafted: float | None = None
    tau_committed: float | None = None
    mean_drafted: float | None = None
    drafting_share: float | None = None
    draft_lengths: Sequence[float] = ()
    length_weights: Sequence[float] = ()
    draft_ms_per_token: float | None = None
    target_ms: float | None = None
    step_ms: float | None = None
    sample_ms: float | None = None
    rollback_ms: float | None = None
    repack_ms: float | None = None
    plain_ms: float | None = None
    tpot_ms: float | None = None
    plain_tpot_ms: float | None = None
    extra_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Term:
    """One cause: `log` is ln of its factor. `includes` names causes nobody logged that lie in it unmeasured.

    `cost_log` is the part of `log` that comes from the cost of a round (k_shift has both parts).
    """

    name: str
    log: float
    measured: bool = True
    includes: tuple[str, ...] = ()
    cost_log: float = 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """The whole: `terms` add up to ln(speedup_observed / speedup_claimed) where `speedup_observed` is known.

    `basis` is `tpot`, `step`, `upper_bound` (no whole step logged: the speedup is at most this) or None (no times:
    the terms are those of the yield alone). `token_ms` is the observed time of a token, `unmeasured` names the causes
    that these records cannot tell apart. `round_cost` is R, plain steps a round: measured, or what the observed speedup
    and the yield say it was; None where a part of the yield is not known.
    """

    terms: tuple[Term, ...]
    speedup_claimed: float
    speedup_observed: float | None
    basis: str | None
    token_ms: float | None
    plain_token_ms: float | None
    unmeasured: tuple[str, ...]
    round_cost: float | None = None


def log_mean(x: float, y: float) -> float:
    """Logarithmic mean L(x, y) = (x - y) / ln(x / y), L(x, x) = x, of two positive numbers."""
    if x <= 0 or y <= 0:
        raise ValueError("the logarithmic mean is of positive numbers")
    relative = (x - y) / y
    if abs(relative) < 1e-4:
        # ln(1 + r) / r by its series: the quotient of two small numbers would lose digits.
        return y / (1.0 - relative / 2.0 + relative**2 / 3.0 - relative**3 / 4.0)
    return (x - y) / math.log(x / y)


def decompose(plan: Plan, seen: Observed) -> Gap:
    """Split ln(speedup_observed / speedup_claimed) into its causes (MODEL.md 5)."""
    yields, level, lost = _yields(plan, seen)
    basis, speedup, token_ms, plain_token = _speedup(seen)
    if speedup is None:
        return Gap(_ordered(yields, lost), plan.speedup, None, None, None, None, (*lost, *_COSTS))
    steps = _step_speedup(seen)
    cost = level / (speedup if steps is None else steps)
    costs, unlogged = _costs(plan, seen, cost, plain_told="plain_steps" not in lost)
    merged = _merge(yields, costs)
    hidden = tuple(dict.fromkeys((*lost, *unlogged)))
    within = hidden
    if basis == "tpot" and steps is not None and seen.tau_committed and seen.plain_ms:
        moved: tuple[str, ...] = ()
        if abs(merged["unattributed"].log) < _NOTHING:
            # The step is the sum of its logged parts: what nobody logged lies beyond it.
            del merged["unattributed"]
            within, moved = (), hidden
        beyond, later = _beyond(seen, moved, inside=seen.plain_ms / steps)
        # From the plain step to the plain TPOT: what the baseline loses beyond its own steps.
        log = math.log(speedup / steps) - math.fsum(term.log for term in beyond)
        merged.update({term.name: term for term in (*beyond, Term("baseline_beyond_steps", log))})
        hidden = (*hidden, *later)
    return Gap(
        _ordered(merged, within), plan.speedup, speedup, basis, token_ms, plain_token, hidden, None if lost else cost
    )


def _ordered(terms: dict[str, Term], hidden: tuple[str, ...]) -> tuple[Term, ...]:
    """Terms in the order of print; what was not logged lies in `unattributed`, where there is one."""
    rest = terms.get("unattributed")
    if rest is not None and hidden:
        terms = {**terms, rest.name: Term(rest.name, rest.log, False, hidden, rest.cost_log)}
    return tuple(terms[name] for name in NAMES if name in terms)


# Causes that only rounds with a draft can have.
_OF_DRAFTS = ("alpha_shift", "k_shift", "shape", "terminal_cuts")
_COSTS = ("verify_inflation", "rho_drift", "sampling", "rollback", "repack")


def _yields(plan: Plan, seen: Observed) -> tuple[dict[str, Term], float, tuple[str, ...]]:
    """Terms of the yield, the last level that is known, and the causes that cannot be told."""
    terms: dict[str, Term] = {}
    lost: list[str] = []
    level, broken = plan.tokens, False
    for name, after in _levels(plan, seen):
        if name in _OF_DRAFTS and seen.drafting_share == 0.0:
            continue  # no round drafted: there is nothing that these causes could have moved
        if after is None or not after > 0:
            lost.append(name)
            # Cuts nobody logged lie nowhere else: the next level is then from the verified tokens, too.
            broken = broken or name != "terminal_cuts"
            continue
        if broken:
            # From the last known level to this one several causes act at once: none of them can claim it.
            lost.append(name)
            before = terms.get("unattributed")
            step = math.log(after / level) + (before.log if before else 0.0)
            terms["unattributed"] = Term("unattributed", step)
        else:
            terms[name] = Term(name, math.log(after / level))
        level, broken = after, False
    return terms, level, tuple(dict.fromkeys(lost))


def _levels(plan: Plan, seen: Observed) -> Iterable[tuple[str, float | None]]:
    """Tokens of a round after each cause, in order; None where they cannot be told."""
    if plan.form == "article":
        yield "convention", 1.0 + plan.tokens
    if plan.form == "iid":
        prob = None if seen.token_accept_prob is None else TokenAcceptProb(seen.token_accept_prob)
        yield "alpha_shift", None if prob is None else float(expected_tokens(prob, plan.k))
        yield "k_shift", None if prob is None else _mean_expected(prob, seen)
        yield "shape", seen.tau_verified
    else:
        alpha = seen.draft_accept_ratio
        yield "alpha_shift", None if alpha is None else 1.0 + alpha * plan.k
        yield "k_shift", seen.tau_verified
    yield "terminal_cuts", seen.tau_drafted
    yield "plain_steps", seen.tau_committed


def _mean_expected(prob: TokenAcceptProb, seen: Observed) -> float | None:
    weights = np.asarray(seen.length_weights, dtype=np.float64)
    if not weights.sum() > 0:
        return None
    expected = expected_tokens(prob, np.asarray(seen.draft_lengths, dtype=np.float64))
    return float(np.sum(weights * expected) / weights.sum())


def _step_speedup(seen: Observed) -> float | None:
    if not seen.step_ms or not seen.plain_ms or not seen.tau_committed:
        return None
    return seen.plain_ms * seen.tau_committed / seen.step_ms


def _speedup(seen: Observed) -> tuple[str | None, float | None, float | None, float | None]:
    """Basis, observed speedup, ms a token, ms a token without speculation."""
    if seen.tpot_ms and seen.plain_tpot_ms:
        return "tpot", seen.plain_tpot_ms / seen.tpot_ms, seen.tpot_ms, seen.plain_tpot_ms
    steps = _step_speedup(seen)
    if steps is not None and seen.plain_ms is not None:
        return "step", steps, seen.plain_ms / steps, seen.plain_ms
    known = (seen.draft_ms_per_token, seen.mean_drafted, seen.target_ms, seen.plain_ms, seen.tau_committed)
    if any(value is None for value in known):
        return None, None, None, None
    per_token, drafted, target, plain, tau = (float(value) for value in known if value is not None)
    parts = per_token * drafted + target
    parts += sum(value or 0.0 for value in (seen.sample_ms, seen.rollback_ms, seen.repack_ms))
    if not (parts > 0 and plain > 0 and tau > 0):
        return None, None, None, None
    return "upper_bound", plain * tau / parts, parts / tau, plain


def _costs(plan: Plan, seen: Observed, cost: float, *, plain_told: bool) -> tuple[dict[str, Term], tuple[str, ...]]:
    """Terms of the cost, given the whole cost R of a round, and the parts nobody logged."""
    parts = _cost_parts(plan, seen, plain_told=plain_told)
    mean = log_mean(cost, plan.cost)
    known = {name: part for name, part in parts.items() if part is not None}
    known["unattributed"] = cost - plan.cost - math.fsum(known.values())
    terms = {name: Term(name, -part / mean, cost_log=-part / mean) for name, part in known.items()}
    return terms, tuple(name for name, part in parts.items() if part is None)


def _cost_parts(plan: Plan, seen: Observed, *, plain_told: bool) -> dict[str, float | None]:
    """Parts of R - R0 in plain steps; None where nobody logged them.

    Rounds without a draft save its cost: where their share is known that is theirs, and no effect of the length of the
    drafts that were made.
    """
    plain, drafted, share = seen.plain_ms, seen.mean_drafted, seen.drafting_share

    def over(time: float | None) -> float | None:
        return None if time is None or not plain else time / plain

    inflation, rho = over(seen.target_ms), over(seen.draft_ms_per_token)
    parts: dict[str, float | None] = {"verify_inflation": None if inflation is None else inflation - 1.0}
    if share == 0.0 and plain_told:
        parts["plain_steps"] = -plan.rho * plan.k
    else:
        length = drafted / share if drafted is not None and share and plain_told else drafted
        parts["k_shift"] = None if length is None else plan.rho * (length - plan.k)
        parts["rho_drift"] = None if rho is None or drafted is None else (rho - plan.rho) * drafted
        parts["sampling"] = over(seen.sample_ms)
        if drafted is not None and length is not None and length != drafted:
            parts["plain_steps"] = plan.rho * (drafted - length)
    return {**parts, "rollback": over(seen.rollback_ms), "repack": over(seen.repack_ms)}


def _merge(yields: dict[str, Term], costs: dict[str, Term]) -> dict[str, Term]:
    """k_shift, plain_steps and what cannot be told apart have parts of yield and of cost: one term each."""
    merged = dict(yields)
    for name, cost in costs.items():
        part = merged.get(name)
        merged[name] = cost if part is None else Term(name, part.log + cost.log, cost_log=cost.log)
    return merged


def _beyond(seen: Observed, before: tuple[str, ...], *, inside: float) -> tuple[list[Term], tuple[str, ...]]:
    """From `inside`, the steps' time a token, to TPOT; `before` are causes of the steps that can lie here alone."""
    tpot = seen.tpot_ms or inside
    mean = log_mean(tpot, inside)
    terms = [Term(name, -part / mean) for name, part in seen.extra_ms.items()]
    lost = tuple(name for name in ("prefill_interference", "emit_lag", "preemption") if name not in seen.extra_ms)
    rest = tpot - inside - math.fsum(seen.extra_ms.values())
    return [*terms, Term("other", -rest / mean, False, (*before, *lost))], lost
