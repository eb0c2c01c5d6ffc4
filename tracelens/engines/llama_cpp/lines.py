"""llama.cpp's log lines: declarations of what they print, and their vectorised extraction.

Component and function stand before a message, cut to 12 characters; functions were renamed often, so nothing here
depends on them. One logger call may write several lines: only its first one has the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracelens.engines.base import Parsed, Reject
from tracelens.engines.llama_cpp.surfaces import DRAFTING, EXAMPLE, REQUEST, ROUND, START, STATISTICS, TASK

# Each is one more pass over every file: long ones are cheap, and all lines of a slot share the first.
NEEDLES: tuple[bytes, ...] = (
    b" | task ",
    b" eval time = ",
    b"draft acceptance rate = ",
    b", #gen drafts = ",
    b"common_",
    b": loading model '",
    b", xtc_threshold = ",
    b" seconds, speed: ",
    b"n_draft   = ",
    b"n_drafted = ",
    b"n_accept  = ",
)

# `[52123] ` is the port of a child, put before its output by llama-server in router mode; `0.06.895.980 I ` is minutes
# (unbounded), seconds, ms and us since the start of the process, and the level.
_CHILD, _CLOCK, _LEVEL = r"\[\s*\d{1,5}\] ", r"\d+\.\d\d\.\d{3}\.\d{3} ", r"[A-Z] "
_PREFIX = (
    rf"(?:(?:{_CLOCK})?(?:{_LEVEL})?\[\s*(?P<child>\d{{1,5}})\] )?"
    r"(?:(?P<min>\d{1,7})\.(?P<s>\d\d)\.(?P<us>\d{3}\.\d{3}) )?(?:[A-Z] )?"
)
# Written without a line end (b11434, -v), so that the next message begins in its line.
_NO_NEWLINE = (
    rf"^(?:(?:{_CHILD})?(?:{_CLOCK})?(?:{_LEVEL})?No parser definition detected, assuming pure content parser\.)+"
)
_SLOT = r"^slot\s+\S+: id\s+(?P<slot>\d{1,6}) \| task (?P<task>-?\d{1,12}) \|\s*(?P<rest>.*)$"

_MS = r"(?P<ms>\d{1,12}(?:\.\d+)?) ms /\s*(?P<tokens>\d{1,12})\s"
_FORMS: Mapping[str, str] = {
    "prompt": rf"^prompt eval time =\s*{_MS}",
    "eval": rf"^eval time =\s*{_MS}",
    "acceptance": r"^draft acceptance(?: rate)? = \S+ \(\s*(?P<accepted>\d{1,12}) accepted /\s*(?P<drafted>\d{1,12})\s"
    r"(?:generated\))?(?:, mean (?:acceptance length|len) =\s*(?P<mean>\d{1,9}\.\d+))?"
    r"(?:, acceptance rate per position = \((?P<rates>[\d., ]+)\))?",
    "per_pos": r"^acc per pos = \((?P<rates>[\d., ]+)\)",
}
_OPENS = {
    "prompt": "prompt eval time =",
    "eval": "eval time =",
    "acceptance": "draft acceptance",
    "per_pos": "acc per pos =",
}
_ROUND = r"^accepted\s+(?P<accepted>\d{1,9})/\s*(?P<drafted>\d{1,9}) d(?P<tail>.*)$"
# `sampled` is a token of the answer: it is matched, and never taken.
_ADDED = r"^add accepted tokens: sampled=-?\d+, ids\.size=(?P<ids>\d{1,9}), n_draft=(?P<drafted>\d{1,9})$"
_STATISTICS = (
    r"^statistics\s+(?P<drafter>[\w-]+): "
    r"#calls(?:\(b,g,a\) =\s*\d+\s+(?P<calls>\d{1,15})\s+\d+| =\s*(?P<all_calls>\d{1,15})), "
    r"#gen drafts =\s*(?P<rounds>\d{1,15}), #acc drafts =\s*\d+, #gen tokens =\s*(?P<drafted>\d{1,15}), "
    r"#acc tokens =\s*(?P<accepted>\d{1,15}),"
)
_DUR = r" dur(?:\(b,g,a\) = \d+\.\d+, (?P<generate>\d{1,12}\.\d+),| = (?P<all_parts>\d{1,12}\.\d+) ms)"
_BASE = ("line", "offset", "stamp", "stream", "child", "clock")
_COUNTS = ("tokens", "accepted", "drafted", "ids", "slot", "task", "n_tokens")
# What a task's life and a draft's are told by, in the rest of a slot's line.
_TASK = {
    "launch": r"^processing task()",
    "release": r"^stop processing: n_tokens = (\d{1,12}), truncated = 0",
    # Without a length that tells the prompt's: `n_past` of before 2026, and contexts that were cut.
    "stop": r"^stop processing: (?:n_past = \d{1,12}, |n_tokens = \d{1,12}, truncated = 1)()",
    "cached": r"^cached n_tokens = (\d{1,12}),",
    "new_slot": r"^new slot()",
}
_DRAFT = {
    "begin": r"^max possible draft: (\d+)",
    "end": r"^generate_draft: id=-?\d+, #tokens=(\d{1,9}), #draft=\d{1,9}",
}
_START = {
    "build": r"^common_params_print_info: build (\d+) ",
    "model": r"^loading model '(.+)'$",
    "draft_model": r"^common_speculative_init_result: loading draft model '(.+)'$",
    "method": r"^adding speculative implementation '([\w.-]+)'",
    "settings": r"^- ((?:n_max|size_n|n_match|n_draft)=.*)$",
    "none": r"^no implementations specified for speculative decoding()",
    "synthetic": r"^synthetic (?:speculative )?acceptance()",
}


def parse(frame: pl.DataFrame) -> Parsed:
    """Extract llama.cpp's records from lines (see `Engine.lines`)."""
    parsed = Parsed()
    lines = _messages(frame)
    slots = pl.concat([lines, lines["message"].str.extract_groups(_SLOT).struct.unnest()], how="horizontal")
    slotted = pl.col("task").is_not_null()
    own = slots.filter(slotted).with_columns(pl.col("slot", "task").cast(pl.Int64))
    bare = slots.filter(~slotted).with_columns(pl.col("slot", "task").cast(pl.Int64), rest=pl.col("message"))
    _rounds(own, parsed)
    # Round lines are most of a traced log, and nothing else begins as they do.
    own = own.filter(~pl.col("rest").str.contains("^(?:add )?accepted "))
    _keyed(own, _TASK, TASK, parsed)
    _keyed(own, _DRAFT, DRAFTING, parsed)
    header = own.filter((pl.col("rest") == "") & pl.col("message").str.contains("print_timing", literal=True))
    parts = [header.select(*_BASE, "slot", "task", kind=pl.lit("header"))]
    for kind in _FORMS:
        parts += [_block(part, kind, parsed) for part in (own, bare)]
    _add(parsed, REQUEST, pl.concat(parts, how="diagonal"))
    _samplers(bare, parsed)
    _statistics(bare, parsed)
    _starts(bare, parsed)
    _examples(bare, parsed)
    return parsed


