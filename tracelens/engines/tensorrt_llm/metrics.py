"""Prometheus metrics of trtllm-serve (`/prometheus/metrics`): counters differenced to windows.

Two pairs of counters speak of acceptance (`tensorrt_llm/metrics/collector.py`, 2026):

* `spec_decode_drafted_tokens{token_position}` and `spec_decode_accepted_tokens{token_position}` (#12636) are added when
  a request finishes, before its output is cut. Position 0 drafts once a round, so it counts the rounds; accepted tokens
  at a position are those rounds that accepted up to it. A position that accepted nothing is not exported.
* `spec_decode_num_draft_tokens` and `..._num_accepted_tokens` sum the iteration stats. Under attention DP an iteration
  has a record a rank with the same numbers in each, and all are added: the ratio holds, the counts are ranks times too
  large. They are taken only where the first pair is missing, and give rounds only with a K that the page tells.

Neither is exported before something was drafted, so their absence says that nothing was drafted only where the page has
other figures of iteration stats (and no configuration of speculation). Of the gauges none is read that is of the last
iteration (`acceptance_length`, `draft_overhead`, `iteration_latency_seconds`): a scrape sees one in thousands.

`generation_tokens` is added when a request finishes and has its first token, which prefill gave; `time_to_first_token`
counts those. `request_decode_time_seconds` is the time behind it, so that of all the request's rounds and plain steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.engines import counters, scraped
from tracelens.engines.base import Context, Parsed, Reject, Surface, Tables
from tracelens.engines.counters import Group, Layout, both
from tracelens.engines.tensorrt_llm.methods import drafts_always, short
from tracelens.engines.versions import Range, Versions
from tracelens.engines.vllm.startup import leaf

METRICS = "trtllm.metrics"
SURFACES: tuple[Surface, ...] = (
    Surface(
        METRICS,
        "Prometheus counters of /prometheus/metrics (between two scrapes; the first from the server's start)",
        Versions(Range("2026", form="{first}"), " (rounds and positions since #12636)"),
        (
            "draft_accept_ratio", "hazard", "survival", "tau_verified", "tau_committed", "rollback_len",
            "near_k_round_share", "step_ms", "running",
        ),
        "return_perf_metrics: true, enable_iter_perf_stats: true; keep what /prometheus/metrics says every few seconds",
    ),
)  # fmt: skip
PREFIXES: Sequence[str] = ("trtllm_",)

_CONFIG = "trtllm_speculative_config_info"
_DRAFTED, _ACCEPTED, _POSITION = "at_drafted", "at_accepted", "token_position"
_LAYOUT = Layout(
    columns={
        **both("trtllm_spec_decode_drafted_tokens", _DRAFTED),
        **both("trtllm_spec_decode_accepted_tokens", _ACCEPTED),
        **both("trtllm_spec_decode_num_draft_tokens", "sum_drafted"),
        **both("trtllm_spec_decode_num_accepted_tokens", "sum_accepted"),
        **both("trtllm_generation_tokens", "generated"),
        **both("trtllm_prompt_tokens", "prompt"),
        "trtllm_time_to_first_token_seconds_count": "firsts",
        "trtllm_request_decode_time_seconds_sum": "decode_s",
        "trtllm_num_requests_running": "now_running",
        "trtllm_num_requests_waiting": "now_waiting",
        "trtllm_kv_cache_utilization": "kv",
    },
    own=("model_name",),
    positions={_DRAFTED: _POSITION, _ACCEPTED: _POSITION},
)
_COUNTS = ("sum_drafted", "sum_accepted", "generated", "prompt", "firsts")
_BROKEN = "accepted <= drafted does not hold"


def parse(frame: pl.DataFrame) -> Parsed:
    """Take samples (columns of `MetricsReader.metrics`): all of TensorRT-LLM's are claimed, those that matter kept."""
    parsed = Parsed(claimed=frame.height)
    parsed.add(METRICS, frame.filter(pl.col("name").is_in([*_LAYOUT.names, _CONFIG])))
    return parsed


