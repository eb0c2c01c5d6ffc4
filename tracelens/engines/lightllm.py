"""LightLLM: the line that its HTTP server logs at the end of a request.

What the fields mean (`lightllm/server/httpserver/manager.py`): `mtp_accepted_token_num` are accepted drafts;
`mtp_total_verify_tokens` are the tokens that were fed to the target in `mtp_total_verify_steps` passes, of which one a
pass is the request's own last token; `mtp_avg_token_per_step` is output tokens over passes, and counts the prefill as
one where it had no count of passes. Releases that log this average alone had none: then the accepted tokens follow from
it. Several samples of one request (`best_of`) are counted together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines import rows
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.units import LONGEST_DRAFT

__all__ = ["ENGINE"]

REQUEST = "lightllm.request_line"
SURFACES: tuple[Surface, ...] = (
    Surface(
        REQUEST,
        "end of a request (out_token_counter)",
        "2025 and later (mtp_avg_token_per_step; drafted tokens since mtp_total_verify_tokens)",
        ("draft_accept_ratio", "tau_verified", "tau_committed", "tpot_ms", "speedup_tpot", "ttft_ms"),
        "on by default: keep the log of the HTTP server",
    ),
)

# A line is cut behind its ids. What stands before them is the logger's; never a quote or a brace, as those open text
# that a user wrote. The first two ids are headers of the request.
_MARK = " lightllm_req_id:"
_HEAD = (
    r"""^[^'"`{]*X-Request-Id:(?P<id>[^\s'"]{0,200}) X-Session-Id:\S* """
    r"start_time:(?P<inner>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)$"
)
_FLOAT = r"(\d{1,15}(?:\.\d+)?(?:[eE][-+]?\d{1,3})?)"
# The blank behind a number tells that it is whole. Every key begins with letters of its own, which are found fast.
_KEYS = {
    "ttft_ms": (rf" first_token_cost:{_FLOAT}ms", pl.Float64),
    "e2e_ms": (rf"total_cost_time:{_FLOAT}ms", pl.Float64),
    "output_tokens": (r"out_token_counter:(\d{1,15})(?:\s|$)", pl.Int64),
    "prompt_tokens": (r"prompt_token_num:(\d{1,15})\s", pl.Int64),
    "cached": (r" prompt_cache_len:(\d{1,15})\s", pl.Int64),
    "gpu_cached": (r"gpu_prompt_cache_len:(\d{1,15})\s", pl.Int64),
    "cpu_cached": (r"cpu_prompt_cache_len:(\d{1,15})\s", pl.Int64),
    "disk_cached": (r"disk_prompt_cache_len:(\d{1,15})\s", pl.Int64),
    "accepted": (r"mtp_accepted_token_num:(\d{1,15})\s", pl.Int64),
    "steps": (r"mtp_total_verify_steps:(\d{1,15})\s", pl.Int64),
    "verified": (r"mtp_total_verify_tokens:(\d{1,15})\s", pl.Int64),
    "mean": (rf"mtp_avg_token_per_step:{_FLOAT}(?:\s|$)", pl.Float64),
}
_LONGEST_MS = 1e10