def _messages(frame: pl.DataFrame) -> pl.DataFrame:
    """Lines as `message` without their prefix; a logger call of several lines gives one row a line.

    `clock` is us since the start of the process: the line's own, or the bare number of `--log-jsonl` that the envelope
    left as a stamp. Up to 12 digits (11 days): an epoch in ms has 13, one in whole seconds would be taken for us.
    """
    text = pl.col("text").str.replace(_NO_NEWLINE, "")
    if frame["text"].str.contains("\n", literal=True).any():
        frame = frame.with_columns(text=pl.col("text").str.split("\n")).explode("text")
    frame = frame.select("line", "offset", "stamp", "stream", text=text)
    groups = frame["text"].str.extract_groups(rf"^(?P<head>{_PREFIX})").struct.unnest()
    us = pl.col("us").str.replace(".", "", literal=True).cast(pl.Int64)
    own = (pl.col("min").cast(pl.Int64) * 60 + pl.col("s").cast(pl.Int64)) * 1_000_000 + us
    counted = pl.col("stamp").str.contains(r"^\d{1,12}$")
    return pl.concat([frame, groups], how="horizontal").select(
        "line",
        "offset",
        "stream",
        "child",
        stamp=pl.when(~counted.fill_null(False)).then("stamp"),
        clock=pl.coalesce(own, pl.when(counted).then(pl.col("stamp").cast(pl.Int64, strict=False))),
        message=pl.col("text").str.slice(pl.col("head").str.len_chars()).str.strip_chars(" \t\r"),
    )


def _add(parsed: Parsed, surface: str, frame: pl.DataFrame) -> None:
    parsed.add(surface, frame)
    parsed.claimed += frame.height


def _refuse(parsed: Parsed, frame: pl.DataFrame, surface: str, reason: str) -> None:
    """Note lines that are ours and broken; their text may hold anything, so no excerpt is kept."""
    parsed.rejects += [
        Reject(line, reason, surface, offset) for line, offset in frame.select("line", "offset").iter_rows()
    ]
    parsed.claimed += frame.height


