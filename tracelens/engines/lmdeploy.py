"""LMDeploy (PyTorch engine): the line it prints every ten seconds, and its Prometheus metrics.

Both were adapted from vLLM's (`lmdeploy/metrics/loggers.py`; acceptance in the line since 2025-11, in the metrics since
2026-05), and mean the same: accepted tokens are drafts only, the mean acceptance length has the target's own token in
it, rates by position are of all rounds. Every round drafts the configured number of tokens. What differs: the line is
left out for an interval without tokens, and begins anew behind it; the gauges `spec_decode_mean_*` are means since the
start, and not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines import counters, rows, scraped
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.counters import Group, Layout, both
from tracelens.engines.stacking import stacked
from tracelens.engines.vllm.startup import leaf
from tracelens.engines.vllm.windows import v1_windows

__all__ = ["ENGINE"]

LINE, METRICS = "lmdeploy.line", "lmdeploy.metrics"
_FIGURES = (
    "draft_accept_ratio", "hazard", "survival", "tau_verified", "rollback_len", "near_k_round_share", "running",
)  # fmt: skip
SURFACES: tuple[Surface, ...] = (
    Surface(
        METRICS,
        "Prometheus counters of /metrics (between two scrapes; the first from the server's start)",
        "2026-05 and later (acceptance)",
        (*_FIGURES, "tau_committed", "step_ms"),
        "on by default: keep what /metrics says every few seconds; off with --disable-metrics",
    ),
    Surface(
        LINE,
        "Avg thr (an interval of one engine)",
        "2025-11 and later (acceptance)",
        _FIGURES,
        "on by default: keep what the server prints; off with --disable-metrics",
    ),
)

# What the server prints itself has no prefix of a logger; a collector or a person may put something before it, but
# never a quote or a brace: those open text that a user wrote. The rank was `Engine 000` and is `DP0`.
_HEAD = (
    r"""^[^'"`{]*?\[(?P<inner>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: (?:DP|Engine )(?P<rank>\d{1,6}))?\] """
    r"(?P<message>Avg thr \(in/out\): .*)$"
)
_NUM = r"(\d{1,12}(?:\.\d+)?)"
_COUNT = r"(\d{1,15})(?:\.0)? tokens"
_KEYS = {
    "prompt_tput": (rf"^Avg thr \(in/out\): {_NUM} /", pl.Float64),
    "generation_tput": (rf"^Avg thr \(in/out\): [\d.]+ / {_NUM} tokens/s", pl.Float64),
    "running": (r"Engine \(running/waiting\): (\d{1,9}) /", pl.Int64),
    "waiting": (r"Engine \(running/waiting\): \d+ / (\d{1,9}),", pl.Int64),
    "kv": (rf"KV cache: {_NUM}%", pl.Float64),
    "mal": (rf"Mean acceptance length: {_NUM}", pl.Float64),
    "accepted": (rf"Accepted: {_COUNT}", pl.Int64),
    "drafted": (rf"Drafted: {_COUNT}", pl.Int64),
}
_RATES = r"Per-position acceptance rate: ((?:[01]\.\d+(?:, )?)+)"
_DAY_US = 86_400_000_000

_POSITION = "position"
_LAYOUT = Layout(
    columns={
        **both("lmdeploy:spec_decode_num_drafts", "rounds"),
        **both("lmdeploy:spec_decode_num_draft_tokens", "drafted"),
        **both("lmdeploy:spec_decode_num_accepted_tokens", "accepted"),
        **both("lmdeploy:spec_decode_num_accepted_tokens_per_pos", _POSITION),
        **both("lmdeploy:generation_tokens", "generated"),
        **both("lmdeploy:prompt_tokens", "prompt"),
        "lmdeploy:time_to_first_token_seconds_count": "firsts",
        # The gap between two outputs of a request, whatever number of tokens they hold: a round, or a plain step.
        "lmdeploy:iter_token_latency_count": "gaps",
        "lmdeploy:iter_token_latency_sum": "gap_s",
        "lmdeploy:num_requests_running": "now_running",
        "lmdeploy:num_requests_waiting": "now_waiting",
        "lmdeploy:gpu_cache_usage_perc": "kv",
    },
    own=("engine", "model_name"),
    positions={_POSITION: _POSITION},
)
_COUNTS = ("rounds", "drafted", "accepted", "generated", "prompt", "firsts", "gaps")
_NO_COUNT = "a counter that is no whole number: query the metric itself, not an average or a rate of it"
_RESTLESS = "counters fall again and again: several servers behind one address; scrape each of them by itself"