class LightLLM:
    """The LightLLM reader."""

    name = "lightllm"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = (b"out_token_counter:",)
    json_keys: Sequence[bytes] = ()

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Ends of requests."""
        parsed = Parsed()
        cut = frame.select(pl.col("text").str.splitn(_MARK, 2).struct.unnest())
        head = cut.select(pl.col("field_0").str.extract_groups(_HEAD).struct.unnest())
        hit = frame.with_columns(
            *head, message=cut["field_1"], own=cut["field_1"].str.extract(r"^(\d{1,18}) ", 1), hash=frame["text"].hash()
        )
        # Ids below 0, without a number here, are those of the server's own health checks.
        hit = hit.filter(pl.col("inner").is_not_null() & pl.col("own").is_not_null())
        if not hit.height:
            return parsed
        message = pl.col("message")
        found = hit.with_columns(
            message.str.extract(key, 1).cast(kind, strict=False).alias(c) for c, (key, kind) in _KEYS.items()
        )
        accepted, verified = pl.col("accepted"), pl.col("verified")
        fault = (
            pl.when(pl.col("output_tokens").is_null())
            .then(pl.lit("incomplete line: no out_token_counter"))
            .when(pl.col("steps").is_not_null() & verified.is_null())
            .then(pl.lit("incomplete line: no mtp_total_verify_tokens"))
            .when((verified > 0) & (accepted > verified - pl.col("steps")))
            .then(pl.lit("accepted <= drafted does not hold"))
            .when(verified > pl.col("steps") * (LONGEST_DRAFT + 1))
            .then(pl.lit("mtp_total_verify_tokens: longer than any draft"))
            .when((pl.col("ttft_ms") < _LONGEST_MS) & (pl.col("ttft_ms") > pl.col("e2e_ms")))
            .then(pl.lit("first_token_cost <= total_cost_time does not hold"))
        )
        found = found.with_columns(fault=fault).drop("text", "message")
        for line, offset, why in found.filter(pl.col("fault").is_not_null()).select("line", "offset", "fault").rows():
            parsed.rejects.append(Reject(line, why, REQUEST, offset))
        good = found.filter(pl.col("fault").is_null()).drop("fault")
        parsed.add(REQUEST, good)
        parsed.claimed += good.height
        return parsed

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """No JSON of its own."""
        return Parsed()

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """One request a line."""
        found = rows.whole(frames, SURFACES, context)
        if not found:
            return Tables()
        return Tables(requests=_requests(_counted(rows.once(found[REQUEST], "own")), context))


def _counted(lines: pl.DataFrame) -> pl.DataFrame:
    """Add the canonical counts. The prefill gives the first output token, and no pass of the target does."""
    out, said, mean = pl.col("output_tokens"), pl.col("accepted"), pl.col("mean")
    logged = pl.col("verified") > 0
    off = (pl.col("verified") == 0) & (said == 0)
    passes = (out / mean).round()
    # Where nothing was accepted the average is 1, with speculation and without it.
    old = (
        said.is_null() & (mean > 1) & (passes < out) & ((out / mean - passes).abs() <= 1e-6 * out)
    ).fill_null(False)  # fmt: skip
    accepted = pl.when(old).then(out - passes.cast(pl.Int64, strict=False)).otherwise(said)
    rounds = (
        pl.when(logged)
        .then("steps")
        .when(off)
        .then(0)
        # The passes without their count: the output without the accepted tokens and the prefill's.
        .when(accepted > 0)
        .then(pl.max_horizontal(out - accepted - 1, 0))
    )
    drafted = pl.when(logged).then(pl.col("verified") - pl.col("steps")).when(off).then(0)
    lines = lines.with_columns(accepted=accepted, rounds=rounds, drafted=drafted)
    known = pl.col("rounds").is_not_null()
    basis = pl.when(logged | off).then(pl.lit("logged")).otherwise(pl.lit("derived"))
    lines = lines.with_columns(
        accepted=pl.when(known).then("accepted"),
        emitted=pl.when(known).then(pl.max_horizontal(out - 1, 0)),
        counts_basis=pl.when(known).then(basis),
    )
    plain = pl.max_horizontal(pl.col("emitted") - pl.col("accepted") - pl.col("rounds"), 0)
    return lines.with_columns(iterations=pl.col("rounds") + plain)


def _requests(lines: pl.DataFrame, context: Context) -> pl.DataFrame:
    cached = [pl.col(f"{place}_cached") for place in ("gpu", "cpu", "disk")]
    lines = lines.with_columns(
        ttft_us=_micros("ttft_ms"),
        e2e_us=_micros("e2e_ms"),
        cached_tokens=pl.coalesce(
            "cached", pl.when(cached[0].is_not_null()).then(pl.sum_horizontal(*(c.fill_null(0) for c in cached)))
        ),
    )
    decode = pl.col("e2e_us") - pl.col("ttft_us")
    lines = lines.with_columns(decode_us=pl.when(decode >= 0).then(decode))
    several = pl.col("decode_us").is_not_null() & (pl.col("output_tokens") > 1)
    e2e = pl.duration(microseconds="e2e_us")
    # The line names its request's start; an outer stamp, which wins, is of its end.
    outer = pl.col("stamp").is_not_null()
    start = pl.when(outer).then(pl.col("ts") - e2e).otherwise("ts")
    each = pl.col("drafted") / pl.col("rounds")
    return lines.with_columns(ts_start=start).select(
        "ts_start", "ts_basis", "prompt_tokens", "output_tokens", "cached_tokens", "iterations", "rounds", "drafted",
        "accepted", "emitted", "counts_basis", "ttft_us", "decode_us", "e2e_us",
        ts_first_token=pl.col("ts_start") + pl.duration(microseconds="ttft_us"),
        ts_end=pl.when(outer).then("ts").otherwise(pl.col("ts") + e2e),
        source_line="line",
        surface=pl.lit(REQUEST),
        request_id=pl.when(pl.col("id") != "").then("id").otherwise("own"),
        method=pl.when(pl.col("rounds") > 0).then(pl.lit("mtp")),
        num_speculative_tokens=pl.when((pl.col("rounds") > 0) & (each == each.round()) & (each > 0)).then(
            each.cast(pl.Int32, strict=False)
        ),
        tpot_us=pl.when(several).then(pl.col("decode_us") / (pl.col("output_tokens") - 1)),
        tpot_basis=pl.when(several).then(pl.lit("derived")),
    )  # fmt: skip


def _micros(column: str) -> pl.Expr:
    """Milliseconds as whole microseconds; the largest double is what stands for a token that never came."""
    return pl.when(pl.col(column) < _LONGEST_MS).then((pl.col(column) * 1000 + 0.5).floor()).cast(pl.Int64)


ENGINE = LightLLM()