def _captured(frame: pl.DataFrame, column: str, pattern: str) -> pl.DataFrame:
    """The frame with the named groups of a pattern, counts as Int64; all null where it does not fit."""
    groups = frame[column].str.extract_groups(pattern).struct.unnest()
    numbers = [c for c in groups.columns if c in _COUNTS]
    return pl.concat(
        [frame.drop(groups.columns, strict=False), groups.with_columns(pl.col(numbers).cast(pl.Int64))],
        how="horizontal",
    )


def _told(own: pl.DataFrame, parsed: Parsed) -> pl.DataFrame:
    """What lines say of a round, up to three of one (`kind`; `rounds.of_tasks` makes them one).

    `trace` is LLAMA_TRACE's line, above it `restore` where the context could not roll back. `added` (2026) is written
    when the tokens are taken over, `debug` after all of them were sent: in b11434 not of the round that ends a request.
    """
    rest = pl.col("rest")
    accepted = _captured(own.filter(rest.str.starts_with("accepted ")), "rest", _ROUND)
    added = _captured(own.filter(rest.str.starts_with("add accepted tokens:")), "rest", _ADDED)
    # The target's own token is among the ids.
    added = added.with_columns(accepted=pl.col("ids") - 1)
    found = pl.concat([accepted, added], how="diagonal")
    broken = pl.col("accepted").is_null() | pl.col("drafted").is_null() | (pl.col("accepted") < 0)
    _refuse(parsed, found.filter(broken), ROUND, "broken round line")
    # Builds of 2025-12 (llama.cpp#18211) print drafts of 0 with accepted tokens.
    impossible = pl.col("accepted") > pl.col("drafted")
    _refuse(parsed, found.filter(~broken & impossible), ROUND, "accepted <= drafted does not hold")
    tail = pl.col("tail")
    return found.filter(~broken & ~impossible).with_columns(
        kind=pl.when(tail.is_null())
        .then(pl.lit("added"))
        .when(tail.str.contains("(restore", literal=True))
        .then(pl.lit("restore"))
        .when(tail.str.contains(", new n_", literal=True))
        .then(pl.lit("debug"))
        .otherwise(pl.lit("trace")),
        n_tokens=tail.str.extract(r"new n_\w+ = (\d{1,9})", 1).cast(pl.Int64),
    )


def _rounds(own: pl.DataFrame, parsed: Parsed) -> None:
    """Round lines, of LLAMA_TRACE (`trace`) or debug, and what debug says of plain steps and of restores."""
    rest = pl.col("rest")
    found = _told(own, parsed)
    plain = own.filter(rest.str.starts_with("slot decode token,")).with_columns(
        kind=pl.lit("plain"),
        accepted=pl.lit(0, pl.Int64),
        drafted=pl.lit(0, pl.Int64),
        n_tokens=rest.str.extract(r"n_tokens = (\d{1,9})", 1).cast(pl.Int64),
    )
    restoring = own.filter(rest.str.starts_with("restoring speculative checkpoint")).with_columns(
        kind=pl.lit("restoring")
    )
    columns = [*_BASE, "slot", "task", "kind", "accepted", "drafted", "n_tokens"]
    empty = pl.DataFrame(schema={"accepted": pl.Int64, "drafted": pl.Int64, "n_tokens": pl.Int64})
    frames = [f.select(c for c in columns if c in f.columns) for f in (found, plain, restoring)]
    _add(parsed, ROUND, pl.concat([*frames, empty], how="diagonal").select(columns))


def _keyed(own: pl.DataFrame, forms: Mapping[str, str], surface: str, parsed: Parsed) -> None:
    """Lines of a slot that are told by their beginning, with the number each may hold (and the draft's length)."""
    parts = []
    for kind, form in forms.items():
        found = own.with_columns(_number=pl.col("rest").str.extract(form, 1)).filter(pl.col("_number").is_not_null())
        value = pl.col("_number").cast(pl.Int64, strict=False).alias("n_tokens")
        drafted = pl.col("rest").str.extract(r"#draft=(\d{1,9})", 1).cast(pl.Int64)
        parts.append(found.select(*_BASE, "slot", "task", value, drafted=drafted, kind=pl.lit(kind)))
    _add(parsed, surface, pl.concat(parts))


