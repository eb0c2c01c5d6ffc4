"""TensorRT-LLM's Prometheus metrics to windows: both pairs of acceptance counters, times, resets, what says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tests.engines.whole_source import CONTEXT, check, ingest, reasons, shown
from tracelens.engines.base import Reject, Tables
from tracelens.engines.tensorrt_llm import ENGINE
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest as into_lake
from tracelens.lake.connection import connect
from tracelens.sources.exposition import Scrapes
from tracelens.sources.stream import Block

START = datetime(2026, 9, 1, 10, 0, 0)
LABELS = {"model_name": "m", "engine_type": "trtllm"}
COUNTS = ("rounds", "plain_steps", "drafted", "accepted", "emitted", "rounds_basis")


class Server:
    """What trtllm-serve exports, kept as `tensorrt_llm/metrics/collector.py` keeps it."""

    def __init__(self, speculation: Mapping[str, str] | None = None) -> None:
        self.registry = CollectorRegistry()
        names = list(LABELS)
        made: dict[str, Any] = {"labelnames": names, "registry": self.registry}
        placed: dict[str, Any] = {"labelnames": [*names, "token_position"], "registry": self.registry}
        self.drafted = Counter("trtllm_spec_decode_drafted_tokens_total", "-", **placed)
        self.accepted = Counter("trtllm_spec_decode_accepted_tokens_total", "-", **placed)
        self.sum_drafted = Counter("trtllm_spec_decode_num_draft_tokens_total", "-", **made)
        self.sum_accepted = Counter("trtllm_spec_decode_num_accepted_tokens_total", "-", **made)
        self.generated = Counter("trtllm_generation_tokens_total", "-", **made)
        self.prompt = Counter("trtllm_prompt_tokens_total", "-", **made)
        self.ttft = Histogram("trtllm_time_to_first_token_seconds", "-", **made)
        self.decode = Histogram("trtllm_request_decode_time_seconds", "-", **made)
        self.running = Gauge("trtllm_num_requests_running", "-", **made)
        if speculation is not None:
            labels = {**LABELS, **speculation}
            Gauge("trtllm_speculative_config_info", "-", list(labels), registry=self.registry).labels(**labels).set(1)

    def iterate(self, drafted: int, accepted: int, running: int = 1) -> None:
        self.running.labels(**LABELS).set(running)
        if drafted:
            self.sum_drafted.labels(**LABELS).inc(drafted)
        if accepted:
            self.sum_accepted.labels(**LABELS).inc(accepted)

    def finish(self, lengths: Sequence[int], k: int, *, plain: int = 0, cut: int = 0, step_s: float = 0.02) -> None:
        """A request whose rounds accepted `lengths` of K drafts each."""
        for i in range(k):
            if lengths:
                self.drafted.labels(**LABELS, token_position=str(i)).inc(len(lengths))
            lived = sum(n > i for n in lengths)
            if lived:
                self.accepted.labels(**LABELS, token_position=str(i)).inc(lived)
        self.generated.labels(**LABELS).inc(1 + sum(lengths) + len(lengths) + plain - cut)
        self.prompt.labels(**LABELS).inc(7)
        self.ttft.labels(**LABELS).observe(0.1)
        self.decode.labels(**LABELS).observe(step_s * (len(lengths) + plain))

    def page(self) -> str:
        return generate_latest(self.registry).decode()


def read(*pages: str) -> tuple[pl.DataFrame, list[Reject]]:
    """Windows of pages ten seconds apart."""
    stamped = "".join(f"# {START + timedelta(seconds=10 * i):%Y-%m-%dT%H:%M:%SZ}\n{p}" for i, p in enumerate(pages))
    scrapes = Scrapes(ENGINE.metric_prefixes)
    samples = pl.concat([scrapes.feed(Block(stamped.encode(), 1, 0)), scrapes.finish()])
    parsed = ENGINE.metrics(samples)
    assert parsed.claimed == samples.height
    tables = ENGINE.assemble(parsed.frames, CONTEXT) if parsed.frames else Tables()
    check("windows", tables.windows, {s.name for s in ENGINE.surfaces})
    windows = pl.DataFrame() if tables.windows is None else tables.windows
    return windows, [*scrapes.problems, *parsed.rejects, *tables.rejects]


def test_counters_by_position() -> None:
    server = Server(
        {"spec_enabled": "true", "spec_method": "Eagle3", "spec_num_tokens": "3", "spec_draft_model": "/x/d"}
    )
    server.finish([3, 0, 1, 3], 3)
    first = server.page()
    server.finish([2, 2], 3, cut=1)
    server.finish([0], 3, plain=4)
    windows, rejects = read(first, server.page())
    assert rejects == []
    assert shown(windows, *COUNTS) == [(4, 0, 12, 7, 11, "logged"), (3, 3, 9, 4, 10, "logged")]
    assert windows["accepted_per_pos"].to_list() == [[3, 2, 2], [2, 2, 0]]
    columns = ("num_speculative_tokens", "method", "draft_model", "model", "generated_tokens", "prompt_tokens")
    assert shown(windows, *columns) == [(3, "eagle3", "d", "m", 12, 7), (3, "eagle3", "d", "m", 12, 14)]
    # All requests' time behind their first tokens, over all their steps: the second window lost a plain step to a cut.
    assert shown(windows, "round_us", "rounds_timed", "time_basis") == [(80000, 4, "sum"), (140000, 6, "sum")]
    assert shown(windows, "ts_start", "ts_end", "window_us") == [
        (None, START, None), (START, START + timedelta(seconds=10), 10_000_000)
    ]  # fmt: skip


def test_sums_of_iterations_give_rounds_with_a_k_only() -> None:
    def windows(method: str, drafted: int) -> pl.DataFrame:
        server = Server({"spec_enabled": "true", "spec_method": method, "spec_num_tokens": "3"})
        server.iterate(drafted, 5)
        found, rejects = read(server.page())
        assert rejects == []
        return found

    assert shown(windows("MTP", 12), *COUNTS) == [(4, None, 12, 5, None, "derived")]
    assert shown(windows("MTP", 13), *COUNTS) == [(None, None, 13, 5, None, None)]
    # An n-gram drafter may have drafted less in more rounds.
    assert shown(windows("NGram", 12), *COUNTS) == [(None, None, 12, 5, None, None)]


def test_counters_by_position_go_before_the_sums() -> None:
    """Under attention DP the sums are ranks times too large."""
    server = Server()
    server.iterate(24, 14)
    server.finish([3, 0, 1, 3], 3)
    windows, _ = read(server.page())
    assert shown(windows, "rounds", "drafted", "accepted") == [(4, 12, 7)]


def test_a_server_without_speculation() -> None:
    server = Server()
    server.iterate(0, 0, running=2)
    server.finish([], 0, plain=9)
    windows, _ = read(server.page())
    assert shown(windows, *COUNTS, "round_us", "rounds_timed", "running") == [
        (0, 9, 0, 0, 9, "derived", 180000, 9, 2)
    ]  # fmt: skip


def test_nothing_drafted_yet_is_no_server_without_speculation() -> None:
    """Without iteration stats, or with a drafter configured, missing counters say nothing."""
    silent = Server()
    silent.finish([], 0, plain=9)
    configured = Server({"spec_enabled": "true", "spec_method": "NGram", "spec_num_tokens": "4"})
    configured.iterate(0, 0)
    configured.finish([], 0, plain=9)
    for server in (silent, configured):
        windows, _ = read(server.page())
        assert shown(windows, *COUNTS, "generated_tokens") == [(None,) * 6 + (10,)]


def test_answers_that_are_left_out_of_the_tokens() -> None:
    """n > 1: the counters have the rounds, `generation_tokens` has not: then nothing is said of what was emitted."""
    server = Server()
    server.finish([1, 1, 1, 1], 2)
    page = "\n".join(line for line in server.page().splitlines() if "generation_tokens_total{" not in line)
    labels = 'engine_type="trtllm",model_name="m"'
    windows, _ = read(page + f"\ntrtllm_generation_tokens_total{{{labels}}} 3.0\n")
    assert shown(windows, "rounds", "emitted", "plain_steps", "rounds_timed") == [(4, None, None, None)]


def test_a_restart_begins_anew() -> None:
    first, second = Server(), Server()
    first.finish([1, 2], 2)
    second.finish([0], 2)
    windows, rejects = read(first.page(), first.page(), second.page())
    assert rejects == []
    assert shown(windows, "rounds", "drafted", "accepted") == [(2, 4, 3), (1, 2, 0)]
    assert windows["ts_start"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (
            'trtllm_spec_decode_num_draft_tokens_total{model_name="m"} 3.0\n'
            'trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 4.0\n',
            "accepted <= drafted does not hold",
        ),
        (
            'trtllm_spec_decode_drafted_tokens_total{token_position="0"} 2.5\n',
            "a counter that is no whole number: query the metric itself, not an average or a rate of it",
        ),
    ],
)
def test_refused(page: str, reason: str) -> None:
    windows, rejects = read(page)
    assert reasons(rejects) == [reason]
    assert windows.is_empty() or windows["drafted"].null_count() == windows.height


def test_addresses_of_targets_are_not_kept(tmp_path: Path) -> None:
    lines = [
        f'trtllm_generation_tokens_total{{instance="10.0.0.{i}:8000",model_name="/data/home/x/llama"}} {i}.0'
        for i in (5, 6)
    ]
    tables, rejects = ingest(tmp_path, "\n".join([*lines, ""]), "tensorrt-llm", "metrics.txt")
    assert rejects == []
    assert shown(tables.windows, "process", "model", "generated_tokens") == [
        ("target 1", "llama", 5), ("target 2", "llama", 6)
    ]  # fmt: skip
    assert "10.0.0" not in str(tables.windows)


def test_figures_of_a_lake(tmp_path: Path) -> None:
    """Steps and acceptance as the queries see them: 60 rounds and 15 plain steps of 20 ms."""
    server = Server({"spec_enabled": "true", "spec_method": "Eagle3", "spec_num_tokens": "2"})
    for _ in range(15):
        server.finish([2, 1, 0, 1], 2, plain=1)
    (tmp_path / "page.prom").write_text(server.page())
    into_lake([str(tmp_path / "page.prom")], tmp_path / "lake", IngestOptions(jobs=1))
    with connect(tmp_path / "lake", keep=True) as con:
        row = con.execute(
            "select sum(rounds), sum(plain_steps), sum(drafted), sum(accepted), sum(emitted),"
            " sum(step_us) / sum(time_rounds), sum(full_accepts) from facts"
        ).fetchone()
    assert row == (60, 15, 120, 60, 135, 20000, 15)


@given(
    st.lists(
        st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=4), st.integers(0, 2)), max_size=3),
        min_size=1, max_size=4,
    )
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_whatever_was_counted_comes_back(scrapes: list[list[tuple[list[int], int]]]) -> None:
    server, pages, truth = Server(), [], []
    for finished in scrapes:
        for lengths, plain in finished:
            server.finish(lengths, 3, plain=plain)
        pages.append(server.page())
        lengths = [n for each, _ in finished for n in each]
        truth.append((len(lengths), sum(lengths), sum(plain for _, plain in finished)))
    windows, rejects = read(*pages)
    assert rejects == []
    if not any(n for n, _, _ in truth):
        return
    told = windows.filter(pl.col("rounds").is_not_null()) if windows.height else windows
    assert sum(told["rounds"]) == sum(n for n, _, _ in truth)
    assert sum(told["accepted"]) == sum(a for _, a, _ in truth)
    assert sum(told["drafted"]) == 3 * sum(n for n, _, _ in truth)


NAMES = st.sampled_from([
    "spec_decode_drafted_tokens_total", "spec_decode_accepted_tokens_total", "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count",
    "request_decode_time_seconds_sum", "num_requests_running", "speculative_config_info", "kv_cache_utilization",
])  # fmt: skip
VALUES = st.floats(width=32) | st.integers(-5, 50).map(float)
PLACES = st.sampled_from([
    "", '{token_position="0"}', '{token_position="1"}', '{token_position="-1"}', '{token_position="9999999"}',
    '{spec_num_tokens="3",spec_method="MTP"}', '{spec_num_tokens="99999999999"}',
])  # fmt: skip


@given(st.lists(st.lists(st.tuples(NAMES, PLACES, VALUES), max_size=8), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_hostile_pages(pages: list[list[tuple[str, str, float]]]) -> None:
    read(*("".join(f"trtllm_{name}{place} {value}\n" for name, place, value in page) for page in pages))
