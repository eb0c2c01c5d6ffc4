"""The contract between the sources and an engine module.

An engine module declares what its engine writes and turns what it is handed into canonical columns. It is handed

* text lines that hold one of its `needles`, already peeled of envelopes (`lines`), block by block;
* decoded JSON records that hold one of its `json_keys` (`records`), block by block;

and at the end of the source all that it returned, in order (`assemble`), with a clock for the time stamps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tracelens.engines.versions import Switch, Versions

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Surface:
    """One kind of record an engine writes, for `inspect` and for the advice of a report.

    `versions` as text is for people alone; as `Versions` advice leaves the surface out where a log tells of a version
    that does not write it. `switch_on` as `Switch` names what there is in each version.
    """

    name: str
    title: str
    versions: str | Versions
    gives: tuple[str, ...]
    switch_on: str | Switch


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """One decoded JSON object of a source.

    `stamp` is the stamp of the envelope it came in, as text, or None; `stream` tells apart what several
    processes wrote into one file (pod, container, service).
    """

    line: int
    offset: int
    stamp: str | None
    stream: str | None
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a distributed trace, whatever file format it came in.

    `start_ns` and `end_ns` count from 1970 (UTC). `attributes` are the span's own, `resource` those of the process that
    sent it; values are text, bool, int, float, or lists of them. `parent_id` is the span it is a part of, "" for none.
    """

    line: int
    name: str
    trace_id: str
    span_id: str
    start_ns: int | None
    end_ns: int | None
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    parent_id: str = ""


