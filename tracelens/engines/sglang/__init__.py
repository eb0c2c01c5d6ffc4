"""SGLang, 0.4.1 to 0.5.23: batch lines of the scheduler, start-up lines, logged and exported requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines.base import Context, JsonRecord, Parsed, Surface, Tables
from tracelens.engines.sglang import lines, requests, runs, windows

__all__ = ["ENGINE"]

_REQUEST_FIGURES = (
    "draft_accept_ratio", "token_accept_prob", "hazard", "rollback_len", "near_k_round_share", "near_k_request_share",
    "tau_committed", "tpot_ms", "speedup_tpot", "temperature", "top_p",
)  # fmt: skip
SURFACES = (
    Surface(
        lines.DECODE,
        "Decode batch (40 decode passes of one scheduler)",
        "0.4.1-0.5.23 (acceptance 0.4.2+)",
        ("tau_verified", "draft_accept_ratio", "step_ms", "running"),
        "on by default; --decode-log-interval 1 makes it a step; SGLANG_LOG_MS=1 (0.5.6+) and "
        "SGLANG_LOG_FORWARD_ITERS=1 (0.5.5+) make its times and passes exact",
    ),
    Surface(lines.PREFILL, "Prefill batch (one pass)", "0.4.1-0.5.23", ("prompt_tokens", "waiting"), "on by default"),
    Surface(
        requests.LOG,
        "finished requests in the log",
        "0.4.4-0.5.23 (histogram 0.5.9+)",
        _REQUEST_FIGURES,
        "--log-requests --log-requests-format json --log-requests-level 1 (no prompts); --enable-metrics adds TTFT",
    ),
    Surface(
        requests.EXPORT,
        "metrics export, one JSON object a request",
        "0.5.6-0.5.23 (histogram 0.5.9+)",
        _REQUEST_FIGURES,
        "--export-metrics-to-file --export-metrics-to-file-dir DIR --enable-metrics",
    ),
    Surface(
        requests.RESPONSE,
        "meta_info or spec_tokens_details of logged responses",
        "0.4.4-0.5.23",
        ("draft_accept_ratio", "hazard", "rollback_len"),
        "return_spec_tokens_details: true in the request (0.5.19+), and log the responses",
    ),
    Surface(
        lines.START, "ServerArgs(...) at the start", "0.4.1-0.5.23", ("method", "num_speculative_tokens"), "default"
    ),
    Surface(lines.ADAPTIVE, "changes of K", "0.5.11-0.5.23", ("num_speculative_tokens",), "--speculative-adaptive"),
    Surface(lines.SIMULATED, "SGLANG_SIMULATE_ACC_LEN", "0.4.6-0.5.23", ("forced_acceptance",), "set -x in the shell"),
)
_REQUESTS = (requests.LOG, requests.EXPORT, requests.RESPONSE)


class SGLang:
    """The SGLang reader."""

    name = "sglang"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = (*lines.NEEDLES, *requests.NEEDLES)
    json_keys: Sequence[bytes] = requests.KEYS

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Text lines: those of finished requests apart, as they may hold a user's text."""
        logged = pl.col("text").str.contains("meta_info", literal=True)
        parsed = Parsed()
        for part, parse in ((frame.filter(logged), requests.lines), (frame.filter(~logged), lines.parse)):
            if part.height:
                parsed.merge(parse(part))
        return parsed

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Finished requests."""
        return requests.records(records)

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Canonical rows of one source."""
        whole = {s: pl.concat(parts).sort("line", maintain_order=True) for s, parts in frames.items() if parts}
        whole = _stamped(whole, context)
        tables = Tables()
        started = whole.get(lines.START)
        begun = runs.of(started, started["ts"]) if started is not None else pl.DataFrame(schema=runs.SCHEMA)
        held = runs.spans(whole[lines.SIMULATED], begun) if lines.SIMULATED in whole else []
        keyed = {s: runs.with_run(f, begun) for s, f in whole.items() if s not in (lines.START, lines.SIMULATED)}
        made = []
        prefills = keyed.get(lines.PREFILL)
        if lines.DECODE in keyed:
            made.append(windows.decode(keyed[lines.DECODE], prefills, keyed.get(lines.ADAPTIVE)))
        if prefills is not None:
            made.append(windows.prefill(prefills))
        tables.windows = _joined(made, held)
        asked = [requests.requests(s, keyed[s], context.source_id) for s in _REQUESTS if s in keyed]
        tables.requests = _joined(asked, held)
        if begun.height:
            under = [key for *_, key in held]
            tables.runs = begun.with_columns(
                forced_acceptance=pl.when(pl.col("run_key").is_in(under)).then(pl.lit(True)),
                config=_config(),
            )
        return tables


def _joined(parts: Sequence[pl.DataFrame], held: list[tuple[str | None, int, int | None, int]]) -> pl.DataFrame | None:
    if not parts:
        return None
    rows = pl.concat(parts, how="diagonal").sort("source_line", maintain_order=True)
    return rows.with_columns(forced_acceptance=runs.forced(held, "source_line")).drop("stream")


def _config() -> pl.Expr:
    """Settings that say what the numbers mean, as the column `config` of `runs`."""
    pairs = [
        pl.struct(key=pl.lit(name), value=pl.col(column).cast(pl.String))
        for name, column in (
            ("speculative_eagle_topk", "topk"),
            ("speculative_num_draft_tokens", "draft_tokens"),
            ("decode_log_interval", "interval"),
        )
    ]
    return pl.concat_list(pairs).list.filter(pl.element().struct.field("value").is_not_null())


def _stamped(whole: Mapping[str, pl.DataFrame], context: Context) -> dict[str, pl.DataFrame]:
    """All surfaces with `ts` and `ts_basis`, resolved together in file order."""
    if not whole:
        return {}
    parts = [
        f.select("line", "stamp", "inner", surface=pl.lit(s), row=pl.int_range(pl.len())) for s, f in whole.items()
    ]
    together = pl.concat(parts).sort("line", maintain_order=True)
    found = context.resolve(together.select("stamp", "inner")).select("ts", "ts_basis")
    resolved = pl.concat([together.select("surface", "row"), found], how="horizontal").sort("row", maintain_order=True)
    return {
        s: pl.concat([f, resolved.filter(pl.col("surface") == s).select("ts", "ts_basis")], how="horizontal")
        for s, f in whole.items()
    }


ENGINE = SGLang()
