"""Prometheus metrics of llama-server (`--metrics`): counters differenced to windows.

What they mean (llama.cpp b11434, measured on 32 runs; the speculative ones are there since #26389, 2026-08):

* The speculative counters and the tokens are added when a request is released, so a scrape during a long request lags.
  `spec_decode_num_drafts` counts rounds with a draft; the counts by position are of the same rounds, and have as many
  positions as the longest draft so far, none before anything was accepted. A server without a drafter exports zeros.
* `tokens_predicted` has the first token of each request in it, which the prompt's pass gave, and no counter tells how
  many requests there were: neither emitted tokens nor plain steps follow. `n_decode` does not help, its prompts are as
  many. So `tokens_predicted_seconds` (the sum over slots of the time behind the first tokens) is no time of a step.
* `prompt_tokens` leaves out what the cache held; `prompt_seconds` leaves out the draft model's pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.engines import counters, scraped
from tracelens.engines.base import Context, Parsed, Reject, Tables
from tracelens.engines.counters import Group, Layout, both
from tracelens.engines.llama_cpp.startup import leaf
from tracelens.engines.llama_cpp.surfaces import METRICS

# An underscore where a scraper asked for names without colons.
PREFIXES: Sequence[str] = ("llamacpp:", "llamacpp_")

_POSITION = "position"
_LAYOUT = Layout(
    columns={
        **both("llamacpp:spec_decode_num_drafts", "rounds"),
        **both("llamacpp:spec_decode_num_draft_tokens", "drafted"),
        **both("llamacpp:spec_decode_num_accepted_tokens", "accepted"),
        **both("llamacpp:spec_decode_num_accepted_tokens_per_pos", _POSITION),
        **both("llamacpp:tokens_predicted", "generated"),
        **both("llamacpp:prompt_tokens", "prompt"),
        "llamacpp:requests_processing": "now_running",
        "llamacpp:requests_deferred": "now_waiting",
    },
    own=("model",),
    positions={_POSITION: _POSITION},
)
_COUNTS = ("rounds", "drafted", "accepted", "generated", "prompt")
_BROKEN = "accepted <= drafted does not hold"


def parse(frame: pl.DataFrame) -> Parsed:
    """Take samples (columns of `MetricsReader.metrics`): all of llama.cpp's are claimed, those that matter are kept."""
    parsed = Parsed(claimed=frame.height)
    named = frame.with_columns(name=pl.col("name").str.replace(r"^llamacpp_", "llamacpp:"))
    parsed.add(METRICS, named.filter(pl.col("name").is_in(_LAYOUT.names)))
    return parsed


def assemble(samples: pl.DataFrame, context: Context) -> Tables:
    """Windows between consecutive scrapes of each server; the first one runs from the counters' own start."""
    tables = Tables()
    rows = counters.scrapes(samples, _LAYOUT, context.resolve, METRICS, tables.rejects)
    if not rows.height:
        return tables
    tables.rejects += counters.unpaired(rows, ("drafted", "accepted"), METRICS)
    columns = scraped.places(rows, _POSITION)
    groups = [Group(("drafted", "accepted"), ("rounds", *columns)), Group(("generated",)), Group(("prompt",))]
    rows = scraped.grown(_filled(rows, columns), (*_COUNTS, *columns), groups, METRICS, tables.rejects)
    broken = (pl.col("d.accepted") > pl.col("d.drafted")).fill_null(False)
    tables.rejects += [Reject(line, _BROKEN, METRICS) for line in rows.filter(broken)["line"]]
    spoken = [f"d.{c}" for c in ("rounds", "drafted", "accepted", *columns)]
    rows = rows.with_columns(pl.when(~broken).then(c).alias(c) for c in spoken)
    tables.windows = _windows(scraped.changed(rows), columns)
    return tables


def _filled(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Rows with 0 for a position that is not exported yet: the ones that are add up without it."""
    if not columns:
        return rows
    whole = (pl.sum_horizontal(columns) == pl.col("accepted")).fill_null(False)
    rows = rows.with_columns(_adds_up=whole)  # once, not in the expression of each position
    filled = [pl.when("_adds_up").then(pl.col(c).fill_null(0)).otherwise(c).alias(c) for c in columns]
    return rows.with_columns(filled).drop("_adds_up")


def _windows(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Canonical windows. K is not told: drafts have lengths of their own, so no number of positions is it."""
    possible = (pl.col("d.rounds") <= pl.col("d.drafted")) & ((pl.col("d.rounds") > 0) == (pl.col("d.drafted") > 0))
    rows = rows.with_columns(pl.when(possible).then("d.rounds").alias("d.rounds"))
    names = {name: leaf(name) for name in rows["model"].drop_nulls().unique()}
    counted = pl.any_horizontal(pl.col("d.drafted", "d.generated").is_not_null())
    return rows.select(
        "source_line", "ts_basis",
        surface=pl.lit(METRICS),
        run_key=pl.lit(0, pl.Int64),
        process=scraped.target(rows),
        model=pl.col("model").replace_strict(names, default=None, return_dtype=pl.String),
        ts_start="start",
        ts_end="ts",
        window_us=(pl.col("ts") - pl.col("start")).dt.total_microseconds(),
        rounds=scraped.whole("d.rounds"),
        rounds_basis=pl.when(pl.col("d.rounds").is_not_null()).then(pl.lit("logged")),
        drafted=scraped.whole("d.drafted"),
        accepted=scraped.whole("d.accepted"),
        accepted_per_pos=scraped.per_position(columns, pl.col("d.accepted"), pl.col("d.rounds")),
        counts_basis=pl.when(counted).then(pl.lit("logged")),
        generated_tokens=scraped.whole("d.generated"),
        prompt_tokens=scraped.whole("d.prompt"),
        running=scraped.level("now_running"),
        waiting=scraped.level("now_waiting"),
        **_stood(columns),
    )  # fmt: skip


def _stood(columns: Sequence[str]) -> dict[str, pl.Expr]:
    """What the counters stand at, see `scraped.stood`."""
    names = {"rounds": "rounds", "drafted": "drafted", "accepted": "accepted", "generated_tokens": "generated",
             "prompt_tokens": "prompt"}  # fmt: skip
    counts = {column: scraped.counted(name) for column, name in names.items()}
    return scraped.stood(counts, [scraped.counted(c) for c in columns])
