"""No value of a JSON record raises, wherever it stands: what can't be is refused or left out, the rest is read.

A record of each reader, and in each of its places one by one what a broken or hostile writer may put there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tracelens.engines import load
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject
from tracelens.ingest import signals
from tracelens.ingest.read import _records as offer
from tracelens.sources.clocks import resolve

DATA = Path(__file__).parent.parent / "data"
CONTEXT = Context("src", lambda frame: resolve(frame, tz=None, year=None, mtime=0.0))
GONE = object()  # the place itself is taken out
# Beyond 32 and 64 bits and beyond a double; of figures that are multiplied, near its end; and what has no hash.
HOSTILE: tuple[Any, ...] = (
    10**400, -(10**400), 2**63, -(2**63) - 1, 2**64, 1e308, -1e308, -1, 0.5, True, None, "x", "9" * 20, [], {}, ["x"],
    [10**400], [1e308, 1e308], {"x": 1}, GONE,
)  # fmt: skip
START, END = 1_795_953_254_000_000_000, 1_795_953_264_000_000_000


def otlp(name: str, **attributes: Any) -> dict[str, Any]:
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    pairs = [{"key": k.replace("__", "."), "value": {kinds[type(v)]: v}} for k, v in attributes.items()]
    span = {
        "traceId": "a" * 32, "spanId": "b" * 16, "name": name, "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(END), "attributes": pairs,
    }  # fmt: skip
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": [span]}]}]}


def spec_response() -> dict[str, Any]:
    spec = {
        "num_spec_steps": 3, "num_accepted_draft_tokens": 4, "num_draft_tokens": 9, "num_spec_tokens": 3,
        "acceptance_histogram": [1, 1, 0, 1], "per_step_accepted": [0, 3, 1], "per_step_drafted": [3, 3, 3],
    }  # fmt: skip
    usage = {"prompt_tokens": 9, "completion_tokens": 8}
    metrics = {"time_to_first_token_ms": 20.0, "generation_time_ms": 100.0, "speculative_decoding": spec}
    choices = [{"finish_reason": "stop"}]
    return {"id": "r", "created": 1_778_068_800, "model": "m", "usage": usage, "metrics": metrics, "choices": choices}


RECORDS: dict[str, dict[str, Any]] = {
    "vllm response": spec_response(),
    "vllm span": otlp(
        "llm_request", gen_ai__request__id="r", gen_ai__usage__prompt_tokens=5, gen_ai__latency__e2e=1.5,
        gen_ai__usage__completion_tokens=9, gen_ai__latency__time_to_first_token=0.1,
    ),
    "sglang verify": otlp("spec_verify", num_correct_drafts=2),
    "sglang request span": otlp(
        "Req abc", rid="abc", gen_ai__response__finish_reasons='["stop"]', gen_ai__latency__e2e=1.5,
        gen_ai__usage__completion_tokens=9,
    ),
    "sglang thread": otlp("thread", thread_label="x", tp_rank=0, dp_rank=0),
    "vllm bench": {
        "date": "20261129-121525", "backend": "vllm", "model_id": "m", "tokenizer_id": "m", "num_prompts": 2,
        "duration": 2.0, "completed": 2, "total_input_tokens": 10, "total_output_tokens": 8,
        "request_throughput": 1.0, "output_throughput": 4.0, "max_concurrency": 2, "request_rate": "inf",
        "input_lens": [5, 5], "output_lens": [4, 4], "ttfts": [0.1, 0.1], "itls": [[0.1, 0.1], [0.1]],
        "errors": ["", ""], "start_times": [1.0, 1.1], "spec_decode_num_drafts": 4, "spec_decode_draft_tokens": 12,
        "spec_decode_accepted_tokens": 3, "spec_decode_per_position_acceptance_rates": [0.5, 0.25, 0.0],
        "metadata": {"k": 3},
    },
    "sglang bench": {
        "backend": "sglang", "dataset_name": "x", "request_rate": 1.0, "max_concurrency": 2, "duration": 2.0,
        "completed": 2, "total_input_tokens": 10, "total_output_tokens": 8, "total_output_tokens_retokenized": 8,
        "accept_length": 2.0,
        "mean_e2e_latency_ms": 500.0, "mean_ttft_ms": 100.0, "input_lens": [5, 5], "output_lens": [4, 4],
        "ttfts": [0.1, 0.1], "itls": [[0.1], [0.1]], "request_throughput": 1.0,
        "server_info": {"version": "0.5.1", "speculative_num_steps": 3, "speculative_algorithm": "EAGLE"},
    },
    "trtllm-bench": {
        "engine": {"model": "m", "version": "1.0", "backend": "Pytorch"}, "world_info": {"tp_size": 1},
        "request_info": {
            "num_requests": 2, "avg_output_length": 100.0, "avg_input_length": 10.0, "avg_num_concurrent_requests": 1.0,
        },
        "performance": {
            "system_output_throughput_tok_s": 1.0, "total_latency_ms": 1000.0, "avg_request_latency_ms": 500.0,
        },
        "streaming_metrics": {"avg_ttft_ms": 10.0},
        "decoding_stats": {
            "mode": "EAGLE", "num_draft_tokens_percentiles": {"average": 3.0, "minimum": 3},
            "num_accepted_draft_tokens_percentiles": {"average": 1.0, "minimum": 0},
        },
    },
    "aiperf scrape": {
        "endpoint_url": "http://h", "timestamp_ns": START,
        "metrics": {"vllm:spec_decode_num_drafts": [{"labels": {"engine": "0"}, "value": 5, "sum": 1, "count": 2}]},
    },
    "aiperf summary": {
        "aiperf_version": "1",
        "summary": {"endpoint_info": {"http://h": {"first_update_ns": START, "last_update_ns": END}}},
        "metrics": {
            "vllm:spec_decode_num_drafts": {
                "type": "counter",
                "series": [{"endpoint_url": "http://h", "labels": {"engine": "0"}, "stats": {"total": 5}}],
            },
        },
    },
    "victoria": {
        "metric": {"__name__": "vllm:spec_decode_num_drafts", "engine": "0"}, "values": [1, 2],
        "timestamps": [1_795_953_254_000, 1_795_953_264_000],
    },
    "prometheus": {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [
                {"metric": {"__name__": "vllm:spec_decode_num_drafts", "engine": "0"}, "values": [[1_795_953_254, "1"]]}
            ],
        },
    },
    "spec-bench": {
        "question_id": 81, "category": "writing", "model_id": "x-eagle-temp-0.0", "tstamp": 1_795_953_254.0,
        "choices": [{
            "index": 0, "turns": ["a"], "decoding_steps": [3], "new_tokens": [5], "wall_time": [0.5],
            "accept_lengths": [1, 2, 2],
        }],
    },
    "guidellm": {
        "metadata": {"guidellm_version": "0.5"},
        "benchmarks": [{
            "type_": "generative_benchmark", "metrics": {},
            "config": {"strategy": {"type_": "concurrent", "streams": 2}},
            "requests": {"successful": [{
                "type_": "generative_request_stats", "request_id": "r", "request_args": "{}",
                "response_metrics": spec_response()["metrics"], "prompt_tokens": 9, "output_tokens": 8,
                "info": {"timings": {
                    "request_start": START / 1e9, "first_iteration": START / 1e9 + 0.1, "last_iteration": END / 1e9,
                    "request_end": END / 1e9,
                }},
            }]},
        }],
    },
    "aiperf request": {
        "metadata": {
            "request_start_ns": START, "request_end_ns": END, "x_request_id": "r", "benchmark_phase": "profiling",
        },
        "metrics": {
            "request_latency": {"value": 100.0, "unit": "ms"}, "output_sequence_length": {"value": 8, "unit": "tokens"},
            "time_to_first_token": {"value": 10.0, "unit": "ms"}, "input_sequence_length": {"value": 9},
            "inter_chunk_latency": {"value": [1.0, 2.0], "unit": "ms"},
        },
        "speculative_decoding": spec_response()["metrics"]["speculative_decoding"],
    },
    "llama.cpp": {
        "id": "r", "model": "m", "choices": [{"finish_reason": "stop"}], "temperature": 0.5,
        "timings": {
            "prompt_n": 5, "cache_n": 1, "prompt_ms": 10.0, "predicted_n": 9, "predicted_ms": 100.0, "draft_n": 8,
            "draft_n_accepted": 4,
        },
    },
    "generic": {"accepted": 2, "drafted": 3, "k": 3, "draft_us": 5, "target_us": 9, "ts": "2026-11-29T12:00:00Z"},
}  # fmt: skip


#: Lines of text logs in an envelope: no record of their own.
TEXT = ("vllm-cudagraph", "vllm-batchsize", "vllm-iteration")


def of_files() -> Iterator[tuple[str, dict[str, Any]]]:
    """The first record of each shape in the files of real engines."""
    seen: set[str] = set()
    for path in sorted(DATA.glob("*/*.jsonl")) + sorted(DATA.glob("rtp-llm/*access*.log")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[:50]):
            at = line.find("{")
            try:
                value = json.loads(line[at:])
            except ValueError:
                continue
            if not isinstance(value, dict):
                continue
            shape = f"{path.name}{sorted(value)}"
            if (
                not path.name.startswith(("real_aux", *TEXT))
                and shape not in seen
                and len(line) < 6000
                and len([s for s in seen if s.startswith(path.name)]) < 2
            ):
                seen.add(shape)
                yield f"{path.name}:{number + 1}", value


CASES = {**RECORDS, **dict(of_files())}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a document; of a list the first two."""
    inner = list(value) if isinstance(value, dict) else range(min(len(value), 2)) if isinstance(value, list) else ()
    for key in inner:
        yield (*at, key)
        yield from places(value[key], (*at, key))


