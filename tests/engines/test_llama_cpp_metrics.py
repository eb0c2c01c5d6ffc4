"""llama-server's /metrics to windows: scrapes of our own run, and what a counter may suffer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.whole_source import CONTEXT, check, ingest, reasons, shown
from tracelens.engines.base import MetricsReader, Reject, Tables
from tracelens.engines.llama_cpp import ENGINE
from tracelens.sources.exposition import Scrapes
from tracelens.sources.stream import Block

DATA = Path(__file__).parent.parent / "data" / "llama-cpp"
START = datetime(2026, 10, 1, 10, 0, 0)
COUNTS = ("rounds", "drafted", "accepted", "accepted_per_pos")


def read(text: str) -> tuple[pl.DataFrame, list[Reject]]:
    scrapes = Scrapes(ENGINE.metric_prefixes)
    samples = pl.concat([scrapes.feed(Block(text.encode(), 1, 0)), scrapes.finish()])
    parsed = ENGINE.metrics(samples)
    assert parsed.claimed == samples.height
    tables = ENGINE.assemble(parsed.frames, CONTEXT) if parsed.frames else Tables()
    check("windows", tables.windows, {s.name for s in ENGINE.surfaces})
    windows = pl.DataFrame() if tables.windows is None else tables.windows
    return windows, [*scrapes.problems, *parsed.rejects, *tables.rejects]


def page(
    rounds: float, drafted: float, accepted: float, per_pos: Sequence[float] = (), generated: float = 0,
    labels: str = "", prefix: str = "llamacpp:",
) -> str:  # fmt: skip
    braces = f"{{{labels}}}" if labels else ""
    counters = {
        "tokens_predicted_total": generated, "spec_decode_num_drafts_total": rounds,
        "spec_decode_num_draft_tokens_total": drafted, "spec_decode_num_accepted_tokens_total": accepted,
        "requests_processing": 2, "requests_deferred": 1,
    }  # fmt: skip
    lines = [f"{prefix}{name}{braces} {value}" for name, value in counters.items()]
    comma = "," if labels else ""
    lines += [
        f'{prefix}spec_decode_num_accepted_tokens_per_pos_total{{{labels}{comma}position="{i}"}} {value}'
        for i, value in enumerate(per_pos)
    ]
    return "".join(f"{line}\n" for line in lines)


def stamped(*pages: str) -> str:
    """Pages ten seconds apart."""
    return "".join(f"# {START + timedelta(seconds=10 * i):%Y-%m-%dT%H:%M:%SZ}\n{p}" for i, p in enumerate(pages))


def test_is_a_reader_of_metrics() -> None:
    assert isinstance(ENGINE, MetricsReader)


def test_a_real_series() -> None:
    """Three scrapes of a run with K = 3, two seconds apart: the last page's counters come back."""
    text = (DATA / "metrics_series.txt").read_text()
    windows, rejects = read(text)
    assert rejects == []
    last = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[:1] != "#"}
    names = {
        "rounds": "spec_decode_num_drafts_total", "drafted": "spec_decode_num_draft_tokens_total",
        "accepted": "spec_decode_num_accepted_tokens_total", "generated_tokens": "tokens_predicted_total",
        "prompt_tokens": "prompt_tokens_total",
    }  # fmt: skip
    assert {c: windows[c].sum() for c in names} == {c: last[f"llamacpp:{n}"] for c, n in names.items()}
    depth = len(windows["accepted_per_pos"][0])
    for i in range(depth):
        name = f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}'
        assert sum(p[i] for p in windows["accepted_per_pos"]) == last[name]
    assert windows["ts_start"].null_count() == 1
    # Neither is in the page: how many requests there were would settle both.
    assert "emitted" not in windows.columns
    assert "plain_steps" not in windows.columns


def test_one_page_is_a_window_from_the_start() -> None:
    windows, _ = read(page(8, 24, 10, (6, 3, 1), generated=20))
    columns = ("ts_end", "ts_basis", "window_us", "generated_tokens", "running", "waiting", "rounds_basis", "surface")
    assert shown(windows, *COUNTS) == [(8, 24, 10, [6, 3, 1])]
    assert shown(windows, *columns) == [(None, "none", None, 20, 2, 1, "logged", "llama.metrics")]


def test_positions_appear_when_a_longer_draft_was_accepted() -> None:
    windows, rejects = read(
        stamped(page(1, 3, 0), page(3, 9, 3, (2, 1)), page(5, 19, 9, (4, 2, 1, 1, 1)), page(6, 24, 9, (4, 2, 1, 1, 1)))
    )
    assert rejects == []
    assert shown(windows, *COUNTS) == [
        (1, 3, 0, [0, 0, 0, 0, 0]), (2, 6, 3, [2, 1, 0, 0, 0]), (2, 10, 6, [2, 1, 1, 1, 1]), (1, 5, 0, [0, 0, 0, 0, 0])
    ]  # fmt: skip


def test_positions_that_do_not_add_up_are_not_taken() -> None:
    windows, _ = read(page(8, 24, 10, (6, 3)))
    assert shown(windows, *COUNTS) == [(8, 24, 10, None)]


def test_a_server_without_a_drafter_exports_zeros() -> None:
    windows, _ = read(stamped(page(0, 0, 0), page(0, 0, 0, generated=64)))
    assert shown(windows, "rounds", "drafted", "accepted", "generated_tokens", "plain_steps") == [(0, 0, 0, 64, None)]


