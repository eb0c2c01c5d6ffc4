"""Prometheus metrics of SGLang (`/metrics`): counters differenced to windows.

Two kinds of process export, and nothing joins their counts: so there are two surfaces, of which an analysis takes one
for each group of figures. What they mean (SGLang, `observability/metrics_collector.py`, 0.5.8 to 0.5.23):

* The schedulers, one a data-parallel rank, count while they run. `realtime_tokens{mode="decode"}` is what decode passes
  gave (0.5.8+), `cuda_graph_passes{mode="decode_..."}` the passes, `forward_execution_seconds{category}` the time of
  the device (0.5.11+, SGLANG_ENABLE_METRICS_DEVICE_TIMER=1). `spec_accept_length` is a gauge: the mean of the last
  decode interval (40 passes), not of the window. Tokens over it are rounds, estimated; not for the first scrape of a
  server, whose tokens may be those of days. It is 0 without speculation and before the first interval; K and nodes are
  gauges, too (0.5.15+).
* The front end counts a request when it is finished: `spec_verify_calls` (0.5.15+) are its rounds, and
  `generation_tokens` its tokens, of which prefill gave the first. A stop string cuts the last round, so that accepted
  tokens are the least that can have been. `inter_token_latency_seconds` is the gap between two outputs over their
  tokens, observed once a token: its sum is decode time, its count tokens.

`spec_accept_rate` is never read but to tell K where no gauge does (see `chain_length`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines import counters, scraped
from tracelens.engines.base import Context, Parsed, Reject, Surface, Tables
from tracelens.engines.counters import Group, Layout, both
from tracelens.engines.sglang import metric_times
from tracelens.engines.sglang.metric_labels import FRONT_END, SCHEDULED, plain
from tracelens.engines.sglang.releases import since
from tracelens.engines.sglang.runs import leaf_of
from tracelens.engines.versions import Range, Switch, Versions, Way

SCHEDULER, FINISHED = "sglang.metrics", "sglang.metrics_finished"
_KEPT = "keep what /metrics says every few seconds (with a `date` line before each), or the answer of a range query"
_TIMES = ("rho", "rho_verify", "draft_ms", "target_ms")
SURFACES: tuple[Surface, ...] = (
    Surface(
        FINISHED,
        "Prometheus counters of finished requests (between two scrapes; the first from the server's start)",
        Versions(since("0.5.15")),
        ("draft_accept_ratio", "tau_committed", "step_ms"),
        f"--enable-metrics; {_KEPT}",
    ),
    Surface(
        SCHEDULER,
        "Prometheus counters of the schedulers (between two scrapes; the first from the server's start)",
        Versions(since("0.5.8"), " (draft and verify time ", Range("0.5.11", form="{first}+", of=_TIMES), ")"),
        (*_TIMES, "tau_verified", "draft_accept_ratio", "running"),
        Switch(
            f"--enable-metrics and SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 (0.5.11+), with CUDA graphs on; {_KEPT}",
            Way(Range(last="0.5.10"), f"--enable-metrics; {_KEPT}"),
            Way(
                Range("0.5.11"),
                f"--enable-metrics and SGLANG_ENABLE_METRICS_DEVICE_TIMER=1, with CUDA graphs on; {_KEPT}",
            ),
        ),
    ),
)
# A colon is an underscore where a collector of OpenTelemetry or OpenMetrics passed it on.
PREFIXES: Sequence[str] = ("sglang:", "sglang_")

_TOLD = (("generation_tokens", "generated"), ("prompt_tokens", "prompt"), ("num_requests", "requests"))
_SCHEDULED = Layout(
    columns={
        **both("sglang:realtime_tokens.decode", "tokens"),
        **both("sglang:realtime_tokens.prefill_compute", "prompt"),
        **both("sglang:cuda_graph_passes.decode_cuda_graph", "passes_graph"),
        **both("sglang:cuda_graph_passes.decode_none", "passes_eager"),
        **metric_times.COLUMNS,
        "sglang:num_running_reqs": "now_running",
        "sglang:num_queue_reqs": "now_waiting",
        "sglang:token_usage": "usage",
        "sglang:gen_throughput": "throughput",
        "sglang:spec_accept_length": "length",
        "sglang:spec_accept_rate": "rate",
        "sglang:spec_num_steps": "steps",
        "sglang:spec_num_draft_tokens": "verified",
    },
    own=("dp_rank", "model_name"),
)
_FINISHED = Layout(
    columns={
        **{
            key: f"{column}.{way}"
            for way in ("plain", "stream")
            for name, column in _TOLD
            for key in both(f"sglang:{name}.{way}", column)
        },
        **both("sglang:spec_verify_calls", "rounds"),
        "sglang:inter_token_latency_seconds_sum": "gap_s",
        "sglang:inter_token_latency_seconds_count": "gaps",
    },
    # A label that the server lets clients set, with a name of ours.
    own=("model_name", "task_type"),
)  # fmt: skip
_AT = ("scrape", "ts", "model_name")
_COUNTED = ("generated", "prompt", "requests")
_LONGEST = 64  # drafted tokens of a chain
_CLOSE = 1e-6

_NO_COUNT = "a counter that is no whole number: query the metric itself, not an average or a rate of it"
_RESTLESS = "counters fall again and again: several servers behind one address; scrape each of them by itself"


def parse(frame: pl.DataFrame) -> Parsed:
    """Take samples (columns of `MetricsReader.metrics`): all of SGLang's are claimed, those that matter are kept."""
    parsed = Parsed(claimed=frame.height)
    name = pl.col("name").str.replace(r"^sglang_", "sglang:")
    family = pl.col("name").str.strip_suffix("_total")
    wanted = frame.with_columns(name=name)
    parsed.add(SCHEDULER, wanted.filter(family.is_in(SCHEDULED)))
    parsed.add(FINISHED, wanted.filter(family.is_in(FRONT_END)))
    return parsed


