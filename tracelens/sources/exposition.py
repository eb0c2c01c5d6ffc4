"""Prometheus text: a scrape, or many of them in one file.

Text format 0.0.4 and OpenMetrics 1.0, as `curl` keeps them, and the one-sample-a-line dumps of a Prometheus server
(`promtool tsdb dump`, `/federate`), where each sample has a stamp of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.engines.base import Reject
from tracelens.sources.scrape_stamps import CANDIDATE, stamp_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    from tracelens.sources.stream import Block

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABELS = r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}'
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?|nan))"
# Name and labels (of which one may be missing, not both), value, own stamp; an exemplar of OpenMetrics may follow.
_SAMPLE = (
    rf"^(?:({_NAME})(?:[ \t]*{_LABELS}[ \t]*|[ \t]+)|{_LABELS}[ \t]*)({_NUMBER})"
    r"(?:[ \t]+(-?[0-9][0-9.eE+-]*))?[ \t]*(?:# ?\{.*)?$"
)
_PARTS = {"1": "name", "2": "labels", "3": "all_labels", "4": "value", "5": "stamp"}
_NAME_LABEL = r'__name__[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"'
_BROKEN = "broken sample: no name, labels and number"
_TIMELESS = "broken sample: its stamp is no time"
_STAMP = r"^-?[0-9]{1,19}(?:\.[0-9]*)?$"

# Of the first lines; more is no surer.
_LOOKED_AT = 400
_MOST = 0.8
_DECLARED = re.compile(rb"# (?:HELP|TYPE|UNIT) [a-zA-Z_:]|# EOF\s*$")
_SAMPLED = re.compile(_SAMPLE.encode())
# A word and a number may be anything; these are how metrics are named.
_TELLING = re.compile(rb'[^\s{]*:|[^{\s]*\{\w+="|[^\s{]+_(?:total|count|sum|bucket|created|seconds|bytes)\s')


def looks(head: bytes) -> bool:
    """Whether a source that begins with these bytes is Prometheus text.

    Comments that declare metrics, and samples, must make up its first lines; single ones in a log do not count.
    """
    if head.lstrip()[:2] in (b'{"', b"[{", b"[]", b"[\n"):
        return False
    lines = head[: 256 << 10].split(b"\n")
    whole = lines[:-1] if len(lines) > 1 and len(head) > 1 << 12 else lines
    samples = declared = telling = others = 0
    for line in [stripped for raw in whole if (stripped := raw.strip())][:_LOOKED_AT]:
        if line.startswith(b"#"):
            declared += _DECLARED.match(line) is not None
        elif _SAMPLED.match(line):
            samples += 1
            telling += _TELLING.match(line) is not None
        elif stamp_of(line.decode("utf-8", "replace")) is None:
            others += 1
    known = declared + samples
    return (declared + telling > 0) and known >= _MOST * (known + others)


def label(name: str) -> pl.Expr:
    """The value of one label of the column `labels`, unescaped; null where the series has no such label."""
    import polars as pl

    # From the start on, pair by pair: a value may hold what looks like another label.
    pattern = rf'^(?:[^"]*"(?:[^"\\]|\\.)*")*?[ \t,]*{re.escape(name)}[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"'
    return unescaped(pl.col("labels").str.extract(pattern, 1))


def unescaped(text: pl.Expr) -> pl.Expr:
    r"""Label values as they are meant: `\\`, `\"` and `\n` undone, from the left."""
    return text.str.replace_many(["\\\\", '\\"', "\\n"], ["\\", '"', "\n"])


class Scrapes:
    """The samples whose names begin with one of some prefixes; buckets of histograms are left out.

    A new scrape begins where a series comes again, behind a line that tells a time, and behind `# EOF`. What a scrape's
    samples do not say themselves, the line before it says: `# TRACELENS-SCRAPE unix=1795953254.992`, `date` in its
    usual forms, a number of seconds. Where the first scrape stands before the first such line, the lines stand behind
    their scrapes. Samples with a stamp of their own are of no scrape.

    Attributes:
        problems: lines that were meant to be samples and are none.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self.problems: list[Reject] = []
        names = "|".join(map(re.escape, prefixes))
        self._begin = f"(?:{names})" if prefixes else r"[^\s\S]"  # without a prefix nothing is wanted
        self._number = 0  # of the scrape that is open
        self._open: npt.NDArray[np.uint64] | None = None  # its series
        self._stamps_first: bool | None = None  # None: not known yet
        self._last_stamp: tuple[int, str] | None = None
        self._held: pl.DataFrame | None = None  # samples whose stamp may still come

    def feed(self, block: Block) -> pl.DataFrame:
        """The samples of the next block, with the columns of `MetricsReader.metrics`."""
        import polars as pl

        lines = _lines(block)
        samples = self._samples(lines, block)
        marks = lines.filter(pl.col("text").str.contains(CANDIDATE))
        stamps: list[tuple[int, str]] = []
        breaks: list[int] = []
        for line, text in marks.iter_rows():  # a few lines a scrape
            stamp = stamp_of(text)
            if stamp is not None:
                stamps.append((line, stamp))
            if stamp is not None or text.startswith("# EOF"):
                breaks.append(line)
        own = samples.filter(pl.col("stamp").is_not_null())
        scraped = self._numbered(samples.filter(pl.col("stamp").is_null()), breaks)
        return pl.concat([own, self._stamped(scraped, stamps)]).sort("line", maintain_order=True)

    def finish(self) -> pl.DataFrame:
        """Samples that waited for a stamp that never came."""
        held, self._held = self._held, None
        return _samples_schema() if held is None else held

    def _samples(self, lines: pl.DataFrame, block: Block) -> pl.DataFrame:
        import polars as pl

        text = pl.col("text")
        plain = text.str.contains(f"^{self._begin}") & ~text.str.contains("_bucket{", literal=True)
        # A dump has the name among the labels; those of other prefixes are none of ours, and no problem either.
        dumped = text.str.starts_with("{") & text.str.contains(f'__name__="{self._begin}')
        wanted = lines.filter(plain | dumped)
        parts = wanted.select("line", found=text.str.extract_groups(_SAMPLE)).unnest("found").rename(_PARTS)
        parts = _named(parts)
        bad = parts.filter(pl.col("name").is_null())["line"].to_list()
        if bad:
            self._broken(bad, block, _BROKEN)
        # 1.79e+09 is a number to OpenMetrics, and no stamp to us before it is written out.
        stamp = pl.col("stamp")
        written = stamp.cast(pl.Float64, strict=False).round(3).cast(pl.Decimal(19, 3), strict=False).cast(pl.String)
        parts = parts.with_columns(own=pl.when(stamp.str.contains("[eE]")).then(written).otherwise(stamp))
        # Without its time it would be taken for a sample of a scrape, which all stand before the ones with a time.
        untimed = stamp.is_not_null() & ~pl.col("own").str.contains(_STAMP)
        lost = pl.col("name").is_not_null() & untimed.fill_null(stamp.is_not_null())
        timeless = parts.filter(lost)["line"].to_list()
        if timeless:
            self._broken(timeless, block, _TIMELESS)
        return (
            parts.filter(~lost)
            .filter(pl.col("name").is_not_null() & ~pl.col("name").str.ends_with("_bucket"))
            .select(
                "line",
                scrape=pl.lit(None, pl.Int64),
                stamp="own",
                stream=pl.lit(None, pl.String),
                name="name",
                labels=pl.col("labels").fill_null(""),
                value=pl.col("value").str.strip_prefix("+").cast(pl.Float64, strict=False),
            )
        )

    def _broken(self, bad: Sequence[int], block: Block, why: str) -> None:
        ends = [0, *(m.end() for m in re.finditer(b"\n", block.data))]
        for line in bad:
            self.problems.append(Reject(line, why, None, block.offset + ends[line - block.line]))

    def _numbered(self, samples: pl.DataFrame, breaks: Sequence[int]) -> pl.DataFrame:
        """Samples with the number of their scrape."""
        import numpy as np
        import polars as pl

        before = np.empty(0, np.uint64) if self._open is None else self._open
        series = samples.select(pl.struct("name", "labels").hash()).to_series().to_numpy()
        every = np.concatenate([before, series])
        # A scrape ends before the first series that comes again in it, or at a break between two samples.
        forced = np.searchsorted(samples["line"].to_numpy(), breaks) + len(before)
        starts = _starts(every, np.unique(forced))
        number = np.searchsorted(starts, np.arange(len(every)), side="right")
        scrape = self._number + number[len(before) :].astype(np.int64)
        # The place behind the last sample is a start, too, where something has closed the scrape there.
        self._number += len(starts)
        self._open = every[starts[-1] :] if len(starts) else every
        return samples.with_columns(scrape=pl.Series(scrape, dtype=pl.Int64))

    def _stamped(self, new: pl.DataFrame, stamps: Sequence[tuple[int, str]]) -> pl.DataFrame:
        """Samples whose stamp is known, with it; the others are held back."""
        import polars as pl

        rows = new if self._held is None else pl.concat([self._held, new])
        if self._stamps_first is None:
            first = stamps[0][0] if stamps else None
            if first is not None:
                self._stamps_first = not (rows["line"] < first).any()
            if rows.height and rows["scrape"][-1] > 0 and (first is None or rows.filter(scrape=1)["line"][0] < first):
                self._stamps_first = True  # nothing between two scrapes
        if self._stamps_first is None:
            self._held = rows
            return _samples_schema()
        known = [*([self._last_stamp] if self._last_stamp else []), *stamps]
        self._last_stamp = known[-1] if known else None
        ends = pl.DataFrame(known, schema={"at": pl.Int64, "told": pl.String}, orient="row").set_sorted("at")
        place = pl.col("line").min() if self._stamps_first else pl.col("line").max()
        scrapes = rows.group_by("scrape", maintain_order=True).agg(at=place).sort("at")
        scrapes = scrapes.join_asof(ends, on="at", strategy="backward" if self._stamps_first else "forward")
        out = rows.join(scrapes.select("scrape", "told"), on="scrape", how="left", maintain_order="left")
        out = out.with_columns(stamp="told").drop("told")
        if self._stamps_first:
            self._held = None
            return out
        self._held = out.filter(pl.col("stamp").is_null())
        return out.filter(pl.col("stamp").is_not_null())


