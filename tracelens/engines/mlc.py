"""MLC-LLM: the metrics of its engine, as `/metrics` prints them and as JSON.

What they mean (`cpp/serve/metrics.h`, 2024-05 and later): `draft_count[i]` are the request-rounds that verified at
least i + 1 tokens, `accept_count[i]` those that kept them, and index 0 is the target's own token: its rate is 1. (A
fork that leaves this token out shows by a rate below 1, and is refused.) So index 1 is the first draft,
`accept_prob{step=i}` an unconditional rate, `accept_rate{step=i}` one that depends on the draft before, and
`accept_len` has the target's own token in it.

Times are means by size since the start: of a plain step and of one draft step by requests, of a verify pass by the
tokens it verified. With drafts of constant length K, a pass over N (K + 1) tokens is one of N requests. Sizes above 64
and the first step of each size are not in them. mlc-llm#2789 has the ratio of both upside down.

`/metrics` (with `--enable-debug`) prints numbers only, and leaves out the two lists: the rounds are told from it where
the engine had finished all requests when it was asked, because then the tokens of all finished requests are those that
the rounds gave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from tracelens.engines import rows
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.units import LONGEST_DRAFT, BrokenError, counts, finite, whole

__all__ = ["ENGINE"]

METRICS, JSON = "mlc.metrics", "mlc.engine_metrics"
BATCHES, PLAIN = "mlc.batch_times", "mlc.decode_times"
_ACCEPTANCE = ("draft_accept_ratio", "hazard", "survival", "tau_verified", "tau_committed", "rollback_len")
SURFACES: tuple[Surface, ...] = (
    Surface(
        METRICS,
        "/metrics (rates and times since the start)",
        "2024-05 and later",
        _ACCEPTANCE,
        "mlc_llm serve --enable-debug, and keep what /metrics says while no request runs",
    ),
    Surface(
        JSON,
        "engine metrics as JSON (usage.extra)",
        "2024-05 and later",
        _ACCEPTANCE,
        'ask with "debug_config": {"special_request": "query_engine_metrics"} and keep the last chunk',
    ),
    Surface(
        BATCHES,
        "draft and verify times by batch size",
        "2024-05 and later",
        ("rho", "rho_verify"),
        "in both forms of the engine metrics, while speculation drafts a constant length",
    ),
    Surface(
        PLAIN,
        "time of a plain step by batch size",
        "2024-05 and later",
        ("step_ms",),
        "in both forms, of an engine that runs without speculation",
    ),
)
KEYS: Sequence[bytes] = (b'"engine_decode_time_sum"',)
_PREFIXES = (
    "engine_decode_time_sum", "prompt_tokens_sum", "completion_tokens_sum", "decode_tokens_sum", "spec_decode_accept_",
    "draft_time_by_batch_size_", "verify_time_by_batch_size_", "decode_time_by_batch_size_",
)  # fmt: skip
_TIMES = ("draft", "verify", "decode")
_LIST = re.compile(r"(mean|count)(?:_\w+_time)?\{batch_size=(\d{1,4})\}")
_SIZES = pl.List(pl.Struct({"kind": pl.String, "size": pl.Int64, "mean": pl.Float64, "count": pl.Int64}))
_SCHEMA: Mapping[str, Any] = {
    **rows.PLACE, "prompt": pl.Int64, "completion": pl.Int64, "drafts": pl.List(pl.Int64),
    "accepts": pl.List(pl.Int64), "times": _SIZES,
}  # fmt: skip
_RATES = "rates without the number of rounds (requests were running): ask while none runs, or for the JSON"
_OTHER = "the first rate is not 1, so it is not of the target's own token (a changed MLC?): not used"
_FOLLOWS = "these counts do not follow the last ones (of two engines?): not used"
_EPS = 1e-6
_OWN = (pl.col("rates").list.first() - 1).abs() <= _EPS


class MLC:
    """The MLC-LLM reader."""

    name = "mlc"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = ()
    json_keys: Sequence[bytes] = KEYS
    metric_prefixes: Sequence[str] = _PREFIXES

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """No text lines."""
        return Parsed()

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Engine metrics, bare or in the usage of a response."""
        parsed = Parsed()
        found = []
        for record in records:  # one a question
            for said in _engine_metrics(record.value, 4):
                parsed.claimed += 1
                try:
                    found.append(_snapshot(said) | rows.place(record))
                except BrokenError as error:
                    parsed.rejects.append(Reject(record.line, str(error), JSON, record.offset))
        parsed.add(JSON, rows.frame_of(found, _SCHEMA))
        return parsed

    def metrics(self, frame: pl.DataFrame) -> Parsed:
        """The samples of `/metrics`; they carry no name of the engine, so only those with ours are taken."""
        parsed = Parsed(claimed=frame.height)
        parsed.add(METRICS, frame)
        return parsed

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Windows between two answers of a process; the first one is since its start."""
        tables = Tables()
        parts: list[pl.DataFrame] = []
        if frames.get(METRICS):
            _windows(_scraped(pl.concat(frames[METRICS]), context, tables), METRICS, parts, tables)
        found = rows.whole(frames, [s for s in SURFACES if s.name == JSON], context)
        if found:
            _windows(found[JSON], JSON, parts, tables)
        if parts:
            tables.windows = pl.concat(parts, how="diagonal").sort("source_line", maintain_order=True)
        return tables


def _engine_metrics(value: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    if "engine_decode_time_sum" in value:
        yield value
        return
    for key in ("usage", "extra", "metrics", "response", "body", "data") if depth else ():
        inner = value.get(key)
        if isinstance(inner, Mapping):
            yield from _engine_metrics(inner, depth - 1)


def _snapshot(said: Mapping[str, Any]) -> dict[str, Any]:
    """The counters of one answer.

    Raises:
        BrokenError: a figure that is none, or counts that contradict each other.
    """
    spec = said.get("spec_decode")
    row: dict[str, Any] = {"prompt": _optional(said, "prompt_tokens_sum")}
    row["completion"] = _optional(said, "completion_tokens_sum")
    if isinstance(spec, Mapping):
        drafts, accepts = counts(spec.get("draft_count"), "draft_count"), counts(
            spec.get("accept_count"), "accept_count"
        )  # fmt: skip
        if len(drafts) != len(accepts) or len(drafts) > LONGEST_DRAFT:
            raise BrokenError("draft_count and accept_count of different lengths")
        if any(a > d for a, d in zip(accepts, drafts, strict=True)):
            raise BrokenError("accept_count <= draft_count does not hold")
        if sum(drafts) > rows.MOST:
            raise BrokenError("draft_count: out of range")
        if drafts and drafts[0] != accepts[0]:
            raise BrokenError(_OTHER)
        if any(b > a for listed in (drafts, accepts) for a, b in pairwise(listed)):
            raise BrokenError("draft_count and accept_count grow along the positions")
        row |= {"drafts": drafts, "accepts": accepts}
    sizes: dict[tuple[str, int], dict[str, Any]] = {}
    for kind in _TIMES:
        listed = said.get(f"{kind}_time_by_batch_size")
        for label, value in listed.items() if isinstance(listed, Mapping) else ():
            hit = _LIST.fullmatch(label)
            if hit is not None:
                figure = finite(value, f"{kind}_time_by_batch_size")
                sizes.setdefault((kind, int(hit[2])), {})[hit[1]] = figure
    row["times"] = [
        {"kind": kind, "size": size, "mean": told["mean"], "count": whole(told["count"], "count", rows.MOST)}
        for (kind, size), told in sizes.items()
        if told.keys() >= {"mean", "count"} and told["mean"] >= 0
    ]
    return row


def _optional(said: Mapping[str, Any], name: str) -> int | None:
    return None if said.get(name) is None else whole(said[name], name, rows.MOST)


def _scraped(samples: pl.DataFrame, context: Context, tables: Tables) -> pl.DataFrame:
    """Answers of `/metrics` as rows of `_SCHEMA`, with `ts` and `ts_basis`."""
    number = pl.col("labels").str.extract(r"""=\s*"?(\d{1,5})"?\s*$""", 1).cast(pl.Int64)
    name = pl.col("name").str.replace(r"_(mean|count)_\w+_time$", "_${1}")
    told = samples.filter(pl.col("value").is_between(0, rows.MOST)).with_columns(name=name, number=number)
    keys = ["stream", "scrape", "stamp"]
    timed = pl.col("name").str.extract_groups(r"^(?<kind>draft|verify|decode)_time_by_batch_size_(?<what>mean|count)$")
    sizes = told.with_columns(timed.struct.unnest()).filter(pl.col("kind").is_not_null())
    sizes = sizes.group_by(*keys, "kind", size="number", maintain_order=True).agg(
        mean=pl.col("value").filter(pl.col("what") == "mean").first(),
        count=pl.col("value").filter(pl.col("what") == "count").first().cast(pl.Int64, strict=False),
    )
    sizes = sizes.drop_nulls(["size", "mean", "count"])
    sizes = sizes.group_by(keys, maintain_order=True).agg(times=pl.struct("kind", "size", "mean", "count"))

    def single(what: str) -> pl.Expr:
        return pl.col("value").filter(pl.col("name") == what).first()

    length = pl.col("name") == "spec_decode_accept_len_accept_len"
    rate = pl.col("name") == "spec_decode_accept_prob_accept_prob"
    found = told.group_by(keys, maintain_order=True).agg(
        line=pl.col("line").min(),
        prompt=single("prompt_tokens_sum").cast(pl.Int64, strict=False),
        completion=single("completion_tokens_sum").cast(pl.Int64, strict=False),
        tokens=single("decode_tokens_sum"),
        mean=pl.col("value").filter(length).max(),
        rates=pl.col("value").filter(rate).sort_by(pl.col("number").filter(rate)),
    )
    found = found.join(sizes, on=keys, how="left", nulls_equal=True, maintain_order="left")
    found = _recovered(found)
    told_none = (pl.col("rates").list.len() > 0) & pl.col("drafts").is_null()
    for line, own in found.filter(told_none).select("line", _OWN).rows():
        tables.rejects.append(Reject(line, _RATES if own else _OTHER, METRICS))
    times = context.resolve(found.select("stamp", inner=pl.lit(None, pl.String)))
    return pl.concat([found, times.select("ts", "ts_basis")], how="horizontal")


def _recovered(found: pl.DataFrame) -> pl.DataFrame:
    """Add `drafts` and `accepts`: decoded tokens over tokens a round are rounds, if they and all counts are whole."""
    rounds = pl.col("tokens") / pl.col("mean")
    found = found.with_columns(
        _rounds=pl.when((rounds >= 1 - _EPS) & (rounds < rows.MOST)).then(rounds.round()), _r=rounds
    )
    scaled = pl.col("rates") * pl.col("_rounds")
    found = found.with_columns(_scaled=scaled)
    off = (pl.col("_scaled") - pl.col("_scaled").list.eval(pl.element().round())).list.eval(pl.element().abs())
    fits = ((pl.col("_r") - pl.col("_rounds")).abs() <= _EPS) & (off.list.max() <= _EPS) & (
        pl.col("rates").list.len() > 1
    ) & _OWN & (pl.col("rates").list.diff(null_behavior="drop").list.max() <= _EPS)  # fmt: skip
    whole_counts = pl.col("_scaled").list.eval(pl.element().round().cast(pl.Int64, strict=False))
    as_many = pl.col("_rounds").cast(pl.Int64, strict=False).repeat_by(pl.col("rates").list.len())
    return found.with_columns(
        drafts=pl.when(fits).then(as_many), accepts=pl.when(fits).then(whole_counts)
    ).drop("_rounds", "_r", "_scaled")  # fmt: skip


def _windows(answers: pl.DataFrame, surface: str, parts: list[pl.DataFrame], tables: Tables) -> None:
    """Put what happened between consecutive answers of a stream into `parts`."""
    answers = answers.sort("line", maintain_order=True).with_row_index("id").with_columns(pl.col("id").cast(pl.Int64))
    answers = answers.with_columns(stream=pl.col("stream").fill_null(""))
    positions = answers.filter(pl.col("drafts").is_not_null()).select(
        "id", "stream", "drafts", "accepts", i=pl.int_ranges(pl.col("drafts").list.len())
    ).explode("drafts", "accepts", "i")  # fmt: skip
    answers, positions = _segments(answers, positions)
    grown = _grown(positions, ["stream", "segment", "i"], ("drafts", "accepts"))
    wrong = _not_following(grown)
    lines = answers.join(wrong, on="id", how="semi").select("line").rows()
    tables.rejects += [Reject(line, _FOLLOWS, surface) for (line,) in lines]
    of_counts = _counts(grown, answers, surface).join(wrong, on="id", how="anti", maintain_order="left")
    if of_counts.height:
        parts.append(of_counts.drop("id", "even"))
    sizes = answers.select("id", "stream", "segment", "times").explode("times").unnest("times").drop_nulls("size")
    if sizes.height:
        sizes = sizes.with_columns(total=pl.col("mean") * pl.col("count"))
        sizes = _grown(sizes, ["stream", "segment", "kind", "size"], ("total", "count"))
        sizes = sizes.filter((pl.col("count") > 0) & pl.col("total").is_between(0, rows.MOST / 1e6))
        parts += _batches(sizes, of_counts, answers)


def _speculates(answers: pl.DataFrame) -> pl.Expr:
    """Whether an answer of the stream tells of drafts."""
    drafts = pl.col("times").list.eval(pl.element().struct.field("kind") != "decode").list.any()
    told = pl.col("drafts").is_not_null() | drafts.fill_null(False)
    if "rates" in answers.columns:
        told |= (pl.col("rates").list.len() > 0).fill_null(False)
    return told.any().over("stream")


def _segments(answers: pl.DataFrame, positions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both with `segment`: which start of the process an answer is of. A counter that falls shows a new one."""
    lower = [
        pl.any_horizontal(pl.col(c) < pl.col(c).shift(1).over("stream", "i") for c in ("drafts", "accepts"))
    ]  # fmt: skip
    fell = positions.with_columns(fell=lower[0].fill_null(False)).group_by("id").agg(pl.col("fell").any())
    answers = answers.join(fell, on="id", how="left", maintain_order="left")
    own = pl.any_horizontal(
        (pl.col(c) < pl.col(c).shift(1).over("stream")).fill_null(False) for c in ("prompt", "completion")
    )
    answers = answers.with_columns(fell=pl.col("fell").fill_null(False) | own)
    answers = answers.with_columns(segment=pl.col("fell").cast(pl.Int64).cum_sum().over("stream")).drop("fell")
    return answers, positions.join(answers.select("id", "segment"), on="id", how="left", maintain_order="left")


