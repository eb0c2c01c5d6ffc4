"""SGLang's log lines, 0.4.1 to 0.5.23: declarations of what they print, and their vectorised extraction."""

from __future__ import annotations

import polars as pl

from tracelens.engines.base import Parsed, Reject

DECODE, PREFILL = "sglang.decode_line", "sglang.prefill_line"
START, ADAPTIVE, SIMULATED = "sglang.start", "sglang.adaptive", "sglang.simulated"

# The first ones are many for the pieces of a wrapped line, of which each should hold one.
NEEDLES: tuple[bytes, ...] = (
    b"-req:",
    b"Decode batch",
    b"Prefill batch",
    b"accept len",
    b"token usage",
    b"gen throughput",
    b"fwd occupancy",
    b"ServerArgs(",
    b"server_args={",
    b"daptive spec params",
    b"daptiveSpeculativeParams init",
    b"SIMULATE_ACC_LEN",
    b"imulated acceptance drawn",
)

# `[2025-10-22 10:27:56 DP0 TP0] `: ranks only where their size is above 1 (0.4.10+), milliseconds with SGLANG_LOG_MS
# (0.5.6+). No level, no module, no zone. Before it whatever a collector or a person put there, but never a quote or
# a brace: those open text that a user wrote, and a prompt may hold a whole line of ours.
_PREFIX = (
    r"""^[^'"`{]*?\[(?P<inner>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?)"""
    r"""(?P<ranks>(?: [A-Z_]+[0-9]{1,6})*)\]\s*"""
)
_BARE = r"^[^\p{L}\p{N}(\[]*"
# 0.4.x-0.5.3 "Decode batch.", 0.5.4 "Decode batch [N],", later the number only with SGLANG_LOG_FORWARD_ITERS.
_BATCH = r"(?P<kind>Decode|Prefill) batch\s*(?:\[(?P<iter>[0-9]{1,15})\])?\s*[.,]?\s*#"
_HEAD = r"(?:Decode|Prefill) batch"
# What stands before the fields. A capture of all of them costs more than everything else.
_BEFORE = rf"(?s)^.*?{_HEAD}[^#]*"
_QUEUE = r"#queue-req\s*:\s*\d"
_PIECES = 8  # a line of 300 characters in a terminal of 40
_RANKED = "(?s)" + _PREFIX + _BATCH
_UNRANKED = "(?s)" + _BARE + _BATCH

_INT, _FLOAT = r"(\d{1,6})", r"(\d{1,9}(?:\.\d+)?)"
# Keys come and go with the release and change places: each is looked up alone. `\s*` for blanks, because a terminal
# or a web form may have wrapped the line there.
_FIELDS = {
    "running": ("#running-req", _INT),
    "queue": ("#queue-req", _INT),
    "new_token": ("#new-token", r"(\d{1,9})"),
    "accept_len": (r"accept\s*len", _FLOAT),
    "accept_rate": (r"accept\s*rate", _FLOAT),
    "throughput": (r"gen\s*throughput\s*\(token/s\)", _FLOAT),
    "usage": (r"(?:full\s*)?token\s*usage", _FLOAT),  # hybrid pools have one of each kind (0.4.10+)
    "transfer": ("(?:#prealloc-req|#transfer-req|pre-allocated\\s*usage)", _FLOAT),  # a decode server of a P/D pair
}
_WHOLE = ("running", "queue", "new_token")
# Changes of K, and the K it begins with (forks tell in brackets what decided).
_ADAPTIVE = (
    r"daptive(?: spec params updated(?: \([a-z -]{1,20}\))?: steps \d{1,4} -> "
    r"|SpeculativeParams initialized: steps=)(\d{1,4})\b"
)
# As `set -x`, `env` or a manifest print it; not where text of a user is quoted. Older releases had no prefix.
# DSpark (0.5.23) says itself that it makes its acceptance up.
_SIMULATED = (
    r"""^[^'"`{]*(?:\b(?:SGLANG_)?SIMULATE_ACC_LEN ?[=:] ?['"]?(\d{1,4}(?:\.\d+)?)\b"""
    r"""|\bSimulated acceptance drawn ahead of the draft)"""
)
# A repr (0.5.15 and before); the dictionary of the resolved arguments (0.5.23).
_ARGS = r"\b(?:ServerArgs\(|server_args=\{)"
_BASE = ("line", "offset", "stamp", "inner", "stream", "hash", "dp", "rank")


def parse(frame: pl.DataFrame) -> Parsed:
    """Batch lines, start-up lines, changes of K and the switch that simulates acceptance."""
    parsed = Parsed()
    text = pl.col("text")
    _batches(frame, parsed)
    frame = frame.filter(~text.str.contains(_HEAD))
    for surface, marker, make in (
        (START, rf"""^[^'"`{{]*?{_ARGS}""", _start),
        (ADAPTIVE, r"""^[^'"`{]*?""" + _ADAPTIVE, _adaptive),
        (SIMULATED, _SIMULATED, _simulated),
    ):
        hit = frame.filter(text.str.contains(marker))
        if hit.height:
            made = make(_based(hit, text.str.extract_groups("(?s)" + _PREFIX)))
            parsed.add(surface, made)
            parsed.claimed += made.height
    return parsed


