"""Prometheus metrics of vLLM (`/metrics`): counters differenced to windows.

What the counters mean (vLLM, `v1/metrics/loggers.py` and `v1/spec_decode/metrics.py`, 0.8.3 to 0.33):

* `spec_decode_num_drafts` (0.8.5+) counts request-rounds with a draft, `..._num_accepted_tokens_per_pos{position}`
  those whose drafts up to this position were accepted. Before 0.11.0 a server with several engines gave the counts of
  one of them under the label of another (vllm#24049); that cannot be told from the text.
* `inter_token_latency_seconds` (0.10.2+, before that `time_per_output_token_seconds`) is the gap between two outputs of
  a request, whatever number of tokens they hold: the time of a request-round, not of a token (its count is that of the
  drafts, where every round has one).
* `generation_tokens` has the first token of each request in it, which prefill gave, and `time_to_first_token_seconds`
  counts these: what is left was emitted by rounds and plain steps.
* `request_time_per_output_token_seconds` is TPOT by request; windows have no place for it, so it is not taken.

V0 has two of the names with another meaning: it adds the total since the start at every interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines import counters, scraped
from tracelens.engines.base import Context, Parsed, Reject, Surface, Tables
from tracelens.engines.counters import Group, Layout, both
from tracelens.engines.units import LONGEST_DRAFT
from tracelens.engines.versions import Range, Versions
from tracelens.engines.vllm.releases import V1, v1
from tracelens.engines.vllm.startup import leaf

METRICS = "vllm.metrics"
_OF_ROUNDS = ("hazard", "survival", "tau_verified", "tau_committed", "rollback_len", "near_k_round_share")
SURFACES: tuple[Surface, ...] = (
    Surface(
        METRICS,
        "Prometheus counters of /metrics (between two scrapes; the first from the server's start)",
        Versions(
            v1("0.8.3"),
            " (rounds and positions ",
            Range("0.8.5", form="{first}+", era=V1, of=_OF_ROUNDS),
            ")",
        ),
        ("draft_accept_ratio", *_OF_ROUNDS, "step_ms", "running"),
        "on by default: keep what /metrics says every few seconds (with a `date` line before each), or the answer of a "
        "Prometheus range query over the metrics themselves, without rate() or sum(); off with --disable-log-stats",
    ),
)
# prometheus_client 0.22+ writes an underscore for the colon where a Prometheus 2 server asks for OpenMetrics, and so
# does a collector of OpenTelemetry.
PREFIXES: Sequence[str] = ("vllm:", "vllm_")

_POSITION = "position"
_LAYOUT = Layout(
    columns={
        **both("vllm:spec_decode_num_drafts", "rounds"),
        **both("vllm:spec_decode_num_draft_tokens", "drafted"),
        **both("vllm:spec_decode_num_accepted_tokens", "accepted"),
        **both("vllm:spec_decode_num_accepted_tokens_per_pos", _POSITION),
        # V0 only: a rate since the start, and one of its counters.
        **both("vllm:spec_decode_num_emitted_tokens", "v0"),
        "vllm:spec_decode_efficiency": "v0",
        "vllm:spec_decode_draft_acceptance_rate": "v0",
        **both("vllm:generation_tokens", "generated"),
        **both("vllm:prompt_tokens", "prompt"),
        **both("vllm:num_preemptions", "preempted"),
        "vllm:time_to_first_token_seconds_count": "firsts",
        "vllm:inter_token_latency_seconds_count": "gaps",
        "vllm:inter_token_latency_seconds_sum": "gap_s",
        "vllm:time_per_output_token_seconds_count": "old_gaps",
        "vllm:time_per_output_token_seconds_sum": "old_gap_s",
        "vllm:iteration_tokens_total_count": "iterations",
        "vllm:num_requests_running": "now_running",
        "vllm:num_requests_waiting": "now_waiting",
        "vllm:kv_cache_usage_perc": "kv",
        "vllm:gpu_cache_usage_perc": "kv",  # its name before 0.12
    },
    own=("engine", "model_name"),
    positions={_POSITION: _POSITION},
    epoch="vllm:generation_tokens_created",
)
_COUNTS = (
    "rounds", "drafted", "accepted", "generated", "prompt", "preempted", "firsts", "gaps", "old_gaps", "iterations",
)  # fmt: skip
_SPECULATIVE = ("rounds", "drafted", "accepted")

_V0 = (
    "V0's speculative counters add the total since the start at every interval: they count nothing (V1, or the lines "
    "`Speculative metrics` of the log, do)"
)
_UNPROVED = (
    "speculative counters without the label `engine`, and nothing that shows V1: V0's add the total since the start at "
    "every interval and count nothing"
)
_NO_COUNT = "a counter that is no whole number: query the metric itself, not an average or a rate of it"
_POSITIONS = "accepted tokens by position do not add up to the accepted tokens"
_RESTLESS = "counters fall again and again: several servers behind one address; scrape each of them by itself"


def parse(frame: pl.DataFrame) -> Parsed:
    """Take samples (columns of `MetricsReader.metrics`): all of vLLM's are claimed, those that matter are kept."""
    parsed = Parsed(claimed=frame.height)
    frame = frame.with_columns(name=pl.col("name").str.replace(r"^vllm_", "vllm:"))
    parsed.add(METRICS, frame.filter(pl.col("name").is_in(_LAYOUT.names)))
    return parsed