def _block(frame: pl.DataFrame, kind: str, parsed: Parsed) -> pl.DataFrame:
    """Lines of the request block of one kind."""
    found = _captured(frame.filter(pl.col("rest").str.starts_with(_OPENS[kind])), "rest", _FORMS[kind])
    counts = [c for c in ("tokens", "accepted") if c in found.columns]
    broken = pl.col("rates").is_null() if kind == "per_pos" else pl.any_horizontal(pl.col(c).is_null() for c in counts)
    _refuse(
        parsed,
        found.filter(broken & pl.col("task").is_not_null()),
        REQUEST,
        f"broken line of a request block ({_OPENS[kind]})",
    )
    numbers = [pl.col(c).cast(pl.Float64, strict=False) for c in ("ms", "mean") if c in found.columns]
    columns = [
        c
        for c in (*_BASE, "slot", "task", "ms", "tokens", "accepted", "drafted", "mean", "rates")
        if c in found.columns
    ]
    return found.filter(~broken).with_columns(numbers).select(*columns, kind=pl.lit(kind))


def _samplers(bare: pl.DataFrame, parsed: Parsed) -> None:
    """The third line of the sampling parameters: the only place where a log tells the temperature."""
    found = bare.filter(
        pl.col("rest").str.starts_with("top_k = ") & pl.col("rest").str.contains(", xtc_threshold = ", literal=True)
    )
    value = {
        c: pl.col("rest").str.extract(rf"\b{k} = (\d{{1,3}}\.\d+)", 1).cast(pl.Float64)
        for c, k in (("temperature", "temp"), ("top_p", "top_p"))
    }
    _add(
        parsed,
        TASK,
        found.select(*_BASE, "slot", "task", pl.lit(None, pl.Int64).alias("n_tokens"), kind=pl.lit("sampler"), **value),
    )


def _statistics(bare: pl.DataFrame, parsed: Parsed) -> None:
    message = pl.col("message").str.replace(r"^spec\s+\S+: ", "")
    said = bare.filter(pl.col("message").str.contains(", #gen drafts = ", literal=True)).with_columns(message=message)
    said = said.filter(pl.col("message").str.starts_with("statistics "))
    found = _captured(said, "message", _STATISTICS)
    broken = pl.col("accepted").is_null()
    _refuse(parsed, found.filter(broken), STATISTICS, "broken statistics line")
    duration = found["message"].str.extract_groups(_DUR).struct.unnest()
    found = pl.concat([found, duration], how="horizontal").filter(~broken)
    found = found.select(
        *_BASE, "drafter", "drafted", "accepted",
        rounds=pl.col("rounds").cast(pl.Int64),
        calls=pl.coalesce("calls", "all_calls").cast(pl.Int64),
        generate_ms=pl.coalesce("generate", "all_parts").cast(pl.Float64),
        rates=pl.col("message").str.extract(r"#acc rate/pos = \(([\d., ]+)\)", 1),
    )  # fmt: skip
    _add(parsed, STATISTICS, found)


def _starts(bare: pl.DataFrame, parsed: Parsed) -> None:
    message = pl.col("message").str.replace(r"^(?:srv|cmn|spec)\s+(?:common_param|common_specu|load_model): ", "")
    asked = bare.filter(pl.col("message").str.contains(r"common_(?:param|specu)|load_model: ")).with_columns(
        said=message
    )
    parts = []
    for kind, form in _START.items():
        found = asked.with_columns(value=pl.col("said").str.extract(form, 1)).filter(pl.col("value").is_not_null())
        parts.append(found.select(*_BASE, "value", kind=pl.lit(kind)))
    _add(parsed, START, pl.concat(parts))


def _examples(bare: pl.DataFrame, parsed: Parsed) -> None:
    """Counts and the time of the example programs; see `tracelens.engines.llama_cpp.examples`."""
    message = bare["message"]
    counts = message.str.extract_groups(
        r"^(?P<kind>n_draft|n_drafted|n_accept)\s+= (?P<count>\d{1,12})$"
    ).struct.unnest()
    times = message.str.extract_groups(
        r"^(?:decoded|generated)\s+(?P<tokens>\d{1,12}) tokens in\s+(?P<seconds>\d{1,9}\.\d+) seconds, speed: "
    ).struct.unnest()
    found = pl.concat([bare.select(_BASE), counts, times], how="horizontal").with_columns(
        kind=pl.coalesce("kind", pl.when(pl.col("tokens").is_not_null()).then(pl.lit("decoded"))),
        count=pl.coalesce("count", "tokens").cast(pl.Int64),
        seconds=pl.col("seconds").cast(pl.Float64),
    )
    _add(parsed, EXAMPLE, found.filter(pl.col("kind").is_not_null()).drop("tokens"))
