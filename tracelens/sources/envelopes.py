"""Peel what container runtimes, collectors and loggers wrap around a line, by content, from the outside in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

LEVELS = 5

_RFC3339 = r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:[Zz]|[+-]\d\d:?\d\d)"
_LABELS = r'\{(?:[A-Za-z_][\w.]*="(?:[^"\\]|\\.)*"(?:,\s*)?)*\}'
_ELEMENT = r'\[(?:[^\]"\\]|\\.|"(?:[^"\\]|\\.)*")*\]'


@dataclass(frozen=True, slots=True)
class Wrapping:
    """A textual envelope: what its head looks like, with the groups stamp, stream, host, tag, pid, labels.

    Only the head is matched: a pattern that captures the message too costs ten times as much.

    `keeps_needle`: the pattern is loose enough to eat the head of a message; it only counts where what it
    leaves still holds a needle.
    """

    name: str
    head: str
    keeps_needle: bool = False


# In this order: each takes the lines that the ones before it left.
WRAPPINGS = (
    Wrapping("cri", rf"(?P<stamp>{_RFC3339}) std(?:out|err) [PF](?::\S*)?(?: |$)"),
    Wrapping("kubectl", r"\[pod/(?P<stream>[^\]\s]+)\] "),
    Wrapping(
        "syslog",
        rf"<\d{{1,3}}>1 (?:(?P<stamp>{_RFC3339})|-) (?P<host>\S+) (?P<tag>\S+) (?P<pid>\S+) \S+ "
        rf"(?:-|(?:{_ELEMENT})+) \x{{FEFF}}?",
    ),
    Wrapping(
        "syslog",
        r"(?:<\d{1,3}>)?(?P<stamp>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?) (?P<host>\S+) "
        r"(?P<tag>[^\s:\[\]]+)(?:\[(?P<pid>\d+)\])?: ",
        keeps_needle=True,
    ),
    Wrapping(
        "syslog",
        rf"(?:<\d{{1,3}}>)?(?P<stamp>{_RFC3339}) (?P<host>\S+) (?P<tag>[^\s:\[\]]+)\[(?P<pid>\d+)\]: ",
    ),
    Wrapping("loki", rf"(?P<stamp>{_RFC3339})\s+(?P<labels>{_LABELS})\s"),
    Wrapping("stamp", rf"(?P<stamp>{_RFC3339})\s+(?:\|\s)?"),
    Wrapping("stamp", r"(?P<stamp>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\s+\|\s"),
    Wrapping("compose", r"(?P<stream>[A-Za-z0-9][\w.-]*)\s+\| ", keeps_needle=True),
)
# Lines that may have an envelope at all, told by their head: all others are left alone at the price of this.
_MAYBE = r"^(?:\s*\{|<\d|\[pod/|\d{4}-\d\d-\d\d[Tt ]|[A-Z][a-z]{2} [ \d]\d \d\d:|[A-Za-z0-9][\w.-]*\s+\| )"
_ANSI = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"


#: Bytes that a line is cleaned of: the beginning of a terminal code, NUL, carriage return.
STRANGE = (b"\x1b", b"\0", b"\r")


def peel(frame: pl.DataFrame, needles: Sequence[str], plain: bool = False) -> pl.DataFrame:
    """Undo the envelopes of lines.

    Args:
        frame: `line` Int64, `offset` Int64, `text` String.
        needles: what made the lines relevant.
        plain: none of `STRANGE` is in any line.

    Returns:
        The same lines with `stamp`, `stream`, `process`, `envelope` (see `LineFinder.find`), in the same order;
        an envelope that holds several lines gives one row for each of them that has a needle.
    """
    import polars as pl

    none = pl.lit(None, pl.String)
    text = frame["text"] if plain else _clean(frame["text"])
    bare = frame.with_columns(text, *(none.alias(name) for name in ("stamp", "stream", "process", "envelope")))
    frame = _peel_levels(bare, needles)
    if plain and frame is bare:
        return frame
    if frame["text"].str.contains("\r", literal=True).any():
        # Only now: a carriage return lies inside the message, and cutting there first would cut an envelope.
        before = frame["text"]
        after = _settle_returns(before, needles)
        frame = frame.with_columns(after)
        if not before.equals(after):
            frame = _peel_levels(frame, needles)
    return frame


def _peel_levels(frame: pl.DataFrame, needles: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    maybe = frame["text"].str.contains(_MAYBE)
    if not maybe.any():
        return frame
    frame = frame.with_row_index("row")
    done = [frame.filter(~maybe)]
    active = frame.filter(maybe)
    for _ in range(LEVELS):
        peeled, rest = _peel_once(active, needles)
        done.append(rest)
        if not peeled:
            break
        active = pl.concat(peeled)
        active = active.with_columns(_clean(active["text"]))
        maybe = active["text"].str.contains(_MAYBE)
        done.append(active.filter(~maybe))
        active = active.filter(maybe)
        if not active.height:
            break
    else:
        done.append(active)
    return pl.concat(done).sort("row", maintain_order=True).drop("row")


def _peel_once(active: pl.DataFrame, needles: Sequence[str]) -> tuple[list[pl.DataFrame], pl.DataFrame]:
    """One layer off: (frames of peeled lines, the lines that had none)."""
    import polars as pl

    from tracelens.sources.records import peel_json

    peeled: list[pl.DataFrame] = []
    is_json = active["text"].str.contains(r"^\s*\{")
    plain = active.filter(~is_json)
    kept = []
    if plain.height < active.height:
        got, rest = peel_json(active.filter(is_json), needles)
        peeled.append(got)
        kept.append(rest)
    for wrapping in WRAPPINGS:
        if not plain.height:
            break
        got, plain = _unwrap(plain, wrapping, needles)
        if got.height:
            peeled.append(got)
    return [frame for frame in peeled if frame.height], pl.concat([*kept, plain])


def _unwrap(frame: pl.DataFrame, wrapping: Wrapping, needles: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(lines in this wrapping, peeled; the other lines)."""
    import polars as pl

    groups = frame["text"].str.extract_groups(f"^(?P<head>{wrapping.head})").struct.unnest()
    hit = groups["head"].is_not_null()
    if not hit.any():
        return frame.clear(), frame
    whole = bool(hit.all())
    got, rest = (frame, frame.clear()) if whole else (frame.filter(hit), frame.filter(~hit))
    groups = groups if whole else groups.filter(hit)
    sliced = pl.DataFrame({"text": got["text"], "head": groups["head"]})
    text = sliced.select(pl.col("text").str.slice(pl.col("head").str.len_chars())).to_series()
    if wrapping.keeps_needle and not (safe := _holds(text, needles)).all():
        rest = pl.concat([rest, got.filter(~safe)])
        got, groups, text = got.filter(safe), groups.filter(safe), text.filter(safe)
    none = pl.Series([], dtype=pl.String).extend_constant(None, got.height)
    stream, process = none, none
    if "tag" in groups.columns:
        pid = groups["pid"]
        parts = pl.DataFrame({"host": groups["host"], "tag": groups["tag"], "pid": pid.replace("-", None)})
        named = parts.select(
            stream=pl.concat_str("host", "tag", separator="/"),
            process=pl.concat_str("tag", "pid", separator=" ", ignore_nulls=True),
        )
        stream, process = named["stream"], named["process"]
    elif "labels" in groups.columns:
        from tracelens.sources.records import identity_of_text

        labels = groups["labels"].unique()
        names = {label: identity_of_text(label) for label in labels.to_list() if label is not None}
        stream = groups["labels"].replace_strict(names, default=None, return_dtype=pl.String)
    elif "stream" in groups.columns:
        stream = groups["stream"]
    stamp = groups["stamp"] if "stamp" in groups.columns else none
    return merged(got, text, stamp, stream, process, wrapping.name), rest