def assemble(frames: Mapping[str, pl.DataFrame], context: Context) -> Tables:
    """Windows between consecutive scrapes; the first one runs from the counter's own start."""
    tables = Tables()
    samples = plain(pl.concat(list(frames.values())).sort("line", maintain_order=True))
    scheduled = _drafts(_grown(samples, _SCHEDULED, SCHEDULER, context, tables))
    finished = _grown(samples, _FINISHED, FINISHED, context, tables)
    finished = finished.join(_server(scheduled), on=_AT, how="left", nulls_equal=True, maintain_order="left")
    exact = bool((finished["d.rounds"] > 0).any())
    rows = [p for p in (_scheduled(scheduled, exact, tables), _finished(finished)) if p.height]
    if not rows:
        return tables
    out = pl.concat(rows, how="diagonal_relaxed")
    scraped = pl.col("_scrape").is_not_null()
    out = out.sort(scraped, "source_line", "ts_end", maintain_order=True)
    # Samples of a query or an export stand by series, not by time: the window's own number tells them apart.
    number = (~scraped).cast(pl.Int64).cum_sum()
    tables.windows = out.with_columns(source_line=pl.when(scraped).then("source_line").otherwise(number)).drop(
        "_scrape"
    )
    return tables


def _grown(
    samples: pl.DataFrame, layout: Layout, surface: str, context: Context, tables: Tables
) -> pl.DataFrame:  # fmt: skip
    """Rows of one kind of process with the growth of its counters; those that cannot be counters are refused."""
    rows = counters.scrapes(samples, layout, context.resolve, surface, tables.rejects)
    columns = list(dict.fromkeys(column for name, column in layout.columns.items() if name.endswith("_total")))
    for column in (c for c in columns if not c.startswith("t.")):
        wrong = ~counters.is_count(column)
        lines = rows.filter(wrong).group_by("key", maintain_order=True).agg(pl.col("line").first())["line"]
        tables.rejects += [Reject(line, _NO_COUNT, surface) for line in lines]
        if len(lines):
            rows = rows.with_columns(pl.when(~wrong).then(column).alias(column))
    groups = [Group((c,)) for c in columns]
    if "gaps" in rows.columns:
        groups.append(Group(("gaps",), ("gap_s",)))
    rows = counters.differences(rows, groups)
    unsteady = counters.restless(rows)
    tables.rejects += [Reject(line, _RESTLESS, surface) for line in unsteady["line"]]
    return rows.join(unsteady, on="key", how="anti", maintain_order="left")


def _sum(*columns: str) -> pl.Expr:
    """The sum of those that are known; null where none is."""
    known = pl.any_horizontal(pl.col(c).is_not_null() for c in columns)
    return pl.when(known).then(pl.sum_horizontal(columns))