def assemble(frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """Windows between consecutive scrapes of each engine; the first one runs from the counter's own start."""
    tables = Tables()
    rows = counters.scrapes(frames[METRICS], _LAYOUT, context.resolve, METRICS, tables.rejects)
    if not rows.height:
        return tables
    tables.rejects += counters.unpaired(rows, ("drafted", "accepted"), METRICS)
    places = sorted((c for c in rows.columns if c.startswith(f"{_POSITION}.")), key=lambda c: int(c.split(".")[1]))
    rows = _whole_counts(_v1_only(rows, places, tables), places, tables)
    rows = _sound_positions(rows, places, tables)
    rows = counters.differences(rows, _groups(places))
    unsteady = counters.restless(rows)
    tables.rejects += [Reject(line, _RESTLESS, METRICS) for line in unsteady["line"]]
    rows = _plain(rows.join(unsteady, on="key", how="anti", maintain_order="left"))
    tables.windows = _windows(_fitting(_rounds(rows, places, tables), places), places)
    return tables


def _groups(places: Sequence[str]) -> list[Group]:
    """What is differenced together: the counts of rounds stand for the same rounds or for none."""
    return [
        Group(("drafted", "accepted"), ("rounds", "out", *places), ~pl.col("torn")),
        Group(("gaps",), ("gap_s",)),
        Group(("generated",), ("all_out",)),
        Group(("prompt",)),
        Group(("preempted",)),
        Group(("iterations",)),
    ]


def _v1_only(rows: pl.DataFrame, places: Sequence[str], tables: Tables) -> pl.DataFrame:
    """Rows without V0's speculative counters, and without its output gaps, which are no rounds.

    V1 labels everything with its engine. Samples without that label (of a relabelled series) are taken where something
    is among them that only V1 exports.
    """
    proofs = ["engine", "rounds", "gaps", *places]
    v1 = pl.any_horizontal(pl.col(proofs).is_not_null()).any().over("target")
    v0 = pl.col("v0").is_not_null().any().over("target")
    speculative = [*_SPECULATIVE, *places]
    rows = rows.with_columns(foreign=pl.col("engine").is_null() & (v0 | ~v1))
    told = pl.any_horizontal(pl.col(*speculative, "v0").is_not_null())
    refused = rows.filter(pl.col("foreign") & told).group_by("target", maintain_order=True)
    for _, line, old in refused.agg(pl.col("line").min(), pl.col("v0").is_not_null().any()).iter_rows():
        tables.rejects.append(Reject(line, _V0 if old else _UNPROVED, METRICS))
    return rows.with_columns(
        pl.when(~pl.col("foreign")).then(c).alias(c) for c in (*speculative, "old_gaps", "old_gap_s")
    ).drop("foreign", "v0")


def _whole_counts(rows: pl.DataFrame, places: Sequence[str], tables: Tables) -> pl.DataFrame:
    """Rows without figures that no counter has (an average over time, a rate), one reject a process and metric."""
    for column in counters.uncounted(rows, (*_COUNTS, *places)):
        wrong = ~counters.is_count(column)
        lines = rows.filter(wrong).group_by("key", maintain_order=True).agg(pl.col("line").first())["line"]
        tables.rejects += [Reject(line, _NO_COUNT, METRICS) for line in lines]
        rows = rows.with_columns(pl.when(~wrong).then(column).alias(column))
    # V1 named the gap between outputs so until 0.11; where both are exported they are the same.
    named = pl.col("gaps").is_not_null()
    out = pl.col("generated") - pl.col("firsts")
    return rows.with_columns(
        gaps=pl.coalesce("gaps", "old_gaps"),
        out=out,
        all_out=out,
        gap_s=pl.when(named).then("gap_s").otherwise("old_gap_s"),
        named=named,
    )


def _sound_positions(rows: pl.DataFrame, places: Sequence[str], tables: Tables) -> pl.DataFrame:
    """Rows with `torn`: whether the page was made while a round was counted, so that its parts do not fit together.

    A torn row leaves its rounds to the next one. The last row of a start has no next one, and loses its positions only;
    where most rows do not add up, the positions are wrong for some other reason, and all of them are given up.
    """
    if not places:
        return rows.with_columns(torn=pl.lit(False))
    some = pl.any_horizontal(pl.col(places).is_not_null())
    rows = rows.with_columns(torn=(some & (pl.sum_horizontal(places) != pl.col("accepted"))).fill_null(False))
    following = pl.col("accepted").shift(-1).over("key")
    rows = rows.with_columns(
        hopeless=pl.col("torn").sum().over("key") * 2 > some.sum().over("key"),
        last=(following < pl.col("accepted")) | following.is_null(),
    )
    bad = rows.filter(pl.col("hopeless") & pl.col("torn")).group_by("key", maintain_order=True)
    tables.rejects += [Reject(line, _POSITIONS, METRICS) for line in bad.agg(pl.col("line").first())["line"]]
    without = pl.col("hopeless") | (pl.col("torn") & pl.col("last"))
    return rows.with_columns(
        *(pl.when(~without).then(c).alias(c) for c in places), torn=pl.col("torn") & ~without
    ).drop("hopeless", "last")


def _plain(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `plain`: request-steps without a draft, and `none`: nothing is drafted here at all.

    The gaps between outputs count all request-steps behind the first token, the drafts those with a draft. A page is
    made while the engine runs, so that a step may be in one figure and not yet in the other: the difference of the
    totals, made to grow (the least of it and of all later ones), forgets that again.

    A page (not a query, which may have asked for little) of 0.10.2 or later that has no speculative counters is of a
    server that does not speculate: every step is plain.
    """
    drafted = pl.any_horizontal(pl.col(*_SPECULATIVE).is_not_null()).any().over("key")
    rows = rows.with_columns(none=~drafted & pl.col("scrape").is_not_null() & pl.col("named"))
    rounds = pl.when("none").then(0.0).otherwise("rounds")
    known = pl.col("d.gaps").is_not_null() & (pl.col("none") | pl.col("d.rounds").is_not_null())
    rows = rows.with_columns(total=pl.when(known).then((pl.col("gaps") - rounds).clip(lower_bound=0.0)))
    least = pl.col("total").reverse().cum_min().reverse().over("key", "segment")
    rows = rows.with_columns(total=pl.when(pl.col("total").is_not_null()).then(least))
    before = pl.col("total").forward_fill().shift(1).over("key", "segment")
    return rows.with_columns(plain=pl.col("total") - before.fill_null(0.0))


def _rounds(rows: pl.DataFrame, places: Sequence[str], tables: Tables) -> pl.DataFrame:
    """Rows with `k` (positions that are counted) and the rounds between; accepted above drafted is refused."""
    broken = (pl.col("d.accepted") > pl.col("d.drafted")).fill_null(False)
    tables.rejects += [
        Reject(line, "accepted <= drafted does not hold", METRICS) for line in rows.filter(broken)["line"]
    ]
    rows = rows.with_columns(pl.when(~broken).then(f"d.{c}").alias(f"d.{c}") for c in (*_SPECULATIVE, *places))
    drafted, logged = pl.col("d.drafted"), pl.col("d.rounds")
    rows = rows.with_columns(
        k=pl.sum_horizontal([pl.lit(0), *(pl.col(c).is_not_null().cast(pl.Int64) for c in places)])
    )
    # Without the count of drafts (a query for less) every round had all K drafts, where that gives whole rounds.
    k = pl.col("k")
    even = pl.when(k.is_between(1, LONGEST_DRAFT) & (drafted % k == 0)).then(drafted / k)
    uncounted = pl.col("rounds").is_null().all().over("key")
    # A page that was made between two of the counts may give less rounds than can be.
    possible = (
        (logged >= 0) & (logged <= drafted) & (drafted <= logged * pl.when(k > 0).then(k).otherwise(LONGEST_DRAFT))
    )
    rounds = pl.when("none").then(0.0).when(uncounted).then(even).when(possible).then(logged)
    basis = pl.when(pl.col("none") | uncounted).then(pl.lit("derived")).otherwise(pl.lit("logged"))
    return rows.with_columns(
        rounds=rounds.cast(pl.Int64), all_rounds="rounds", rounds_basis=pl.when(rounds.is_not_null()).then(basis)
    )


def _fitting(rows: pl.DataFrame, places: Sequence[str]) -> pl.DataFrame:
    """Rows with `accepted_per_pos` and `emitted`, where they fit the other counts of the window."""
    per_pos: pl.Expr = pl.lit(None, pl.List(pl.Int64))
    if places:
        listed = pl.concat_list([pl.col(f"d.{c}").cast(pl.Int64) for c in places]).list.drop_nulls()
        falls = (listed.list.diff().list.max().fill_null(0) <= 0) & (listed.list.min() >= 0)
        fits = (listed.list.sum() == pl.col("d.accepted")) & falls & (listed.list.first() <= pl.col("rounds"))
        # As many as the row has positions: one that is missing in the middle is missing for all behind it.
        per_pos = pl.when(fits & (listed.list.len() == pl.col("k"))).then(listed)
    # Without speculation the tokens stand for all steps, with it for those that the rounds of the window are among.
    emitted = pl.when(pl.col("plain").is_not_null()).then(pl.when("none").then("d.all_out").otherwise("d.out"))
    # As many tokens cut at the end of requests as plain steps: it would read as if the plain steps were left out.
    alike = (pl.col("plain") > 0) & (emitted == pl.col("d.accepted") + pl.col("rounds"))
    return rows.with_columns(
        accepted_per_pos=per_pos,
        emitted=pl.when((emitted >= 0) & ~alike.fill_null(False)).then(emitted).cast(pl.Int64),
    )


def _windows(rows: pl.DataFrame, places: Sequence[str]) -> pl.DataFrame:
    """Canonical windows of the rows in which something happened."""
    changed = pl.any_horizontal([pl.col(c) > 0 for c in rows.columns if c.startswith("d.")])
    scraped = pl.col("scrape").is_not_null()
    rows = rows.filter(changed.fill_null(False)).sort(
        scraped, pl.when(scraped).then("line"), "ts", "key", maintain_order=True
    )
    several = rows["target"].n_unique() > 1
    timed = pl.col("d.gaps") > 0
    counted = pl.col("d.drafted").is_not_null() | pl.col("d.generated").is_not_null()
    return rows.select(
        "ts_basis", "emitted", "accepted_per_pos", "rounds", "rounds_basis", **_stood(places),
        # Samples of a query or an export stand by series, not by time: the window's own number tells them apart.
        source_line=pl.when(scraped).then("line").otherwise((~scraped).cast(pl.Int64).cum_sum()),
        surface=pl.lit(METRICS),
        replica=_engine(pl.col("engine")),
        process=pl.format("target {}", "target") if several else pl.lit(None, pl.String),
        model=leaf(pl.col("model_name")),
        num_speculative_tokens=pl.when(pl.col("k") > 0).then("k").cast(pl.Int32),
        ts_start="start",
        ts_end="ts",
        window_us=(pl.col("ts") - pl.col("start")).dt.total_microseconds(),
        steps=_int("d.iterations"),
        plain_steps=_int("plain"),
        drafted=_int("d.drafted"),
        accepted=_int("d.accepted"),
        counts_basis=pl.when(counted).then(pl.lit("logged")),
        round_us=pl.when(timed).then((pl.col("d.gap_s") * 1e6).round()).cast(pl.Int64, strict=False),
        rounds_timed=pl.when(timed).then(_int("d.gaps")),
        time_basis=pl.when(timed).then(pl.lit("sum")),
        preemptions=_int("d.preempted"),
        generated_tokens=_int("d.generated"),
        prompt_tokens=_int("d.prompt"),
        running=_int("now_running"),
        waiting=_int("now_waiting"),
        kv_cache_usage="kv",
    )  # fmt: skip


def _stood(places: Sequence[str]) -> dict[str, pl.Expr]:
    """What the counters stand at, see `scraped.stood`."""
    counted, zero = scraped.counted, pl.when("none").then(0.0)
    counts: dict[str, pl.Expr | str] = {
        "steps": counted("iterations"), "plain_steps": "total", "drafted": counted("drafted"),
        "accepted": counted("accepted"), "rounds": zero.otherwise(counted("all_rounds", "d.rounds")),
        "emitted": pl.when(pl.col("total").is_not_null() & pl.col("d.all_out").is_not_null()).then("out"),
        "round_us": counted("gap_s") * 1e6, "rounds_timed": counted("gaps"), "preemptions": counted("preempted"),
        "generated_tokens": counted("generated"), "prompt_tokens": counted("prompt"),
    }  # fmt: skip
    return scraped.stood(counts, [counted(c) for c in places])


def _int(column: str) -> pl.Expr:
    return pl.col(column).round().cast(pl.Int64, strict=False)


def _engine(label: pl.Expr) -> pl.Expr:
    """The engine's index; what a proxy may have put there instead is not kept, as it may be an address."""
    return pl.when(label.str.contains(r"^[0-9]{1,6}$")).then(label.cast(pl.Int64, strict=False).cast(pl.String))
