"""A run of the vLLM site: `server.log` as vLLM 0.32 prints it, and the responses as a gateway would log them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from .files import at, dumps, write_lines
from .simulator import Simulation
from .vllm_text import API, BARE, LOGO, NOISE, SAMPLING, SPECULATIVE_WARNINGS, START

READY_SECONDS = 55  # process start -> server ready: the stats timer starts here
TRAFFIC_SECONDS = 61  # process start -> first request
KV_TOKENS = 412_640


@dataclass(frozen=True, slots=True)
class Interval:
    """Exact counts of one logging interval; vLLM prints the rounded figures. The last one is never printed."""

    ts: str
    printed: bool
    drafts: int
    drafted: int
    accepted: int
    accepted_per_pos: list[int]
    line: str


def request_id(sim: Simulation, index: int) -> str:
    """`<task code>.<8 hex>`: what the gateway sent as X-Request-Id."""
    code = sim.tasks[int(sim.requests.task[index])].code
    text = f"{sim.site.name}/{sim.seed}/{sim.k}/{index}"
    return f"{code}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def internal_suffix(external: str) -> str:
    """The eight hex digits vLLM adds to an id inside the engine."""
    return hashlib.sha256(f"internal {external}".encode()).hexdigest()[:8]


def write_run(sim: Simulation, folder: Path, start: datetime, *, interval: int, log_requests: bool) -> list[Interval]:
    """Write `server.log` and `responses.jsonl.gz`; return every interval with its exact counts, in order.

    Args:
        sim: the run.
        folder: where to.
        start: when the server process began.
        interval: VLLM_LOG_STATS_INTERVAL, seconds.
        log_requests: `--enable-log-requests`.
    """
    lines, intervals = _server_log(sim, start, interval, log_requests)
    write_lines(folder / "server.log", lines)
    traffic = at(start, TRAFFIC_SECONDS * 1_000_000)
    order = np.argsort(sim.requests.last_token_us, kind="stable")
    write_lines(folder / "responses.jsonl.gz", (dumps(response(sim, int(i), traffic)) for i in order))
    return intervals


def interval_truth(intervals: list[Interval]) -> dict[str, Any]:
    """The intervals for `truth.json`, as columns: no line of that file must look like a log record."""

    def columns(rows: list[Interval]) -> dict[str, Any]:
        names = ("ts", "drafts", "drafted", "accepted", "accepted_per_pos")
        return {name: [getattr(row, name) for row in rows] for name in names}

    printed = [row for row in intervals if row.printed]
    return {
        "interval_lines": len(printed),
        "printed": columns(printed),
        "lost_tail": columns([row for row in intervals if not row.printed]),
    }


def spec_line(drafts: int, drafted: int, per_pos: list[int], elapsed: float) -> str:
    """Message of `SpecDecodingLogging.log` (form C, 0.10.2 - 0.33)."""
    accepted = sum(per_pos)
    rates = ", ".join(f"{count / drafts:.3f}" for count in per_pos)
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, "
        f"Accepted throughput: {accepted / elapsed:.2f} tokens/s, "
        f"Drafted throughput: {drafted / elapsed:.2f} tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, "
        f"Avg Draft acceptance rate: {accepted / drafted * 100:.1f}%"
    )


def _line(process: str, level: str, when: datetime, source: str, message: str) -> str:
    return f"{process} {level} {when:%m-%d %H:%M:%S} [{source}] {message}"


def _start_lines(sim: Simulation, start: datetime, interval: int, log_requests: bool) -> list[str]:
    site, k = sim.site, sim.k
    spec = {"method": site.method, "model": f"models/{site.draft_model}", "num_speculative_tokens": k}
    args: dict[str, Any] = {"model_tag": f"models/{site.model}", "enable_per_request_metrics": True}
    args |= {"host": "0.0.0.0", "model": f"models/{site.model}", "max_model_len": 16384}
    args |= {"served_model_name": [site.model], "tensor_parallel_size": 4, "max_num_seqs": 64}
    if k:
        args |= {"per_request_spec_decode_metrics": "detailed", "speculative_config": spec}
    if log_requests:
        args["enable_log_requests"] = True
    out = [_line(API, "INFO", start, "api_utils.py:347", row.format(model=site.model)) for row in LOGO]
    out.append(_line(API, "INFO", start, "api_utils.py:286", f"non-default args: {args!r}"))
    if interval != 10:
        out.append(_line(API, "INFO", start, "envs.py:1904", f"VLLM_LOG_STATS_INTERVAL is set to {interval}.0"))
    speculative = "None"
    if k:
        speculative = (
            f"SpeculativeConfig(method={site.method!r}, model='models/{site.draft_model}', num_spec_tokens={k})"
        )
    rows = sorted(START + (SPECULATIVE_WARNINGS if k else ()), key=lambda row: row[0])
    for second, process, level, source, message in rows:
        text = message
        if message.startswith("Initializing"):
            per_request = "detailed" if k else "none"
            text = message.format(model=site.model, speculative=speculative, per_request=per_request)
        out.append(_line(process, level, at(start, second * 1_000_000), source, text))
    return [*out, *BARE]


def _server_log(
    sim: Simulation, start: datetime, interval: int, log_requests: bool
) -> tuple[list[str], list[Interval]]:
    traffic = TRAFFIC_SECONDS * 1_000_000
    events: list[tuple[int, int, str]] = []  # microseconds after process start, tie-break, line

    def add(us: int, rank: int, source: str, message: str, level: str = "INFO") -> None:
        events.append((us, rank, _line(API, level, at(start, us), source, message)))

    for i in range(len(sim.requests)):
        task = sim.tasks[int(sim.requests.task[i])]
        external = f"chatcmpl-{request_id(sim, i)}"
        arrival = traffic + int(sim.requests.arrival_us[i])
        if log_requests:
            top_k = 0 if task.temperature == 0 else task.top_k
            params = SAMPLING.format(
                temperature=task.temperature, top_p=task.top_p, top_k=top_k, max_tokens=task.max_tokens
            )
            received = f"Received request {external}: params: {params}, lora_request: None."
            add(arrival, 1, "request_logger.py:65", received)
            add(arrival + 60, 2, "async_llm.py:578", f"Added request {external}-{internal_suffix(external)}.")
        end = traffic + int(sim.requests.last_token_us[i])
        client = f"192.0.2.{20 + i % 4}:{41000 + i * 37 % 20000}"
        events.append((end + 300, 3, f'INFO:     {client} - "POST /v1/chat/completions HTTP/1.1" 200 OK'))
    finish = traffic + int(sim.steps.work_end_us[-1])
    for us in range(READY_SECONDS * 1_000_000 + 2_500_000, finish, 15_000_000):
        events.append((us, 4, f'INFO:     192.0.2.9:{50000 + us // 15_000_000} - "GET /metrics HTTP/1.1" 200 OK'))
    for second, level, source, message in NOISE:
        if traffic + second * 1_000_000 < finish:
            add(traffic + second * 1_000_000, 5, source, message, level)
    intervals = _intervals(sim, start, interval, finish, add)
    events.sort(key=lambda event: event[:2])
    tail = [
        "INFO:     Shutting down",
        "INFO:     Waiting for application shutdown.",
        "INFO:     Application shutdown complete.",
    ]
    body = [line for _, _, line in events]
    return [*_start_lines(sim, start, interval, log_requests), *body, *tail], intervals


def _intervals(sim: Simulation, start: datetime, interval: int, finish: int, add: Any) -> list[Interval]:
    """Engine and SpecDecoding lines at every tick of the timer; what comes after the last tick is lost."""
    traffic, ready, width = TRAFFIC_SECONDS * 1_000_000, READY_SECONDS * 1_000_000, interval * 1_000_000
    row_tick = (traffic + sim.steps.work_end_us[sim.step] - ready) // width
    step_tick = (traffic + sim.steps.work_end_us - ready) // width
    first_tick = (traffic + sim.requests.first_token_us - ready) // width
    intervals: list[Interval] = []
    last_printed = ready
    for tick in range((finish - ready) // width + 1):
        us = ready + (tick + 1) * width
        printed = us <= finish
        rows = np.flatnonzero(row_tick == tick)
        steps = np.flatnonzero(step_tick == tick)
        if printed and len(steps):
            emitted = int(sim.emitted[rows].sum()) + int((first_tick == tick).sum())
            last = steps[-1]
            usage = 100 * sim.steps.context[last] / KV_TOKENS
            add(us + 900, 6, "loggers.py:335",
                f"Engine 000: Avg prompt throughput: {sim.steps.prompt_tokens[steps].sum() / interval:.1f} tokens/s, "
                f"Avg generation throughput: {emitted / interval:.1f} tokens/s, Running: {sim.steps.batch[last]} reqs, "
                f"Waiting: 0 reqs, GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: 0.0%")  # fmt: skip
        if not sim.k or not len(rows):
            continue
        drafted, accepted = int(sim.drafted[rows].sum()), sim.accepted[rows]
        per_pos = [int((accepted > j).sum()) for j in range(sim.k)]
        line = spec_line(len(rows), drafted, per_pos, (us - last_printed) / 1e6) if printed else ""
        if printed:
            add(us + 1100, 7, "metrics.py:120", line)
            last_printed = us
        stamp = f"{at(start, us + 1100):%Y-%m-%dT%H:%M:%SZ}"
        intervals.append(Interval(stamp, printed, len(rows), drafted, sum(per_pos), per_pos, line))
    return intervals


def response(sim: Simulation, index: int, traffic: datetime) -> dict[str, Any]:
    requests, task = sim.requests, sim.tasks[int(sim.requests.task[index])]
    external = request_id(sim, index)
    output, prompt = int(requests.output_tokens[index]), int(requests.prompt_tokens[index])
    arrival, scheduled = int(requests.arrival_us[index]), int(requests.scheduled_us[index])
    first, last = int(requests.first_token_us[index]), int(requests.last_token_us[index])
    metrics: dict[str, Any] = {
        "time_to_first_token_ms": (first - scheduled) / 1000,
        "generation_time_ms": (last - first) / 1000,
        "queue_time_ms": (scheduled - arrival) / 1000,
        "mean_itl_ms": (last - first) / 1000 / (output - 1),
        "tokens_per_second": output / ((last - scheduled) / 1e6),
    }
    if sim.k:
        mine = slice(*np.searchsorted(sim.request, (index, index + 1)))
        accepted, drafted = sim.accepted[mine], sim.drafted[mine]
        metrics["speculative_decoding"] = {
            "mean_acceptance_length": 1 + int(accepted.sum()) / len(accepted),
            "draft_acceptance_rate": int(accepted.sum()) / int(drafted.sum()),
            "acceptance_histogram": np.bincount(accepted, minlength=sim.k + 1).tolist(),
            "num_spec_steps": len(accepted),
            "num_accepted_draft_tokens": int(accepted.sum()),
            "num_draft_tokens": int(drafted.sum()),
            "num_spec_tokens": sim.k,
            "per_step_accepted": accepted.tolist(),
            "per_step_drafted": drafted.tolist(),
        }
    sent = at(traffic, arrival)
    return {
        "request_id": external,
        "task_type": task.name,
        "temperature": task.temperature,
        "top_p": task.top_p,
        "max_tokens": task.max_tokens,
        "t_send": round(sent.timestamp(), 6),
        "status": 200,
        "finish_reason": "length" if output >= task.max_tokens else "stop",
        "id": f"chatcmpl-{external}",
        "object": "chat.completion",
        "created": int(sent.timestamp()),
        "model": sim.site.model,
        "system_fingerprint": f"vllm-0.32.0-{'7c1d90aa' if sim.k else '1b40e3f2'}",
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output},
        "metrics": metrics,
        "e2e_s": (last - arrival + 300) / 1e6,
    }
