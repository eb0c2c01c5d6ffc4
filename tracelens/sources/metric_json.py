"""Metrics as JSON: queries of the Prometheus HTTP API, exports of VictoriaMetrics, AIPerf's server metrics.

The forms, of which the first three are lists of series that a file holds in any number:

* `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{...},"values":[[s,"1"],...]}]}}` (or `vector`,
  with one `value`), as the HTTP API answers, and the bare list of series that `promtool query range -o json` prints;
* `{"metric":{...},"values":[1,...],"timestamps":[ms,...]}` a line (VictoriaMetrics `/api/v1/export`);
* AIPerf's `server_metrics_export.jsonl`, a scrape of one endpoint a line:
  `{"endpoint_url":...,"timestamp_ns":...,"metrics":{"name":[{"labels":{...},"value":1}]}}`;
* AIPerf's `server_metrics_export.json`: by metric and endpoint the growth over the benchmark, told as two samples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, AnyStr

from tracelens.engines.base import JsonRecord, Reject
from tracelens.engines.units import meaning, real

if TYPE_CHECKING:
    import polars as pl

KEYS: Sequence[bytes] = (b'"__name__"', b'"resultType"', b'"endpoint_url"')

_NAMELESS = "a query result without the metric's name (rate, sum and other functions drop it): query the metric itself"
_NO_NUMBER = "broken sample: its value is too large for a number"
_UNTOLD = "broken series: its type or its endpoint is no text"
_BROKEN = "broken series: no list of stamps and numbers"
_DOCUMENT = re.compile(rb'\s*\{\s*"status"\s*:\s*"success"\s*,.{0,4096}?"result"\s*:\s*\[', re.S)
_SERIES = re.compile(rb'\s*(?:\[\s*)?\{\s*"metric"\s*:\s*\{[^}]{0,4096}"__name__"', re.S)
# A file of series is cut at its series, wherever its lines end.
_NAMED = re.compile(rb'"__name__"\s*:\s*"([^"\\]*)"')
_BEGINS = b'{"metric":'
_LABELS = re.compile(rb'\s*+\{(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+\}', re.S)
_ENDS = b"]}"
_LONGEST = 64 << 20
_LONGEST_LABELS = 1 << 14
_MARKS = frozenset(("data", "metric", "metrics"))
# What an engine declares, by the type that AIPerf names: the keys of `stats` that say by how much it grew.
_GROWTH = {"counter": (("total", ""),), "histogram": (("count", "_count"), ("sum", "_sum"))}


def holds(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object is made of metric samples."""
    if _MARKS.isdisjoint(value):  # nearly every record of a log
        return False
    data = value.get("data")
    if isinstance(data, dict) and "resultType" in data and "result" in data:
        return True
    if isinstance(value.get("metric"), dict) and ("values" in value or "value" in value):
        return True
    metrics = value.get("metrics")
    if not isinstance(metrics, dict):
        return False
    return ("endpoint_url" in value and "timestamp_ns" in value) or _summary_of(value) is not None


def samples(records: Sequence[JsonRecord], prefixes: Sequence[str], rejects: list[Reject]) -> pl.DataFrame:
    """The samples whose names begin with one of `prefixes`, with the columns of `MetricsReader.metrics`."""
    taken = _Taken(tuple(prefixes))
    for record in records:
        value = record.value
        data = value.get("data")
        if isinstance(data, dict) and "resultType" in data:
            result = data.get("result")
            for one in result if isinstance(result, list) else ():
                _series(one, record.line, record.offset, taken, rejects)
        elif "metric" in value:
            _series(value, record.line, record.offset, taken, rejects)
        elif "timestamp_ns" in value:
            _scrape(value, record, taken, rejects)
        else:
            _growth(value, record, taken, rejects)
    return taken.frame()


def looks(head: bytes) -> bool:
    """Whether a source that begins with these bytes is made of series of a Prometheus or VictoriaMetrics server.

    Such a source may be one line of hundreds of megabytes, and is read series by series.
    """
    return _BEGINS in head and bool(_SERIES.match(head) or _DOCUMENT.match(head))