def _scheduled(rows: pl.DataFrame, exact: bool, tables: Tables) -> pl.DataFrame:
    """Windows of the schedulers.

    Args:
        rows: their scrapes, with growth.
        exact: whether the same source counts the rounds of finished requests: then accepted tokens are told there, and
            an estimate beside it would only stand in its way.
        tables: where figures of time that cannot be used are told.
    """
    rows = rows.with_columns(passes=_sum("d.passes_graph", "d.passes_eager"))
    rows = metric_times.with_times(rows, tables, SCHEDULER)
    length = pl.when(pl.col("length") >= 1).then("length")
    none = pl.col("none")
    known_before = pl.col("tokens").is_not_null().cum_sum().over("key") > 1
    tokens = pl.when(none | known_before).then("d.tokens")
    each = pl.when(pl.col("passes") > 0).then(pl.col("passes") * pl.col("k"))
    rows = rows.with_columns(draft_ms_per_token=pl.col("draft_us") / each / 1000)
    rounds = pl.when(none).then(0.0).otherwise((tokens / length).round())
    rows = rows.with_columns(rounds=pl.when(tokens.is_not_null()).then(rounds))
    accepted = pl.when(none).then(0.0).otherwise(tokens - pl.col("rounds"))
    drafted = pl.when(none).then(0.0).otherwise(pl.col("rounds") * pl.col("k"))
    rows = rows.with_columns(accepted=accepted, drafted=pl.when(accepted <= drafted).then(drafted))
    basis = pl.when(none).then(pl.lit("logged")).otherwise(pl.lit("estimated"))
    known = pl.when(pl.col("rounds").is_not_null()).then(basis)
    moved = pl.any_horizontal((pl.col(c) > 0).fill_null(False) for c in ("d.tokens", "d.prompt", "passes", *_TIMED))
    return (
        _in_place(rows.filter(moved))
        .with_columns(
            surface=pl.lit(SCHEDULER),
            steps=_int("passes"),
            rounds=_int("rounds"),
            plain_steps=pl.when(none).then(_int("d.tokens")),
            drafted=_int("drafted"),
            accepted=pl.when(none | (not exact)).then(_int("accepted")),
            emitted=pl.when(pl.col("rounds").is_not_null()).then(_int("d.tokens")),
            # A sum that no drafted tokens stand beside: its mean is by passes and K.
            draft_ms_per_token=pl.when(pl.col("drafted").is_null()).then("draft_ms_per_token"),
            rounds_basis=known,
            counts_basis=known,
            num_speculative_tokens=pl.when(~none).then("k").cast(pl.Int32, strict=False),
            num_draft_nodes=pl.when(~none).then("nodes").cast(pl.Int32, strict=False),
            generated_tokens=_int("d.tokens"),
            prompt_tokens=_int("d.prompt"),
            running=_int("now_running"),
            waiting=_int("now_waiting"),
            kv_cache_usage=pl.when(pl.col("usage").is_between(0, 1)).then("usage"),
            **_scheduled_stood(),
        )
        .select(*_PLACE, *_SCHEDULED_COLUMNS)
    )


_TIMED = ("draft_us", "target_us", "step_us")
_PLACE = (
    "_scrape",
    "source_line",
    "surface",
    "replica",
    "process",
    "model",
    "ts_start",
    "ts_end",
    "ts_basis",
    "window_us",
)
_SCHEDULED_COLUMNS = (
    "steps", "rounds", "plain_steps", "drafted", "accepted", "emitted", "rounds_basis", "counts_basis",
    "num_speculative_tokens", "num_draft_nodes", *_TIMED, "draft_ms_per_token", "time_basis", "generated_tokens",
    "prompt_tokens", "running",
    "waiting", "kv_cache_usage", "counters", "counters_since",
)  # fmt: skip


