"""The answer of a report in words: what a person should read first, and the lists at its end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tracelens.analysis.results import NOTHING, Missing, Report, Warning
from tracelens.reporters import format as fmt
from tracelens.reporters import selected
from tracelens.reporters.tables import RHO_TEXT, Figures, k_text, rho
from tracelens.reporters.verdicts import disagreement, verdict
from tracelens.wording import many

#: What a baseline's basis means, in words.
BASELINES = {
    "value": "given with --baseline",
    "run_step": "mean step of a run without speculation",
    "run_tpot": "TPOT of a run without speculation",
    "spec_off": "steps with speculation switched off on the same stack",
    "verify_extrapolated": "verify pass extrapolated to one position",
    "plain_steps": "plain steps of the speculating engine, which pay a mode tax of 7-22 %",
    "verify_pass": "the verify pass itself, as in the article: flatters speculation",
}

_VERDICTS = {
    "pays": "speculation pays",
    "loses": "speculation costs more than it gives",
    "open": "open whether speculation pays",
}


#: A verdict behind another one.
BY_STEPS = {"pays": "it pays", "loses": "it costs more", "open": "open"}
_SUBSTANCE = ("rounds", "plain_steps", "accepted", "draft_accept_ratio", "tau_committed", "step_ms", "tpot_ms", "rho")


def answer(report: Report) -> list[str]:
    """The answer: speedup and relative token time in one sentence, acceptance with K and ρ in the next."""
    total = report.total.figures
    told = nothing(report)
    if told or not any(total.get(name) for name in _SUBSTANCE):
        return [told or _none(report)]
    lines = [_speed(total)]
    if fmt.is_number(total.get("draft_accept_ratio")):
        lines.append(_acceptance(total))
    return lines


def nothing(report: Report) -> str:
    """Why there is nothing to report, and what there is; empty where there is something."""
    return next((fmt.visible(w.text) for w in report.warnings if w.code == NOTHING), "")


def _none(report: Report) -> str:
    asked = selected.options(report.selection)
    if asked:
        return f"Nothing to report: no record with a figure meets {fmt.listed(asked)}."
    below = "; what would give them is listed below" if report.coverage else ""
    return f"Nothing to report: these records hold no figure{below}."


def _speed(figures: Figures) -> str:
    planned = figures.get("speedup_claimed")
    plan = f" (planned {fmt.times(planned)})" if fmt.is_number(planned) else ""
    observed, time = figures.get("speedup_observed"), figures.get("relative_token_time")
    if not fmt.is_number(observed) and not fmt.is_number(time):
        return f"Speedup cannot be told from these records{plan}: see what is missing, below."
    text = f"Observed {fmt.times(observed)}{plan}" if fmt.is_number(observed) else f"Speedup not observed{plan}"
    if fmt.is_number(time):
        least = "at least " if figures.get("relative_token_time_basis") == "lower_bound" else ""
        bounds = fmt.bounds(figures, "relative_token_time", lambda v: f"{v:.2f}")
        text += f"; relative token time {least}{time:.2f} of plain decoding{' ' + bounds if bounds else ''}"
    elif fmt.is_number(observed) and observed > 0:
        text += f"; a token takes {1 / observed:.2f} of its time in plain decoding, by TPOT"
    text += f": {told_verdict(figures, _VERDICTS)}"
    return f"{text}. {baselines(figures)}.{control(figures)}"


def told_verdict(figures: Figures, words: Mapping[str, str]) -> str:
    """The verdict in these words; of steps and of TPOT where they disagree."""
    apart = disagreement(figures)
    if not apart:
        return words[verdict(figures)]
    first, second = apart["tpot"], apart["step"]
    return f"{words[first]} by TPOT, {BY_STEPS[second]} by steps"


def control(figures: Figures) -> str:
    """How far the runs without speculation differ among themselves; empty where there are not two."""
    spread, runs = figures.get("control_spread"), figures.get("control_runs")
    if not fmt.is_number(spread):
        return ""
    return f" Control noise: {runs} runs without speculation differ by {fmt.percent(spread)} among themselves."


def baselines(figures: Figures) -> str:
    """What the figures are compared with, and how it was come by; two where the speedup has one of its own."""
    step, tpot = _baseline(figures, "baseline"), _baseline(figures, "baseline_tpot")
    if figures.get("speedup_observed_basis") != "tpot" or not tpot or _same(figures):
        return f"Baseline: {step or 'none, so nothing is compared'}"
    if not step:
        return f"Baseline: {tpot}"
    ours = f" (here {fmt.ms(figures['tpot_ms'])})" if fmt.is_number(figures.get("tpot_ms")) else ""
    what = "the token time" if fmt.is_number(figures.get("relative_token_time")) else "the costs"
    return f"Baseline of the observed speedup: {tpot}{ours}; of {what}: {step}"


def _same(figures: Figures) -> bool:
    # The two weigh the same figure by rounds and by tokens.
    one, other = figures.get("baseline_ms"), figures.get("baseline_tpot_ms")
    same = figures.get("baseline_basis") == figures.get("baseline_tpot_basis")
    return same and fmt.is_number(one) and fmt.is_number(other) and abs(one - other) < 0.02 * other


def _baseline(figures: Figures, name: str) -> str:
    basis, value = figures.get(f"{name}_basis"), figures.get(f"{name}_ms")
    if not basis:
        return ""
    text = BASELINES.get(str(basis)) or fmt.visible(str(basis).replace("_", " "))
    if basis == "run_tpot" and name == "baseline":
        text += ", which logs no steps"
    return f"{fmt.ms(value)}, {text}" if fmt.is_number(value) else text


def _acceptance(figures: Figures) -> str:
    bounds = fmt.bounds(figures, "draft_accept_ratio", lambda v: f"{v:.2f}")
    cost, kind = rho(figures)
    drafts = f"ρ {cost:.3f} ({kind}: {RHO_TEXT[kind]})" if cost is not None else "ρ not measured"
    k = k_text(figures)
    text = f"α {figures['draft_accept_ratio']:.3f}{' ' + bounds if bounds else ''} of the drafted tokens were accepted "
    text += f"(the target's own token excluded) at K {k}, {drafts}"
    tau = figures.get("tau_committed")
    return text + (f"; {tau:.2f} tokens committed a round (it included)." if fmt.is_number(tau) else ".")


def rollbacks(figures: Figures) -> str:
    """What rollbacks are and cost, in one sentence; empty when nothing is known."""
    parts: list[str] = []
    if fmt.is_number(figures.get("rollback_request_share")):
        parts.append(f"{fmt.percent(figures['rollback_request_share'])} of requests have a rollback")
    if fmt.is_number(figures.get("near_k_round_share")):
        text = f"{fmt.percent(figures['near_k_round_share'])} of rounds lose (almost) the whole draft (near-K)"
        excess = figures.get("near_k_excess")
        if fmt.is_number(excess):
            text += f", {fmt.points(excess)} points against i.i.d. acceptance"
        parts.append(text)
    if fmt.is_number(figures.get("near_k_request_share")):
        parts.append(f"in {fmt.percent(figures['near_k_request_share'])} of requests they are common")
    for what in ("step", "draft"):
        if fmt.is_number(figures.get(f"near_k_{what}_ms")):
            share = figures.get(f"near_k_{what}_share")
            of_all = f" ({fmt.percent(share)} of all)" if fmt.is_number(share) else ""
            parts.append(f"they cost {fmt.duration(figures[f'near_k_{what}_ms'])} of {what} time{of_all}")
            break
    if fmt.is_number(figures.get("near_k_saved_share")):
        parts.append(f"that is {fmt.percent(figures['near_k_saved_share'])} of the time that speculation saved")
    return "; ".join(parts)


_PARTIAL = re.compile(r" in \d+ of \d+ strata: ")


def missing(report: Report) -> list[str]:
    """The figures that cannot be had: why, and what to switch on.

    None where nothing is selected: every figure would be listed.
    """
    return [] if nothing(report) else remedies(report.coverage)


def lacking(coverage: Sequence[Missing]) -> int:
    """How many figures cannot be had; several share a reason and a remedy."""
    return len({figure for item in coverage for figure in item.figure.split(", ")})


def figures_told(count: int) -> str:
    """So many figures, in words."""
    return many(count, "figure")


def remedies(coverage: Sequence[Missing]) -> list[str]:
    """Figures that cannot be had, each with its reason; those with one remedy stand together."""
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for item in coverage:
        # The strata that lack a figure are named once for all reasons that they share.
        partial = _PARTIAL.search(item.because)
        because, where = (
            (item.because[: partial.start()], item.because[partial.start() :]) if partial else (item.because, "")
        )
        found.setdefault(item.switch_on, {}).setdefault(where, {}).setdefault(because, []).append(item.figure)
    return [
        fmt.visible(f"{'; '.join(map(_reasons, places.items()))}{f' → {remedy}' if remedy else ''}")
        for remedy, places in found.items()
    ]


def _reasons(place: tuple[str, Mapping[str, Sequence[str]]]) -> str:
    where, reasons = place
    return "; ".join(f"{', '.join(figures)}: {because}" for because, figures in reasons.items()) + where


def warnings(report: Report) -> list[str]:
    """The warnings that the answer does not hold already."""
    return [warning(item) for item in report.warnings if item.code != NOTHING]


def warning(item: Warning) -> str:
    """One warning with its evidence."""
    evidence = ", ".join(f"{name} {_evidence(value)}" for name, value in item.evidence.items())
    return fmt.visible(f"{item.text}{f' ({evidence})' if evidence else ''} [{item.code}]")


def _evidence(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return fmt.count(value) if fmt.is_number(value) else fmt.shorten(str(value), 80)