def _lines(block: Block) -> pl.DataFrame:
    import polars as pl

    text = block.data.decode("utf-8", "replace").removesuffix("\n")
    if "\r" in text:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    lines = pl.select(pl.lit(text).str.split("\n").explode().alias("text")).to_series()
    return lines.to_frame().select(line=pl.int_range(pl.len()) + block.line, text="text")


def _named(parts: pl.DataFrame) -> pl.DataFrame:
    """Samples whose name is among the labels, as a Prometheus server dumps them, like all others."""
    import polars as pl

    everything = pl.col("all_labels")
    rest = everything.str.replace(rf"{_NAME_LABEL}[ \t]*,?[ \t]*", "").str.strip_suffix(",")
    return parts.with_columns(
        name=pl.coalesce("name", unescaped(everything.str.extract(rf"(?:^|,)[ \t]*{_NAME_LABEL}", 1))),
        labels=pl.coalesce("labels", rest),
    )


def _starts(series: npt.NDArray[np.uint64], forced: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where scrapes begin but for the first one, which is open when the array begins; `forced` are breaks."""
    import numpy as np

    size = len(series)
    order = np.argsort(series, kind="stable")
    same = series[order[1:]] == series[order[:-1]]
    again = np.full(size + 1, size)
    again[order[:-1][same]] = order[1:][same]
    # From each place on, the first one at which a series is there for the second time.
    again = np.minimum.accumulate(again[::-1])[::-1]
    starts: list[int] = []
    at, breaks = 0, iter([*forced.tolist(), size + 1])
    following = next(breaks)
    while True:
        while following <= at:
            following = next(breaks)
        at = min(int(again[at]), following)
        if at >= size and following != at:
            break
        starts.append(at)
        if at >= size:
            break
    return np.array(starts, np.int64)


def _samples_schema() -> pl.DataFrame:
    """No samples."""
    import polars as pl

    return pl.DataFrame(
        schema={
            "line": pl.Int64,
            "scrape": pl.Int64,
            "stamp": pl.String,
            "stream": pl.String,
            "name": pl.String,
            "labels": pl.String,
            "value": pl.Float64,
        }
    )
