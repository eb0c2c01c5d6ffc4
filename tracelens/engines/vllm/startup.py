"""vLLM's start-up lines: version, model, drafter, method, K, parallelism, simulated acceptance."""

from __future__ import annotations

import datetime as dt
import hashlib

import polars as pl

# The settings are a Python repr: `key='text'`, `key=1` (engine config) or `'key': 'text'` (non-default args).
_TEXT = r"""['"]?\b{key}['"]?\s*[=:]\s*\[?['"]([^'"]*)['"]"""
_INT = r"""['"]?\b{key}['"]?\s*[=:]\s*(\d+)"""
_BOOL = r"""['"]?\b{key}['"]?\s*[=:]\s*(True|False)"""
# The speculative config's own part, so that its `model` and `method` are not the target's. "draft_model='[ngram]'"
# named the method up to 0.7.
_SPEC = r"speculative_config['\"]?\s*[=:]\s*(?:SpeculativeConfig\(([^)]*)\)|\{((?:[^{}]|\{[^{}]*\})*)\})"
_OFF = r"speculative_config['\"]?\s*[=:]\s*None"
# From 0.20 acceptance can be simulated. Only these keys say so: a drafter may be called synthetic.
_FORCED = r"""rejection_sample_method['"]?\s*[=:]\s*['"]synthetic|synthetic_acceptance_\w+['"]?\s*[=:]\s*[^\sN]"""
# Of which line a start is told: one of these opens another start where it is there already.
_API, _ARGS, _SCHEDULING, _ENGINE = range(4)
# A start prints some fifty lines from its arguments to its engine's line, within a minute or two.
_NEAR_LINES, _NEAR = 500, dt.timedelta(minutes=10)
# `served_model_name=tiny`: the engine's line prints it without quotes.
_SERVED = r"\bserved_model_name=([^\s,'\"\[\]()]+)"
# A folder of some machine, or an address: reduced to its last part.
_PLACE = r"^(?:[/\\~.]|[A-Za-z]:|\w+://)"


def _text(key: str, source: pl.Expr) -> pl.Expr:
    return source.str.extract(_TEXT.format(key=key), 1)


def _int(key: str, source: pl.Expr) -> pl.Expr:
    return source.str.extract(_INT.format(key=key), 1).cast(pl.Int32, strict=False)


def leaf(path: pl.Expr) -> pl.Expr:
    """A model's name without the folder it was loaded from: paths of a machine stay out of the lake."""
    return pl.when(path.str.contains(_PLACE)).then(path.str.extract(r"([^/\\]+)[/\\]*$", 1)).otherwise(path)


_FIRST = (
    "engine_version",
    "engine_era",
    "model",
    "method",
    "draft_model",
    "num_speculative_tokens",
    "tensor_parallel",
    "data_parallel",
    "max_num_seqs",
)


def runs(starts: pl.DataFrame) -> pl.DataFrame:
    """One row a start: consecutive start-up lines of one stream are one start until one of their kinds repeats.

    Args:
        starts: the `vllm.start` frame (message, era, version, api, scheduling, stream, line, ts).

    Returns:
        Columns of the canonical table `runs` that are known, `run_key` (1, 2, …), `first_line`, `stream`, `start_key`
        (a digest of the first line), and `is_async` (steps are scheduled ahead; null: nobody can tell).
    """
    rows = _settings(starts)
    first = [pl.col(c).drop_nulls().first() for c in _FIRST]
    out = (
        rows.with_columns(run_key=_start_number(rows))
        .filter(pl.col("run_key") > 0)
        .group_by("run_key", maintain_order=True)
        .agg(
            pl.col("line").min().alias("first_line"),
            pl.col("stream").first(),
            # What every server prints in the same words tells no start from another one.
            pl.coalesce(
                pl.col("start_key").filter(pl.col("kind") != _SCHEDULING).first(), pl.col("start_key").first()
            ).alias("start_key"),
            pl.col("ts").min().alias("started"),
            *first,
            pl.col("forced_acceptance", "off", "speculative", "dynamic_k", "parallel_drafting", "on_cpu").any(),
            pl.col("told_async").drop_nulls().last(),
        )
    )
    return out.with_columns(
        role=pl.when("speculative").then(pl.lit("speculative")).when("off").then(pl.lit("baseline")),
        # A release before 0.7 knows V0 only and does not say so.
        engine_era=pl.coalesce(
            "engine_era", pl.when(pl.col("engine_version").str.contains(r"^0\.[0-6]\.")).then(pl.lit("v0"))
        ),
        config=pl.concat_list(
            pl.struct(key=pl.lit("dynamic_k"), value=pl.when("dynamic_k").then(pl.lit("true"))),
            pl.struct(key=pl.lit("parallel_drafting"), value=pl.when("parallel_drafting").then(pl.lit("true"))),
            pl.struct(key=pl.lit("async_scheduling"), value=pl.col("told_async").cast(pl.String)),
        ).list.filter(pl.element().struct.field("value").is_not_null()),
        is_async=_is_async(),
    ).drop("off", "speculative", "dynamic_k", "parallel_drafting", "on_cpu", "told_async")