@dataclass(frozen=True, slots=True)
class TraceAbout:
    """What a Chrome trace says of itself: the top-level keys beside its events.

    `base_ns` is the time (ns since 1970) that the events' `ts` (us) are relative to, or None; `rank` that of the
    process in its group, or None; `others` every further top-level value that is text, a number or a list of them;
    `devices` how many accelerators the process saw; `file` the name of the file, where it has one.
    `work` is what the device did: one row a kernel or copy whose launch is known, `pid`, `tid` String and `launched`
    Float64 of the launch on the host, `start`, `dur` Float64 on the device (us), in the order of `launched`; None where
    no reader asked for it (`launch_marks`) or there is none.
    """

    base_ns: int | None
    rank: int | None
    others: Mapping[str, Any]
    devices: int = 0
    file: str | None = None
    work: pl.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that was meant to be one of ours and could not be used."""

    line: int
    reason: str
    surface: str | None = None
    offset: int | None = None
    excerpt: str | None = None


@dataclass(slots=True)
class Parsed:
    """What one block gave: frames by surface, and what was refused.

    `frames[surface]` holds at least `line` (Int64) and, where the record has a time, `stamp` (outer, text or
    null) and `inner` (the engine's own stamp, text or null); `stream` where known. The other columns are the
    engine's own affair until `assemble`.
    """

    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    claimed: int = 0

    def add(self, surface: str, frame: pl.DataFrame) -> None:
        """Append a frame of a surface; empty frames are dropped."""
        if frame.height:
            self.frames.setdefault(surface, []).append(frame)

    def merge(self, other: Parsed) -> None:
        """Append what another block gave."""
        for surface, frames in other.frames.items():
            self.frames.setdefault(surface, []).extend(frames)
        self.rejects.extend(other.rejects)
        self.claimed += other.claimed


@dataclass(slots=True)
class Tables:
    """Canonical rows of one source: any subset of the columns of each table, without the pipeline's own.

    The pipeline adds `source_id`, `run_id`, `weight` and labels, fills `model`, `draft_model`, `method`,
    `num_speculative_tokens` and `forced_acceptance` from the run where a row has none, and drops repeated
    records. Rows name their run by the Int64 column `run_key`: 0, or a missing column, is whatever ran before
    the first start the source tells of; k is the k-th row of `runs` (which has a `run_key` column itself, and may have
    `start_key`: text that tells this start from others and stays the same when the log grows; and `is_result`, true for
    the result of a benchmark, which is the whole of its run, so that its `role` holds whatever the user says).
    Every row has `surface` and `source_line`, and `ts_basis` where it has a time.
    """

    rounds: pl.DataFrame | None = None
    windows: pl.DataFrame | None = None
    requests: pl.DataFrame | None = None
    runs: pl.DataFrame | None = None
    rejects: list[Reject] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Context:
    """What an engine may know of a source while it assembles.

    `resolve(stamps)` takes a frame with the text columns `stamp` (outer) and `inner`, in file order, and returns
    a frame of equal height with `ts` (Datetime us, UTC, or null) and `ts_basis`.
    """

    source_id: str
    resolve: Callable[[pl.DataFrame], pl.DataFrame]


@runtime_checkable
class Engine(Protocol):
    """One inference engine's logs."""

    name: str
    surfaces: Sequence[Surface]
    needles: Sequence[bytes]
    json_keys: Sequence[bytes]

    def lines(self, frame: pl.DataFrame) -> Parsed:
        """Extract records from text lines.

        Args:
            frame: columns `line` Int64, `offset` Int64, `text` String (peeled of envelopes, ANSI and NULs),
                `stamp` String or null (outer stamp), `stream` String or null. Every line holds one of `needles`.
        """
        ...

    def records(self, records: Sequence[JsonRecord]) -> Parsed:
        """Extract records from JSON objects that are this engine's; `claimed` counts the ones taken."""
        ...

    def assemble(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Turn all frames of one source into canonical rows."""
        ...


@runtime_checkable
class MetricsReader(Protocol):
    """An engine that also exports Prometheus metrics."""

    metric_prefixes: Sequence[str]

    def metrics(self, frame: pl.DataFrame) -> Parsed:
        """Take samples of the engine's metrics.

        Args:
            frame: one row a sample, in file order: `line` Int64, `scrape` Int64 (which scrape of the source, from 0;
                samples of a range query or an export have none and are null), `stamp` String or null (when it was
                taken: ISO 8601, or seconds since 1970), `stream` String or null (which target, where several are in
                one source), `name` String (as exported, `_total` included), `labels` String (what stands between the
                braces, `a="b",c="d"`; `tracelens.sources.exposition.label` reads one), `value` Float64. Every name
                begins with one of `metric_prefixes`; buckets of histograms are left out. `tracelens.engines.counters`
                makes differences of such samples.
        """
        ...


@runtime_checkable
class SpanReader(Protocol):
    """An engine that also exports OpenTelemetry spans."""

    def spans(self, spans: Sequence[Span]) -> Parsed:
        """Take the spans that are this engine's; `claimed` counts them."""
        ...


@runtime_checkable
class TraceReader(Protocol):
    """An engine whose profiler traces (Chrome trace format) can be read.

    `launch_marks` are those of its `trace_marks` whose events launch work on the device that is wanted too.
    """

    trace_marks: Sequence[bytes]
    launch_marks: Sequence[bytes]

    def trace(self, events: pl.DataFrame, about: TraceAbout) -> Parsed:
        """Take the events of one trace that matter.

        Args:
            events: one row an event, in file order: `event` Int64 (its number in the file, from 1), `ph`, `cat`, `name`
                String, `pid`, `tid` String, `ts`, `dur` Float64 (us), `args` String (the JSON text, or null). Kept are
                the events whose text holds one of `trace_marks` of any reader.
            about: the rest of the trace.
        """
        ...


class PartsError(ValueError):
    """A source whose rows depend on where it is cut; it is to be put together in one go."""


class Assembly(Protocol):
    """Puts a source together that comes in parts; `surfaces` are those that come so."""

    surfaces: Collection[str]

    def part(self, frames: Mapping[str, Sequence[pl.DataFrame]], source_id: str) -> Tables:
        """Rows of the next lines that need none below them, and the runs so far; `source_id` as in `Context`.

        Raises:
            PartsError: the rows are not what they would be if the source came in one go.
        """
        ...

    def rest(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: Context) -> Tables:
        """Rows of all that is left, with frames of all surfaces, and all runs; raises as `part`."""
        ...


@runtime_checkable
class PartsReader(Protocol):
    """An engine whose text logs can be put together in parts."""

    def parts(self, resolve: Callable[[pl.DataFrame], pl.DataFrame]) -> Assembly:
        """What does so for one source; `resolve` as in `Context`, of a clock that goes on from part to part."""
        ...


def emitted_by_round(accepted: Sequence[int], emitted_total: int | None) -> list[int]:
    """Emitted tokens of each round of a request whose rounds are logged as a list.

    Every round commits its accepted drafts and one token of the target; what the request emitted less is cut
    from the end (stop string, EOS, max_tokens: vllm#56101). A request that emitted more has plain steps between
    its rounds; those are not in the list and nothing is cut then.

    Args:
        accepted: accepted tokens by round, in order.
        emitted_total: tokens the rounds gave together (output tokens without the prefill's own), or None.
    """
    emitted = [a + 1 for a in accepted]
    excess = 0 if emitted_total is None else sum(emitted) - emitted_total
    for i in range(len(emitted) - 1, -1, -1):
        if excess <= 0:
            break
        cut = min(excess, emitted[i])
        emitted[i] -= cut
        excess -= cut
    return emitted
