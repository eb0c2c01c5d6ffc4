"""SGLang's spans as requests and rounds: the shapes of 0.5.8 to 0.5.12, ranks, batches, and what may be broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, JsonRecord, Reject, Span, Tables
from tracelens.engines.generic.block import broken_identities
from tracelens.engines.sglang import ENGINE, otel
from tracelens.lake.schema import table
from tracelens.sources import spans as sources
from tracelens.sources.clocks import resolve

BASE = 1_790_000_000_000_000_000
MS = 1_000_000
DATE = datetime(1970, 1, 1) + timedelta(microseconds=BASE // 1000)


class Trace:
    """Builds the spans that a server sends for one request."""

    def __init__(self, rid: str, trace: str, ranks: Sequence[dict[str, int]] = ({},), **attributes: Any) -> None:
        self.trace = trace
        self.spans: list[Span] = []
        self._count = 0
        told = {"rid": rid, "module": "sglang::request", **attributes}
        self.root = self.add(f" Req {rid[:8]}", 0, 1000, "", **told)
        self.stages: list[str] = []
        for rank in ranks:
            # The host and its processes stand in names and attributes of threads: nothing of it may be kept.
            told = {**rank, "host_id": "CANARY", "pid": 4242, "thread_label": "Scheduler"}
            thread = self.add("Scheduler [TP 0] (host:CANARY | pid:4242)", 1, 999, self.root, **told)
            self.stages.append(self.add("decode_forward", 2, 998, thread))

    def add(self, name: str, start_ms: float, end_ms: float, parent: str, **attributes: Any) -> str:
        self._count += 1
        span = f"{self.trace[-4:]}{self._count:012x}"
        start, end = (BASE + round(ms * MS) for ms in (start_ms, end_ms))
        resource = {"service.name": "sglang"}
        self.spans.append(Span(len(self.spans) + 1, name, self.trace, span, start, end, attributes, resource, parent))
        return span

    def round(self, at: float, draft: float, verify: float, extend: float, accepted: int, key: str) -> None:
        """A round from `at` (ms) on: draft, verify, extend, and the step around them, on every rank."""
        for stage in self.stages:
            self.add("spec_draft", at, at + draft, stage)
            middle = at + draft + 0.001
            self.add("spec_verify", middle, middle + verify, stage, **{key: accepted})
            end = middle + verify
            self.add("spec_draft_extend", end, end + extend, stage)
            self.add("decode_loop", at - 1, end + extend + 1, stage, decode_ct=0)


LATENCIES = {
    "gen_ai.request.id": "r-1",
    "gen_ai.latency.time_to_first_token": 0.11,
    "gen_ai.latency.e2e": 1.0,
    "gen_ai.latency.time_in_model_decode": 0.89,
    "gen_ai.usage.prompt_tokens": 40,
    "gen_ai.usage.completion_tokens": 90,
    "gen_ai.usage.cached_tokens": 8,
    "gen_ai.request.temperature": 0.7,
    "gen_ai.request.top_p": 0.9,
    "gen_ai.request.max_tokens": 90,
    "gen_ai.response.model": "/models/acme/llama",
    "gen_ai.response.finish_reasons": '["length"]',
}


def made(spans: Sequence[Span]) -> tuple[Tables, list[Reject]]:
    parsed = ENGINE.spans(spans)
    context = Context("source", lambda frame: resolve(frame, tz=None, year=None, mtime=None))
    tables = ENGINE.assemble(parsed.frames, context) if parsed.frames else Tables()
    for name in ("rounds", "requests"):
        rows = getattr(tables, name)
        if rows is not None:
            types = table(name).polars_schema()
            assert set(rows.columns) <= {*types, "run_key"}
            missing = [pl.lit(None, t).alias(c) for c, t in types.items() if c not in rows.columns]
            rows = rows.with_columns(missing).select(list(types)).cast(types)
            assert broken_identities(name, rows).null_count() == rows.height
    return tables, [*parsed.rejects, *tables.rejects]


def rounds(spans: Sequence[Span], *columns: str) -> list[tuple[Any, ...]]:
    found = made(spans)[0].rounds
    assert found is not None
    return found.select(columns).rows()


@pytest.mark.parametrize("key", ["num_correct_drafts", "accepted_tokens"])
def test_a_round_of_a_request(key: str) -> None:
    trace = Trace("r-1", "a" * 32, **LATENCIES)
    trace.round(100, 3, 12, 1, 2, key)
    trace.round(120, 3.5, 12.5, 1.5, 0, key)
    columns = ("request_id", "round_index", "accepted", "emitted", "draft_us", "target_us", "step_us", "timing_basis")
    assert rounds(trace.spans, *columns) == [
        ("r-1", 0, 2, 3, 4000, 12_000, 18_001, "host"),
        ("r-1", 1, 0, 1, 5000, 12_500, 19_501, "host"),
    ]
    assert rounds(trace.spans, "ts", "batch_size", "step_share")[0] == (DATE + timedelta(microseconds=115_001), 1, 1.0)


def test_a_request() -> None:
    tables, rejects = made(Trace("r-1", "a" * 32, **LATENCIES).spans)
    assert (rejects, tables.rounds) == ([], None)
    assert tables.requests is not None
    (row,) = tables.requests.to_dicts()
    expected = {
        "request_id": "r-1", "surface": "sglang.otel_request", "ts_start": DATE,
        "ts_end": DATE + timedelta(seconds=1), "ttft_us": 110_000, "decode_us": 890_000, "e2e_us": 1_000_000,
        "tpot_us": pytest.approx(10_000), "tpot_basis": "derived", "prompt_tokens": 40, "output_tokens": 90,
        "cached_tokens": 8, "temperature": 0.7, "top_p": 0.9, "model": "llama", "finish_reason": "length",
        "error": False,
    }  # fmt: skip
    assert {k: row[k] for k in expected} == expected


def test_a_request_that_names_settings_and_no_temperature_is_greedy() -> None:
    told = {k: v for k, v in LATENCIES.items() if "temperature" not in k}
    for attributes, temperature in ((told, 0.0), ({"gen_ai.latency.e2e": 1.0}, None)):
        requests = made(Trace("r-1", "a" * 32, **attributes).spans)[0].requests
        assert requests is not None
        assert requests["temperature"].to_list() == [temperature]


def test_requests_of_a_batch_share_a_step() -> None:
    two = [Trace(f"r-{i}", f"{i:032x}", **LATENCIES | {"gen_ai.request.id": f"r-{i}"}) for i in (1, 2)]
    for trace, accepted in zip(two, (3, 1), strict=True):
        trace.round(100, 3, 12, 1, accepted, "num_correct_drafts")
    two[0].round(130, 3, 12, 1, 0, "num_correct_drafts")
    found = rounds(two[0].spans + two[1].spans, "request_id", "step_id", "batch_size", "step_share", "accepted")
    step = str(BASE + 103_001_000)
    assert sorted(found) == [
        ("r-1", step, 2, 0.5, 3),
        ("r-1", str(BASE + 133_001_000), 1, 1.0, 0),
        ("r-2", step, 2, 0.5, 1),
    ]


def test_tensor_ranks_once_data_ranks_each() -> None:
    ranks = [{"tp_rank": 0, "dp_rank": 1}, {"tp_rank": 1, "dp_rank": 1}]
    trace = Trace("r-1", "a" * 32, ranks, **LATENCIES)
    trace.round(100, 3, 12, 1, 2, "num_correct_drafts")
    assert rounds(trace.spans, "replica", "accepted", "batch_size") == [("1", 2, 1)]


def test_one_trace_of_two_requests_tells_them_apart() -> None:
    """A caller that sends a traceparent puts all its requests into its own trace."""
    one, two = (Trace(f"r-{i}", f"{'b' * 28}000{i}", **LATENCIES | {"gen_ai.request.id": f"r-{i}"}) for i in (1, 2))
    one.round(100, 3, 12, 1, 2, "num_correct_drafts")
    two.round(200, 3, 12, 1, 1, "num_correct_drafts")
    together = [Span(**{**as_dict(s), "trace_id": "b" * 32}) for s in one.spans + two.spans]
    assert sorted(rounds(together, "request_id", "round_index", "accepted")) == [("r-1", 0, 2), ("r-2", 0, 1)]


def as_dict(span: Span) -> dict[str, Any]:
    return {name: getattr(span, name) for name in Span.__slots__}


def test_without_parents_the_trace_is_the_request() -> None:
    trace = Trace("r-1", "a" * 32, **LATENCIES)
    trace.round(100, 3, 12, 1, 2, "num_correct_drafts")
    bare = [Span(**{**as_dict(s), "parent_id": ""}) for s in trace.spans]
    assert rounds(bare, "accepted", "draft_us", "target_us") == [(2, 4000, 12_000)]


def test_ngram_has_a_verify_span_and_no_extension() -> None:
    trace = Trace("r-1", "a" * 32, **LATENCIES)
    (stage,) = trace.stages
    trace.add("spec_draft", 100, 100.5, stage)
    trace.add("spec_verify", 100.6, 110.6, stage, num_correct_drafts=4)
    # Later releases send the draft span alone: no verify pass is told, so there is no round.
    trace.add("spec_draft", 120, 120.5, stage)
    assert rounds(trace.spans, "draft_us", "target_us", "step_us", "accepted") == [(500, 10_000, None, 4)]


def test_what_was_lost_or_is_broken() -> None:
    trace = Trace("r-1", "a" * 32, **LATENCIES)
    (stage,) = trace.stages
    trace.add("spec_draft", 100, 103, stage)
    trace.add("spec_verify", 104, 116, stage, num_correct_drafts=2)
    trace.add("spec_verify", 124, 136, stage, num_correct_drafts=1)  # its draft span was lost
    trace.add("spec_verify", 144, 156, stage)
    trace.add("spec_verify", 164, 176, stage, num_correct_drafts=-1)
    trace.spans.append(trace.spans[4])  # exported twice
    tables, rejects = made(trace.spans)
    assert tables.rounds is not None
    assert tables.rounds.select("draft_us", "accepted").rows() == [(3000, 2), (None, 1)]
    assert sorted(r.reason for r in rejects) == [
        "a span that was exported before",
        "a verify span without its accepted tokens",
        "a verify span without its accepted tokens",
    ]
    bad = Trace("r-2", "c" * 32, **LATENCIES | {"gen_ai.latency.e2e": float("nan")})
    tables, rejects = made(bad.spans)
    assert (tables.requests, [r.reason for r in rejects]) == (None, ["a figure that is no number"])


def test_nothing_of_the_host_is_kept_and_other_spans_are_left() -> None:
    trace = Trace("r-1", "a" * 32, **LATENCIES)
    trace.round(100, 3, 12, 1, 2, "num_correct_drafts")
    tables, _ = made(trace.spans)
    assert "CANARY" not in str(tables)
    other = Span(1, "llm_request", "d" * 32, "1", BASE, BASE + 1, {"gen_ai.request.id": "x"}, {}, "")
    assert ENGINE.spans([other]).claimed == 0


def otlp(spans: Sequence[Span]) -> dict[str, Any]:
    def value(v: Any) -> dict[str, Any]:
        return {"intValue": str(v)} if isinstance(v, int) else {
            "doubleValue" if isinstance(v, float) else "stringValue": v
        }  # fmt: skip

    inside = [
        {
            "traceId": s.trace_id, "spanId": s.span_id, "parentSpanId": s.parent_id, "name": s.name,
            "startTimeUnixNano": str(s.start_ns), "endTimeUnixNano": str(s.end_ns),
            "attributes": [{"key": k, "value": value(v)} for k, v in s.attributes.items()],
        }
        for s in spans
    ]  # fmt: skip
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": inside}]}]}


def jaeger(spans: Sequence[Span]) -> dict[str, Any]:
    inside = [
        {
            "traceID": s.trace_id, "spanID": s.span_id, "operationName": s.name, "startTime": (s.start_ns or 0) // 1000,
            "duration": ((s.end_ns or 0) - (s.start_ns or 0)) // 1000,
            "references": [{"refType": "CHILD_OF", "spanID": s.parent_id}] if s.parent_id else [],
            "tags": [{"key": k, "type": "int64" if isinstance(v, int) else "string", "value": v}
                     for k, v in s.attributes.items()],
        }
        for s in spans
    ]  # fmt: skip
    return {"data": [{"traceID": spans[0].trace_id, "spans": inside, "processes": {}}]}


@pytest.mark.parametrize("form", [otlp, jaeger])
def test_parents_come_through_the_file_formats(form: Any) -> None:
    trace = Trace("r-1", "a" * 32, [{"tp_rank": 0}, {"tp_rank": 1}])
    trace.round(100, 3, 12, 1, 2, "num_correct_drafts")
    value = json.loads(json.dumps(form(trace.spans)))
    rejects: list[Reject] = []
    found = sources.of_record(JsonRecord(1, 0, None, None, value), rejects)
    assert rejects == []
    assert rounds(found, "request_id", "accepted", "draft_us", "target_us") == [("r-1", 2, 4000, 12_000)]


NAMES = st.sampled_from(["spec_draft", "spec_verify", "spec_draft_extend", "decode_loop", "decode_forward", " Req x"])
KEYS = st.sampled_from(
    ["num_correct_drafts", "accepted_tokens", "rid", "module", "thread_label", "tp_rank", "dp_rank", *LATENCIES]
)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just("sglang::request")
)
IDS = st.sampled_from(["", "1", "2", "3"])
TIMES = st.one_of(st.none(), st.integers(0, 2**62))


@given(
    st.lists(
        st.builds(
            Span, st.integers(1, 9), NAMES, IDS, IDS, TIMES, TIMES, st.dictionaries(KEYS, VALUES, max_size=4),
            st.just({}), IDS,
        ),
        max_size=8,
    )
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_hostile_spans(spans: list[Span]) -> None:
    made(spans)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ('["length"]', "length"), ("stop", "stop"), (["stop", "length"], "stop"), ("['abort']", "abort"),
        ("alice_password said so", None), ('["my", "stop"]', None), (["secret"], None), (7, None),
        ("", None), ([], None),
    ],
)  # fmt: skip
def test_no_words_but_reasons_are_kept(told: Any, kept: str | None) -> None:
    assert otel._reason(told) == kept