def test_a_restart_begins_anew() -> None:
    windows, rejects = read(stamped(page(8, 24, 10, (6, 3, 1), 20), page(3, 9, 3, (3,), 7), page(4, 12, 5, (4, 1), 10)))
    assert rejects == []
    assert shown(windows, "rounds", "drafted", "accepted", "generated_tokens", "ts_start") == [
        (8, 24, 10, 20, None), (3, 9, 3, 7, None), (1, 3, 2, 3, START + timedelta(seconds=10)),
    ]  # fmt: skip


def test_several_servers_and_models_are_told_apart_without_their_addresses() -> None:
    one, two = (f'instance="10.0.0.{i}:8080",model="/mnt/someone/{name}.gguf"' for i, name in ((5, "a"), (6, "b")))
    text = page(8, 24, 10, (6, 3, 1), labels=one) + page(3, 9, 3, (3, 0, 0), labels=two)
    windows, rejects = read(text)
    assert rejects == []
    assert shown(windows, "process", "model", *COUNTS) == [
        ("target 1", "a.gguf", 8, 24, 10, [6, 3, 1]), ("target 2", "b.gguf", 3, 9, 3, [3, 0, 0])
    ]  # fmt: skip
    assert "10.0.0" not in str(windows)
    assert "someone" not in str(windows)


def test_names_with_underscores_and_without_total() -> None:
    text = page(8, 24, 10, (6, 3, 1), prefix="llamacpp_").replace("_total", "")
    assert shown(read(text)[0], *COUNTS) == [(8, 24, 10, [6, 3, 1])]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (page(8, 24, 30), "accepted <= drafted does not hold"),
        (
            page(8, 24.5, 10),
            "a counter that is no whole number: query the metric itself, not an average or a rate of it",
        ),
        (
            stamped(*(page(1 + i % 2, 3 + 3 * (i % 2), i % 2) for i in range(16))),
            "counters fall again and again: several servers behind one address; scrape each of them by itself",
        ),
    ],
)
def test_refused(text: str, reason: str) -> None:
    windows, rejects = read(text)
    assert reasons(rejects) == [reason]
    assert windows.is_empty() or windows["drafted"].null_count() == windows.height


def test_rounds_that_can_not_be_are_not_told() -> None:
    for rounds, drafted in ((25, 24), (0, 24), (3, 0)):
        windows, _ = read(page(rounds, drafted, 0, generated=9))
        assert shown(windows, "rounds", "drafted") == [(None, drafted)]


def test_a_page_that_was_cut_leaves_its_rounds_to_the_next(tmp_path: Path) -> None:
    whole = page(8, 24, 10, (6, 3, 1), 20)
    cut = whole[: whole.index("llamacpp:spec_decode_num_accepted_tokens_total")]
    tables, rejects = ingest(tmp_path, stamped(page(2, 6, 3, (2, 1, 0), 6), cut, whole), "llama.cpp", "m.txt")
    assert rejects == []
    assert shown(tables.windows, "rounds", "drafted", "accepted", "generated_tokens") == [
        (2, 6, 3, 6), (None, None, None, 14), (6, 18, 7, 0)
    ]  # fmt: skip


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=6), min_size=1, max_size=5),
    st.integers(0, 5),
)
@settings(max_examples=30, deadline=None)
def test_whatever_was_counted_comes_back(scrapes: list[list[tuple[int, int]]], restart: int) -> None:
    """Rounds of (drafted, accepted) between scrapes; at one of them the server may start anew."""
    pages, held, truth = [], [], []
    for i, drafts in enumerate(scrapes):
        rounds = [(d, min(a, d)) for d, a in drafts]
        if i == restart:
            held = []
        held = [*held, *rounds]
        lived = [sum(a > place for _, a in held) for place in range(max((a for _, a in held), default=0))]
        pages.append(page(len(held), sum(d for d, _ in held), sum(a for _, a in held), lived, 1 + len(held)))
        truth += rounds
    windows, rejects = read(stamped(*pages))
    restarted = 0 < restart < len(pages)
    # A start that no counter shows may still contradict itself: more was accepted than drafted since the page before.
    assert set(reasons(rejects)) <= ({"accepted <= drafted does not hold"} if restarted else set())
    sums = tuple(windows[c].sum() for c in ("rounds", "drafted", "accepted"))
    counted = (len(truth), sum(d for d, _ in truth), sum(a for _, a in truth))
    # A start whose first page shows no less than the old server's last can't be told from it.
    assert sums == counted or (restarted and sums < counted)


NAMES = st.sampled_from([
    "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total", "tokens_predicted_total", "prompt_tokens_total",
    "requests_processing", "requests_deferred", "n_decode_total",
])  # fmt: skip
PLACES = st.sampled_from(["", '{position="0"}', '{position="1"}', '{position="-1"}', '{position="x",model="m"}'])


@given(
    st.lists(
        st.lists(st.tuples(NAMES, PLACES, st.floats(width=32) | st.integers(-5, 50).map(float)), max_size=8),
        min_size=1, max_size=4,
    )
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_hostile_pages(pages: list[list[tuple[str, str, float]]]) -> None:
    read(stamped(*("".join(f"llamacpp:{n}{p} {v}\n" for n, p, v in each) for each in pages)))
