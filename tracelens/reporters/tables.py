"""The tables of a report: which figures stand side by side, under which header, with which convention said below.

The terminal and the Markdown reporter draw the same tables. α never stands without K and ρ beside it (BRIEF.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tracelens.analysis.results import Report, Stratum
from tracelens.reporters import format as fmt
from tracelens.reporters.verdicts import disagreement, verdict

Figures = Mapping[str, Any]
Cell = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its header lines, its cell (the figure and, quietly, its interval) and the convention it follows.

    A column that is not `core` is left out when no row has any of `names`.
    """

    head: str
    cell: Callable[[Figures], Cell]
    names: tuple[str, ...]
    note: str = ""
    core: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Columns that answer one question, after the columns of the key."""

    title: str
    columns: tuple[Column, ...]


def _one(name: str, show: Callable[[Any], str]) -> Callable[[Figures], Cell]:
    return lambda figures: (show(figures.get(name)), "")


def _with_bounds(name: str, show: Callable[[Any], str], bound: Callable[[Any], str]) -> Callable[[Figures], Cell]:
    return lambda figures: (show(figures.get(name)), fmt.bounds(figures, name, bound))


def rho(figures: Figures) -> tuple[float | None, str]:
    """The draft cost that these records allow and its kind: `rho`, else `rho_verify`, else `rho_round`."""
    for name in ("rho", "rho_verify", "rho_round"):
        value = figures.get(name)
        if fmt.is_number(value):
            return value, name
    return None, ""


RHO_SIGN = {"rho": "", "rho_verify": " v", "rho_round": " r", "": ""}
RHO_TEXT = {
    "rho": "one draft token over one plain target step",
    "rho_verify": "one draft token over the verify pass, as no plain step to compare it with was measured",
    "rho_round": "the whole draft phase over one plain target step, as drafts are not counted one by one",
}


def _rho_cell(figures: Figures) -> Cell:
    value, kind = rho(figures)
    return fmt.ratio(value) + RHO_SIGN[kind], ""


def k_text(figures: Figures) -> str:
    """K of a stratum: one number, the range where several were configured, or the sign for "not known"."""
    one = figures.get("num_speculative_tokens")
    low, high = figures.get("num_speculative_tokens_min"), figures.get("num_speculative_tokens_max")
    if not fmt.is_number(one) and fmt.is_number(low) and fmt.is_number(high):
        return f"{low:g}–{high:g}"
    return fmt.count(one)


_PAYS = {"pays": "yes", "loses": "no", "open": "open", fmt.DASH: fmt.DASH}


def _pays_cell(figures: Figures) -> Cell:
    apart = disagreement(figures)
    if apart:
        return f"{_PAYS[apart['step']]} (steps) / {_PAYS[apart['tpot']]} (TPOT)", ""
    return _PAYS[verdict(figures)], ""


def _observed_cell(figures: Figures) -> Cell:
    """The speedup, with the mark of the gate where it is by TPOT: in a table that has both."""
    sign = "t " if figures.get("speedup_observed_basis") == "tpot" else ""
    return sign + fmt.times(figures.get("speedup_observed")), fmt.bounds(figures, "speedup_observed", _short)


def _short(value: Any) -> str:
    return f"{value:.2f}" if fmt.is_number(value) else fmt.DASH


def _requests_cell(figures: Figures) -> Cell:
    # Interval logs have rounds and no requests: their 0 means that nobody counted.
    return fmt.count(figures.get("requests") or None), ""


REQUESTS = Column("requests", _requests_cell, ("requests",))
ROUNDS = Column(
    "rounds", _one("rounds", fmt.count), ("rounds",), "rounds: request-rounds that drafted at least one token"
)
K = Column(
    "K",
    lambda f: (k_text(f), ""),
    ("num_speculative_tokens",),
    "K: configured draft length, tokens",
    core=True,
)
RHO = Column("ρ\ndraft", _rho_cell, ("rho", "rho_verify", "rho_round"), core=True)


def _time_cell(figures: Figures) -> Cell:
    text = fmt.ratio(figures.get("relative_token_time"))
    least = "≥ " if figures.get("relative_token_time_basis") == "lower_bound" and text != fmt.DASH else ""
    return least + text, fmt.bounds(figures, "relative_token_time", _short)


TIME = Column(
    "token time\n/ plain  [95 %]",
    _time_cell,
    ("relative_token_time",),
    "token time: relative_token_time C, one committed token (the target's own counted) over one plain decode step; "
    "below 1.0 speculation pays",
)
OBSERVED = Column(
    "observed\nspeedup  [95 %]",
    _with_bounds("speedup_observed", fmt.times, _short),
    ("speedup_observed",),
    core=True,
)
OBSERVED_MIXED = Column(OBSERVED.head, _observed_cell, OBSERVED.names, core=True)
CONTROL = Column(
    "control\nnoise",
    _one("control_spread", fmt.percent),
    ("control_spread",),
    "control noise: control_spread, how far runs without speculation differ among themselves; a speedup within it may "
    "be nothing",
)
PLANNED = Column(
    "planned", _one("speedup_claimed", fmt.times), ("speedup_claimed",), "planned: speedup_claimed, from --claim"
)
VERDICT = Column(
    "pays?",
    _pays_cell,
    ("relative_token_time", "speedup_observed"),
    "pays?: yes or no where the whole interval (of C; of the speedup where C is missing) lies on one side of 1.0, "
    "else open",
)
ALPHA = Column(
    "α accepted/\ndrafted  [95 %]",
    _with_bounds("draft_accept_ratio", fmt.ratio, _short),
    ("draft_accept_ratio",),
    "α: draft_accept_ratio, accepted over drafted tokens, the target's own token excluded",
    core=True,
)
P = Column(
    "p per\ntoken",
    _one("token_accept_prob", fmt.ratio),
    ("token_accept_prob",),
    "p: token_accept_prob, chance of one draft token once all before it were accepted (target's token excluded)",
)
TAU = Column(
    "τ tokens\n/ round",
    _one("tau_committed", fmt.tokens),
    ("tau_committed",),
    "τ: tau_committed, tokens committed a round (plain rounds and the target's own token included)",
    core=True,
)
NEAR_K = Column(
    "near-K\nrounds",
    _one("near_k_round_share", fmt.percent),
    ("near_k_round_share",),
    "near-K: rounds that lost (almost) the whole draft",
)
NEAR_K_REQUESTS = Column(
    "near-K\nrequests",
    _one("near_k_request_share", fmt.percent),
    ("near_k_request_share",),
    "near-K requests: those in which such rounds are common",
)
DRAFT = Column("draft\nms", _one("draft_ms", fmt.number_ms), ("draft_ms",))
VERIFY = Column("verify\nms", _one("target_ms", fmt.number_ms), ("target_ms",))
ROUND = Column("round\nms", _one("step_ms", fmt.number_ms), ("step_ms",))
PLAIN = Column("plain\nstep ms", _one("baseline_ms", fmt.number_ms), ("baseline_ms",))
INFLATION = Column(
    "verify\n/ plain",
    _one("verify_inflation", fmt.ratio),
    ("verify_inflation",),
    "verify / plain: verify_inflation v, the verify pass over one plain step",
)
RHO_ROUND = Column(
    "drafts\n/ plain",
    _one("rho_round", fmt.ratio),
    ("rho_round",),
    "drafts / plain: rho_round, the draft phase over one plain step",
)
OVERHEAD = Column(
    "rest\n/ plain",
    _one("overhead", fmt.ratio),
    ("overhead",),
    "rest / plain: overhead o, the round beside draft and verify",
)
COST = Column(
    "round\n/ plain",
    _with_bounds("round_cost", fmt.ratio, _short),
    ("round_cost",),
    "round / plain: round_cost R, the whole round over one plain step; C = R/τ",
)
COST_NARROW = Column(COST.head, _one("round_cost", fmt.ratio), COST.names, COST.note)
ARTICLE = Column(
    "article",
    _one("speedup_article", fmt.times),
    ("speedup_article",),
    "article: αK/(1+ρK), drops the target's own token",
)
BONUS = Column(
    "with\nbonus",
    _one("speedup_with_bonus", fmt.times),
    ("speedup_with_bonus",),
    "with bonus: (1+αK)/(1+ρK), counts it",
)
IID = Column(
    "i.i.d.", _one("speedup_iid", fmt.times), ("speedup_iid",), "i.i.d.: Leviathan et al. 2023, Thm 3.8, fed with p"
)


def _break_even_cell(figures: Figures) -> Cell:
    value = figures.get("break_even_alpha")
    return "never" if fmt.is_number(value) and value > 1 else fmt.ratio(value), ""


BREAK_EVEN = Column(
    "break-even\nα",
    _break_even_cell,
    ("break_even_alpha",),
    "break-even α: break_even_alpha, the α at which C would be 1.0 at this cost; never: above 1",
)
OBSERVED_SHORT = Column("observed", _one("speedup_observed", fmt.times), ("speedup_observed",))

FORMULAS = (ARTICLE, BONUS, IID)
COST_TITLE = "Cost of a round (means over request-rounds)"

NARROW = (
    Table("Outcome", (REQUESTS, ROUNDS, TIME, OBSERVED, CONTROL, VERDICT)),
    Table("Acceptance", (K, RHO, ALPHA, P, TAU, NEAR_K, NEAR_K_REQUESTS)),
    Table(COST_TITLE, (DRAFT, VERIFY, ROUND, PLAIN, INFLATION, RHO_ROUND, OVERHEAD, COST_NARROW)),
    Table("Speedup: what the formulas make of α, p, ρ and K", (K, RHO, *FORMULAS, OBSERVED_SHORT, PLANNED, BREAK_EVEN)),
)
WIDE = (
    Table(
        "Outcome and acceptance",
        (REQUESTS, ROUNDS, TIME, OBSERVED, CONTROL, VERDICT, K, RHO, ALPHA, P, TAU, NEAR_K, NEAR_K_REQUESTS),
    ),
    Table(
        f"{COST_TITLE}, and speedup: what the formulas make of α, p, ρ and K",
        (DRAFT, VERIFY, ROUND, PLAIN, INFLATION, RHO_ROUND, OVERHEAD, COST, K, RHO, *FORMULAS, OBSERVED_SHORT, PLANNED),
    ),
)


# Columns that give others their meaning and are no answer themselves.
_CONTEXT = (K, RHO, PLAIN, OBSERVED_SHORT, PLANNED)


def present(table: Table, rows: tuple[Stratum, ...]) -> tuple[Column, ...]:
    """The columns of `table` that say something: the core ones, and those with a figure in any row.

    Empty when nothing but context would be left.
    """

    def told(column: Column) -> bool:
        return any(fmt.is_number(row.figures.get(name)) for row in rows for name in column.names)

    if not any(told(column) for column in table.columns if column not in _CONTEXT):
        return ()
    mixed = len(_bases(rows)) > 1
    chosen = (OBSERVED_MIXED if column is OBSERVED and mixed else column for column in table.columns)
    return tuple(column for column in chosen if column.core or told(column))


def rows_of(report: Report) -> tuple[Stratum, ...]:
    """Strata and total; the total alone when the report has no strata."""
    return (*report.strata, report.total)


def notes(columns: tuple[Column, ...], rows: tuple[Stratum, ...]) -> list[str]:
    """The conventions of the columns shown; the draft cost says which of its kinds it is."""
    told: list[str] = []
    for column in columns:
        if column is RHO:
            told.extend(_rho_notes(rows))
        elif column in (OBSERVED, OBSERVED_SHORT, OBSERVED_MIXED):
            told.append(_observed_note(rows))
        elif column is VERDICT:
            told += [column.note, _APART if any(disagreement(row.figures) for row in rows) else ""]
        elif column in (COST, COST_NARROW) and {INFLATION, RHO_ROUND, OVERHEAD} <= set(columns):
            told.append(column.note.replace("the whole round over one plain step", "the sum of the three"))
        elif column.note:
            told.append(column.note)
    return [note for note in told if note]


def _rho_notes(rows: tuple[Stratum, ...]) -> list[str]:
    kinds = [k for k in RHO_TEXT if any(rho(row.figures)[1] == k for row in rows)]
    if not kinds:
        return ["ρ: draft cost, not measured here"]
    return [f"ρ{RHO_SIGN[kind]}: {kind}, {RHO_TEXT[kind]}" for kind in kinds]


_APART = (
    "where the verdicts by steps and by TPOT differ both are told: TPOT holds what lies beyond and between the steps, "
    "in both runs"
)


def _bases(rows: tuple[Stratum, ...]) -> set[str]:
    return {str(row.figures["speedup_observed_basis"]) for row in rows if row.figures.get("speedup_observed_basis")}


def _observed_note(rows: tuple[Stratum, ...]) -> str:
    bases = _bases(rows)
    mark = "t: " if len(bases) > 1 else ""
    told = {"tpot": f"{mark}speedup_tpot, baseline TPOT over TPOT", "step": "speedup_step, 1/C from the steps"}
    text = "; ".join(sorted(told.get(b, fmt.visible(b)) for b in bases))
    return f"observed: speedup_observed{', ' + text if text else ''}"