def merged(
    frame: pl.DataFrame, text: pl.Series, stamp: pl.Series, stream: pl.Series, process: pl.Series, name: str | pl.Series
) -> pl.DataFrame:
    """The frame with one more layer known; outer layers keep precedence, a more complete stamp wins."""
    import polars as pl

    inner = pl.DataFrame({"_stamp": stamp, "_stream": stream, "_process": process}).with_columns(
        (pl.lit(name) if isinstance(name, str) else name).alias("_name")
    )
    frame = pl.concat([frame.with_columns(text.alias("text")), inner], how="horizontal")
    if frame["stamp"].null_count() == frame.height:
        chosen = pl.col("_stamp")
    else:
        chosen = pl.when(_completeness("_stamp") > _completeness("stamp")).then("_stamp").otherwise("stamp")
    return frame.with_columns(
        stamp=chosen,
        stream=pl.concat_str("stream", "_stream", separator=" ", ignore_nulls=True).replace("", None),
        process=pl.coalesce("_process", "process"),
        envelope=pl.concat_str("envelope", "_name", separator=">", ignore_nulls=True),
    ).drop("_stamp", "_stream", "_process", "_name")


def _completeness(column: str) -> pl.Expr:
    """3 year and zone (or epoch), 2 year, 1 neither, 0 no stamp."""
    import polars as pl

    text = pl.col(column)
    return (
        pl.when(text.is_null())
        .then(0)
        .when(text.str.contains(r"^\d{4}[-/]\d\d[-/].*(?:[Zz]|[+-]\d\d:?\d\d)$|^\d+(?:\.\d*)?$"))
        .then(3)
        .when(text.str.contains(r"^\d{4}[-/]\d\d[-/]"))
        .then(2)
        .otherwise(1)
    )


def _clean(text: pl.Series) -> pl.Series:
    """Without terminal codes, NULs and the line end."""
    if text.str.contains("\x1b", literal=True).any():
        text = text.str.replace_all(_ANSI, "")
    if text.str.contains("\0", literal=True).any():
        text = text.str.replace_all("\0", "", literal=True)
    return text.str.strip_chars_end("\r\n")


def _holds(text: pl.Series, needles: Sequence[str]) -> pl.Series:
    import polars as pl

    pattern = "|".join(re.escape(needle).replace("\\ ", " ").replace('\\"', '"') for needle in needles)
    return text.str.contains(f"(?:{pattern})") if needles else pl.Series([False]).new_from_index(0, len(text))


def _settle_returns(text: pl.Series, needles: Sequence[str]) -> pl.Series:
    """What stands on the line after its carriage returns: the part with a needle, else the last one."""
    import polars as pl

    def settle(line: str) -> str:
        parts = [part for part in line.split("\r") if part]
        for part in parts:
            if any(needle in part for needle in needles):
                return part
        return parts[-1] if parts else ""

    def settled(value: str) -> str:
        if "\r" not in value:
            return value
        return "\n".join(settle(line) for line in value.replace("\r\n", "\n").split("\n"))

    return pl.Series(text.name, [settled(value) for value in text.to_list()], pl.String)
