"""Undo compression, piece by piece: gzip, zstd, bz2, xz, told apart by their first bytes and never by a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

# A piece of input is small so that an error in it costs little of the good text before it.
PIECE = 4096
# Members that have read no more than this are decoded again, byte by byte, when they turn out broken.
KEPT = 64 << 10
# Output of one call: keeps memory bounded whatever a few bytes of input expand to.
OUTPUT = 1 << 20

_MAGIC = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
)
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)


class TruncatedError(Exception):
    """The compressed stream ends before its end mark."""


class CorruptError(Exception):
    """The compressed stream cannot be decoded from here on."""


class _Decompressor(Protocol):
    """The interface that bz2, lzma and zstd share (and the gzip one below takes on)."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ...) -> bytes: ...


def compression_of(head: bytes) -> str:
    """Name the compression that the first bytes of a file show: gzip, zstd, bz2, xz, none."""
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    # "BZh" alone may begin a text; the block mark (pi) or the end mark (sqrt pi) follows at once.
    if head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bz2"
    if len(head) >= 8 and int.from_bytes(head[:4], "little") in _ZSTD_SKIPPABLE:
        return "zstd"
    return "none"


class _Gzip:
    """zlib's decompressor behind the interface of the others."""

    def __init__(self) -> None:
        import zlib

        self._inner = zlib.decompressobj(wbits=31)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail and not self._full

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = OUTPUT) -> bytes:
        output = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self._full = len(output) == max_length  # zlib may hold more although it took all input
        return output


def _maker(compression: str) -> tuple[Callable[[], _Decompressor], tuple[type[Exception], ...]]:
    """How to begin a member (frame) of the compression, and the errors its decoder raises."""
    if compression == "gzip":
        import zlib

        return _Gzip, (zlib.error,)
    if compression == "bz2":
        import bz2

        return bz2.BZ2Decompressor, (OSError, ValueError)
    if compression == "xz":
        import lzma

        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 28), (lzma.LZMAError,)
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from backports import zstd
    return zstd.ZstdDecompressor, (zstd.ZstdError,)


def decompress(read: Callable[[int], bytes], compression: str) -> Iterator[bytes]:
    """Yield the decompressed bytes, at most `OUTPUT` at a time; members and frames follow one another.

    Padding with NULs behind a member is passed over, as gzip and xz do.

    Args:
        read: gives up to n bytes, b"" at the end.
        compression: what `compression_of` said; not "none".

    Raises:
        TruncatedError: the stream ends inside a member; all that could be decoded has been yielded.
        CorruptError: the stream cannot be decoded; all before the broken piece has been yielded.
    """
    make, errors = _maker(compression)
    members = 0
    rest = read(PIECE)
    while rest:
        decoder = make()
        try:
            yield from _member(decoder, rest, read, make, errors)
        except errors as error:
            what = "what follows its end is no further member" if members else "it cannot be decoded"
            raise CorruptError(f"corrupt {compression} stream: {what} ({error})") from error
        members += 1
        rest = decoder.unused_data.lstrip(b"\0")
        while not rest:
            piece = read(PIECE)
            if not piece:
                return
            rest = piece.lstrip(b"\0")


def _member(
    decoder: _Decompressor,
    data: bytes,
    read: Callable[[int], bytes],
    make: Callable[[], _Decompressor],
    errors: tuple[type[Exception], ...],
) -> Iterator[bytes]:
    """One member, from `data` on, then from `read`."""
    given = 0
    kept: bytes | None = data
    while True:
        try:
            output = decoder.decompress(data, OUTPUT)
        except errors:
            if kept is not None:
                yield from _salvaged(make(), kept, given, errors)
            raise
        if output:
            given += len(output)
            yield output
        if decoder.eof:
            return
        data = b""
        if decoder.needs_input:
            data = read(PIECE)
            if not data:
                raise TruncatedError("truncated compressed stream: it ends before its end mark")
            kept = kept + data if kept is not None and len(kept) < KEPT else None


def _salvaged(decoder: _Decompressor, data: bytes, given: int, errors: tuple[type[Exception], ...]) -> Iterator[bytes]:
    """What a short member gives before the byte that breaks it, behind the first `given` bytes.

    A decoder that fails keeps back all that the failing call decoded; a small log may be no more than that.
    """
    at, pending = 0, b""
    while at < len(data) or not decoder.needs_input:
        pending = data[at : at + 1] if decoder.needs_input else b""
        at += len(pending)
        try:
            output = decoder.decompress(pending, OUTPUT)
        except errors:
            return
        fresh = output[given:]
        given = max(given - len(output), 0)
        if fresh:
            yield fresh
        if decoder.eof:
            return
