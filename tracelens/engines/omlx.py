"""oMLX: the line that ends a sequence under multi-token prediction, and the line of a finished completion.

`MTP[uid] finish=… tokens=… cycles=… [tok/cycle=…] accept=A/D (…) [depth[d1=a/d,…]] [d0=…] [emits[…]] [timing[…]]`
(`omlx/patches/mlx_lm_mtp/batch_generator.py`, 2026): a cycle is one pass of the target, `d0` of them without a draft.
A position is counted as drafted (d) in a cycle only if it was reached, that is, if all drafts before it were accepted,
and D is the sum of these: A/D is no share of the proposed tokens. How many were proposed is told by nothing but a chain
of constant length, in which every accepted draft has a next one. The first releases had one draft a cycle and wrote
cycles for D; two forks write the proposed tokens beside it (`draft-tokens=A/D`, `(drafts A/D, …)`).

Times are sums over the cycles by the host's clock: the target's pass, the drafts, sampling with acceptance, and what
trims and restores the cache. What was emitted before the first cycle (`init`) is no cycle's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engines import rows
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.units import LONGEST_DRAFT
from tracelens.engines.vllm.startup import leaf

__all__ = ["ENGINE"]

MTP, COMPLETION = "omlx.mtp_line", "omlx.completion_line"
SURFACES: tuple[Surface, ...] = (
    Surface(
        COMPLETION,
        "Chat completion (tokens, seconds, tok/s)",
        "2026",
        ("tpot_ms", "speedup_tpot", "ttft_ms"),
        "on by default; TPOT of streamed responses only",
    ),
    Surface(
        MTP,
        "MTP[…] finish=… (one sequence)",
        "2026 (depth[…] from 0.6)",
        (
            "draft_accept_ratio",
            "token_accept_prob",
            "hazard",
            "rollback_len",
            "near_k_request_share",
            "tau_verified",
            "tau_committed",
            "rho",
            "rho_verify",
            "step_ms",
        ),
        "on by default for models with MTP weights (mtp_enabled in the model's settings)",
    ),
)

# What stands before a record is the logger's, with its stamp: no quote and no brace, as those open text of a user.
_OWN = r"""^[^'"`{]*$"""
_STAMP = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{1,6})"
_MTP_MARK, _COMPLETION_MARK = "MTP[", "ompletion: "
_SEQUENCE = r"""^[^\]'"{]{1,64}\] finish="""
_COMPLETION = (
    r"""^(?:model=(?P<model>[^,'"{]{1,200}), )?(?P<tokens>\d{1,12}) tokens in (?P<seconds>\d{1,9}\.\d+)s """
    r"\((?P<rate>\d{1,9}\.\d+) tok/s\), prompt: (?P<prompt>\d{1,12})(?:, finish_reason=(?P<reason>[a-z_]{1,32})\b)?"
)
# What stands behind each number tells that it is whole.
_COUNTS = {
    "tokens": r" tokens=(\d{1,12}) ",
    "cycles": r" cycles=(\d{1,12}) ",
    "said": r" accept=(\d{1,12})/\d+ ",
    "over": r" accept=\d+/(\d{1,12}) ",
    "own_accepted": r"(?: draft-tokens=|\(drafts )(\d{1,12})/\d+[ ,]",
    "own_drafted": r"(?: draft-tokens=|\(drafts )\d+/(\d{1,12})[ ,]",
    "depth": r" depth=(\d{1,4}) ",
    "zero": r" d0=(\d{1,12})(?: |$)",
    "init": r" emits\[init=(\d{1,12}),",
}
_TIMES = {name: rf"[\[ ]{name}=(\d{{1,12}}(?:\.\d+)?)ms" for name in ("backbone", "mtp", "sample", "cache")}
_DEPTHS = r" depth\[([^\]]*)\]"
_CONTRADICTION = "positions by depth contradict the counts: not used"