class LMDeploy:
    """The LMDeploy reader."""

    name = "lmdeploy"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = (b"Avg thr (in/out): ",)
    json_keys: Sequence[bytes] = ()
    # An underscore where a scraper asked for names without colons.
    metric_prefixes: Sequence[str] = ("lmdeploy:", "lmdeploy_")

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """The periodic line. Without its load, or with a part of its acceptance only, it is cut and refused."""
        parsed = Parsed()
        head = pl.col("text").str.extract_groups(_HEAD).struct
        hit = frame.with_columns(head.unnest(), hash=pl.col("text").hash()).filter(pl.col("message").is_not_null())
        if not hit.height:
            return parsed
        message = pl.col("message")
        rates = message.str.extract(_RATES, 1).str.strip_chars(", ").str.split(", ")
        found = hit.with_columns(
            *(message.str.extract(key, 1).cast(kind, strict=False).alias(c) for c, (key, kind) in _KEYS.items()),
            speculates=message.str.contains("SpecDecoding metrics: ", literal=True),
            # A cut tail leaves a shorter number or fewer of them: three decimals each.
            rates=pl.when(rates.list.eval(pl.element().str.contains(r"^[01]\.\d{3}$")).list.all())
            .then(rates)
            .cast(pl.List(pl.Float64), strict=False),
        )
        total, slack = pl.col("rates").list.sum(), 0.00501 + 0.0005 * pl.col("rates").list.len()
        fits = ((total + 1 - pl.col("mal")).abs() <= slack).fill_null(False)
        lost = (
            pl.when(pl.col("waiting").is_null())
            .then(pl.lit("Engine (running/waiting)"))
            .when(pl.col("speculates") & (pl.col("accepted").is_null() | pl.col("drafted").is_null()))
            .then(pl.lit("Accepted and Drafted"))
        )
        found = found.with_columns(rates=pl.when(fits).then("rates"), lost=lost)
        for line, offset, what in found.filter(pl.col("lost").is_not_null()).select("line", "offset", "lost").rows():
            parsed.rejects.append(Reject(line, f"incomplete line: no {what}", LINE, offset))
        good = found.filter(pl.col("lost").is_null()).drop("lost", "text", "message")
        parsed.add(LINE, good)
        parsed.claimed += good.height
        return parsed

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """No JSON of its own."""
        return Parsed()

    def metrics(self, frame: pl.DataFrame) -> Parsed:
        """Prometheus samples: all of LMDeploy's are claimed, those that matter are kept."""
        parsed = Parsed(claimed=frame.height)
        named = frame.with_columns(name=pl.col("name").str.replace(r"^lmdeploy_", "lmdeploy:"))
        parsed.add(METRICS, named.filter(pl.col("name").is_in(_LAYOUT.names)))
        return parsed

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Windows of the lines, and between scrapes."""
        parts = []
        lines = rows.whole(frames, [s for s in SURFACES if s.name == LINE], context)
        if lines:
            parts.append(_line_windows(lines[LINE]))
        if frames.get(METRICS):
            parts.append(_metric_windows(pl.concat(frames[METRICS]), context))
        return stacked(parts) if parts else Tables()


def _line_windows(lines: pl.DataFrame) -> Tables:
    """One window a line. Rounds are the drafted tokens over K; emitted tokens are not in the line."""
    tables = Tables()
    lines = rows.once(lines).with_columns(run_key=pl.lit(0, pl.Int64), replica=pl.col("rank").cast(pl.Int64))
    gap = (pl.col("ts") - pl.col("ts").shift(1).over("stream", "replica")).dt.total_microseconds()
    lines = lines.with_columns(_gap=pl.when((gap > 0) & (gap <= _DAY_US)).then(gap))
    usual = pl.col("_gap").median().over("stream", "replica")
    # Behind an idle time the interval is not the gap between the lines.
    lines = lines.with_columns(window_us=pl.when(pl.col("_gap") <= usual * 1.5 + 1_000_000).then("_gap"))
    counted = lines.filter("speculates").with_columns(
        replica=pl.col("replica").cast(pl.String),
        process=pl.lit(None, pl.String),
        drafted_tput=pl.lit(None, pl.Float64),
        method=pl.lit("mtp"),  # of the drafters that draft a chain of K tokens every round, as all of LMDeploy's do
    )
    base = lines.select(
        "run_key", "ts_basis", "window_us", "running", "waiting",
        source_line="line",
        surface=pl.lit(LINE),
        replica=pl.col("replica").cast(pl.String),
        ts_end="ts",
        ts_start=pl.col("ts") - pl.duration(microseconds="window_us"),
        generated_tokens=_tokens("generation_tput"),
        prompt_tokens=_tokens("prompt_tput"),
        kv_cache_usage=pl.when(pl.col("kv") <= 100).then(pl.col("kv") / 100),
        speculates="speculates",
    )  # fmt: skip
    acceptance = v1_windows(counted, tables).select(
        "source_line", "rounds", "rounds_basis", "drafted", "accepted", "accepted_per_pos", "counts_basis",
        "num_speculative_tokens",
    )  # fmt: skip
    tables.rejects = [Reject(r.line, r.reason, LINE, r.offset) for r in tables.rejects]
    refused = [r.line for r in tables.rejects]
    out = base.join(acceptance, on="source_line", how="left", maintain_order="left")
    estimated = pl.when(pl.col("generated_tokens").is_not_null()).then(pl.lit("estimated"))
    tables.windows = (
        out.filter(~pl.col("source_line").is_in(refused))
        .with_columns(counts_basis=pl.coalesce("counts_basis", estimated))
        .drop("speculates")
    )
    return tables


def _tokens(throughput: str) -> pl.Expr:
    return (pl.col(throughput) * pl.col("window_us") / 1e6).round().cast(pl.Int64, strict=False)


def _metric_windows(samples: pl.DataFrame, context: Context) -> Tables:
    """Windows between consecutive scrapes of each engine; the first one runs from the counter's own start."""
    tables = Tables()
    found = counters.scrapes(samples, _LAYOUT, context.resolve, METRICS, tables.rejects)
    if not found.height:
        return tables
    tables.rejects += counters.unpaired(found, ("rounds", "drafted", "accepted"), METRICS)
    places = sorted((c for c in found.columns if c.startswith(f"{_POSITION}.")), key=lambda c: int(c.split(".")[1]))
    for column in counters.uncounted(found, (*_COUNTS, *places)):
        wrong = (~counters.is_count(column)).fill_null(False)
        lines = found.filter(wrong).group_by("key", maintain_order=True).agg(pl.col("line").first())["line"]
        tables.rejects += [Reject(line, _NO_COUNT, METRICS) for line in lines]
        if len(lines):
            found = found.with_columns(pl.when(~wrong).then(column).alias(column))
    groups = [
        Group(("rounds", "drafted", "accepted"), places), Group(("gaps",), ("gap_s",)),
        Group(("generated", "firsts")), Group(("prompt",)),
    ]  # fmt: skip
    found = counters.differences(found, groups)
    unsteady = counters.restless(found)
    tables.rejects += [Reject(line, _RESTLESS, METRICS) for line in unsteady["line"]]
    found = found.join(unsteady, on="key", how="anti", maintain_order="left")
    broken = (pl.col("d.accepted") > pl.col("d.drafted")).fill_null(False)
    tables.rejects += [
        Reject(line, "accepted <= drafted does not hold", METRICS) for line in found.filter(broken)["line"]
    ]
    spoken = ("d.rounds", "d.drafted", "d.accepted", *(f"d.{c}" for c in places))
    found = found.with_columns(pl.when(~broken).then(c).alias(c) for c in spoken)
    tables.windows = _canonical(_plain(found), places)
    return tables


