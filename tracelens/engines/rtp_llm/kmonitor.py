"""RTP-LLM's kmonitor gauges: log-sink lines in engine.log, flume bodies, Prometheus push text.

The engine reports its gauges every step; kmonitor writes one record a gauge and tag set every 10 s (level NORMAL):

    rtp_llm_sp_step_latency_us 1787229620000 53387.25_213549_53521_53266_4 dp_rank=0 host=... kmon_service_name=

name, stamp (ms), `avg_sum_max_min_count`, tags. The log sink (`kmonitorEnableLogFileSink`) writes the same as an INFO
line of engine.log, without the RANK part. Push text has the average alone, so it tells times of a mean step, and no
count. What RTP-LLM calls accepted has the target's own token in it; here `accepted` never has.

No tag is kept but `dp_rank`: the others name hosts, addresses and folders.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.engines.base import Parsed, Reject, Tables
from tracelens.engines.units import LONGEST_DRAFT

SURFACE = "rtp.kmonitor"
GAUGES = "rtp.kmonitor_gauges"
METRIC_PREFIXES: Sequence[str] = ("rtp_llm_",)

_STEP = "rtp_llm_sp_step_latency_us"
_DRAFT = "rtp_llm_sp_propose_step_latency_us"
_TARGET = "rtp_llm_sp_score_step_latency_us"
_SAMPLE = "rtp_llm_sp_speculative_sampler_latency_us"
_PROPOSED = "rtp_llm_sp_total_propose_token_num"  # tokens a step, reported where > 0
_COMMITTED = "rtp_llm_sp_total_accepted_token_num"  # tokens a step, the target's own among them
_PER_STREAM = "rtp_llm_sp_avg_accept_token_num"  # committed / streams (2025-09-04)
_RATE = "rtp_llm_sp_avg_accept_rate"  # committed / streams / (K + 1) (2026-08-19)
_DRAFT_RATE = "rtp_llm_sp_avg_fix_accept_rate"  # (committed / streams - 1) / K (2026-08-19)
# The engine's own loop, with or without speculation.
_LOOP = "rtp_llm_step_latency_us"
_DECODING = "rtp_llm_generate_batch_size"
_PREFILLING = "rtp_llm_context_batch_size"
_RUNNING = "rtp_llm_running_stream_size"
_WAITING = "rtp_llm_wait_stream_size"
_SPECULATIVE = (_STEP, _DRAFT, _TARGET, _SAMPLE, _PROPOSED, _COMMITTED, _PER_STREAM, _RATE, _DRAFT_RATE)
# What follows from the others, and is recognised only.
_ESTIMATES = ("rtp_llm_sp_estimate_tpot_us",)
_METRICS = (*_SPECULATIVE, *_ESTIMATES, _LOOP, _DECODING, _PREFILLING, _RUNNING, _WAITING)

NEEDLES: Sequence[bytes] = tuple(f"{name} ".encode() for name in _METRICS)

_PERIOD_MS = 10_000
_NUMBER = r"-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf)"
# alog's prefix, where the line is one of engine.log. A metric named inside another message is not read.
_HEAD = r"^(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3,6}\] \[[A-Z0-9]+\] \[(?P<pid>\d+):\d+\] ?)?" + (
    rf"(?P<metric>{'|'.join(_METRICS)}) "
)
_LINE = (
    rf"{_HEAD}(?P<ms>\d{{13}}) (?P<avg>{_NUMBER})_(?P<sum>{_NUMBER})_(?P<max>{_NUMBER})_(?P<min>{_NUMBER})_"
    r"(?P<count>\d{1,15})(?P<tags>(?: [^\s=]+=\S*)*)\s*$"
)
# What is whole here must be within this of a whole number: ten digits are printed.
_WHOLE = 1e-6
_COUNT_LIMIT = 2.0**53


def lines(frame: pl.DataFrame) -> Parsed:
    """Records of the log sink and of flume bodies, one row a record.

    Args:
        frame: as `Engine.lines`.
    """
    parsed = Parsed()
    near = frame.filter(pl.col("text").str.contains("rtp_llm_", literal=True))
    near = near.filter(pl.col("text").str.contains(_HEAD + r"\d"))
    if not near.height:
        return parsed
    numbers = ("avg", "sum", "max", "min")
    tags = pl.col("tags")
    rows = near.with_columns(pl.col("text").str.extract_groups(_LINE).alias("_found")).unnest("_found")
    rows = rows.select(
        "line", "offset", "stamp", "stream", "metric", "pid",
        *(pl.col(c).cast(pl.Float64, strict=False) for c in numbers),
        pl.col("ms", "count").cast(pl.Int64, strict=False),
        dp_rank=tags.str.extract(r" dp_rank=(\d{1,9})(?:\s|$)", 1),
        # Which writer it is, without what tells who: tags hold addresses.
        writer=tags.str.replace(r" dp_rank=\S*", "").hash(),
    )  # fmt: skip
    # A number that was cut is another number; the average and the sum tell.
    total = pl.col("avg") * pl.col("count")
    agree = (total - pl.col("sum")).abs() <= 1e-8 * pl.col("sum").abs() + 1e-6 * pl.col("count")
    usable = pl.all_horizontal(*(pl.col(c).is_finite() & (pl.col(c) >= 0) for c in numbers)) & (pl.col("count") > 0)
    reason = (
        pl.when(pl.col("metric").is_null() | pl.col("count").is_null())
        .then(pl.lit("gauge line is not whole"))
        .when(~usable.fill_null(False))
        .then(pl.lit("gauge is no finite number from 0 on, or was never reported"))
        .when(~agree)
        .then(pl.lit("identity broken: avg * count = sum"))
    )
    rows = rows.with_columns(_why=reason)
    for line, offset, why in rows.filter(pl.col("_why").is_not_null()).select("line", "offset", "_why").iter_rows():
        parsed.rejects.append(Reject(line, why, SURFACE, offset))
    good = rows.filter(pl.col("_why").is_null()).drop("_why")
    parsed.claimed += good.height
    parsed.add(SURFACE, good)
    return parsed


def metrics(frame: pl.DataFrame) -> Parsed:
    """Prometheus samples of the gauges (`MetricsReader.metrics`): averages without counts.

    Args:
        frame: as `MetricsReader.metrics`.
    """
    parsed = Parsed()
    labels = pl.col("labels").fill_null("")
    own = frame.filter(pl.col("name").is_in(_METRICS) & pl.col("value").is_finite() & (pl.col("value") >= 0))
    own = own.select(
        "line", "scrape", "stamp", "stream", "value",
        metric="name",
        dp_rank=labels.str.extract(r'(?:^|,)\s*dp_rank="(\d{1,9})"', 1),
        writer=labels.str.replace(r'dp_rank="[^"]*",?', "").hash(),
    )  # fmt: skip
    parsed.claimed += own.height
    parsed.add(GAUGES, own)
    return parsed


def windows(frame: pl.DataFrame, configured: int | None, tables: Tables) -> pl.DataFrame:
    """Canonical windows of the records, one a stamp and writer.

    Args:
        frame: what `lines` gave, in file order.
        configured: K by a configuration dump in the same source, for gauges that do not tell it.
        tables: windows that break an identity go to its rejects.
    """
    # Several tensor-parallel ranks may report the same gauges: their tags are the same, and the first one counts.
    bucket = pl.col("ms") // _PERIOD_MS
    first = pl.col("pid").first().over("stream", "writer", "dp_rank", bucket)
    rows = frame.sort("line", maintain_order=True).filter(pl.col("pid").eq_missing(first))
    values = {
        f"{stat} {metric}": pl.col(stat).filter(pl.col("metric") == metric).first()
        for metric in _METRICS
        for stat in ("sum", "count", "max", "min")
    }
    key = ["stream", "writer", "dp_rank", "pid", "ms"]
    wide = rows.group_by(key, maintain_order=True).agg(pl.col("line", "offset").first(), **values)
    wide = _numbered(wide).with_columns(k=_k(configured))
    wide = wide.with_columns(_counts()).with_columns(_times()).with_columns(_plain())
    broken = ~pl.col("accepted").is_between(0, pl.col("drafted"))
    for line, offset in wide.filter(broken).select("line", "offset").iter_rows():
        why = "identity broken: rounds <= committed tokens <= rounds + proposed tokens"
        tables.rejects.append(Reject(line, why, SURFACE, offset))
    told = pl.any_horizontal(pl.col("steps", "drafted", "emitted").is_not_null())
    wide = wide.filter(~broken.fill_null(False) & told)
    counted = pl.col("accepted").is_not_null()
    return wide.select(
        "process", "steps", "rounds", "plain_steps", "drafted", "accepted", "emitted", "draft_us", "target_us",
        "sample_us", "step_us",
        source_line="line",
        surface=pl.lit(SURFACE),
        replica="dp_rank",
        ts_start=_time(pl.col("ms") - _PERIOD_MS),
        ts_end=_time(pl.col("ms")),
        ts_basis=pl.lit("absolute"),
        window_us=pl.lit(_PERIOD_MS * 1000, pl.Int64),
        num_speculative_tokens=pl.col("k").cast(pl.Int32),
        rounds_basis=pl.when(pl.col("rounds").is_not_null()).then(pl.lit("derived")),
        counts_basis=pl.when(counted).then(pl.lit("derived")).otherwise(pl.lit("logged")),
        time_basis=pl.lit("sum"),
        running=_mean(_RUNNING),
        waiting=_mean(_WAITING),
    )  # fmt: skip


def gauge_windows(frame: pl.DataFrame) -> pl.DataFrame:
    """Canonical windows of Prometheus samples with `ts` and `ts_basis`: times of a mean step, no counts.

    A gauge stays as it is until the next period; scrapes in between repeat it, and count once.
    """
    key = ["stream", "writer", "dp_rank", "scrape", "stamp"]
    values = [pl.col("value").filter(pl.col("metric") == m).first().alias(f"mean {m}") for m in _METRICS]
    rows = frame.sort("line", maintain_order=True)
    wide = rows.group_by(key, maintain_order=True).agg(pl.col("line", "ts", "ts_basis").first(), *values)
    wide = _numbered(wide)
    series = ["stream", "writer", "dp_rank"]
    figures = pl.struct([f"mean {m}" for m in _METRICS])
    wide = wide.filter(figures.hash().ne_missing(figures.hash().shift(1).over(series)))
    k = _nearest(pl.col(f"mean {_PER_STREAM}") / pl.col(f"mean {_RATE}") - 1)
    k = pl.coalesce(k, _nearest((pl.col(f"mean {_PER_STREAM}") - 1) / pl.col(f"mean {_DRAFT_RATE}")))
    draft, target, sample = (pl.col(f"mean {m}") for m in (_DRAFT, _TARGET, _SAMPLE))
    draft, target, sample = _measured(draft, target, sample, pl.lit(True))
    step = pl.col(f"mean {_STEP}")
    wide = wide.with_columns(k=k, draft=draft, target=target, sample=sample, step=pl.when(step > 0).then(step))
    wide = wide.filter(pl.any_horizontal(pl.col("draft", "target", "sample", "step").is_not_null()))
    return wide.select(
        "process", "ts_basis",
        source_line="line",
        surface=pl.lit(GAUGES),
        replica="dp_rank",
        ts_end="ts",
        num_speculative_tokens=pl.col("k").cast(pl.Int32),
        draft_us=_whole_number(pl.col("draft")),
        target_us=_whole_number(pl.col("target")),
        sample_us=_whole_number(pl.col("sample")),
        step_us=_whole_number(pl.col("step")),
        draft_ms_per_token=pl.col("draft") / pl.col("k") / 1000,
        time_basis=pl.lit("mean"),
        running=_whole_number(pl.col(f"mean {_RUNNING}")),
        waiting=_whole_number(pl.col(f"mean {_WAITING}")),
    )  # fmt: skip


def _sum(metric: str) -> pl.Expr:
    return pl.col(f"sum {metric}")


def _count(metric: str) -> pl.Expr:
    return pl.col(f"count {metric}")


def _mean(metric: str) -> pl.Expr:
    """The mean of the period: kmonitor does not keep the last value."""
    return _whole_number(_sum(metric) / _count(metric))


def _time(ms: pl.Expr) -> pl.Expr:
    return pl.from_epoch(ms, time_unit="ms").cast(pl.Datetime("us"))


def _whole_number(value: pl.Expr) -> pl.Expr:
    return pl.when(value < _COUNT_LIMIT).then((value + 0.5).floor()).cast(pl.Int64)


def _nearest(value: pl.Expr) -> pl.Expr:
    """K, where the figure is a whole number from 1 on."""
    whole = ((value - value.round()).abs() <= _WHOLE * value.abs().clip(1)) & value.is_between(0.5, LONGEST_DRAFT)
    return pl.when(whole).then(value.round()).cast(pl.Int64)


def _k(configured: int | None) -> pl.Expr:
    """K of a window, by what each gauge is (sums of the same steps; none of them where K changed in between).

    committed / streams and its rate tell it (2026-08-19); before, a window in which every step had one stream does:
    there committed = committed / streams, which is never the case otherwise, and all proposals are one length.
    """
    per, rate, fix = _sum(_PER_STREAM), _sum(_RATE), _sum(_DRAFT_RATE)
    same = {m: _count(m) == _count(_PER_STREAM) for m in (_RATE, _DRAFT_RATE, _COMMITTED, _PROPOSED)}
    single = (_sum(_COMMITTED) - per).abs() <= _WHOLE * per
    constant = pl.col(f"max {_PROPOSED}") == pl.col(f"min {_PROPOSED}")
    return pl.coalesce(
        pl.when(same[_RATE]).then(_nearest(per / rate - 1)),
        pl.when(same[_DRAFT_RATE]).then(_nearest((per - _count(_PER_STREAM)) / fix)),
        pl.when(same[_COMMITTED] & same[_PROPOSED] & single & constant).then(_nearest(pl.col(f"max {_PROPOSED}"))),
        pl.lit(configured, pl.Int64),
    )


def _counts() -> list[pl.Expr]:
    """Rounds = proposed / K; accepted = committed - rounds. Only where both gauges speak of the same steps."""
    drafted, committed, k = _whole_number(_sum(_PROPOSED)), _whole_number(_sum(_COMMITTED)), pl.col("k")
    # A step without a proposal reports what it committed all the same.
    same = _count(_PROPOSED) == _count(_COMMITTED)
    rounds = pl.when(drafted % k == 0).then(drafted // k)
    steps = pl.coalesce(_count(_STEP), _count(_COMMITTED))
    return [
        steps.alias("steps"),
        drafted.alias("drafted"),
        rounds.alias("rounds"),
        pl.when(same).then(committed).alias("emitted"),
        pl.when(same).then(committed - rounds).alias("accepted"),
    ]


def _times() -> list[pl.Expr]:
    """Sums over the steps of the window; a gauge with another number of reports stands for other steps."""
    sums = {m: pl.when(_count(m) == pl.col("steps")).then(_sum(m)) for m in (_DRAFT, _TARGET, _SAMPLE, _STEP)}
    phases = _measured(sums[_DRAFT], sums[_TARGET], sums[_SAMPLE], pl.col("drafted").fill_null(0) > 0)
    named = dict(zip(("draft_us", "target_us", "sample_us"), phases, strict=True))
    named["step_us"] = pl.when(sums[_STEP] > 0).then(sums[_STEP])
    return [_whole_number(value).alias(name) for name, value in named.items()]


def _measured(draft: pl.Expr, target: pl.Expr, sample: pl.Expr, drafts: pl.Expr) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """Phases, with what nobody measured as NULL.

    MtpExecutor (main since 402c80393, 2025-12-25) reports the three gauges and assigns none: 0, 0, 0 is "not measured".
    No single pass takes 0 us either; only the draft phase of steps that drafted nothing does.
    """
    none = ~pl.any_horizontal(draft > 0, target > 0, sample > 0).fill_null(False)
    return (
        pl.when(~none & ((draft > 0) | ~drafts)).then(draft),
        pl.when(target > 0).then(target),
        pl.when(sample > 0).then(sample),
    )


def _plain() -> list[pl.Expr]:
    """Steps of an engine that does not speculate, in a window without prefill: each stream one token."""
    same = (_count(_LOOP) == _count(_DECODING)) & (_count(_LOOP) == _count(_PREFILLING))
    silent = pl.all_horizontal([_count(m).is_null() for m in _SPECULATIVE])
    plain = (silent & same & (_sum(_PREFILLING) == 0) & (_sum(_DECODING) > 0) & (_sum(_LOOP) > 0)).fill_null(False)
    tokens = _whole_number(_sum(_DECODING))
    nothing = pl.lit(0, pl.Int64)
    values = {"steps": _count(_LOOP), "step_us": _whole_number(_sum(_LOOP)), "emitted": tokens}
    values |= dict.fromkeys(("rounds", "drafted", "accepted"), nothing)
    return [
        pl.when(plain).then(tokens).alias("plain_steps"),
        *(pl.when(plain).then(value).otherwise(name).alias(name) for name, value in values.items()),
    ]


def _numbered(wide: pl.DataFrame) -> pl.DataFrame:
    """Add `process`: numbers in order of appearance where several writers share a source, never what tags say."""
    first = pl.col("line").min().over("stream", "writer")
    number = first.rank("dense").cast(pl.Int64)
    several = pl.struct("stream", "writer").n_unique() > 1
    return wide.with_columns(process=pl.when(several).then(pl.format("writer {}", number)))