def _is_async() -> pl.Expr:
    """Whether steps are scheduled ahead: as the log says, else by default.

    It is the default from 0.14 without speculation and for EAGLE and MTP (vllm#31998), from 0.16 for draft models, from
    0.18 for ngram_gpu; never on a CPU, and other drafters turn it off. 0.14 and later print which of them it is.
    """
    minor = pl.col("engine_version").str.extract(r"^0\.(\d+)", 1).cast(pl.Int32, strict=False)
    method = pl.col("method")
    since = (
        pl.when(method.is_null()).then(pl.when("off").then(14))
        .when(method.str.contains("eagle|mtp")).then(14)
        .when(method == "draft_model").then(16)
        .when(method == "ngram_gpu").then(18)
        .otherwise(1_000)
    )  # fmt: skip
    return pl.coalesce("told_async", ~pl.col("on_cpu") & (minor >= since))


def _settings(starts: pl.DataFrame) -> pl.DataFrame:
    """What each start-up line says."""
    message = pl.col("message")
    rows = starts.with_columns(
        spec=pl.coalesce(message.str.extract(_SPEC, 1), message.str.extract(_SPEC, 2)),
        rest=message.str.replace(_SPEC, ""),
        kind=pl.when(message.str.starts_with("vLLM API server"))
        .then(_API)
        .when(message.str.starts_with("non-default"))
        .then(_ARGS)
        .when(pl.col("scheduling").is_not_null())
        .then(_SCHEDULING)
        .otherwise(_ENGINE),
    )
    spec, rest = pl.col("spec"), pl.col("rest")
    legacy = spec.str.extract(r"draft_model='\[(\w+)\]'", 1)
    served = rest.str.extract(_SERVED, 1)
    served = pl.coalesce(_text("served_model_name", rest), pl.when(served != "None").then(served))
    drafter = pl.coalesce(_text("draft_model", spec), _text("model", spec))
    lines = rows.select(pl.concat_str("process", "message", separator=" ", ignore_nulls=True)).to_series()
    digests = [hashlib.sha256(line.encode()).hexdigest() for line in lines]  # a handful of rows a start
    return rows.select(
        "line",
        "stream",
        "kind",
        "ts",
        start_key=pl.Series(digests, dtype=pl.String),
        engine_version=pl.coalesce("version", "api"),
        engine_era=pl.col("era").str.to_lowercase(),
        model=leaf(pl.coalesce(served, _text("model", rest))),
        method=pl.coalesce(_text("method", spec), legacy),
        draft_model=leaf(pl.when(legacy.is_null()).then(drafter)),
        num_speculative_tokens=pl.coalesce(_int("num_spec_tokens", spec), _int("num_speculative_tokens", spec)),
        tensor_parallel=_int("tensor_parallel_size", rest),
        data_parallel=_int("data_parallel_size", rest),
        max_num_seqs=_int("max_num_seqs", rest),
        off=message.str.contains(_OFF),
        speculative=spec.is_not_null(),
        forced_acceptance=spec.str.contains(_FORCED),
        dynamic_k=spec.str.contains(r"num_speculative_tokens_per_batch_size['\"]?\s*[=:]\s*[^\sN]"),
        on_cpu=rest.str.contains(r"\bdevice_config=cpu\b"),
        told_async=pl.coalesce(
            pl.col("scheduling") == "enabled", rest.str.extract(_BOOL.format(key="async_scheduling"), 1) == "True"
        ),
        parallel_drafting=spec.str.contains(r"parallel_drafting['\"]?\s*[=:]\s*True"),
    )


def _start_number(rows: pl.DataFrame) -> pl.Series:
    """Number of the start each line belongs to: a kind that repeats within a stream opens the next one.

    How steps are scheduled is told between the arguments and the engine's line, and by other processes behind it: it is
    of the start whose line is nearest, and of its own where no other line of the stream tells of one. Far from all of
    them (a rotated log begins with it) it tells of none: 0.
    """
    seen: dict[str | None, set[int]] = {}
    number: dict[str | None, int] = {}
    starts: dict[str | None, list[tuple[int, dt.datetime | None, int]]] = {}
    told = rows.select("stream", "kind", "line", "ts").rows()  # a handful a start
    for stream, kind, line, ts in told:
        if kind == _SCHEDULING:
            continue
        if stream not in seen or kind in seen[stream]:
            seen[stream] = set()
            number[stream] = max(number.values(), default=0) + 1
        seen[stream].add(kind)
        starts.setdefault(stream, []).append((line, ts, number[stream]))
    own = max(number.values(), default=0)
    out: list[int] = []
    places = {stream: iter(found) for stream, found in starts.items()}
    for stream, kind, line, ts in told:
        if kind != _SCHEDULING:
            out.append(next(places[stream])[2])
        elif stream in starts:
            at, then, nearest = min(starts[stream], key=lambda start: abs(line - start[0]))
            late = ts is not None and then is not None and abs(ts - then) > _NEAR
            out.append(0 if late or abs(line - at) > _NEAR_LINES else nearest)
        else:
            number[stream] = number.get(stream, own + 1)
            own = max(own, number[stream])
            out.append(number[stream])
    return pl.Series("run_key", out, dtype=pl.Int64)
