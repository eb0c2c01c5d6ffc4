"""A run of the RTP-LLM site (v0.2.0-like, early 2026): DEBUG engine log, access logs, start-up dump.

The period matters: per-round draft and verify times exist from 2025-01 to 2026-03-15, file names `access_r0_s0.log`
from 2025-12-16, the fallback fields of `aux_info` were gone by 2025-12-24, the speculative ones came on 2026-08-20.
Nobody has published a production log of that engine: the line forms come from its source, the values are synthetic.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from .files import at, dumps, write_lines
from .simulator import Simulation

PROCESS = "[4242:4311]"
RANK = "[RANK 0][192.0.2.10]"
SAMPLER = (
    "[rtp_llm/cpp/speculative_engine/speculative_sampler/SpeculativeSampler.cc:39]"
    "[void rtp_llm::SpeculativeSampler::updateSampleStream(...) const]"
)
NORMAL = (
    "[rtp_llm/cpp/speculative_engine/SpeculativeEngine.cc:588]"
    "[absl::Status rtp_llm::SpeculativeEngine::normStep(std::list<std::shared_ptr<rtp_llm::GenerateStream> >&)]"
)
TOTALS = "[rtp_llm/cpp/speculative_engine/SpeculativeEngine.cc:697][void rtp_llm::SpeculativeEngine::reportMetrics()]"
TIMES = "[rtp_llm/cpp/speculative_engine/SpeculativeEngine.cc:707][void rtp_llm::SpeculativeEngine::reportMetrics()]"
CACHE = "[rtp_llm/cpp/cache/CacheManager.cc:412][void rtp_llm::CacheManager::reportMetricsLoop()]"
NOTE_EVERY = 211  # steps between unrelated lines
ID_BASE = 3_536_840_114_390_000

START_DUMP = """\
[root][{ts}][4242][139872][rtp_llm/start_server.py:main():41][INFO] start rtp-llm server, version 0.2.0
[root][{ts}][4242][139872][rtp_llm/config/server_config.py:log_config():96][INFO] server config:
[ParallelismDistributedConfig]
tp_size: 4
ep_size: 1
dp_size: 1
world_size: 4
[ModelConfig]
model_type: qwen_2
checkpoint_path: <redacted>
[SpeculativeExecutionConfig]
model_type: {draft_type}
type: {kind}
sp_min_token_match: 2
sp_max_token_match: 2
tree_decode_config: {empty}
gen_num_per_cycle: {k}
force_stream_sample: 0
force_score_context_attention: 1
quantization: {empty}
checkpoint_path: {draft_path}
[root][{ts}][4242][139872][rtp_llm/start_server.py:main():58][INFO] server is ready
"""


def stream_id(sim: Simulation, index: int) -> int:
    """The 64-bit request id of this site."""
    return ID_BASE + sim.k * 10_000_000 + index * 3


def write_run(sim: Simulation, folder: Path, start: datetime) -> dict[str, int]:
    """Write the four logs of a run; return how many lines of each kind `engine.log.gz` holds."""
    lines, counts = engine_log(sim, start)
    write_lines(folder / "engine.log.gz", lines)
    ids = range(len(sim.requests))
    done = sorted(ids, key=lambda i: int(sim.requests.last_token_us[i]))
    write_lines(folder / "access_r0_s0.log.gz", (dumps(_access(sim, i, start, True)) for i in done))
    write_lines(folder / "query_access_r0_s0.log.gz", (dumps(_access(sim, i, start, False)) for i in ids))
    ready = f"{at(start, -40_000_000):%Y-%m-%d %H:%M:%S}.117"
    dump = START_DUMP.format(
        ts=ready,
        empty="",
        kind=sim.site.method if sim.k else "none",
        k=sim.k or 1,
        draft_type="qwen_2" if sim.k else "",
        draft_path="<redacted>" if sim.k else "",
    )
    write_lines(folder / "main_0.log", dump.splitlines())
    return counts


def _prefix(when: datetime, level: str = "DEBUG") -> str:
    return f"[{when:%Y-%m-%d %H:%M:%S.%f}] [{level}] {PROCESS} "


def engine_log(sim: Simulation, start: datetime) -> tuple[list[str], dict[str, int]]:
    """Per step: one line a stream, then (speculating) the totals and the times."""
    rows = np.argsort(sim.step, kind="stable")
    row_end = np.searchsorted(sim.step[rows], np.arange(len(sim.steps) + 1))
    enters: dict[int, list[int]] = {}
    for i, step in enumerate(sim.requests.start_step.tolist()):
        enters.setdefault(step, []).append(i)
    lines: list[str] = []
    counts = {"stream_lines": 0, "prefill_stream_lines": 0, "totals_lines": 0, "times_lines": 0, "other_lines": 0}
    for step, end in enumerate(sim.steps.work_end_us.tolist()):
        decoding = rows[row_end[step] : row_end[step + 1]]
        streams = [(int(sim.request[r]), sim.k, int(sim.accepted[r]) + 1) for r in decoding]
        fresh = [(i, 0, 1) for i in enters.get(step, [])]
        streams += fresh
        when = end - 155 - 55 * len(streams)
        for i, proposed, accepted in streams:
            lines.append(_prefix(at(start, when)) + RANK + _stream(sim, i, proposed, accepted))
            when += 55
        counts["stream_lines"] += len(streams)
        counts["prefill_stream_lines"] += len(fresh)
        if sim.k:
            lines += _report(sim, step, streams, at(start, end - 21), at(start, end))
            counts["totals_lines"] += 1
            counts["times_lines"] += 1
        if step % NOTE_EVERY == 0:
            lines += _notes(sim, step, at(start, end + 11))
            counts["other_lines"] += 2
    return lines, counts


def _stream(sim: Simulation, index: int, proposed: int, accepted: int) -> str:
    task = sim.tasks[int(sim.requests.task[index])]
    head = f"stream [{stream_id(sim, index)}], topk = [{task.top_k}], topp = [{task.top_p:.6f}], "
    if not sim.k:
        return f"{NORMAL} {head}propose_tokens = 0, accept_tokens = 1"
    return f"{SAMPLER} {head}propose_token_num = [{proposed}], accept_token_num = [{accepted}]"


def _report(
    sim: Simulation, step: int, streams: list[tuple[int, int, int]], totals_at: datetime, times_at: datetime
) -> list[str]:
    """Totals leave streams with propose 0 out; total_step_time = propose + score + sampler, no gap."""
    drafting = [(proposed, accepted) for _, proposed, accepted in streams if proposed]
    totals = (
        f"propose_token_num: {sum(p for p, _ in drafting)}, accept_token_num: {sum(a for _, a in drafting)}, "
        f"stream_num: {len(drafting)}"
    )
    draft, target = int(sim.steps.draft_us[step]), int(sim.steps.target_us[step])
    sampler = int(sim.steps.sampler_us[step])
    times = (
        f"total_step_time: {draft + target + sampler}, propose_time: {draft}, score_time: {target}, "
        f"sampler_time: {sampler}"
    )
    return [f"{_prefix(totals_at)}{RANK}{TOTALS} {totals}", f"{_prefix(times_at)}{RANK}{TIMES} {times}"]


def _notes(sim: Simulation, step: int, when: datetime) -> list[str]:
    free = 25_790 - int(sim.steps.context[step]) // 16
    return [
        f"{_prefix(when, 'INFO')}{RANK}{CACHE} free block num: {free}, available block num: {free}",
        f"{_prefix(when, 'INFO')}network worker queue size 0, active connections {int(sim.steps.batch[step])}",
    ]


def _access(sim: Simulation, index: int, start: datetime, finished: bool) -> dict[str, Any]:
    """One line of the access log (finished) or of the query log (arrival)."""
    requests, task = sim.requests, sim.tasks[int(sim.requests.task[index])]
    request = {
        "model": sim.site.model,
        "messages": [{"role": "user", "content": "<redacted>"}],
        "temperature": task.temperature,
        "top_p": task.top_p,
        "top_k": task.top_k,
        "max_tokens": task.max_tokens,
        "stream": True,
        "trace_id": f"t-{index:05d}",
        "aux_info": True,
        "extend_fields": {"task_type": task.name},
        "private_request": False,
        "__request_id__": stream_id(sim, index),
    }
    us = int(requests.last_token_us[index]) + 1800 if finished else int(requests.arrival_us[index]) - 400
    when = at(start, us)
    return {
        "request": {"request_json": request, "request_str": None},
        "response": {
            "responses": [_reply(sim, index, start)] if finished else [],
            "exception": None,
            "exception_traceback": None,
        },
        "id": stream_id(sim, index),
        "log_time": f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d}",
    }


def _reply(sim: Simulation, index: int, start: datetime) -> dict[str, Any]:
    requests, task = sim.requests, sim.tasks[int(sim.requests.task[index])]
    prompt, output = int(requests.prompt_tokens[index]), int(requests.output_tokens[index])
    arrival, first = int(requests.arrival_us[index]), int(requests.first_token_us[index])
    mine = slice(*np.searchsorted(sim.request, (index, index + 1)))
    aux: dict[str, Any] = {
        "cost_time": (int(requests.last_token_us[index]) - arrival) / 1000,
        "iter_count": 1 + int(requests.rounds[index]),
        "prefix_len": 0,
        "input_len": prompt,
        "output_len": output,
        "step_output_len": int(sim.emitted[mine][-1]),
        "first_token_cost_time": (first - arrival) / 1000,
        "wait_time": (int(requests.scheduled_us[index]) - arrival) / 1000,
        "pd_sep": False,
        "cum_log_probs": [],
        "beam_responses": [],
        "softmax_probs": [],
    }
    aux |= dict.fromkeys(("reuse_len", "local_reuse_len", "remote_reuse_len"), 0)
    for phase in ("prefill", "decode"):
        aux |= dict.fromkeys((f"{phase}_{kind}_reuse_len" for kind in ("total", "local", "remote")), 0)
    aux |= {"role_addrs": [], "aux_string": ""}
    return {
        "id": "chat-",
        "object": "chat.completion",
        "created": int(at(start, arrival).timestamp()),
        "model": "",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "<redacted>"},
                "finish_reason": "length" if output >= task.max_tokens else "stop",
            }
        ],
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output},
        "aux_info": aux,
    }
