"""LightLLM: the line at the end of a request, of every generation, cut and contradictory."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_source import CONTEXT, ingest, ingest_file, reasons, shown

from tracelens.engines.lightllm import ENGINE

SHARED = Path(__file__).parents[2].parent / "shared" / "real" / "other" / "omlx_lightllm.log"
COUNTS = ("rounds", "drafted", "accepted", "emitted", "iterations", "counts_basis", "num_speculative_tokens")
CACHE = "gpu cache hit: True gpu_prompt_cache_len:16 gpu_prompt_cache_ratio:0.16 cpu_prompt_cache_len:4 "
OFF = "mtp_accepted_token_num:0 mtp_total_verify_steps:255 mtp_total_verify_tokens:0 mtp_avg_token_per_step:1.0039 "


def mtp(accepted: int, steps: int, verified: int, out: int = 256) -> str:
    return (
        f"mtp_accepted_token_num:{accepted} mtp_total_verify_steps:{steps} mtp_total_verify_tokens:{verified} "
        f"mtp_avg_token_per_step:{out / steps} mtp_avg_accepted_tokens_per_step:{accepted / steps} "
        f"mtp_avg_verify_tokens_per_step:{verified / steps} "
    )


def line(tail: str, out: int = 256, request: str = "a-1", own: int = 7, cache: str = CACHE) -> str:
    return (
        f"INFO 06-01 10:00:02 [manager.py:435] X-Request-Id:{request} X-Session-Id:b start_time:2026-06-01 10:00:00 "
        f"lightllm_req_id:{own} first_token_cost:110.0ms total_cost_time:2405.0ms,out_token_counter:{out} "
        f"mean_per_token_cost_time: 9.0ms prompt_token_num:100 {cache}{tail}\n"
    )


CUT = line(mtp(1, 95, 285)).split("mtp_total_verify_tokens:")[0]


@pytest.mark.skipif(not SHARED.exists(), reason="captures are not here")
def test_the_capture(tmp_path: Path) -> None:
    text = SHARED.read_text(encoding="utf-8").splitlines()[1]
    tables, rejects = ingest(tmp_path, text, "lightllm")
    assert rejects == []
    assert shown(tables.requests, *COUNTS) == [(96, 192, 160, 255, 96, "logged", 2)]


def test_a_request(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, line(mtp(160, 95, 285)), "lightllm")
    assert rejects == []
    assert shown(tables.requests, *COUNTS) == [(95, 190, 160, 255, 95, "logged", 2)]
    times = ("ttft_us", "e2e_us", "decode_us", "tpot_us", "tpot_basis", "ts_start", "ts_end")
    end = datetime(2026, 6, 1, 10, 0, 2, 405000)
    assert shown(tables.requests, *times) == [
        (110_000, 2_405_000, 2_295_000, 9000.0, "derived", datetime(2026, 6, 1, 10), end)
    ]
    about = ("request_id", "prompt_tokens", "output_tokens", "cached_tokens", "method")
    assert shown(tables.requests, *about) == [("a-1", 100, 256, 20, "mtp")]


def test_plain_passes_between_rounds_are_seen(tmp_path: Path) -> None:
    tables, _ = ingest(tmp_path, line(mtp(100, 95, 285)), "lightllm")
    # 255 tokens after the first: 195 of the rounds, 60 of other passes.
    assert shown(tables.requests, "rounds", "emitted", "iterations") == [(95, 255, 155)]


def test_the_average_alone_tells_the_counts(tmp_path: Path) -> None:
    """Releases before the counts: output tokens over passes, the prefill among them."""
    tables, _ = ingest(tmp_path, line(f"mtp_avg_token_per_step:{256 / 96} ", cache="prompt_cache_len:8 "), "lightllm")
    assert shown(tables.requests, *COUNTS) == [(95, None, 160, 255, 95, "derived", None)]
    assert shown(tables.requests, "cached_tokens") == [(8,)]


@pytest.mark.parametrize("tail", ["mtp_avg_token_per_step:1.0 ", "mtp_avg_token_per_step:2.66", ""])
def test_nothing_is_made_of_an_average_that_tells_nothing(tmp_path: Path, tail: str) -> None:
    tables, rejects = ingest(tmp_path, line(tail), "lightllm")
    assert rejects == []
    assert shown(tables.requests, *COUNTS) == [(None, None, None, None, None, None, None)]
    assert shown(tables.requests, "tpot_us") == [(9000.0,)]


def test_without_speculation_every_pass_is_plain(tmp_path: Path) -> None:
    tables, _ = ingest(tmp_path, line(OFF), "lightllm")
    assert shown(tables.requests, *COUNTS) == [(0, 0, 0, 255, 255, "logged", None)]


def test_drafts_of_changing_length_have_no_k(tmp_path: Path) -> None:
    tables, _ = ingest(tmp_path, line(mtp(160, 95, 280)), "lightllm")
    assert shown(tables.requests, "drafted", "num_speculative_tokens") == [(185, None)]


def test_ids_and_health_checks(tmp_path: Path) -> None:
    text = line(OFF, request="") + line(OFF, own=-3) + line(OFF, own=9) + line(OFF, own=9)
    tables, rejects = ingest(tmp_path, text, "lightllm")
    assert rejects == []
    assert shown(tables.requests, "request_id") == [("7",), ("a-1",)]


def test_an_outer_stamp_is_of_the_end(tmp_path: Path) -> None:
    text = "2026-06-01T12:00:10.000000Z stdout F " + line(OFF)
    tables, _ = ingest(tmp_path, text, "lightllm")
    assert shown(tables.requests, "ts_end", "ts_start") == [
        (datetime(2026, 6, 1, 12, 0, 10), datetime(2026, 6, 1, 12, 0, 7, 595000))
    ]


def test_a_first_token_that_never_came(tmp_path: Path) -> None:
    text = line(OFF).replace("110.0ms", "1.7976931348623157e+308ms")
    tables, _ = ingest(tmp_path, text, "lightllm")
    assert shown(tables.requests, "ttft_us", "decode_us", "tpot_us", "e2e_us") == [(None, None, None, 2_405_000)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (line(mtp(192, 95, 285)), "accepted <= drafted does not hold"),
        (line(mtp(160, 95, 10**12)), "mtp_total_verify_tokens: longer than any draft"),
        (
            line(mtp(160, 95, 285)).replace("total_cost_time:2405.0", "total_cost_time:100.0"),
            "first_token_cost <= total_cost_time does not hold",
        ),
        (CUT + "mtp_total_ver", "incomplete line: no mtp_total_verify_tokens"),
        (line("").replace("out_token_counter:256", "out_token_counter:x"), "incomplete line: no out_token_counter"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    tables, rejects = ingest(tmp_path, text, "lightllm")
    assert reasons(rejects) == [reason]
    assert tables.requests is None


@pytest.mark.parametrize("before", ['"', "{'text': '", "prompt=`"])
def test_what_a_user_wrote_is_no_line(tmp_path: Path, before: str) -> None:
    tables, _ = ingest(tmp_path, before + line(mtp(160, 95, 285)), "lightllm")
    assert tables.requests is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 600), st.text(max_size=20))
def test_any_cut_and_any_junk(cut: int, junk: str) -> None:
    text = line(mtp(160, 95, 285))[:cut] + junk.replace("\n", " ")
    frame = pl.DataFrame(
        {"line": [1], "offset": [0], "text": [text], "stamp": [None], "stream": [None]},
        schema={"line": pl.Int64, "offset": pl.Int64, "text": pl.String, "stamp": pl.String, "stream": pl.String},
    )
    parsed = ENGINE.lines(frame)
    made = ENGINE.assemble(parsed.frames, CONTEXT)
    rows = 0 if made.requests is None else made.requests.height
    assert rows + len(parsed.rejects) <= 1
    if rows and made.requests is not None and made.requests["drafted"][0]:
        assert shown(made.requests, "rounds", "drafted", "accepted") == [(95, 190, 160)]


def test_both_engines_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(line(OFF), encoding="utf-8")
    assert ingest_file(path, "lightllm")[0].requests is not None