def assemble(samples: pl.DataFrame, context: Context) -> Tables:
    """Windows between consecutive scrapes of each server; the first one runs from the counters' own start."""
    tables = Tables()
    counted = samples.filter(pl.col("name") != _CONFIG)
    rows = counters.scrapes(counted, _LAYOUT, context.resolve, METRICS, tables.rejects)
    if not rows.height:
        return tables
    rows, drafted, accepted = _positions(rows)
    groups = [
        Group(("sum_drafted", "sum_accepted")), Group(("generated",), ("firsts", "decode_s")), Group(("prompt",)),
    ]  # fmt: skip
    if drafted:
        groups.insert(0, Group((drafted[0],), (*drafted[1:], *accepted)))
    rows = scraped.grown(rows, (*_COUNTS, *drafted, *accepted), groups, METRICS, tables.rejects)
    rows = _counted(rows, drafted, accepted)
    broken = (pl.col("accepted") > pl.col("drafted")).fill_null(False)
    tables.rejects += [Reject(line, _BROKEN, METRICS) for line in rows.filter(broken)["line"]]
    told = ("rounds", "drafted", "accepted")
    rows = rows.with_columns(pl.when(~broken).then(c).alias(c) for c in told)
    tables.windows = _windows(scraped.changed(rows), accepted, _configured(samples))
    return tables