class OMLX:
    """The oMLX reader."""

    name = "omlx"
    surfaces: Sequence[Surface] = SURFACES
    needles: Sequence[bytes] = (b" tok/cycle=", b"emits[init=", b" tok/s), prompt: ")
    json_keys: Sequence[bytes] = ()

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Ends of sequences and of completions."""
        parsed = Parsed()
        _mtp(_behind(frame, _MTP_MARK).filter(pl.col("message").str.contains(_SEQUENCE)), parsed)
        _completions(_behind(frame, _COMPLETION_MARK), parsed)
        return parsed

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """No JSON of its own."""
        return Parsed()

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """A request each line; what one under MTP says of sampling and the cache is a window of its cycles."""
        found = rows.whole(frames, SURFACES, context)
        tables = Tables()
        requests = []
        if MTP in found:
            lines = _counted(rows.once(found[MTP]), tables)
            requests.append(_sequences(lines, context))
            timed = lines.filter(pl.col("backbone").is_not_null())
            tables.windows = _cycles(timed) if timed.height else None
        if COMPLETION in found:
            requests.append(_completed(rows.once(found[COMPLETION]), context))
        if requests:
            tables.requests = pl.concat(requests, how="diagonal").sort("source_line", maintain_order=True)
        return tables


def _behind(frame: pl.DataFrame, mark: str) -> pl.DataFrame:
    """The lines with a mark of the logger's own, with `message` (what stands behind it) and `inner`.

    Cut there, and not matched as a whole: what stands before is short, and the rest is looked up key by key.
    """
    hit = frame.filter(pl.col("text").str.contains(mark, literal=True))
    cut = hit.select(pl.col("text").str.splitn(mark, 2).struct.unnest())
    rows_ = hit.with_columns(
        message=cut["field_1"],
        _head=cut["field_0"],
        inner=cut["field_0"].str.extract(_STAMP, 1),
        hash=hit["text"].hash(),
    )
    return rows_.filter(pl.col("_head").str.contains(_OWN)).drop("_head", "text")


def _mtp(hit: pl.DataFrame, parsed: Parsed) -> None:
    if not hit.height:
        return
    message = pl.col("message")
    pairs = message.str.extract(_DEPTHS, 1).str.extract_all(r"\d{1,12}/\d{1,12}")
    found = hit.with_columns(
        *(message.str.extract(key, 1).cast(pl.Int64, strict=False).alias(c) for c, key in _COUNTS.items()),
        *(message.str.extract(key, 1).cast(pl.Float64, strict=False).alias(c) for c, key in _TIMES.items()),
        reason=message.str.extract(r"\] finish=([a-z][a-z_-]{0,31}) ", 1),
        # No list at all is null, and so is one that is cut.
        reached_accepted=pairs.list.eval(pl.element().str.extract(r"^(\d+)/", 1).cast(pl.Int64, strict=False)),
        reached=pairs.list.eval(pl.element().str.extract(r"/(\d+)$", 1).cast(pl.Int64, strict=False)),
    ).with_columns(
        accepted=pl.coalesce("own_accepted", "said"),
        zero=pl.col("zero").fill_null(0),
    )
    lost = (
        pl.when(pl.col("tokens").is_null() | pl.col("cycles").is_null())
        .then(pl.lit("incomplete line: no tokens and cycles"))
        .when(pl.col("accepted").is_null())
        .then(pl.lit("incomplete line: no accept"))
        .when(pl.col("zero") > pl.col("cycles"))
        .then(pl.lit("d0 <= cycles does not hold"))
    )
    found = found.with_columns(lost=lost).drop("message")
    for line, offset, why in found.filter(pl.col("lost").is_not_null()).select("line", "offset", "lost").rows():
        parsed.rejects.append(Reject(line, why, MTP, offset))
    good = found.filter(pl.col("lost").is_null()).drop("lost")
    parsed.add(MTP, good)
    parsed.claimed += good.height


def _completions(hit: pl.DataFrame, parsed: Parsed) -> None:
    hit = hit.with_columns(pl.col("message").str.extract_groups(_COMPLETION).struct.unnest())
    hit = hit.filter(pl.col("rate").is_not_null()).drop("message")
    if not hit.height:
        return
    whole = {c: pl.col(c).cast(pl.Int64, strict=False) for c in ("tokens", "prompt")}
    real = {c: pl.col(c).cast(pl.Float64, strict=False) for c in ("seconds", "rate")}
    parsed.add(COMPLETION, hit.with_columns(**whole, **real))
    parsed.claimed += hit.height


def _counted(lines: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Add `rounds`, `drafted`, `emitted`, `hist`, `k` and `basis`."""
    lines = _sound(lines)
    wrong = lines.filter(pl.col("listed") & ~pl.col("sound")).select("line", "offset").rows()
    tables.rejects += [Reject(line, _CONTRADICTION, MTP, offset) for line, offset in wrong]
    listed, accepted, reached = pl.col("listed"), pl.col("reached_accepted"), pl.col("reached")
    depth = pl.when(listed).then(reached.list.len().cast(pl.Int64))
    # Cycles without a draft came later than the form without positions.
    single = ~listed & (pl.col("over") == pl.col("cycles")) & (pl.col("zero") == 0) & pl.col("own_drafted").is_null()
    longest = pl.coalesce("depth", depth, pl.when(single).then(1)).max().over("stream")
    # A chain that was accepted to its end before the last position shows that lengths change, in the whole log; one
    # that reached the last position shows how long they are.
    even = (~pl.col("sound") | (pl.col("most") == 0)).all().over("stream")
    even &= (pl.col("sound") & (reached.list.last() > 0) & (depth == longest)).any().over("stream")
    proposed = pl.coalesce(
        "own_drafted",
        pl.when(single | (listed & (pl.col("over") != pl.col("reached_sum")))).then("over"),
        pl.when(pl.col("sound") & even & (depth == longest)).then(pl.col("rounds") * depth),
    )
    falls = pl.concat_list("rounds", accepted, pl.lit([0], pl.List(pl.Int64))).list.diff().list.slice(1) * -1
    one = pl.when(single & (pl.col("accepted") <= pl.col("rounds"))).then(
        pl.concat_list(pl.col("rounds") - pl.col("accepted"), "accepted")
    )
    told = pl.col("own_drafted").is_not_null() | single
    lines = lines.with_columns(
        k=pl.coalesce("depth", longest),
        drafted=pl.when(proposed.is_between(pl.col("accepted"), pl.col("rounds") * LONGEST_DRAFT)).then(proposed),
        hist=pl.coalesce(pl.when("sound").then(falls.cast(pl.List(pl.Int64))), one),
        emitted=pl.when(pl.col("init") <= pl.col("tokens")).then(pl.col("tokens") - pl.col("init")),
        told=told,
    )
    logged = pl.col("told") | pl.col("drafted").is_null()
    return lines.with_columns(basis=pl.when(logged).then(pl.lit("logged")).otherwise(pl.lit("derived")))