def _drafts(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `none` (no speculation), `k` (drafted tokens a round) and `nodes` (verified without the root, in a tree).

    A decode interval sets throughput and accept length together: the one without the other is a server that does not
    speculate. The gauges of K are 0 until then; a window at whose ends they differ has rounds of both.
    """
    told = {c: pl.when(pl.col(c) > 0).then(c) for c in ("steps", "verified")}
    rows = rows.with_columns(**told, _length=pl.when(pl.col("length") > 0).then("length"))
    plain = ((pl.col("throughput") > 0) & (pl.col("length") == 0)).any().over("key")
    none = plain & pl.col("_length").is_null().all().over("key") & pl.col("steps").is_null().all().over("key")
    before = {c: pl.col(c).forward_fill().shift(1).over("key") for c in ("steps", "verified")}
    first = {c: pl.coalesce(c, pl.col(c).backward_fill().over("key")) for c in ("steps", "verified")}
    same = pl.all_horizontal((before[c].is_null() | (before[c] == pl.col(c))).fill_null(True) for c in before)
    rows = rows.with_columns(none=none.fill_null(False), _same=same, **first).join(
        chain_lengths(rows), on="key", how="left", maintain_order="left"
    )
    tree = pl.col("verified") - 1 != pl.col("steps")
    rows = rows.with_columns(
        k=pl.when(pl.col("steps").is_null()).then("_chain").when("_same").then("steps"),
        nodes=pl.when(tree & pl.col("_same")).then(pl.col("verified") - 1),
    )
    # Series of one scrape under other labels (a timer that names fewer) are of the same server.
    known = pl.col("k").drop_nulls()
    others = pl.when(known.n_unique() == 1).then(known.first()).over(_AT)
    return rows.with_columns(k=pl.when(pl.col("steps").is_null()).then(pl.coalesce("k", others)).otherwise("k"))


def chain_lengths(rows: pl.DataFrame) -> pl.DataFrame:
    """`key` and `_chain`: drafted tokens a round by the only whole number that explains every rate of the process.

    Gauges are not rounded, so rate = (length - 1) / n (0.5.11+) or length / (n + 1) (0.5.4-0.5.10, sglang#23530) gives
    n to the last digit. A tree's n are its nodes: there the depth stays unknown, and beyond 6 it may be a tree.
    """
    usable = rows.filter((pl.col("length") > 1) & (pl.col("rate") > 0)).select("key", "length", "rate")
    ways = {
        "own": pl.col("length") / pl.col("rate") - 1,
        "without": (pl.col("length") - 1) / pl.col("rate"),
    }
    found = usable.with_columns(**ways).group_by("key", maintain_order=True).agg(
        *(pl.col(w).round().first().alias(f"{w}_n") for w in ways),
        *(((pl.col(w) - pl.col(w).round().first()).abs() <= _CLOSE * _LONGEST).all().alias(f"{w}_fits") for w in ways),
    )  # fmt: skip
    one = pl.col("own_fits") != pl.col("without_fits")
    n = pl.when("own_fits").then("own_n").otherwise("without_n")
    return found.select("key", _chain=pl.when(one & n.is_between(1, _SHORT)).then(n))


_SHORT = 6


def _server(scheduled: pl.DataFrame) -> pl.DataFrame:
    """`k`, `none` and the batch by scrape and model, where all schedulers agree: the front end has no such gauges."""
    told = ("k", "none", "now_running")
    agreed = (pl.when(pl.col(c).n_unique() == 1).then(pl.col(c).first()).alias(c) for c in told)
    return scheduled.group_by(_AT, maintain_order=True).agg(*agreed)


def _finished(rows: pl.DataFrame) -> pl.DataFrame:
    """Windows of the front end: rounds and tokens of the requests that were finished in each."""
    sums = {name: _sum(f"d.{name}.plain", f"d.{name}.stream") for name in _COUNTED}
    none = pl.col("none").fill_null(False)
    rows = rows.with_columns(
        **sums, none=none, all_rounds="rounds", rounds=pl.when(none).then(0.0).otherwise("d.rounds")
    )
    out = (pl.col("generated") - pl.col("requests")).clip(lower_bound=0)
    # Fewer tokens than rounds: requests that were aborted, or a scrape between the two counts.
    rows = rows.with_columns(emitted=pl.when(out >= pl.col("rounds")).then(out))
    rows = rows.with_columns(
        accepted=pl.when(none).then(0.0).otherwise(pl.col("emitted") - pl.col("rounds")),
        drafted=pl.when(none).then(0.0).otherwise(pl.col("rounds") * pl.col("k")),
        # Every token carries its share of the round that gave it: the sum over all of them is the time of the rounds.
        share=pl.when(none).then(1.0).when(pl.col("emitted") > 0).then(pl.col("rounds") / pl.col("emitted")),
    )
    fits = (pl.col("accepted") <= pl.col("drafted")).fill_null(True)
    timed = (pl.col("d.gaps") > 0) & (pl.col("d.gap_s") >= 0) & (pl.col("share") > 0)
    moved = pl.any_horizontal((pl.col(c) > 0).fill_null(False) for c in (*_COUNTED, "d.rounds", "d.gaps"))
    return (
        _in_place(rows.filter(moved))
        .with_columns(
            surface=pl.lit(FINISHED),
            task_type=pl.col("task_type").str.extract(r"^([\w .:/-]{1,64})$", 1),
            rounds=_int("rounds"),
            plain_steps=pl.when("none").then(_int("emitted")),
            drafted=pl.when(fits).then(_int("drafted")),
            accepted=pl.when(fits).then(_int("accepted")),
            emitted=pl.when(fits).then(_int("emitted")),
            rounds_basis=pl.when(pl.col("rounds").is_not_null()).then(pl.lit("logged")),
            counts_basis=pl.when(pl.col("accepted").is_not_null() & fits).then(pl.lit("derived")),
            num_speculative_tokens=pl.when(~none).then("k").cast(pl.Int32, strict=False),
            round_us=pl.when(timed).then((pl.col("d.gap_s") * 1e6).round()).cast(pl.Int64, strict=False),
            rounds_timed=pl.when(timed).then((pl.col("d.gaps") * pl.col("share")).round()).cast(pl.Int64, strict=False),
            time_basis=pl.when(timed).then(pl.lit("sum")),
            generated_tokens=_int("generated"),
            prompt_tokens=_int("prompt"),
            running=_int("now_running"),
            **_finished_stood(),
        )
        .select(*_PLACE, *_FINISHED_COLUMNS)
    )


_FINISHED_COLUMNS = (
    "task_type", "rounds", "plain_steps", "drafted", "accepted", "emitted", "rounds_basis", "counts_basis",
    "num_speculative_tokens", "round_us", "rounds_timed", "time_basis", "generated_tokens", "prompt_tokens", "running",
    "counters", "counters_since",
)  # fmt: skip


def _scheduled_stood() -> dict[str, pl.Expr]:
    """What the schedulers' counters stand at, see `scraped.stood`: rounds are an estimate of each window by itself."""
    counts: dict[str, pl.Expr | str] = {
        "steps": _sum("passes_graph", "passes_eager"), "generated_tokens": scraped.counted("tokens"),
        "prompt_tokens": scraped.counted("prompt"), **metric_times.stood(),
    }  # fmt: skip
    return scraped.stood(counts)


def _finished_stood() -> dict[str, pl.Expr]:
    """What the front end's counters stand at, see `scraped.stood`."""
    sums = {name: _sum(f"{name}.plain", f"{name}.stream") for name in _COUNTED}
    none, out = pl.col("none"), sums["generated"] - sums["requests"]
    rounds = pl.when(none).then(0.0).otherwise(scraped.counted("all_rounds", "d.rounds"))
    counts: dict[str, pl.Expr | str] = {
        "rounds": rounds, "emitted": out, "plain_steps": pl.when(none).then(out),
        "accepted": pl.when(none).then(0.0).otherwise(out - rounds),
        "drafted": pl.when(none).then(0.0).otherwise(rounds * pl.col("k")),
        "generated_tokens": sums["generated"], "prompt_tokens": sums["prompt"],
        "round_us": scraped.counted("gap_s") * 1e6, "gaps": scraped.counted("gaps"),
        "rounds_timed": pl.when(none).then(scraped.counted("gaps")),
    }  # fmt: skip
    return scraped.stood(counts)


def _in_place(rows: pl.DataFrame) -> pl.DataFrame:
    """Add where and when a window was."""
    several = rows["target"].n_unique() > 1
    rank = "dp_rank" in rows.columns
    replica = pl.col("dp_rank").str.extract(r"^(\d{1,6})$", 1) if rank else pl.lit(None, pl.String)
    return rows.with_columns(
        _scrape=pl.col("scrape"),
        source_line="line",
        replica=replica.cast(pl.Int64, strict=False).cast(pl.String),
        process=pl.format("target {}", "target") if several else pl.lit(None, pl.String),
        model=leaf_of(pl.col("model_name")),
        ts_start="start",
        ts_end="ts",
        window_us=(pl.col("ts") - pl.col("start")).dt.total_microseconds(),
    )


def _int(column: str) -> pl.Expr:
    return pl.col(column).round().cast(pl.Int64, strict=False)
