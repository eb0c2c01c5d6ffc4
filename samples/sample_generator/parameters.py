"""What is planted in the samples: tasks, sites, the offline claim.

Times are in milliseconds here; the simulator turns them into whole microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_SEED = 7
SWEEP_KS = (1, 2, 3, 5, 7)

#: What the offline benchmark promised: 0.72 * 5 / (1 + 0.1 * 5) = 2.40x in the article's own form.
CLAIM: dict[str, float | int | str] = {
    "alpha": 0.72,
    "rho": 0.1,
    "k": 5,
    "form": "article",
    "speedup_claimed": 2.4,
}


@dataclass(frozen=True, slots=True)
class Task:
    """One class of traffic.

    A request's acceptance parameter q is drawn once, Beta(mean, concentration), so its rounds are dependent.
    Position j (from 1) is accepted, given that all before it were, with probability q * (1 - slope * (j - 1)).
    """

    name: str
    code: str
    temperature: float
    top_p: float
    top_k: int
    share: float
    prompt_tokens: float
    output_tokens: float
    max_tokens: int
    accept_mean: float
    accept_concentration: float
    slope: float = 0.012
    offender_share: float = 0.0
    offender_mean: float = 0.08
    offender_concentration: float = 30.0


TASKS: tuple[Task, ...] = (
    Task("summarise", "sum", 0.2, 1.0, 20, 76 / 308, 640.0, 155.0, 512, 0.920, 45.0),
    Task("extraction", "ext", 0.0, 1.0, 1, 76 / 308, 420.0, 190.0, 640, 0.968, 70.0),
    Task("writing", "wri", 0.9, 0.95, 50, 84 / 308, 120.0, 95.0, 1536, 0.830, 30.0),
    Task("chat", "cht", 0.7, 0.9, 20, 72 / 308, 240.0, 72.0, 384, 0.67, 18.0, offender_share=7 / 72),
)

#: Output tokens are log-normal with this sigma, cut to [MIN_OUTPUT, max_tokens].
OUTPUT_SIGMA = 0.45
PROMPT_SIGMA = 0.35
MIN_OUTPUT = 8
#: The runaway: one writing request that runs into max_tokens, about 16 times its task's usual length.
RUNAWAY_TASK = "writing"
#: Clients in flight, one entry for every 12 requests, repeated; the runaway comes on top.
CONCURRENCY = (4, 6, 7, 7, 5, 3, 2, 1, 3, 5, 7, 6, 4)
CONCURRENCY_BLOCK = 12


@dataclass(frozen=True, slots=True)
class Site:
    """Cost model of one serving stack.

    One plain target pass over a batch of B requests with X context tokens in total:
        t(B, X) = target_base + target_batch * B + target_context * X
    Verify of K drafts:  t * (1 + K * (verify_token + verify_token_batch * B))
    Draft of K tokens:   (draft_fixed + draft_token * K) * (1 + draft_batch * (B - 1))
    Sampler, gap between steps and prefill (per prompt token) are added; every part has log-normal noise.
    """

    name: str
    code: int
    engine: str
    model: str
    draft_model: str
    method: str
    target_base: float
    target_batch: float
    target_context: float
    verify_token: float
    verify_token_batch: float
    draft_fixed: float
    draft_token: float
    draft_batch: float
    sampler_plain: float
    sampler_base: float
    sampler_batch: float
    gap_plain: float
    gap_base: float
    gap_batch: float
    prefill_token: float
    noise: float = 0.04
    gap_noise: float = 0.35


VLLM_SITE = Site(
    name="vllm-site",
    code=1,
    engine="vllm",
    model="demo-70b",
    draft_model="demo-70b-eagle3",
    method="eagle3",
    target_base=21.0,
    target_batch=0.35,
    target_context=0.00025,
    verify_token=0.030,
    verify_token_batch=0.0020,
    draft_fixed=5.5,
    draft_token=4.90,
    draft_batch=0.02,
    sampler_plain=0.20,
    sampler_base=0.32,
    sampler_batch=0.05,
    gap_plain=0.50,
    gap_base=0.40,
    gap_batch=0.04,
    prefill_token=0.022,
)

RTP_SITE = Site(
    name="rtp-site",
    code=2,
    engine="rtp-llm",
    model="demo-72b",
    draft_model="demo-1.8b",
    method="vanilla",
    target_base=15.6,
    target_batch=0.26,
    target_context=0.0002,
    verify_token=0.029,
    verify_token_batch=0.0019,
    draft_fixed=4.1,
    draft_token=3.60,
    draft_batch=0.02,
    sampler_plain=0.15,
    sampler_base=0.22,
    sampler_batch=0.06,
    gap_plain=0.30,
    gap_base=0.24,
    gap_batch=0.03,
    prefill_token=0.016,
)

#: The canonical sample: an engine tracelens has never heard of, with the vLLM site's cost model.
OTHER_SITE = Site(
    name="canonical",
    code=3,
    engine="house-engine",
    model="demo-70b",
    draft_model="demo-1b",
    method="draft_model",
    target_base=21.0,
    target_batch=0.35,
    target_context=0.00025,
    verify_token=0.030,
    verify_token_batch=0.0020,
    draft_fixed=5.5,
    draft_token=4.90,
    draft_batch=0.02,
    sampler_plain=0.20,
    sampler_base=0.32,
    sampler_batch=0.05,
    gap_plain=0.50,
    gap_base=0.40,
    gap_batch=0.04,
    prefill_token=0.022,
)