def _sound(lines: pl.DataFrame) -> pl.DataFrame:
    """Add `rounds`, `listed` (whether there are positions) and `sound` (whether they fit each other and the counts).

    `most` is the largest number of cycles that accepted a position and drafted no further one.
    """
    accepted, reached = pl.col("reached_accepted"), pl.col("reached")
    last = pl.max_horizontal(accepted.list.len().cast(pl.Int64) - 1, 0)
    ended = accepted.list.slice(0, last) - reached.list.slice(1)
    lines = lines.with_columns(
        rounds=pl.col("cycles") - pl.col("zero"),
        listed=reached.list.len().fill_null(0) > 0,
        least=ended.list.min().fill_null(0),
        most=ended.list.max().fill_null(0),
        short=(reached - accepted).list.min().fill_null(0),
        reached_sum=reached.list.sum(),
    )
    sound = (
        pl.col("listed")
        & (pl.col("least") >= 0)
        & (pl.col("short") >= 0)
        & (reached.list.first() == pl.col("rounds"))
        & (accepted.list.sum() == pl.col("accepted"))
    )
    return lines.with_columns(sound=sound.fill_null(False))


def _sequences(lines: pl.DataFrame, context: Context) -> pl.DataFrame:
    return lines.select(
        "ts_basis", "rounds", "drafted", "accepted", "emitted",
        source_line="line",
        surface=pl.lit(MTP),
        request_id=rows.unnamed(context),
        method=pl.lit("mtp"),
        num_speculative_tokens=pl.col("k").cast(pl.Int32, strict=False),
        ts_end="ts",
        output_tokens="tokens",
        iterations="cycles",
        accepted_hist="hist",
        counts_basis="basis",
        draft_us=_micros("mtp"),
        target_us=_micros("backbone"),
        finish_reason="reason",
    )  # fmt: skip


def _cycles(lines: pl.DataFrame) -> pl.DataFrame:
    """The times of a sequence's cycles, for which a request has no columns; its counts are the request's."""
    parts = [_micros(c) for c in ("backbone", "mtp", "sample", "cache")]
    return lines.select(
        "ts_basis", "rounds",
        source_line="line",
        surface=pl.lit(MTP),
        method=pl.lit("mtp"),
        num_speculative_tokens=pl.col("k").cast(pl.Int32, strict=False),
        ts_end="ts",
        steps="cycles",
        plain_steps="zero",
        rounds_basis=pl.lit("logged"),
        counts_basis=pl.lit("logged"),
        time_basis=pl.lit("sum"),
        running=pl.lit(1, pl.Int64),  # a sequence is verified by itself
        draft_us=parts[1],
        target_us=parts[0],
        sample_us=parts[2],
        rollback_us=parts[3],
        step_us=parts[0] + parts[1] + parts[2] + parts[3],
    )  # fmt: skip


def _completed(lines: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Requests without acceptance.

    The rate of a streamed response is over the time behind its first token, that of any other over all of it: where
    tokens, seconds and rate fit each other, nothing tells the prefill from the rest.
    """
    tokens, seconds, rate = pl.col("tokens"), pl.col("seconds"), pl.col("rate")
    error = 0.05 + 0.005 * tokens / seconds**2 + 1e-9
    streamed = (seconds > 0) & (rate > 0) & (rate - tokens / seconds > error)
    decode = (tokens / rate * 1e6).round().cast(pl.Int64, strict=False)
    e2e = (seconds * 1e6).round().cast(pl.Int64, strict=False)
    lines = lines.with_columns(e2e_us=e2e, decode_us=pl.when(streamed).then(pl.min_horizontal(decode, e2e)))
    several = pl.col("decode_us").is_not_null() & (tokens > 1)
    return lines.select(
        "ts_basis", "e2e_us", "decode_us",
        source_line="line",
        surface=pl.lit(COMPLETION),
        request_id=rows.unnamed(context),
        model=leaf(pl.col("model")),
        ts_start=pl.col("ts") - pl.duration(microseconds="e2e_us"),
        ts_end="ts",
        prompt_tokens="prompt",
        output_tokens="tokens",
        ttft_us=pl.col("e2e_us") - pl.col("decode_us"),
        tpot_us=pl.when(several).then(pl.col("decode_us") / (tokens - 1)),
        tpot_basis=pl.when(several).then(pl.lit("derived")),
        finish_reason="reason",
    )  # fmt: skip


def _micros(column: str) -> pl.Expr:
    return (pl.col(column) * 1000).round().cast(pl.Int64, strict=False)


ENGINE = OMLX()