def _grown(frame: pl.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
    """Totals as what they grew by since the same key's last; a key that was not there before began at 0."""
    return frame.with_columns(pl.col(c) - pl.col(c).shift(1, fill_value=0).over(keys) for c in columns)


def _not_following(grown: pl.DataFrame) -> pl.DataFrame:
    """The `id` of answers that can't follow the one before: no engine counts what they grew by."""
    drafts, accepts = pl.col("drafts"), pl.col("accepts")
    rising = [(c > c.shift(1).over("id")).fill_null(False) for c in (drafts, accepts)]
    first = (pl.col("i") == 0) & (accepts != drafts)
    return grown.sort("id", "i").filter(pl.any_horizontal(accepts > drafts, first, *rising)).select("id").unique()


def _counts(grown: pl.DataFrame, answers: pl.DataFrame, surface: str) -> pl.DataFrame:
    """Windows of the rounds between answers that tell of them, and of the tokens where no answer speaks of drafts."""
    behind = pl.col("i") > 0
    by = grown.sort("id", "i").group_by("id", maintain_order=True).agg(
        passes=pl.col("drafts").filter(~behind).first(),
        rounds=pl.col("drafts").filter(pl.col("i") == 1).first().fill_null(0),
        drafted=pl.col("drafts").filter(behind).sum(),
        accepted=pl.col("accepts").filter(behind).sum(),
        emitted=pl.col("accepts").sum(),
        per_pos=pl.col("accepts").filter(behind),
        k=pl.col("i").max(),
    )  # fmt: skip
    speaks = pl.col("drafts").is_not_null()
    told = answers.filter(speaks | ~speaks.any().over("stream"))
    found = told.join(by, on="id", how="left", maintain_order="left").with_columns(
        ts_start=pl.col("ts").shift(1).over("stream", "segment"),
        generated=pl.col("completion") - pl.col("completion").shift(1, fill_value=0).over("stream", "segment"),
        asked=pl.col("prompt") - pl.col("prompt").shift(1, fill_value=0).over("stream", "segment"),
    )
    found = found.filter((pl.col("passes") > 0) | (pl.col("generated") > 0))
    derived = pl.lit("derived" if surface == METRICS else "logged")
    spoken = pl.when(pl.col("passes").is_not_null()).then(derived)
    even = pl.col("drafted") == pl.col("rounds") * pl.col("k")
    return found.select(
        "id", "ts_basis", "ts_start", "rounds", "drafted", "accepted", "emitted",
        source_line="line",
        surface=pl.lit(surface),
        ts_end="ts",
        window_us=(pl.col("ts") - pl.col("ts_start")).dt.total_microseconds(),
        num_speculative_tokens=pl.when(pl.col("k") > 0).then("k").cast(pl.Int32),
        plain_steps=pl.col("passes") - pl.col("rounds"),
        accepted_per_pos=pl.when(pl.col("k") > 0).then("per_pos"),
        rounds_basis=spoken,
        counts_basis=pl.coalesce(spoken, pl.lit("logged")),
        generated_tokens="generated",
        prompt_tokens="asked",
        even=even,
    )  # fmt: skip


def _batches(sizes: pl.DataFrame, of_counts: pl.DataFrame, answers: pl.DataFrame) -> list[pl.DataFrame]:
    """Windows of one batch size each: draft and verify times where every round drafted K tokens, and plain steps.

    A mean stands for `count` steps of N requests. A round's draft time is K of the draft steps. No time of a whole
    round is logged; so beside speculation the time of whole plain steps would stand for all steps, and is left.
    """
    before = pl.col("ts").shift(1).over("stream", "segment")
    place = answers.select("id", "line", "ts", "ts_basis", _before=before, speculates=_speculates(answers))
    known = of_counts.filter(pl.col("even") & (pl.col("num_speculative_tokens") > 0))
    k = known.select("id", k=pl.col("num_speculative_tokens").cast(pl.Int64))
    sizes = sizes.join(k, on="id", how="left", maintain_order="left")
    verify = sizes.filter((pl.col("kind") == "verify") & (pl.col("size") % (pl.col("k") + 1) == 0))
    verify = verify.with_columns(size=pl.col("size") // (pl.col("k") + 1))
    draft = sizes.filter(pl.col("kind") == "draft").select("id", "size", step=pl.col("total") / pl.col("count"))
    both = verify.join(draft, on=("id", "size"), how="inner", maintain_order="left")
    requests = pl.col("size") * pl.col("count")
    speculative = both.select(
        "id",
        surface=pl.lit(BATCHES),
        running="size",
        steps="count",
        rounds=requests,
        drafted=requests * pl.col("k"),
        num_speculative_tokens=pl.col("k").cast(pl.Int32),
        draft_us=_micros(pl.col("step") * pl.col("k") * pl.col("count")),
        target_us=_micros(pl.col("total")),
        rounds_basis=pl.lit("derived"),
        counts_basis=pl.lit("derived"),
        time_basis=pl.lit("sum"),
    )
    alone = place.filter(~pl.col("speculates")).select("id")
    plain = (
        sizes.filter(pl.col("kind") == "decode")
        .join(alone, on="id", how="semi", maintain_order="left")
        .select(
            "id",
            surface=pl.lit(PLAIN),
            running="size",
            steps="count",
            plain_steps=requests,
            rounds=pl.lit(0, pl.Int64),
            emitted=requests,
            step_us=_micros(pl.col("total")),
            rounds_basis=pl.lit("derived"),
            counts_basis=pl.lit("derived"),
            time_basis=pl.lit("sum"),
        )
    )
    placed = place.drop("speculates").rename({"line": "source_line", "ts": "ts_end", "_before": "ts_start"})
    made = [f.join(placed, on="id", how="left", maintain_order="left").drop("id") for f in (speculative, plain)]
    return [f for f in made if f.height]


def _micros(seconds: pl.Expr) -> pl.Expr:
    return (seconds * 1e6).round().cast(pl.Int64, strict=False)


ENGINE = MLC()