def changed(value: Any, at: tuple[Any, ...], to: Any) -> Any:
    if not at:
        return to
    out = value.copy()
    if to is GONE and len(at) == 1:
        del out[at[0]]
    else:
        out[at[0]] = changed(value[at[0]], at[1:], to)
    return out


def read(values: Sequence[Any]) -> bool:
    """Let all engines read records and make tables of them; whether one of them took any."""
    parsed, rejects = {e.name: Parsed() for e in ENGINES}, list[Reject]()
    records = [JsonRecord(i, 0, None, None, value) for i, value in enumerate(values, 1)]
    offer(signals.unfold(records, ENGINES, parsed, rejects), ENGINES, parsed)
    for engine in ENGINES:
        if parsed[engine.name].frames:
            engine.assemble(parsed[engine.name].frames, CONTEXT)
    return any(p.frames or p.claimed for p in parsed.values())


ENGINES = load()
MOST = 400  # records at once


@pytest.mark.parametrize("case", CASES)
def test_no_value_raises(case: str) -> None:
    record = CASES[case]
    assert read([record]), "the record is nobody's: the test tests nothing"
    pairs = [(at, to) for at in places(record) for to in HOSTILE]
    step = -(-len(pairs) // MOST)
    pairs = pairs[:: step + (len(HOSTILE) % max(step, 2) == 0)]
    try:
        read([changed(record, at, to) for at, to in pairs])
    except Exception:
        for at, to in pairs:
            try:
                read([changed(record, at, to)])
            except Exception as error:
                pytest.fail(f"{'.'.join(map(str, at))} = {str(to)[:30]}: {type(error).__name__} {error}"[:300])
        raise