def _positions(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Rows with 0 for positions that are not exported yet, and the columns of both counters, equally many."""
    depth = len(scraped.places(rows, _DRAFTED))
    drafted, accepted = ([f"{c}.{i}" for i in range(depth)] for c in (_DRAFTED, _ACCEPTED))
    if not depth or drafted[0] not in rows.columns:
        return rows, [], []
    rows = rows.with_columns(pl.lit(None, pl.Float64).alias(c) for c in (*drafted, *accepted) if c not in rows.columns)
    # A query may have asked for one of the two; a page has both.
    asked = pl.any_horizontal(pl.col(accepted).is_not_null().any())
    page = pl.col(drafted[0]).is_not_null() & (pl.col("scrape").is_not_null() | asked)
    filled = [pl.when(page).then(pl.col(c).fill_null(0)).otherwise(c).alias(c) for c in (*drafted, *accepted)]
    return rows.with_columns(filled), drafted, accepted


def _counted(rows: pl.DataFrame, drafted: Sequence[str], accepted: Sequence[str]) -> pl.DataFrame:
    """Rows with `rounds`, `drafted`, `accepted`: of the counters by position where the process has them."""
    nothing = pl.lit(None, pl.Float64)
    if not drafted:
        return rows.with_columns(rounds=nothing, drafted=pl.col("d.sum_drafted"), accepted=pl.col("d.sum_accepted"))
    placed = pl.col(drafted[0]).is_not_null().any().over("key")
    all_of = {
        "drafted": pl.sum_horizontal([f"d.{c}" for c in drafted], ignore_nulls=False),
        "accepted": pl.sum_horizontal([f"d.{c}" for c in accepted], ignore_nulls=False),
    }
    # No position can draft more often than the first one.
    rounds = pl.when(pl.all_horizontal([pl.col(f"d.{c}") <= pl.col(f"d.{drafted[0]}") for c in drafted])).then(
        f"d.{drafted[0]}"
    )
    return rows.with_columns(
        rounds=pl.when(placed).then(rounds),
        **{c: pl.when(placed).then(total).otherwise(f"d.sum_{c}") for c, total in all_of.items()},
    )


def _configured(samples: pl.DataFrame) -> dict[str, str]:
    """Labels of the speculative configuration, where all pages tell the same one."""
    texts = samples.filter(pl.col("name") == _CONFIG)["labels"].unique(maintain_order=True)
    wanted = ("spec_enabled", "spec_method", "spec_num_tokens", "spec_draft_model")
    found = [{k: v for k, v in counters.labels_of(t).items() if k in wanted} for t in texts]
    return found[0] if found and all(f == found[0] for f in found) else {}


def _windows(rows: pl.DataFrame, accepted: Sequence[str], config: dict[str, str]) -> pl.DataFrame:
    """Canonical windows."""
    text = config.get("spec_num_tokens", "")
    k = int(text) if text.isdecimal() and 0 < len(text) < 6 else None
    rows = _stepped(_plain(rows, bool(config)), k if drafts_always(config.get("spec_method")) else None)
    method, draft_model = config.get("spec_method"), config.get("spec_draft_model")
    counted = pl.any_horizontal(pl.col("drafted", "d.generated").is_not_null())
    drafting = pl.col("drafted") > 0
    return rows.select(
        "source_line", "ts_basis", "rounds_basis",
        surface=pl.lit(METRICS),
        process=scraped.target(rows),
        model=leaf(pl.col("model_name")),
        method=pl.when(drafting).then(pl.lit(short(method), pl.String)),
        draft_model=pl.when(drafting).then(leaf(pl.lit(draft_model, pl.String))),
        num_speculative_tokens=pl.when(drafting).then(pl.lit(k, pl.Int32)),
        ts_start="start",
        ts_end="ts",
        window_us=(pl.col("ts") - pl.col("start")).dt.total_microseconds(),
        rounds=scraped.whole("rounds"),
        plain_steps=scraped.whole("plain"),
        drafted=scraped.whole("drafted"),
        accepted=scraped.whole("accepted"),
        accepted_per_pos=scraped.per_position(accepted, pl.col("accepted"), pl.col("rounds")),
        emitted=scraped.whole("emitted"),
        counts_basis=pl.when(counted).then(pl.lit("logged")),
        round_us=pl.when(pl.col("timed") > 0).then((pl.col("d.decode_s") * 1e6).round()).cast(pl.Int64, strict=False),
        rounds_timed=scraped.whole("timed"),
        time_basis=pl.when(pl.col("timed") > 0).then(pl.lit("sum")),
        generated_tokens=scraped.whole("d.generated"),
        prompt_tokens=scraped.whole("d.prompt"),
        running=scraped.level("now_running"),
        waiting=scraped.level("now_waiting"),
        kv_cache_usage=pl.when(pl.col("kv").is_between(0, 1)).then("kv"),
        **_stood(rows, accepted),
    )  # fmt: skip


def _stood(rows: pl.DataFrame, accepted: Sequence[str]) -> dict[str, pl.Expr]:
    """What the counters stand at, see `scraped.stood`."""
    drafted = [c.replace(_ACCEPTED, _DRAFTED) for c in accepted]
    placed = pl.col(f"d.{drafted[0]}").is_not_null() if drafted else pl.lit(False)

    def total(columns: Sequence[str], whole: str) -> pl.Expr:
        by_place = pl.sum_horizontal([pl.lit(0.0), *columns], ignore_nulls=False)
        return pl.when("none").then(0.0).when(placed).then(by_place).otherwise(scraped.counted(whole))

    counts = {
        "drafted": total(drafted, "sum_drafted"), "accepted": total(accepted, "sum_accepted"),
        "rounds": pl.when("none").then(0.0).when(placed).then(drafted[0] if drafted else None),
        "generated_tokens": scraped.counted("generated"), "prompt_tokens": scraped.counted("prompt"),
        "round_us": scraped.counted("decode_s") * 1e6,
    }  # fmt: skip
    out = scraped.counted("generated") - pl.col("firsts")
    steps = out - counts["accepted"]
    counts |= {"emitted": out, "plain_steps": steps - counts["rounds"], "rounds_timed": steps}
    return scraped.stood(counts, [scraped.counted(c) for c in accepted])


def _plain(rows: pl.DataFrame, configured: bool) -> pl.DataFrame:
    """Rows with `emitted` (behind the first tokens) and, for a server that drafts nothing, zeros of the rest."""
    silent = ~pl.any_horizontal(pl.col("drafted", "accepted", "sum_drafted").is_not_null()).any().over("key")
    alive = pl.col("scrape").is_not_null() & pl.col("now_running").is_not_null()
    none = silent & alive & pl.lit(not configured) & pl.col("d.generated").is_not_null()
    out = pl.col("d.generated") - pl.col("d.firsts")
    zero = {c: pl.when("none").then(0.0).otherwise(c) for c in ("rounds", "drafted", "accepted")}
    return rows.with_columns(none=none.fill_null(False), out=pl.when(out >= 0).then(out)).with_columns(**zero)


def _stepped(rows: pl.DataFrame, k: int | None) -> pl.DataFrame:
    """Rows with `rounds` (also from a K that every round drafts), `emitted`, `plain` steps, and the `timed` of both.

    The counters by position and the tokens are those of the same finished requests. More tokens than rounds can give
    came from plain steps, at least so many; fewer than one a round can't be (several answers to one request are left
    out of the tokens).
    """
    even = pl.lit(None, pl.Float64) if k is None else pl.when(pl.col("drafted") % k == 0).then(pl.col("drafted") / k)
    logged = pl.col("rounds").is_not_null() & ~pl.col("none")
    derived = ~logged & (pl.col("none") | even.is_not_null())
    basis = pl.when(logged).then(pl.lit("logged")).when(derived).then(pl.lit("derived"))
    same = pl.when(pl.col("none") | (logged & (pl.col("out") >= pl.col("rounds")))).then("out")
    rows = rows.with_columns(rounds_basis=basis, emitted=same, rounds=pl.coalesce("rounds", even))
    more = (pl.col("emitted") - pl.col("accepted") - pl.col("rounds")).clip(lower_bound=0)
    rows = rows.with_columns(plain=more)
    return rows.with_columns(timed=pl.when(pl.col("d.decode_s") > 0).then(pl.col("rounds") + pl.col("plain")))
