"""Sources and records that are no log lines: metrics, spans and profiler traces, handed to the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracelens.engines.base import Engine, JsonRecord, MetricsReader, Parsed, Reject, Span, SpanReader, TraceReader
from tracelens.ingest.guard import guarded
from tracelens.sources import chrome_trace, exposition, metric_json, spans

if TYPE_CHECKING:
    import polars as pl

    from tracelens.sources.stream import BlockStream

# What the JSON lines of metrics and spans hold, whoever wrote them.
KEYS: Sequence[bytes] = (*metric_json.KEYS, *spans.KEYS)


@dataclass(frozen=True, slots=True)
class Source:
    """One source that is read in a way of its own, and where to put what it holds."""

    stream: BlockStream
    pieces: Iterator[bytes]
    engines: Sequence[Engine]
    parsed: dict[str, Parsed]
    rejects: list[Reject]
    progress: Callable[[int], None] | None


def reader_of(head: bytes) -> Callable[[Source], int | None] | None:
    """How a source that begins with these bytes is read; None where it is made of log lines or JSON records.

    The reader gives the number of events, of a source that is made of them.
    """
    if chrome_trace.looks(head):
        return _trace
    if exposition.looks(head):
        return _exposition
    if metric_json.looks(head):
        return _series
    if spans.looks(head):
        return _protobuf
    return None


def is_wanted(head: bytes) -> bool:
    """Whether a source that begins with these bytes is to be read although it is no text."""
    return spans.looks(head)


def unfold(
    records: Sequence[JsonRecord], engines: Sequence[Engine], parsed: dict[str, Parsed], rejects: list[Reject]
) -> list[JsonRecord]:
    """Take metrics and spans out of JSON records and hand them to the engines; what is neither comes back."""
    rest: list[JsonRecord] = []
    samples: list[JsonRecord] = []
    found: list[Span] = []
    for record in records:
        if metric_json.holds(record.value):
            samples.append(record)
        elif spans.holds(record.value):
            with guarded("spans", rejects, record.line):
                found += spans.of_record(record, rejects)
        else:
            rest.append(record)
    if samples:
        with guarded("metrics", rejects, samples[0].line):
            _offer_samples(metric_json.samples(samples, _prefixes(engines), rejects), engines, parsed)
    if found:
        _offer_spans(found, engines, parsed)
    return rest


def _exposition(source: Source) -> int | None:
    scrapes = exposition.Scrapes(_prefixes(source.engines))
    for block in source.stream.blocks(source.pieces):
        if source.progress is not None:
            source.progress(len(block.data))
        with guarded("metrics", source.rejects, block.line):
            _offer_samples(scrapes.feed(block), source.engines, source.parsed)
    with guarded("metrics", source.rejects):
        _offer_samples(scrapes.finish(), source.engines, source.parsed)
    source.rejects.extend(scrapes.problems)
    return None


def _series(source: Source) -> int | None:
    series = metric_json.Series(_prefixes(source.engines))
    for piece in _counted(source):
        with guarded("metrics", source.rejects):
            _offer_samples(series.feed(piece), source.engines, source.parsed)
    series.finish()
    source.stream.end()
    source.rejects.extend(series.problems)
    return None


def _trace(source: Source) -> int | None:
    readers = [(e.name, e) for e in source.engines if isinstance(e, TraceReader)]
    marks = list(dict.fromkeys(mark for _, e in readers for mark in e.trace_marks))
    launchers = [mark for _, e in readers for mark in e.launch_marks]
    trace: chrome_trace.Trace | None = None
    source.stream.read_by(chrome_trace.CHUNK)  # larger pieces would be cut, and lie in memory beside their parts
    with guarded("trace", source.rejects):
        trace = chrome_trace.read(_counted(source), marks, launchers)
    _drain(source)
    source.stream.end()
    if trace is None:
        return None
    source.rejects.extend(trace.problems)
    if trace.cut is not None and not source.stream.problems:  # a broken stream has said so itself
        source.rejects.append(trace.cut)
    about = replace(trace.about, file=source.stream.source.name)
    for name, reader in readers:
        with guarded(name, source.rejects):
            source.parsed[name].merge(reader.trace(trace.events, about))
    return trace.count


def _protobuf(source: Source) -> int | None:
    with guarded("spans", source.rejects):
        for found in spans.of_protobuf(_counted(source), source.rejects):
            _offer_spans(found, source.engines, source.parsed)
    _drain(source)
    source.stream.end()
    return None


def _drain(source: Source) -> None:
    """Read to the end what a fault has left: the digest is of the whole source."""
    for _ in source.pieces:
        pass


def _counted(source: Source) -> Iterator[bytes]:
    for piece in source.pieces:
        if source.progress is not None:
            source.progress(len(piece))
        yield piece


def _prefixes(engines: Sequence[Engine]) -> list[str]:
    return list(dict.fromkeys(p for e in engines if isinstance(e, MetricsReader) for p in e.metric_prefixes))


def _offer_samples(frame: pl.DataFrame, engines: Sequence[Engine], parsed: dict[str, Parsed]) -> None:
    if not frame.height:
        return
    import polars as pl

    for engine in engines:
        if isinstance(engine, MetricsReader):
            begins = [pl.col("name").str.starts_with(prefix) for prefix in engine.metric_prefixes]
            own = frame.filter(pl.any_horizontal(begins))
            if own.height:
                with guarded(engine.name, parsed[engine.name].rejects, own["line"][0]):
                    parsed[engine.name].merge(engine.metrics(own))


def _offer_spans(found: Sequence[Span], engines: Sequence[Engine], parsed: dict[str, Parsed]) -> None:
    for engine in engines:
        if isinstance(engine, SpanReader):
            with guarded(engine.name, parsed[engine.name].rejects, found[0].line if found else 0):
                parsed[engine.name].merge(engine.spans(found))
