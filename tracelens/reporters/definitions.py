"""What every printed number means: its sign, formula and convention, in one place (the performance model)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Definition:
    """One number: `title` in words, `formula` as the model writes it, `text` its convention and use."""

    title: str
    formula: str
    text: str


# d drafted, a accepted, e emitted tokens of a round; n rounds with d > 0; N all rounds; D, V, T draft, verify and step
# time; t_AR the plain step.
DEFINITIONS: dict[str, Definition] = {
    "draft_accept_ratio": Definition(
        "α, draft acceptance ratio", "Σa / Σd",
        "Accepted over drafted tokens, the target's own token excluded. What engines print. It falls as K grows, so it "
        "says nothing without K and ρ beside it.",
    ),
    "token_accept_prob": Definition(
        "p, token acceptance probability", "Σa / (Σa + #{a < d})",
        "Chance that one draft token is accepted once all before it were (censored-geometric maximum likelihood). The "
        "only acceptance that Leviathan's formula may take.",
    ),
    "num_speculative_tokens": Definition(
        "K, draft length", "configured", "Configured number of draft tokens a round; a range where several ran."
    ),
    "rho": Definition(
        "ρ, draft cost", "(ΣD / Σd) / t_AR",
        "Time of one draft token over one plain decode step of the target, over rounds with a draft.",
    ),
    "rho_verify": Definition(
        "ρ v, draft cost over the verify pass", "(ΣD / Σd) / V̄",
        "Time of one draft token over the mean verify pass; shown where no plain step to compare with was measured. "
        "Smaller than ρ.",
    ),
    "rho_round": Definition(
        "ρ r, draft phase of a round", "D̄ / t_AR",
        "The whole draft phase over one plain step; the only draft cost that has sense for parallel drafters.",
    ),
    "verify_inflation": Definition(
        "v, verify inflation", "V̄ / t_AR", "The verify pass over d + 1 positions against one plain step."
    ),
    "overhead": Definition(
        "o, overhead", "(T̄ − D̄ − V̄) / t_AR",
        "The rest of the round over one plain step: sampling, KV repair, re-arrangement, scheduling. Negative where "
        "phases overlap.",
    ),
    "round_cost": Definition("R, cost of a round", "T̄ / t_AR = v + ρ·d̄ + o", "The whole round over one plain step."),
    "relative_token_time": Definition(
        "C, relative token time", "R / tau_committed",
        "Time of one committed token over plain decoding. Below 1.0 speculation pays. ≥ marks a lower bound: no whole "
        "step is logged, so draft and verify time stand for it.",
    ),
    "speedup_observed": Definition(
        "observed speedup", "TPOT_baseline / TPOT, else 1 / C",
        "By the time per output token of requests where both sides have it, else by steps.",
    ),
    "speedup_claimed": Definition(
        "planned speedup", "αK / (1 + ρK), (1 + αK) / (1 + ρK) or i.i.d.",
        "What --claim promised: the form of the claim, fed with the α, ρ and K that were planned with.",
    ),
    "speedup_article": Definition(
        "article form", "αK / (1 + ρK)", "Drops the target's own token: conservative, K = 1 can never win."
    ),
    "speedup_with_bonus": Definition(
        "form with bonus token", "(1 + αK) / (1 + ρK)", "Counts the target's own token; right for α measured at that K."
    ),
    "speedup_iid": Definition(
        "i.i.d. form", "(1 − p^(K+1)) / ((1 − p)(1 + ρK))", "Leviathan et al. 2023, theorem 3.8, fed with p."
    ),
    "gap_term": Definition(
        "cause of the gap", "points = L(S_obs, S_claimed) · ln f",
        "Every cause is a factor f of the speedup. L is the logarithmic mean, so that the points add up exactly to "
        "observed − planned, and the ms a token to theirs. What nobody logged stays inside another cause and is named. "
        "Draft length and rounds without a draft move the yield and the cost of drafts: the factor holds both.",
    ),
    "break_even_alpha": Definition(
        "break-even α", "(R − 1) / d̄",
        "The α at which C would be 1.0 at the class's own cost of a round. Above 1: no acceptance can make it pay.",
    ),
    "decision": Definition(
        "gate", "GO, NO_GO or INCONCLUSIVE",
        "What tracelens gate decides: GO or NO_GO where the whole interval of the relative token time lies farther "
        "from 1.0 than the margin, with enough requests; else INCONCLUSIVE, so a class that pays may be.",
    ),
    "verdict": Definition(
        "pays?", "the whole interval on one side of 1.0",
        "pays: the upper bound of C lies below 1.0; costs more: the lower bound lies above; open: the interval holds "
        "1.0, or there is none.",
    ),
    "interval": Definition(
        "95 % interval", "linearised ratio by request, t with m − 1",
        "Rounds of one request are not independent, so the unit is the request (else the window). What one request "
        "alone shows has no interval.",
    ),
    "tau_committed": Definition(
        "τ, tokens a round", "Σe / N",
        "Committed tokens over all rounds, plain ones and the target's own token included: the only tokens a round "
        "that speed may be told from.",
    ),
    "tau_verified": Definition(
        "τ verified", "1 + Σa / n", "Mean acceptance length as engines print it; the target's own token included."
    ),
    "hazard": Definition(
        "hazard at position j", "#{a ≥ j} / #{a ≥ j − 1, d ≥ j}",
        "Chance that draft token j is accepted once all before it were; right where draft lengths differ.",
    ),
    "survival": Definition(
        "survival up to position j", "Π hazard[1..j]",
        "Share of rounds whose first j draft tokens were all accepted (Kaplan–Meier).",
    ),
    "rollback_len": Definition(
        "rollback length", "d − a", "Draft tokens that a round threw away, over rounds with a draft."
    ),
    "near_k_round_share": Definition(
        "near-K rounds", "rollback_len ≥ d − δ and > 0",
        "Share of rounds that lost (almost) the whole draft; δ = 1 unless --near-k says otherwise.",
    ),
    "near_k_excess": Definition(
        "near-K excess", "near-K share − mean of 1 − p^min(δ+1, d)",
        "How many more near-K rounds there are than independent acceptance would give.",
    ),
    "near_k_request_share": Definition(
        "near-K requests", "own near-K share > 0.5", "Share of requests in which near-K rounds are common."
    ),
    "baseline_ms": Definition(
        "t_AR, plain step", "one decode step without speculation",
        "From what you named, else a run without speculation matched on model, batch and context, else the ladder of "
        "the model; the page says which.",
    ),
    "step_ms": Definition(
        "round, ms", "T̄", "From the start of the round's step to the start of the next, mean over request-rounds; "
        "steps that also hold prefill are left out.",
    ),
    "draft_ms": Definition("draft, ms", "D̄", "Draft phase of a round's step, mean over request-rounds."),
    "target_ms": Definition("verify, ms", "V̄", "The target's verify pass over d + 1 positions, mean over rounds."),
    "tpot_ms": Definition(
        "TPOT, ms", "(last − first token) / (output tokens − 1)",
        "Time per output token of a request, token weighted. Never from gaps between chunks.",
    ),
    "rounds": Definition(
        "rounds", "n", "Request-rounds that drafted at least one token: one request, one draft, one verification."
    ),
    "requests": Definition("requests", "count", "Requests with counts and an id; none in interval logs."),
    "control_spread": Definition(
        "control noise", "spread of baseline runs",
        "How far runs without speculation differ among themselves; a speedup within it may be nothing.",
    ),
    "replay": Definition(
        "replay of another K", "accepted prefixes walked again with K′",
        "observed: this K ran. replayed: every request's accepted tokens are cut into rounds of the shorter K. "
        "extrapolated: K′ is longer than any draft of the trace. geometric: E(p, K). Error: replayed / observed τ − 1.",
    ),
    "best_k": Definition("best K", "argmin C over K, 0 = off", "The draft length of least relative token time."),
    "batch_bucket": Definition("batch size", "requests in the step", "In buckets 1, 2, 3–4, 5–8, then doubling."),
    "context_bucket": Definition("context length", "tokens", "In buckets < 512, < 1k, then doubling."),
    "wasted_draft_ms": Definition(
        "wasted draft time, ms", "Σ D · step_share · (d − a) / d",
        "Engine time spent on draft tokens that were thrown away; a step counts once, shared by its requests.",
    ),
}  # fmt: skip
