"""LMDeploy: its periodic line and its metrics, whole, cut, idle, restarted."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_source import ingest, ingest_file, reasons, shown

from tracelens.engines.base import Context
from tracelens.engines.lmdeploy import ENGINE

SHARED = Path(__file__).parents[2].parent / "shared" / "real" / "other" / "lmdeploy.log"
COUNTS = ("rounds", "rounds_basis", "drafted", "accepted", "accepted_per_pos")
SPEC = (
    "SpecDecoding metrics: Draft acceptance rate: 58.20%, Mean acceptance length: 2.75, Accepted: 4210 tokens, "
    "Drafted: 7233 tokens, Per-position acceptance rate: 0.801, 0.570, 0.375"
)


def line(second: int = 10, spec: str = SPEC, rank: str = " DP0", out: float = 980.2) -> str:
    return (
        f"[2026-06-01 10:{second // 60:02d}:{second % 60:02d}{rank}] Avg thr (in/out): 120.4 / {out} tokens/s, "
        "Server (succeeded/failed/routed/waiting): 10 / 0 / 4 / 0, Engine (running/waiting): 4 / 2, KV cache: 12.1%, "
        f"Prefix cache hit rate: 3.1%, {spec}\n"
    )


def at(second: int) -> datetime:
    return datetime(2026, 6, 1, 10, 0) + timedelta(seconds=second)


@pytest.mark.skipif(not SHARED.exists(), reason="captures are not here")
def test_the_capture() -> None:
    tables, rejects = ingest_file(SHARED, "lmdeploy")
    assert rejects == []
    # 7233 = 3 x 2411; 0.801, 0.570 and 0.375 of it, 4210 together.
    assert shown(tables.windows, *COUNTS) == [(2411, "derived", 7233, 4210, [1932, 1374, 904])]


@pytest.mark.parametrize("rank", [" DP0", " Engine 000", ""])
def test_a_line(tmp_path: Path, rank: str) -> None:
    tables, rejects = ingest(tmp_path, line(rank=rank), "lmdeploy")
    assert rejects == []
    columns = ("replica", "running", "waiting", "kv_cache_usage", "num_speculative_tokens", "counts_basis", "ts_end")
    assert shown(tables.windows, *columns) == [("0" if rank else None, 4, 2, 0.121, 3, "logged", at(10))]
    assert shown(tables.windows, *COUNTS) == [(2411, "derived", 7233, 4210, [1932, 1374, 904])]
    assert shown(tables.windows, "window_us", "generated_tokens", "emitted") == [(None, None, None)]


def test_windows_lie_between_lines_and_not_over_idle_times(tmp_path: Path) -> None:
    seconds = [10, 20, 30, 41, 200, 210]
    tables, rejects = ingest(tmp_path, "".join(line(s, out=100.0) for s in seconds), "lmdeploy")
    assert rejects == []
    windows = [None, 10, 10, 11, None, 10]
    assert shown(tables.windows, "window_us", "generated_tokens", "ts_start") == [
        (w and w * 1_000_000, w and w * 100, w and at(s - w)) for w, s in zip(windows, seconds, strict=True)
    ]


def test_ranks_are_apart_and_repeats_count_once(tmp_path: Path) -> None:
    text = "".join(line(s, rank=f" DP{r}") for s in (10, 20) for r in (0, 1)) + line(20, rank=" DP1")
    tables, _ = ingest(tmp_path, text, "lmdeploy")
    assert shown(tables.windows, "replica", "window_us") == [("0", None), ("1", None), ("0", 10**7), ("1", 10**7)]


def test_without_speculation_a_line_is_load(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, line(10, "") + line(20, ""), "lmdeploy")
    assert rejects == []
    assert shown(tables.windows, "generated_tokens", "accepted", "counts_basis", "rounds") == [
        (None, None, None, None),
        (9802, None, "estimated", None),
    ]


@pytest.mark.parametrize(
    ("tail", "counts", "reason"),
    [
        (" DP0] Avg thr (in/out): 1.0 / 2.0 tokens/s, Server (", None, "incomplete line: no Engine (running/waiting)"),
        ("Accepted: 4210 tok", None, "incomplete line: no Accepted and Drafted"),
        ("Drafted: 7233 tokens, Per-position", (None, None, 7233, 4210, None), None),
        ("acceptance rate: 0.801, 0.570, 0.3", (None, None, 7233, 4210, None), None),
        ("acceptance rate: 0.801, 0.570", (None, None, 7233, 4210, None), None),
    ],
)
def test_a_cut_line_is_kept_up_to_its_counts(
    tmp_path: Path, tail: str, counts: tuple[Any, ...] | None, reason: str | None
) -> None:
    text = line().rstrip("\n")
    cut = text[: text.index(tail[:12] if tail.startswith(" DP0") else tail) + len(tail)] if tail in text else None
    if cut is None:
        cut = "[2026-06-01 10:00:10" + tail
    tables, rejects = ingest(tmp_path, cut + "\n", "lmdeploy")
    assert reasons(rejects) == ([reason] if reason else [])
    if counts is None:
        assert tables.windows is None
    else:
        assert shown(tables.windows, *COUNTS) == [counts]


def test_rates_that_do_not_fit_are_not_used(tmp_path: Path) -> None:
    other = SPEC.replace("0.801", "0.901")
    tables, rejects = ingest(tmp_path, line(spec=other), "lmdeploy")
    assert rejects == []
    assert shown(tables.windows, "drafted", "accepted", "accepted_per_pos", "num_speculative_tokens") == [
        (7233, 4210, None, None)
    ]


def test_more_accepted_than_drafted_is_refused(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, line(spec=SPEC.replace("7233", "4209")), "lmdeploy")
    assert reasons(rejects) == ["accepted <= drafted does not hold"]
    assert [r.surface for r in rejects] == ["lmdeploy.line"]
    assert tables.windows is not None
    assert tables.windows.height == 0


@pytest.mark.parametrize("before", ['user said "', "{'prompt': '", "prompt: `"])
def test_what_a_user_wrote_is_no_line(tmp_path: Path, before: str) -> None:
    tables, _ = ingest(tmp_path, before + line(), "lmdeploy")
    assert tables.windows is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(line())), st.text(max_size=20))
def test_any_cut_and_any_junk(cut: int, junk: str) -> None:
    text = line()[:cut] + junk.replace("\n", " ")
    frame = pl.DataFrame(
        {"line": [1], "offset": [0], "text": [text], "stamp": [None], "stream": [None]},
        schema={"line": pl.Int64, "offset": pl.Int64, "text": pl.String, "stamp": pl.String, "stream": pl.String},
    )
    parsed = ENGINE.lines(frame)
    none = pl.lit(None, pl.Datetime("us")).alias("ts")
    context = Context("src", lambda f: f.select(none, ts_basis=pl.lit("none")))
    made = ENGINE.assemble(parsed.frames, context) if parsed.frames else None
    assert len(parsed.rejects) + (0 if made is None or made.windows is None else made.windows.height) <= 1


# -- metrics ----------------------------------------------------------------------------------------------------------


def page(
    rounds: int | None, accepted: int | None, out: int, *, gaps: int, k: int = 2, engine: str = "0", firsts: int = 1,
    per_pos: list[int] | None = None,
) -> str:  # fmt: skip
    own = f'engine="{engine}",model_name="/models/org/m"'
    values: dict[str, float] = {
        "generation_tokens_total": out, "prompt_tokens_total": 50, "time_to_first_token_seconds_count": firsts,
        "iter_token_latency_count": gaps, "iter_token_latency_sum": gaps * 0.02, "num_requests_running": 3,
        "num_requests_waiting": 1, "gpu_cache_usage_perc": 0.25,
    }  # fmt: skip
    if rounds is not None and accepted is not None:
        values |= {
            "spec_decode_num_drafts_total": rounds, "spec_decode_num_draft_tokens_total": rounds * k,
            "spec_decode_num_accepted_tokens_total": accepted, "spec_decode_mean_accept_rate": 0.9,
        }  # fmt: skip
    lines = [f"lmdeploy:{name}{{{own}}} {float(value)}" for name, value in values.items()]
    for i, n in enumerate(per_pos or []):
        lines.append(f'lmdeploy:spec_decode_num_accepted_tokens_per_pos_total{{{own},position="{i}"}} {float(n)}')
    return "\n".join(lines) + "\n"


def stamped(*pages: str) -> str:
    return "".join(f"# {at(10 * i):%Y-%m-%dT%H:%M:%SZ}\n{p}" for i, p in enumerate(pages))


def test_counters_are_differenced(tmp_path: Path) -> None:
    text = stamped(
        page(100, 120, 221, gaps=100, per_pos=[80, 40]), page(150, 190, 341, gaps=150, per_pos=[120, 70]),
    )  # fmt: skip
    tables, rejects = ingest(tmp_path, text, "lmdeploy")
    assert rejects == []
    columns = ("rounds", "drafted", "accepted", "accepted_per_pos", "emitted", "rounds_timed", "round_us", "ts_start")
    assert shown(tables.windows, *columns) == [
        (100, 200, 120, [80, 40], 220, 100, 2_000_000, None),
        (50, 100, 70, [40, 30], 120, 50, 1_000_000, at(0)),
    ]
    about = ("replica", "model", "running", "waiting", "kv_cache_usage", "num_speculative_tokens", "plain_steps")
    assert shown(tables.windows, *about)[1] == ("0", "m", 3, 1, 0.25, 2, None)


def test_a_restart_begins_anew(tmp_path: Path) -> None:
    text = stamped(page(100, 120, 221, gaps=100), page(10, 12, 23, gaps=10))
    tables, _ = ingest(tmp_path, text, "lmdeploy")
    assert shown(tables.windows, "rounds", "accepted", "ts_start") == [(100, 120, None), (10, 12, None)]


def test_a_server_without_speculation_takes_plain_steps(tmp_path: Path) -> None:
    tables, _ = ingest(tmp_path, stamped(page(None, None, 101, gaps=100)), "lmdeploy")
    columns = ("rounds", "drafted", "accepted", "plain_steps", "emitted", "round_us", "rounds_timed")
    assert shown(tables.windows, *columns) == [(0, 0, 0, 100, 100, 2_000_000, 100)]
    # Outputs of several tokens, as TurboMind may give them, are no plain steps.
    tables, _ = ingest(tmp_path, stamped(page(None, None, 301, gaps=100)), "lmdeploy")
    assert shown(tables.windows, "rounds", "plain_steps", "generated_tokens") == [(None, None, 301)]


def test_engines_of_one_server_are_apart(tmp_path: Path) -> None:
    text = stamped(page(10, 12, 23, gaps=10) + page(20, 30, 51, gaps=20, engine="1"))
    tables, _ = ingest(tmp_path, text, "lmdeploy")
    assert shown(tables.windows, "replica", "rounds") == [("0", 10), ("1", 20)]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (page(100, 300, 401, gaps=100), "accepted <= drafted does not hold"),
        (page(100, 120, 221, gaps=100).replace("120.0", "120.5"), "a counter that is no whole number"),
    ],
)
def test_counts_that_are_none(tmp_path: Path, broken: str, reason: str) -> None:
    tables, rejects = ingest(tmp_path, stamped(broken), "lmdeploy")
    assert len(rejects) == 1
    assert rejects[0].reason.startswith(reason)
    assert shown(tables.windows, "accepted") == [(None,)]


def test_positions_that_do_not_add_up_are_not_used(tmp_path: Path) -> None:
    tables, _ = ingest(tmp_path, stamped(page(100, 120, 221, gaps=100, per_pos=[80, 50])), "lmdeploy")
    assert shown(tables.windows, "rounds", "accepted", "accepted_per_pos") == [(100, 120, None)]