def _plain(found: pl.DataFrame) -> pl.DataFrame:
    """Add `plain` and `emitted`: a server without speculative counters took a plain step between any two outputs."""
    silent = ~pl.any_horizontal(pl.col("rounds", "drafted", "accepted").is_not_null()).any().over("key")
    out = pl.col("d.generated") - pl.col("d.firsts")  # the first token of a request is the prefill's
    none = silent & pl.col("scrape").is_not_null() & (out == pl.col("d.gaps"))
    most = pl.col("d.accepted") + pl.col("d.rounds")
    return found.with_columns(
        none=none.fill_null(False),
        plain=pl.when(none).then("d.gaps"),
        emitted=pl.when(none | ((out >= pl.col("d.rounds")) & (out <= most))).then(out),
    )


def _canonical(found: pl.DataFrame, places: Sequence[str]) -> pl.DataFrame:
    changed = pl.any_horizontal([pl.col(c) > 0 for c in found.columns if c.startswith("d.")])
    scraped = pl.col("scrape").is_not_null()
    found = found.filter(changed.fill_null(False)).sort(
        scraped, pl.when(scraped).then("line"), "ts", "key", maintain_order=True
    )
    per_pos: pl.Expr = pl.lit(None, pl.List(pl.Int64))
    if places:
        listed = pl.concat_list([pl.col(f"d.{c}").cast(pl.Int64) for c in places]).list.drop_nulls()
        falls = (listed.list.diff().list.max().fill_null(0) <= 0) & (listed.list.min() >= 0)
        fits = (listed.list.sum() == pl.col("d.accepted")) & falls & (listed.list.first() <= pl.col("d.rounds"))
        per_pos = pl.when(fits).then(listed)
    several = found["target"].n_unique() > 1
    timed = pl.col("d.gaps") > 0
    counted = pl.col("d.drafted").is_not_null() | pl.col("d.generated").is_not_null()
    label = pl.col("engine")
    zero = pl.when("none").then(0)
    return found.select(
        "ts_basis",
        source_line=pl.when(scraped).then("line").otherwise((~scraped).cast(pl.Int64).cum_sum()),
        surface=pl.lit(METRICS),
        # What a proxy may have put there instead of an index is not kept, as it may be an address.
        replica=pl.when(label.str.contains(r"^[0-9]{1,6}$")).then(label.cast(pl.Int64, strict=False).cast(pl.String)),
        process=pl.format("target {}", "target") if several else pl.lit(None, pl.String),
        model=leaf(pl.col("model_name")),
        num_speculative_tokens=_even(pl.col("d.drafted"), pl.col("d.rounds")).cast(pl.Int32, strict=False),
        ts_start="start",
        ts_end="ts",
        window_us=(pl.col("ts") - pl.col("start")).dt.total_microseconds(),
        rounds=pl.coalesce(zero, _int("d.rounds")),
        rounds_basis=pl.when(pl.col("d.rounds").is_not_null() | pl.col("none")).then(pl.lit("logged")),
        plain_steps=_int("plain"),
        drafted=pl.coalesce(zero, _int("d.drafted")),
        accepted=pl.coalesce(zero, _int("d.accepted")),
        accepted_per_pos=per_pos,
        emitted=_int("emitted"),
        counts_basis=pl.when(counted).then(pl.lit("logged")),
        round_us=pl.when(timed).then((pl.col("d.gap_s") * 1e6).round()).cast(pl.Int64, strict=False),
        rounds_timed=pl.when(timed).then(_int("d.gaps")),
        time_basis=pl.when(timed).then(pl.lit("sum")),
        generated_tokens=_int("d.generated"),
        prompt_tokens=_int("d.prompt"),
        running=_int("now_running"),
        waiting=_int("now_waiting"),
        kv_cache_usage=pl.when(pl.col("kv") <= 1).then("kv"),
        **_stood(places),
    )  # fmt: skip


def _stood(places: Sequence[str]) -> dict[str, pl.Expr]:
    """What the counters stand at, see `scraped.stood`."""
    names = {"rounds_timed": "gaps", "generated_tokens": "generated", "prompt_tokens": "prompt"}
    counts = {column: scraped.counted(name) for column, name in names.items()}
    counts |= {c: pl.when("none").then(0.0).otherwise(scraped.counted(c)) for c in ("rounds", "drafted", "accepted")}
    counts |= {
        "plain_steps": pl.when("none").then("gaps"), "round_us": scraped.counted("gap_s") * 1e6,
        "emitted": scraped.counted("generated") - pl.col("firsts"),
    }  # fmt: skip
    return scraped.stood(counts, [scraped.counted(c) for c in places])


def _even(drafted: pl.Expr, rounds: pl.Expr) -> pl.Expr:
    """Drafted tokens a round, where they are a whole number."""
    return pl.when((rounds > 0) & (drafted % rounds == 0)).then(drafted / rounds)


def _int(column: str) -> pl.Expr:
    return pl.col(column).round().cast(pl.Int64, strict=False)


ENGINE = LMDeploy()
