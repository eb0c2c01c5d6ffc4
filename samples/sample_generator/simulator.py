"""Continuous batching with speculation, closed loop: who is in which step, what was accepted, what it cost.

Acceptance does not depend on the schedule, so every request's rounds are drawn first; a request then takes
1 (prefill) + rounds consecutive engine steps, and the schedule is only the question in which step each one starts.
Randomness comes from `RandomState`, whose streams NumPy has frozen (NEP 19): samples must come out the same for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .parameters import (
    CONCURRENCY,
    CONCURRENCY_BLOCK,
    MIN_OUTPUT,
    OUTPUT_SIGMA,
    PROMPT_SIGMA,
    RUNAWAY_TASK,
    TASKS,
    VLLM_SITE,
    Site,
    Task,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Requests:
    """One entry a request, in order of arrival. Times are microseconds since the first step began."""

    task: Ints  #: index into `tasks`
    prompt_tokens: Ints
    output_tokens: Ints
    accept_prob: Floats  #: the request's own q
    offender: Bools
    runaway: Bools
    start_step: Ints  #: its prefill step
    rounds: Ints
    arrival_us: Ints
    scheduled_us: Ints
    first_token_us: Ints
    last_token_us: Ints

    @property
    def decode_us(self) -> Ints:
        """First to last token."""
        return self.last_token_us - self.first_token_us

    def __len__(self) -> int:
        return len(self.task)


@dataclass(frozen=True, slots=True)
class Steps:
    """One entry an engine step. `batch` counts prefilling requests too; `step_us` runs to the next step's start."""

    start_us: Ints
    batch: Ints
    prefills: Ints
    context: Ints
    prompt_tokens: Ints
    draft_us: Ints
    target_us: Ints
    sampler_us: Ints
    step_us: Ints

    @property
    def work_end_us(self) -> Ints:
        """When the step's tokens were there: the gap to the next step is not in it."""
        return self.start_us + self.draft_us + self.target_us + self.sampler_us

    def __len__(self) -> int:
        return len(self.start_us)


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run. The arrays below have one entry a request-round, ordered by request, then by round."""

    site: Site
    tasks: tuple[Task, ...]
    k: int
    seed: int
    requests: Requests
    steps: Steps
    request: Ints  #: index into `requests`
    round_index: Ints
    step: Ints  #: index into `steps`
    drafted: Ints
    accepted: Ints
    emitted: Ints
    context_len: Ints

    @property
    def task(self) -> Ints:
        return self.requests.task[self.request]

    @property
    def draft_us(self) -> Ints:
        return self.steps.draft_us[self.step]

    @property
    def target_us(self) -> Ints:
        return self.steps.target_us[self.step]

    @property
    def sampler_us(self) -> Ints:
        return self.steps.sampler_us[self.step]

    @property
    def step_us(self) -> Ints:
        return self.steps.step_us[self.step]

    @property
    def batch_size(self) -> Ints:
        return self.steps.batch[self.step]

    @property
    def has_prefill(self) -> Bools:
        return self.steps.prefills[self.step] > 0

    def __len__(self) -> int:
        return len(self.request)


def simulate(
    seed: int,
    k: int = 5,
    requests: int = 308,
    *,
    site: Site = VLLM_SITE,
    tasks: Sequence[Task] = TASKS,
    runaway: bool = True,
    offenders: bool = True,
    length_scale: float = 1.0,
) -> Simulation:
    """Simulate one run. Runs that differ in `k` alone replay the same traffic: same requests, same lengths.

    Args:
        seed: the same arguments give the same run.
        k: draft length; 0 is the baseline without speculation.
        requests: how many, without the runaway; tasks get their shares exactly (largest remainder).
        site: cost model.
        tasks: classes of traffic.
        runaway: add the one request that runs into max_tokens. It is no member of the population that
            `planted_values` describes: leave it out of coverage tests.
        offenders: keep the planned share of near-K offenders.
        length_scale: factor on the output lengths.
    """
    traffic = np.random.RandomState([seed, site.code, requests])
    specs = tuple(tasks)
    task = _mix(traffic, specs, requests)
    prompt, output, prob, bad = _draw_requests(traffic, specs, task, offenders, length_scale)
    rng = np.random.RandomState([seed, site.code, requests, k])
    wild = np.zeros(requests, dtype=bool)
    if runaway:
        at = int(requests * 0.3)
        index = next(i for i, spec in enumerate(specs) if spec.name == RUNAWAY_TASK)
        spec = specs[index]
        task = np.insert(task, at, index)
        prompt = np.insert(prompt, at, int(spec.prompt_tokens))
        output = np.insert(output, at, int(spec.max_tokens * length_scale))
        prob = np.insert(prob, at, spec.accept_mean)
        bad = np.insert(bad, at, False)
        wild = np.insert(wild, at, True)
    slope = np.array([spec.slope for spec in specs])[task]
    request, round_index, accepted, emitted, before = _rounds(rng, k, output, prob, slope)
    rounds = np.bincount(request, minlength=len(task))
    start = _schedule(rounds, wild)
    step = start[request] + 1 + round_index
    context = prompt[request] + 1 + before
    steps = _cost(rng, site, k, start, prompt, step, context)
    done = start + rounds
    queue = rng.randint(120, 900, size=len(task))
    table = Requests(
        task=task,
        prompt_tokens=prompt,
        output_tokens=output,
        accept_prob=prob,
        offender=bad,
        runaway=wild,
        start_step=start,
        rounds=rounds,
        arrival_us=steps.start_us[start] - queue,
        scheduled_us=steps.start_us[start],
        first_token_us=steps.work_end_us[start],
        last_token_us=steps.work_end_us[done],
    )
    return Simulation(
        site=site,
        tasks=specs,
        k=k,
        seed=seed,
        requests=table,
        steps=steps,
        request=request,
        round_index=round_index,
        step=step,
        drafted=np.full(len(request), k, dtype=np.int64),
        accepted=accepted,
        emitted=emitted,
        context_len=context,
    )


def _mix(rng: np.random.RandomState, tasks: tuple[Task, ...], count: int) -> Ints:
    """Task of every request: shares by largest remainder, order shuffled."""
    exact = np.array([t.share for t in tasks]) * count / sum(t.share for t in tasks)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    for i in np.argsort(-(exact - whole), kind="stable")[: count - int(whole.sum())]:
        whole[i] += 1
    task = np.repeat(np.arange(len(tasks)), whole)
    rng.shuffle(task)
    return task


def _draw_requests(
    rng: np.random.RandomState, tasks: tuple[Task, ...], task: Ints, offenders: bool, length_scale: float
) -> tuple[Ints, Ints, Floats, Bools]:
    """Prompt length, output length, acceptance parameter and offender flag of every request."""
    count = len(task)
    prompt = np.zeros(count, dtype=np.int64)
    output = np.zeros(count, dtype=np.int64)
    prob = np.zeros(count)
    bad = np.zeros(count, dtype=bool)
    for i, spec in enumerate(tasks):
        mine = np.flatnonzero(task == i)
        n = len(mine)
        lengths = rng.lognormal(np.log(spec.output_tokens * length_scale) - OUTPUT_SIGMA**2 / 2, OUTPUT_SIGMA, n)
        output[mine] = np.clip(np.rint(lengths), MIN_OUTPUT, spec.max_tokens)
        prompts = rng.lognormal(np.log(spec.prompt_tokens) - PROMPT_SIGMA**2 / 2, PROMPT_SIGMA, n)
        prompt[mine] = np.clip(np.rint(prompts), 16, 4096)
        m, c = spec.accept_mean, spec.accept_concentration
        prob[mine] = rng.beta(m * c, (1 - m) * c, n)
        chosen = mine[rng.permutation(n)[: round(spec.offender_share * n) if offenders else 0]]
        m, c = spec.offender_mean, spec.offender_concentration
        prob[chosen] = rng.beta(m * c, (1 - m) * c, len(chosen))
        bad[chosen] = True
    return prompt, output, prob, bad


def _rounds(
    rng: np.random.RandomState, k: int, output: Ints, prob: Floats, slope: Floats
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Draw rounds until each request has its output; the last one is cut. The first token comes from prefill.

    Returns request, round_index, accepted, emitted, and what the request had emitted (after prefill) before the round.
    """
    need = output - 1
    request = np.repeat(np.arange(len(output)), need)  # at most one round a token
    first = np.cumsum(need) - need
    if k == 0:
        ordinal = np.arange(len(request)) - first[request]
        ones = np.ones(len(request), dtype=np.int64)
        return request, ordinal, np.zeros_like(ones), ones, ordinal
    hazard = prob[request, None] * (1 - slope[request, None] * np.arange(k))
    accepted = np.cumprod(rng.random_sample((len(request), k)) < hazard, axis=1).sum(axis=1).astype(np.int64)
    total = np.cumsum(accepted + 1)
    base = np.concatenate(([0], total))[first]
    before = total - (accepted + 1) - base[request]
    keep = before < need[request]
    request, accepted, before = request[keep], accepted[keep], before[keep]
    counts = np.bincount(request, minlength=len(output))
    ordinal = np.arange(len(request)) - (np.cumsum(counts) - counts)[request]
    emitted = np.minimum(accepted + 1, need[request] - before)
    return request, ordinal, accepted, emitted, before


