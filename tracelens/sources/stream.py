"""Bytes to blocks of whole lines: decompressed, transcoded, hashed and counted on the way, in bounded memory."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from tracelens.engines.base import Reject
from tracelens.sources.compression import CorruptError, TruncatedError, compression_of, decompress
from tracelens.sources.discover import SourceFile
from tracelens.sources.text import UTF8_BOM, encoding_of, is_binary

_HEAD = 64 << 10
_PART = 1 << 17
_PEEK = 4 << 10  # most lines are shorter
_ONCE = 3 << 20
#: Bytes of a line; what is longer is dropped while it is read, and told.
MAX_LINE = 8 << 20


@dataclass(slots=True)
class Block:
    """Whole lines, each ended by LF except perhaps the last of the source.

    `data` is UTF-8 but for what the source itself got wrong. `line` is the 1-based number of its first line,
    `offset` the place of `data[0]` in the decompressed and transcoded stream, in bytes. Who finds the ends of all its
    lines says how many there are in `lines`, before the next block: then they are not counted again.
    """

    data: bytes
    line: int
    offset: int
    lines: int | None = None


class BlockStream:
    """One source as blocks; a context manager to be iterated once.

    `takes` looks at the first bytes and says whether they are of something that is no text and is wanted all the same:
    it is given as it is. Without `figures` no digest is made: the source is read a second time. `span` is the first
    byte and the one behind the last of whole lines of a plain file in UTF-8: nothing else is read then. `limit` is
    where the source ends, in decompressed bytes, however long it has grown.

    Attributes, final after iteration:
        compression: gzip, zstd, bz2, xz or none, by the first bytes.
        encoding: utf-8, utf-8-bom, utf-16-le or utf-16-be; bytes where it is no text.
        binary: the content is no text; no blocks are given then.
        bytes: decompressed bytes as they are in the file, before transcoding.
        lines: lines, the last one also without LF.
        sha256: hex digest of these bytes; prefix_sha256: the same of the first n bytes, by n.
        text_sha256: hex digest of the text in UTF-8 without BOM and with LF line ends, where that is not what the file
            holds; None where it is, as far as the first bytes tell.
        problems: what could not be read: over-long lines, a broken stream, an unreadable file.

    Raises:
        nothing for what a file holds or for its being unreadable: that is a problem in the list.
    """

    def __init__(
        self,
        source: SourceFile,
        *,
        block_bytes: int = 4 << 20,
        max_line: int = MAX_LINE,
        checkpoints: Sequence[int] = (),
        takes: Callable[[bytes], bool] | None = None,
        figures: bool = True,
        span: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> None:
        self.source = source
        self.compression = "none"
        self.encoding = "utf-8"
        self.binary = False
        self.bytes = 0
        self.lines = 0
        self.prefix_sha256: dict[int, str] = {}
        self.problems: list[Reject] = []
        self._block_bytes = block_bytes
        self._max_line = max_line
        self._takes = takes
        self._figures = figures
        self._span = span
        self._limit = limit
        self._by_lines = False
        self._checkpoints = sorted(set(checkpoints))
        self._hash = hashlib.sha256()
        self._text_hash: Any = None
        self._file: IO[bytes] | None = None
        self._broken: str | None = None
        self._end = 0  # offset behind the last byte

    def __enter__(self) -> BlockStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and self.source.path is not None:
            self._file.close()
        self._file = None

    @property
    def sha256(self) -> str:
        """Hex digest of the decompressed bytes read so far."""
        return self._hash.hexdigest()

    @property
    def text_sha256(self) -> str | None:
        """Hex digest of the text, see above."""
        return None if self._text_hash is None else str(self._text_hash.hexdigest())

    def __iter__(self) -> Iterator[Block]:
        yield from self.blocks(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The source in pieces that are cut anywhere, for what is not made of lines; call `end` behind the last."""
        return self._gathered(self._text())

    def blocks(self, pieces: Iterator[bytes]) -> Iterator[Block]:
        """Pieces as whole lines."""
        self._by_lines = True
        for data, offset in self._cut(pieces):
            yield from self._blocks(data, offset)
        self.end()

    def read_by(self, size: int) -> None:
        """Give blocks of about so many bytes from here on."""
        self._block_bytes = size

    def without_figures(self, limit: int) -> None:
        """Make no digest from here on, and end at `limit`: another pass has made the digest of so many bytes."""
        self._figures = False
        self._limit = limit

    def allow_lines(self, longest: int) -> None:
        """Take lines of up to so many bytes from here on."""
        self._max_line = max(self._max_line, longest)

    def end(self) -> None:
        """Note what ended the source before its time."""
        if self._broken is not None:
            self.problems.append(Reject(line=self.lines, reason=self._broken, offset=self._end))

    # -- bytes ------------------------------------------------------------------------------------------------

    def _raw(self) -> Iterator[bytes]:
        """Decompressed pieces; an error ends them and is kept in `_broken`."""
        try:
            file = self._open()
            if self._span is not None:
                yield from self._between(file, *self._span)
                return
            head = file.read(16)
            self.compression = compression_of(head)
            if self.compression == "none":
                yield from self._plain(file, head)
            else:
                # The C library gives freed memory back to the system, to get it again page by page for the next block,
                # until it has seen some megabytes come and go at once; of a plain file the first piece does that.
                bytes(_ONCE)
                yield from decompress(_Replay(file, head).read, self.compression)
        except (TruncatedError, CorruptError) as error:
            self._broken = str(error)
        except OSError as error:
            self._broken = f"cannot be read: {error.strerror or error}"

    def _open(self) -> IO[bytes]:
        # A pipe is read through its buffer: a raw read would give short, slow pieces.
        path = self.source.path
        self._file = sys.stdin.buffer if path is None else path.open("rb", buffering=0)
        return self._file

    def _plain(self, file: IO[bytes], head: bytes) -> Iterator[bytes]:
        if head:
            yield head + (file.read(self._block_bytes) or b"")
        while piece := file.read(self._next(file)):
            yield piece

    def _between(self, file: IO[bytes], start: int, end: int) -> Iterator[bytes]:
        file.seek(start)
        while start < end and (piece := file.read(min(self._next(file), end - start))):
            start += len(piece)
            yield piece

    def _next(self, file: IO[bytes]) -> int:
        """Bytes of the next piece: up to the end of a line, where one is near, and no block is copied to be cut."""
        if not self._by_lines or self._block_bytes <= _PEEK or not file.seekable():
            return self._block_bytes
        here = file.tell()
        try:
            file.seek(here + self._block_bytes - _PEEK)
            end = (file.read(_PEEK) or b"").rfind(b"\n")
        except OSError:  # a part of the disk that can't be read: what stands before it can
            end = -1
        file.seek(here)
        return self._block_bytes if end < 0 else self._block_bytes - _PEEK + end + 1

    def _hashed(self) -> Iterator[bytes]:
        """The same pieces, hashed and counted, with the digests of the prefixes asked for."""
        pending = list(self._checkpoints)
        while pending and pending[0] <= 0:
            self.prefix_sha256[pending.pop(0)] = self._hash.hexdigest()
        for whole in self._raw():
            piece = whole if self._limit is None else whole[: max(0, self._limit - self.bytes)]
            if not piece:
                return
            done = 0
            while self._figures and pending and pending[0] <= self.bytes + len(piece):
                n = pending.pop(0)
                upto = n - self.bytes
                self._hash.update(memoryview(piece)[done:upto])
                done = upto
                self.prefix_sha256[n] = self._hash.hexdigest()
            if self._figures:
                self._hash.update(memoryview(piece)[done:] if done else piece)
            self.bytes += len(piece)
            yield piece

    # -- text -------------------------------------------------------------------------------------------------

    def _text(self) -> Iterator[bytes]:
        """Pieces in UTF-8 without a BOM; nothing where the content is no text (it is hashed all the same)."""
        pieces = self._hashed()
        if self._span is not None:
            yield from pieces
            return
        head = b""
        for piece in pieces:
            head = head + piece if head else piece
            if len(head) >= _HEAD:
                break
        if self._takes is not None and self._takes(head):
            self.encoding = "bytes"
            yield head
            del head
            yield from pieces
            return
        self.encoding = encoding_of(head)
        self.binary = is_binary(head[:_HEAD], self.encoding)
        if self.binary:
            for _ in pieces:
                pass
            return
        if self.encoding.startswith("utf-16"):
            yield from self._digested(self._transcoded(head, pieces))
        elif self.encoding == "utf-8-bom" or (b"\r\n" in head and self._figures):
            text = head[len(UTF8_BOM) :] if self.encoding == "utf-8-bom" else head
            yield from self._digested(itertools.chain([text], pieces))
        else:
            yield head
            del head  # some megabytes, which would stay until the end of the source
            yield from pieces

    def _digested(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The same pieces, and on the way the digest of the text that they are with LF line ends."""
        self._text_hash = hashlib.sha256()
        held = b""  # a CR at the end of a piece: its LF may be the next one's first byte
        for piece in pieces:
            whole = held + piece
            held = b"\r" if whole.endswith(b"\r") else b""
            if self._figures:
                self._text_hash.update(whole[: len(whole) - len(held)].replace(b"\r\n", b"\n"))
            yield piece
        self._text_hash.update(held)

    def _transcoded(self, head: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(self.encoding)(errors="replace")
        text = decoder.decode(head).removeprefix("\ufeff")
        yield text.encode("utf-8", "replace")
        for piece in pieces:
            yield decoder.decode(piece).encode("utf-8", "replace")
        yield decoder.decode(b"", final=True).encode("utf-8", "replace")

    # -- lines ------------------------------------------------------------------------------------------------

    def _gathered(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Small pieces joined: what follows costs by the block."""
        held: list[bytes] = []
        size = 0
        for piece in pieces:
            held.append(piece)
            size += len(piece)
            if 2 * size >= self._block_bytes:
                yield b"".join(held) if len(held) > 1 else piece
                held, size = [], 0
        if size:
            yield b"".join(held)

    def _cut(self, pieces: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
        """Cut pieces behind their last line end: (whole lines, offset).

        A line that outgrows `max_line` is dropped while it is read.
        """
        carry: list[bytes] = []
        held = 0  # bytes in carry
        offset = 0 if self._span is None else self._span[0]  # of the first byte held, or of the next piece
        dropping = False
        for piece in pieces:
            start = 0
            if dropping:
                start = piece.find(b"\n") + 1
                offset += start or len(piece)
                if not start:
                    continue
                dropping = False
                self.lines += 1
            cut = piece.rfind(b"\n", start) + 1
            if cut > start:
                whole = memoryview(piece)[start:cut]
                yield (b"".join((*carry, whole)) if carry or len(whole) < len(piece) else piece), offset
                offset += held + len(whole)
                carry, held, start = [], 0, cut
            if start < len(piece):
                carry.append(piece[start:])
                held += len(piece) - start
            if held > self._max_line:
                self._too_long(offset)
                offset += held
                carry, held, dropping = [], 0, True
        if dropping:
            self.lines += 1
        elif held:
            yield b"".join(carry), offset
        self._end = offset + held

    def _blocks(self, data: bytes, offset: int) -> Iterator[Block]:
        """The block of whole lines, or what is left around lines that are too long."""
        start = pos = 0
        while len(data) - pos > self._max_line:
            end = data.rfind(b"\n", pos, pos + self._max_line + 1) + 1
            if not end:
                if pos > start:
                    yield from self._block(data[start:pos], offset + start)
                self._too_long(offset + pos)
                self.lines += 1
                end = start = data.find(b"\n", pos) + 1 or len(data)
            pos = end
        if start < len(data):
            yield from self._block(data[start:] if start else data, offset + start)

    def _block(self, data: bytes, offset: int) -> Iterator[Block]:
        block = Block(data, self.lines + 1, offset)
        yield block
        self.lines += _count_lines(data) if block.lines is None else block.lines

    def _too_long(self, offset: int) -> None:
        reason = f"line longer than {self._max_line} bytes"
        self.problems.append(Reject(line=self.lines + 1, reason=reason, offset=offset))


def _count_lines(data: bytes) -> int:
    """Lines in data, the last one also without LF."""
    return count_ends(data) + (not data.endswith(b"\n"))


def count_ends(data: bytes | memoryview) -> int:
    """Line ends in data."""
    if len(data) < 1 << 18:
        return bytes(data).count(b"\n")
    import numpy as np  # five times as quick as bytes.count, and worth its import from here on

    flags = np.frombuffer(data, np.uint8)
    # In parts that stay in the processor's cache.
    return sum(int(np.count_nonzero(flags[i : i + _PART] == 10)) for i in range(0, len(data), _PART))


class _Replay:
    """Reads the bytes that were peeked at before the rest."""

    def __init__(self, file: IO[bytes], head: bytes) -> None:
        self._file = file
        self._head = head

    def read(self, size: int) -> bytes:
        if self._head:
            head, self._head = self._head, b""
            return head
        return self._file.read(size) or b""