def _based(frame: pl.DataFrame, prefix: pl.Expr) -> pl.DataFrame:
    """The frame with `inner`, `hash`, `dp` (replica) and `rank` (which of the ranks that print the same record)."""
    ranks = pl.col("_p").struct.field("ranks")

    def of(name: str) -> pl.Expr:
        return ranks.str.extract(rf" {name}(\d+)", 1).cast(pl.Int64, strict=False).fill_null(0)

    return frame.with_columns(prefix.alias("_p"), hash=pl.col("text").hash()).with_columns(
        inner=pl.col("_p").struct.field("inner"),
        dp=ranks.str.extract(r" DP(\d+)", 1).cast(pl.Int64, strict=False).cast(pl.String),
        rank=(of("PP") * 1_000_000 + of("ATTN_CP")) * 1_000_000 + of("TP"),
    )


def _batches(frame: pl.DataFrame, parsed: Parsed) -> None:
    text = pl.col("text")
    hit = frame.filter(text.str.contains(_HEAD))
    if not hit.height:
        return
    if not hit["text"].str.contains("#queue-req:", literal=True).all():
        hit = _unwrapped(frame)
    rows = _based(hit, text.str.extract_groups(_RANKED))
    ranked = pl.col("_p").struct.field("kind").is_not_null()
    rows = rows.with_columns(_b=pl.when(~ranked).then("text").str.extract_groups(_UNRANKED))
    named = {c: pl.coalesce(*(pl.col(p).struct.field(c) for p in ("_p", "_b"))) for c in ("kind", "iter")}
    rows = rows.with_columns(**named, fields=text.str.replace(_BEFORE, "")).filter(pl.col("kind").is_not_null())
    # Every release has the queue at the end or near it: without it the line is cut, and so may its last number be.
    fields, complete = pl.col("fields"), pl.col("fields").str.contains(_QUEUE)
    rows = rows.with_columns(complete=complete).with_columns(
        fields=pl.when("complete").then(fields).otherwise(fields.str.extract(r"^(.*),", 1).fill_null(""))
    )
    values = {
        name: pl.col("fields").str.extract(rf"(?s)(?:^|,)\s*{key}\s*:\s*{kind}\s*(?:,|$)", 1)
        for name, (key, kind) in _FIELDS.items()
    }
    rows = rows.with_columns(
        **{n: v.cast(pl.Int64 if n in _WHOLE else pl.Float64, strict=False) for n, v in values.items()},
        iter=pl.col("iter").cast(pl.Int64, strict=False),
    )
    _kept(DECODE, rows.filter(pl.col("kind") == "Decode"), parsed)
    _kept(PREFILL, rows.filter(pl.col("kind") == "Prefill"), parsed)


def _kept(surface: str, rows: pl.DataFrame, parsed: Parsed) -> None:
    """Lines whose counts are whole; a cut line without an accept len tells not even whether there was one."""
    lost = (
        pl.when(pl.col("running").is_null())
        .then(pl.lit("#running-req"))
        .when((pl.lit(surface) == DECODE) & ~pl.col("complete") & pl.col("accept_len").is_null())
        .then(pl.lit("accept len"))
        .when((pl.lit(surface) == PREFILL) & pl.col("new_token").is_null())
        .then(pl.lit("#new-token"))
    )
    rows = rows.with_columns(_lost=lost)
    for line, offset, what in rows.filter(pl.col("_lost").is_not_null()).select("line", "offset", "_lost").iter_rows():
        parsed.rejects.append(Reject(line, f"incomplete line: no {what}", surface, offset))
    good = rows.filter(pl.col("_lost").is_null()).select(*_BASE, "iter", *_FIELDS)
    parsed.add(surface, good)
    parsed.claimed += good.height


def _unwrapped(frame: pl.DataFrame) -> pl.DataFrame:
    """Put the pieces of a batch line together; only within a block, as wrapped logs are pasted ones.

    A piece stands on the line behind the one before it, in the same stream, and begins with nothing that begins a
    line. Nothing follows a piece that has the queue, which is the end or near it; a line that none completes was cut.
    """
    text = pl.col("text")
    head = text.str.contains(_HEAD)
    tail = ~text.str.contains(r"^\s*\[|batch|[{}]")
    done = text.str.contains(_QUEUE)
    after = (pl.col("line") == pl.col("line").shift(1) + 1) & pl.col("stream").eq_missing(pl.col("stream").shift(1))
    follows = tail & ~head & after & ~done.shift(1)
    frame = frame.with_columns(_head=head, _group=(~follows.fill_null(False)).cum_sum())
    whole = frame.group_by("_group", maintain_order=True).agg(
        pl.all().exclude("text").first(), text=text.first(), _whole=text.head(_PIECES).str.join("")
    )
    whole = whole.with_columns(text=pl.when(pl.col("_whole").str.contains(_QUEUE)).then("_whole").otherwise("text"))
    return whole.filter("_head").select(frame.columns).drop("_head", "_group")


def _start(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(*_BASE, args=pl.col("text").str.extract(rf"(?s){_ARGS}(.*)", 1))


def _adaptive(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(*_BASE, k=pl.col("text").str.extract(_ADAPTIVE, 1).cast(pl.Int64, strict=False))


def _simulated(rows: pl.DataFrame) -> pl.DataFrame:
    """The switch where it is on: 0 and -1 are off."""
    length = pl.col("text").str.extract(_SIMULATED, 1).cast(pl.Float64, strict=False)
    return rows.filter(length.is_null() | (length > 0)).select(*_BASE)