def _schedule(rounds: Ints, wild: Bools) -> Ints:
    """Step in which each request is prefilled, with the planned number of clients in flight."""
    start = np.zeros(len(rounds), dtype=np.int64)
    running: list[int] = []
    now = 0
    for i, n in enumerate(rounds.tolist()):
        limit = CONCURRENCY[(i // CONCURRENCY_BLOCK) % len(CONCURRENCY)]
        while running and running[0] < now:
            heapq.heappop(running)
        if not wild[i]:
            while len(running) >= limit:
                now = max(now, heapq.heappop(running) + 1)
            heapq.heappush(running, now + n)
        start[i] = now
    return start


def _cost(
    rng: np.random.RandomState, site: Site, k: int, start: Ints, prompt: Ints, step: Ints, context: Ints
) -> Steps:
    """Times of every step, in whole microseconds."""
    count = int(max(step.max(), start.max())) + 1
    decoding = np.bincount(step, minlength=count)
    prefills = np.bincount(start, minlength=count)
    tokens = np.bincount(step, weights=context, minlength=count).astype(np.int64)
    prompts = np.bincount(start, weights=prompt, minlength=count).astype(np.int64)
    batch = decoding + prefills

    def noise(sigma: float) -> Floats:
        return rng.lognormal(-(sigma**2) / 2, sigma, count)

    busy = decoding > 0
    plain = site.target_base + site.target_batch * decoding + site.target_context * tokens
    verify = 1 + k * (site.verify_token + site.verify_token_batch * decoding)
    target = (np.where(busy, plain * verify, site.target_base) + site.prefill_token * prompts) * noise(site.noise)
    draft = (site.draft_fixed + site.draft_token * k) * (1 + site.draft_batch * np.maximum(decoding - 1, 0))
    draft = draft * noise(site.noise) * (busy & (k > 0))
    if k:
        sampler = (site.sampler_base + site.sampler_batch * batch) * noise(site.noise)
        gap = (site.gap_base + site.gap_batch * batch) * noise(site.gap_noise)
    else:
        sampler = site.sampler_plain * noise(site.noise)
        gap = site.gap_plain * noise(site.gap_noise)
    parts = [np.rint(ms * 1000).astype(np.int64) for ms in (draft, target, sampler, gap)]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    return Steps(
        start_us=np.cumsum(total) - total,
        batch=batch,
        prefills=prefills,
        context=tokens,
        prompt_tokens=prompts,
        draft_us=parts[0],
        target_us=parts[1],
        sampler_us=parts[2],
        step_us=total,
    )