class Series:
    """The series of a source that `looks` knows, cut out of its pieces.

    Attributes:
        problems: series that cannot be used.
        count: series met so far, whether or not they are wanted.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self.problems: list[Reject] = []
        self.count = 0
        self._prefixes = tuple(prefixes)
        self._begins = tuple(p.encode() for p in prefixes)
        self._rest = b""
        self._line = 1
        self._offset = 0  # of _rest

    def feed(self, piece: bytes) -> pl.DataFrame:
        """The samples of the series that end in the next piece, with the columns of `MetricsReader.metrics`."""
        data = self._rest + piece
        taken = _Taken(self._prefixes)
        at = 0
        while True:
            begin = data.find(_BEGINS, at)
            end = _end(data, begin) if begin >= 0 else 0
            if not end:
                break
            self._take(data[begin:end], data.count(b"\n", at, begin), self._offset + begin, taken)
            self._line += data.count(b"\n", begin, end)
            at = end
        # What is no series is not kept, but for a beginning that was cut.
        keep = begin if begin >= 0 else max(at, len(data) - len(_BEGINS) + 1)
        if len(data) - keep > _LONGEST:
            self.problems.append(Reject(self._line, f"series longer than {_LONGEST} bytes", None, self._offset + keep))
            keep = len(data)
        self._line += data.count(b"\n", at, keep)
        self._offset += keep
        self._rest = data[keep:]
        return taken.frame()

    def finish(self) -> None:
        """Note a series that was cut off by the end of the source."""
        if self._rest.startswith(_BEGINS):
            self.problems.append(Reject(self._line, "series cut off by the end of the file", None, self._offset))
        self._rest = b""

    def _take(self, text: bytes, lines: int, offset: int, taken: _Taken) -> None:
        import msgspec

        self.count += 1
        self._line += lines
        name = _NAMED.search(text, 0, _LONGEST_LABELS)
        if name is not None and not _is_wanted(name[1], self._begins, b"_bucket"):
            return
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            self.problems.append(Reject(self._line, _BROKEN, None, offset))
            return
        _series(value, self._line, offset, taken, self.problems)


def _end(data: bytes, begin: int) -> int:
    """Where the series that begins here ends, at the latest where the next one begins; 0 if behind the data."""
    at = begin + len(_BEGINS)
    following = data.find(_BEGINS, at)
    limit = len(data) if following < 0 else following
    # What is in the quotes of a label may read like an end; behind the labels are numbers.
    labels = _LABELS.match(data, at, limit)
    if labels is None and following < 0 and data[at : at + _LONGEST_LABELS].lstrip()[:1] == b"{":
        return 0
    end = data.find(_ENDS, at if labels is None else labels.end(), limit)
    return end + len(_ENDS) if end >= 0 else max(following, 0)


@dataclass(slots=True)
class _Taken:
    """Samples as they are found: by series what it is, and how many of the numbers are its own."""

    prefixes: tuple[str, ...]
    lines: list[int] = field(default_factory=list)
    streams: list[str | None] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    stamps: list[str] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)

    def add(
        self, line: int, stream: str | None, name: str, labels: str, stamps: Sequence[str], values: Sequence[Any]
    ) -> None:
        self.lines.append(line)
        self.streams.append(stream)
        self.names.append(name)
        self.labels.append(labels)
        self.sizes.append(len(values))
        self.stamps.extend(stamps)
        self.values.extend(values)

    def frame(self) -> pl.DataFrame:
        import polars as pl

        series = pl.DataFrame(
            {"line": self.lines, "stream": self.streams, "name": self.names, "labels": self.labels},
            schema={"line": pl.Int64, "stream": pl.String, "name": pl.String, "labels": pl.String},
        )
        size = pl.Series("size", self.sizes, dtype=pl.Int64)
        points = pl.DataFrame(
            {"stamp": self.stamps, "value": self.values}, schema={"stamp": pl.String, "value": pl.Float64}
        )
        spread = series.select(pl.all().repeat_by(size).explode(empty_as_null=False))
        out = pl.concat([spread, points], how="horizontal")
        return out.select("line", pl.lit(None, pl.Int64).alias("scrape"), "stamp", "stream", "name", "labels", "value")


def _series(value: Any, line: int, offset: int, taken: _Taken, rejects: list[Reject]) -> None:
    """One series: `values` of pairs, `value` as one pair, or `values` beside `timestamps`."""
    metric = value.get("metric") if isinstance(value, dict) else None
    if not isinstance(metric, dict):
        rejects.append(Reject(line, _BROKEN, None, offset))
        return
    name = metric.get("__name__")
    if not isinstance(name, str) or not name:
        rejects.append(Reject(line, _NAMELESS, None, offset))
        return
    if not _is_wanted(name, taken.prefixes, "_bucket"):
        return
    try:
        stamps, values = _points(value)
    except (TypeError, ValueError, OverflowError):
        rejects.append(Reject(line, _BROKEN, None, offset))
        return
    taken.add(line, None, name, labels_text(metric), stamps, values)


def _is_wanted(name: AnyStr, prefixes: tuple[AnyStr, ...], bucket: AnyStr) -> bool:
    return name.startswith(prefixes) and not name.endswith(bucket)


def _points(value: Mapping[str, Any]) -> tuple[list[str], list[float | None]]:
    """Stamps (text) and numbers of a series.

    Raises:
        TypeError, ValueError, OverflowError: the lists are missing or none, or hold something else.
    """
    if "timestamps" in value:
        # VictoriaMetrics writes what is no number as null, and infinities as text.
        stamps, values = value["timestamps"], value.get("values")
        if values is None:
            raise TypeError
        if len(stamps) != len(values):
            raise ValueError
        return [str(int(s)) for s in stamps], [None if v is None else float(v) for v in values]
    pairs = [value["value"]] if "value" in value else value.get("values")
    if pairs is None:
        raise TypeError
    # Seconds, of which the server keeps three digits.
    return [f"{s:.3f}" for s, _ in pairs], [float(v) for _, v in pairs]


def _scrape(value: Mapping[str, Any], record: JsonRecord, taken: _Taken, rejects: list[Reject]) -> None:
    """A line of AIPerf: all samples of one endpoint at one time."""
    stamp, stream = value["timestamp_ns"], value.get("endpoint_url")
    metrics = value["metrics"]
    if not isinstance(stamp, int) or not isinstance(metrics, dict):
        rejects.append(Reject(record.line, "broken scrape: no stamp or no metrics", None, record.offset))
        return
    for name, found in metrics.items():
        if not name.startswith(taken.prefixes):
            continue
        for sample in found if isinstance(found, list) else [found]:
            if not isinstance(sample, dict):
                rejects.append(Reject(record.line, "broken sample: no object", None, record.offset))
                continue
            labels = labels_text(sample.get("labels"))
            parts = ((name, "value"), (f"{name}_sum", "sum"), (f"{name}_count", "count"))
            for full, key in parts:
                number = real(sample.get(key))
                if number is not None:
                    taken.add(record.line, _text(stream), full, labels, [str(stamp)], [number])
                elif type(sample.get(key)) is int:
                    rejects.append(Reject(record.line, _NO_NUMBER, None, record.offset))


def _growth(value: Mapping[str, Any], record: JsonRecord, taken: _Taken, rejects: list[Reject]) -> None:
    """AIPerf's summary: how much each counter grew from the first to the last scrape, as 0 there and the sum here."""
    endpoints = _summary_of(value) or {}
    for name, metric in value["metrics"].items():
        if not name.startswith(taken.prefixes) or not isinstance(metric, dict):
            continue
        found = metric.get("series")
        for one in found if isinstance(found, list) else ():
            stats = one.get("stats") if isinstance(one, dict) else None
            if not isinstance(stats, dict):
                continue
            if not isinstance(one.get("endpoint_url", ""), str) or not isinstance(metric.get("type", ""), str):
                rejects.append(Reject(record.line, _UNTOLD, None, record.offset))
                continue
            about = meaning(endpoints, one.get("endpoint_url"))
            if not isinstance(about, dict):
                continue
            stamps = [str(about[k]) for k in ("first_update_ns", "last_update_ns") if isinstance(about.get(k), int)]
            for key, tail in meaning(_GROWTH, metric.get("type")) or ():
                number = real(stats.get(key))
                if number is None and type(stats.get(key)) is int:
                    rejects.append(Reject(record.line, _NO_NUMBER, None, record.offset))
                if len(stamps) == 2 and number is not None:
                    labels = labels_text(one.get("labels"))
                    stream = _text(one.get("endpoint_url"))
                    taken.add(record.line, stream, name + tail, labels, stamps, [0.0, number])


def _summary_of(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    summary = value.get("summary")
    found = summary.get("endpoint_info") if isinstance(summary, dict) else None
    return found if isinstance(found, dict) else None


def labels_text(labels: Any) -> str:
    r"""Labels as Prometheus text, without the name: `a="b",c="d"`, in the order of their names."""
    if not isinstance(labels, dict):
        return ""
    pairs = ((k, v) for k, v in sorted(labels.items()) if k != "__name__" and isinstance(v, str))
    return ",".join(f'{k}="{_escaped(v)}"' for k, v in pairs)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
