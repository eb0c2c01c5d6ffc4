"""One source: its bytes to what the engines found in it."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from json import loads
from typing import TYPE_CHECKING, Any

from tracelens.engines.base import Engine, JsonRecord, Parsed, Reject
from tracelens.ingest import signals
from tracelens.ingest.guard import guarded
from tracelens.ingest.refused import Refused
from tracelens.sources.discover import SourceFile
from tracelens.sources.lines import BATCH, LineFinder
from tracelens.sources.stream import Block, BlockStream

if TYPE_CHECKING:
    import polars as pl

    from tracelens.ingest.parts import InParts
    from tracelens.ingest.sift import BadLine

# A pretty-printed document or an array has no lines to cut at: it is read whole, up to this size.
DOCUMENT_LIMIT = 256 << 20
# A first line of this length is no record of a log: what looks at lines would copy it many times over.
_LONG_LINE = 1 << 20
# Bytes that the processor's cache holds while one look at them follows the other.
_BLOCK = 1 << 20
_OBJECTS = re.compile(rb"\[\s*\{")
# How JSON begins, and what Python writes for no number; a log may begin with `[2026-05-06 12:00:00 TP0] ` or with a
# dictionary as Python prints it.
_NUMBER = rb"-?(?:\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|Infinity)"
_WORD = rb"(?:true|false|null|NaN)\b"
_JSON = re.compile(rb"\{\s*+(?:[\"}]|$)|\[\s*+(?:[\[{\"\]]|" + _WORD + rb"|" + _NUMBER + rb"\s*+(?:,|\]\s*+$|$)|$)")


@dataclass(slots=True)
class Reading:
    """What one source holds: frames by engine, refusals, and the figures of the ledger."""

    sha256: str
    bytes: int
    lines: int
    encoding: str
    compression: str
    envelopes: tuple[str, ...]
    binary: bool
    prefixes: dict[int, str]
    parsed: dict[str, Parsed] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=Refused)
    text_sha256: str | None = None
    elements: int | None = None  # of a document: its objects, whose lines are no records
    events: int | None = None  # of a trace
    parted: bool = False  # some message was written in parts

    @property
    def claimed(self) -> int:
        """Lines (or elements) that some engine took."""
        return sum(p.claimed for p in self.parsed.values())


def read(
    file: SourceFile,
    engines: Sequence[Engine],
    *,
    checkpoints: Sequence[int] = (),
    progress: Callable[[int], None] | None = None,
    parts: InParts | None = None,
) -> Reading:
    """Read one source through, with memory bounded by a block and by what the engines keep.

    Args:
        file: the source.
        engines: readers, in the order in which JSON records are offered.
        checkpoints: sizes (bytes) at which the digest of the beginning is wanted.
        progress: called with the number of bytes read since the last call.
        parts: writes rows on the way, where the source is a long log.

    Raises:
        Unproved: by `parts`.
    """
    parsed = {engine.name: Parsed(rejects=Refused()) for engine in engines}
    rejects: list[Reject] = Refused()
    finder = _finder(engines)
    with BlockStream(file, checkpoints=checkpoints, takes=signals.is_wanted) as stream:
        pieces = stream.pieces()
        head = next(pieces, b"")
        pieces = chain([head] if head else [], pieces)
        special = signals.reader_of(head)
        if special is not None:
            del head  # some megabytes, and a trace is to be read in few
            events = special(signals.Source(stream, pieces, engines, parsed, rejects, progress))
            reading = _reading(stream, finder, parsed, rejects)
            reading.events = events
            return reading
        stream.read_by(_BLOCK)
        one_line = _is_one_line(head)
        if one_line:
            stream.allow_lines(DOCUMENT_LIMIT)
        document = _Document(one_line)
        for block in stream.blocks(pieces):
            if progress is not None:
                progress(len(block.data))
            if document.takes(block):
                continue
            if document.outgrown:
                rejects.append(Reject(1, f"a JSON document longer than {DOCUMENT_LIMIT} bytes: read as lines", None, 0))
                document.outgrown = False
            for held in (*document.release(), block):
                finder.add(held)
                if finder.held >= BATCH:
                    _found(finder, engines, parsed, rejects)
                    if parts is not None:
                        parts.offer(parsed, stream)
        if not document.finish(engines, parsed, rejects):
            # Its records, if any, stand on lines; a document of ours that was cut off has their words and no record.
            worded = False
            for held in document.release():
                finder.add(held, document=True)
                worded |= _found(finder, engines, parsed, rejects)
            if worded and not rejects and not any(p.frames or p.rejects or p.claimed for p in parsed.values()):
                rejects.append(Reject(1, "a JSON document that is cut off or broken", None, 0))
        _block(finder.finish(), None if finder.joined else finder.found, engines, parsed, rejects)
        reading = _reading(stream, finder, parsed, rejects)
        reading.elements = document.elements
        return reading


def read_span(file: SourceFile, engines: Sequence[Engine], span: tuple[int, int]) -> Reading:
    """Read some whole lines of a plain log as `read` would: numbers of lines count from the first of them.

    Args:
        file: the log, in UTF-8.
        engines: as in `read`.
        span: first byte, and the one behind the last.
    """
    parsed = {engine.name: Parsed(rejects=Refused()) for engine in engines}
    rejects: list[Reject] = Refused()
    finder = _finder(engines)
    with BlockStream(file, block_bytes=_BLOCK, figures=False, span=span) as stream:
        for block in stream:
            finder.add(block)
            if finder.held >= BATCH:
                _found(finder, engines, parsed, rejects)
        _block(finder.finish(), None if finder.joined else finder.found, engines, parsed, rejects)
        return _reading(stream, finder, parsed, rejects)


def is_lines(head: bytes) -> bool:
    """Whether a source that begins with these bytes is a log of lines, and can be read in any of its places."""
    return signals.reader_of(head) is None and not _is_one_line(head) and not _opens_document(head)


def _finder(engines: Sequence[Engine]) -> LineFinder:
    keys = [*signals.KEYS, *(key for e in engines for key in e.json_keys)]
    return LineFinder([needle for e in engines for needle in e.needles], keys)


def _reading(stream: BlockStream, finder: LineFinder, parsed: dict[str, Parsed], rejects: list[Reject]) -> Reading:
    rejects += [*stream.problems, *finder.problems]
    return Reading(
        sha256=stream.sha256,
        bytes=stream.bytes,
        lines=stream.lines,
        encoding=stream.encoding,
        compression=stream.compression,
        envelopes=tuple(sorted(finder.envelopes)),
        binary=stream.binary,
        prefixes=dict(stream.prefix_sha256),
        parsed=parsed,
        rejects=rejects,
        text_sha256=stream.text_sha256,
        parted=finder.parted,
    )


def read_lines(bad: Sequence[BadLine], engines: Sequence[Engine], reading: Reading) -> None:
    """Offer single lines of a file of JSON records to the engines, as `read` would."""
    if not bad:
        return
    import polars as pl

    texts = [b.data.decode("utf-8", "replace").strip() for b in bad]
    nothing = pl.lit(None, pl.String)
    frame = pl.DataFrame({"line": [b.line for b in bad], "offset": [b.offset for b in bad], "text": texts})
    frame = frame.with_columns(nothing.alias("stamp"), nothing.alias("stream"), nothing.alias("process"))
    _block(frame, None, engines, reading.parsed, reading.rejects)


def _found(finder: LineFinder, engines: Sequence[Engine], parsed: dict[str, Parsed], rejects: list[Reject]) -> bool:
    """Hand on the lines that were found; whether there are any."""
    frame = finder.take()
    _block(frame, None if finder.joined else finder.found, engines, parsed, rejects)
    return frame.height > 0


def _block(
    frame: pl.DataFrame, found: set[bytes] | None, engines: Sequence[Engine], parsed: dict[str, Parsed],
    rejects: list[Reject],
) -> None:  # fmt: skip
    """Hand the lines of a block to the engines: text to all whose needles are in it, JSON to the first to claim it.

    `found` are the needles of the block; None where lines may come from earlier blocks (joined parts).
    """
    if not frame.height:
        return
    json = frame["text"].str.contains(r"^\s*(?:data:\s*)?\{")  # server-sent events put `data: ` before an object
    text = frame.filter(~json)
    if text.height:
        _text(text, found, engines, parsed)
    if text.height < frame.height:
        with _uncollected():
            records = signals.unfold(_decoded(frame.filter(json), rejects), engines, parsed, rejects)
            _records(records, engines, parsed)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would walk over a block's objects again and again: JSON has no cycles."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _text(text: pl.DataFrame, found: set[bytes] | None, engines: Sequence[Engine], parsed: dict[str, Parsed]) -> None:
    import polars as pl

    readers = [e for e in engines if e.needles and (found is None or not found.isdisjoint(e.needles))]
    for engine in readers:
        wanted = text
        if len(readers) > 1:
            wanted = text.filter(pl.col("text").str.contains_any([n.decode() for n in engine.needles]))
        if wanted.height:
            with guarded(engine.name, parsed[engine.name].rejects, wanted["line"][0]):
                parsed[engine.name].merge(engine.lines(wanted))


def _decoded(frame: pl.DataFrame, rejects: list[Reject]) -> list[JsonRecord]:
    import msgspec

    decode = msgspec.json.Decoder().decode
    records: list[JsonRecord] = []
    for line, offset, text, stamp, stream in frame.select("line", "offset", "text", "stamp", "stream").iter_rows():
        try:
            value = decode(text[text.index("{") :])
        except (msgspec.DecodeError, RecursionError) as error:
            rejects.append(Reject(line, f"broken JSON: {_plain(error)}", None, offset))
            continue
        records.append(JsonRecord(line, offset, stamp, stream, value))
    return records


def _plain(error: BaseException) -> str:
    """What a JSON reader says, without anything it quotes from the record."""
    return str(error).split("'")[0].split('"')[0][:80].strip(" :-") or type(error).__name__


def _records(records: list[JsonRecord], engines: Sequence[Engine], parsed: dict[str, Parsed]) -> None:
    """Offer records to one engine after the other; what one has taken is not offered again."""
    for engine in engines:
        if not records:
            return
        found = Parsed()
        with guarded(engine.name, parsed[engine.name].rejects, records[0].line):
            found = engine.records(records)
        if not found.claimed and not found.frames and not found.rejects:
            continue
        parsed[engine.name].merge(found)
        taken = {r.line for r in found.rejects}
        for frames in found.frames.values():
            for frame in frames:
                taken.update(frame["line"].to_list())
        records = [r for r in records if r.line not in taken]


class _Document:
    """A source that is one JSON value over several lines, or an array: held back until it is whole."""

    def __init__(self, one_line: bool) -> None:
        self.elements: int | None = None
        self.outgrown = False
        self._blocks: list[Block] = []
        self._size = 0
        self._open: bool | None = one_line or None  # None: not decided yet

    def takes(self, block: Block) -> bool:
        """Whether the block is held back."""
        if self._open is None:
            self._open = _opens_document(block.data)
        if not self._open:
            return False
        if self._size + len(block.data) > DOCUMENT_LIMIT:
            self._open, self.outgrown = False, True
            return False
        self._blocks.append(block)
        self._size += len(block.data)
        return True

    def release(self) -> list[Block]:
        """What was held back and turned out to be lines."""
        held, self._blocks = self._blocks, []
        return held

    def finish(self, engines: Sequence[Engine], parsed: dict[str, Parsed], rejects: list[Reject]) -> bool:
        """Decode the whole; False when it is no document after all."""
        if not self._open or not self._blocks:
            return False
        try:
            value = _value(b"".join(b.data for b in self._blocks))
        except (ValueError, RecursionError):
            return False
        items = value if isinstance(value, list) else [value]
        records = [JsonRecord(i, 0, None, None, item) for i, item in enumerate(items, 1) if isinstance(item, dict)]
        self._blocks = []
        self.elements = len(items)
        # A summary in a file of its own is no record of ours because it counts accepted tokens, too.
        readers = [e for e in engines if e.name != "generic" or isinstance(value, list) or "record" in value]
        _records(signals.unfold(records, readers, parsed, rejects), readers, parsed)
        return True


def _value(data: bytes) -> Any:
    """A JSON document; what Python writes for a number that is none (NaN, Infinity) is null.

    Raises:
        ValueError, RecursionError: it is no document, or is cut off.
    """
    import msgspec

    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        if b"NaN" not in data and b"Infinity" not in data:
            raise
    return loads(data, parse_constant=lambda word: None)


def _is_one_line(head: bytes) -> bool:
    """Whether a source is JSON whose first line goes beyond its first piece: a document without line ends."""
    return len(head) >= _LONG_LINE and head.lstrip()[:1] in (b"{", b"[") and b"\n" not in head.strip()


def _opens_document(data: bytes) -> bool:
    import msgspec

    start = data.lstrip()
    if not _JSON.match(start):
        return False
    first = start.split(b"\n", 1)[0]
    try:
        value = msgspec.json.decode(first)
    except (msgspec.DecodeError, RecursionError):
        if _OBJECTS.match(start) and len(first) >= len(start.rstrip()):
            return True  # an array on one line, which is broken or goes on in the next block
        # `{` or `[` alone, or a value that goes on in the next line; JSON lines have whole values.
        return len(first) < len(start.rstrip()) and not _lines_follow(start)
    # A poll of TensorRT-LLM's /metrics is an array, and a log of them has one a line.
    follows = start[len(first) :].lstrip()[:1]
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and follows not in (b"[", b"{")


def _lines_follow(data: bytes) -> bool:
    """Whether whole JSON objects stand on the next lines: then the first line is a broken record, and no document."""
    import msgspec

    for line in data.split(b"\n", 6)[1:5]:
        text = line.strip()
        if text[:1] == b"{" and text[-1:] == b"}" and len(text) > 2:
            try:
                msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                continue
            return True
    return False
