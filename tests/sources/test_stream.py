from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import random
import struct
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracelens.sources import stream as stream_module
from tracelens.sources.compression import compression_of
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import Block, BlockStream

TEXT = b"".join(b"line %d of some log with figures %d\n" % (i, i * i) for i in range(5000))
CODECS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "zstd": zstd.compress,
}


def source(path: Path) -> SourceFile:
    return SourceFile(path, path.name, "0" * 16, None, None)


def read(path: Path, data: bytes, **options: object) -> tuple[BlockStream, list[Block]]:
    path = path / "any.name" if path.is_dir() else path
    path.write_bytes(data)
    with BlockStream(source(path), **options) as stream:  # type: ignore[arg-type]
        return stream, list(stream)


def joined(blocks: list[Block]) -> bytes:
    return b"".join(block.data for block in blocks)


def test_plain(tmp_path: Path) -> None:
    stream, blocks = read(tmp_path, TEXT, block_bytes=1000, checkpoints=[0, 10, 4321, len(TEXT), len(TEXT) + 1])
    assert joined(blocks) == TEXT
    assert (stream.compression, stream.encoding, stream.binary) == ("none", "utf-8", False)
    assert (stream.bytes, stream.lines, stream.problems) == (len(TEXT), 5000, [])
    assert stream.sha256 == hashlib.sha256(TEXT).hexdigest()
    assert stream.prefix_sha256 == {n: hashlib.sha256(TEXT[:n]).hexdigest() for n in (0, 10, 4321, len(TEXT))}
    for block in blocks:
        assert block.data.endswith(b"\n")
        assert TEXT[block.offset :].startswith(block.data)
        assert block.line == TEXT[: block.offset].count(b"\n") + 1


@pytest.mark.parametrize("limit", [0, 1, 999, 1000, 4321, len(TEXT), len(TEXT) + 1])
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_a_limit_is_the_end(tmp_path: Path, limit: int, codec: str | None) -> None:
    packed = TEXT if codec is None else CODECS[codec](TEXT)
    stream, blocks = read(tmp_path, packed, block_bytes=1000, limit=limit, checkpoints=[limit])
    assert joined(blocks) == TEXT[:limit]
    assert (stream.bytes, stream.problems) == (min(limit, len(TEXT)), [])
    assert stream.sha256 == hashlib.sha256(TEXT[:limit]).hexdigest()


@pytest.mark.parametrize(("first", "behind"), [(0, 100), (40, 99), (100, 5000), (0, 5000)])
@pytest.mark.parametrize("block_bytes", [7, 1000, 1 << 20])
def test_a_span_of_lines(tmp_path: Path, first: int, behind: int, block_bytes: int) -> None:
    starts = [0]
    for line in TEXT.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    span = (starts[first], starts[behind])
    stream, blocks = read(tmp_path, TEXT, block_bytes=block_bytes, span=span, figures=False)
    assert joined(blocks) == TEXT[slice(*span)]
    assert (stream.bytes, stream.lines, stream.problems) == (span[1] - span[0], behind - first, [])
    assert all(TEXT[block.offset :].startswith(block.data) for block in blocks)


def test_empty(tmp_path: Path) -> None:
    stream, blocks = read(tmp_path, b"", checkpoints=[0])
    assert blocks == []
    assert (stream.lines, stream.bytes, stream.binary, stream.problems) == (0, 0, False, [])
    assert stream.prefix_sha256 == {0: stream.sha256}
    assert stream.sha256 == hashlib.sha256(b"").hexdigest()


def test_last_line_without_end_counts(tmp_path: Path) -> None:
    stream, blocks = read(tmp_path, b"a\nb")
    assert (stream.lines, joined(blocks)) == (2, b"a\nb")


@pytest.mark.parametrize("codec", CODECS)
def test_compressed(tmp_path: Path, codec: str) -> None:
    data = CODECS[codec](TEXT)
    assert compression_of(data) == codec
    stream, blocks = read(tmp_path, data)
    assert joined(blocks) == TEXT
    assert (stream.compression, stream.bytes, stream.problems) == (codec, len(TEXT), [])
    assert stream.sha256 == hashlib.sha256(TEXT).hexdigest()
    assert len(blocks) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_members_and_padding(tmp_path: Path, codec: str) -> None:
    pack = CODECS[codec]
    stream, blocks = read(tmp_path, pack(TEXT) + pack(b"") + pack(b"more\n") + b"\0" * 8000)
    assert joined(blocks) == TEXT + b"more\n"
    assert stream.problems == []


def test_zstd_skippable_frame(tmp_path: Path) -> None:
    skippable = struct.pack("<II", 0x184D2A53, 4) + b"abcd"
    stream, blocks = read(tmp_path, skippable + zstd.compress(TEXT))
    assert (stream.compression, joined(blocks)) == ("zstd", TEXT)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("keep", [0.3, 0.7, -1])
@pytest.mark.long
def test_truncated(tmp_path: Path, codec: str, keep: float) -> None:
    noise = random.Random(1)
    text = b"".join(b"%d %d\n" % (i, noise.getrandbits(100)) for i in range(100_000))  # several bz2 blocks
    data = CODECS[codec](text)
    cut = data[:-1] if keep == -1 else data[: int(len(data) * keep)]
    stream, blocks = read(tmp_path, cut)
    got = joined(blocks)
    assert text.startswith(got)
    assert len(got) > len(text) * (abs(keep) - 0.3 if codec != "bz2" else 0.01)
    assert [(p.line, p.offset) for p in stream.problems] == [(stream.lines, len(got))]
    assert "truncated" in stream.problems[0].reason
    assert stream.bytes == len(got)


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_small_file_keeps_whole_prefix(tmp_path: Path, codec: str) -> None:
    if codec in ("bz2", "zstd", "xz"):  # their blocks are larger than the file: nothing can be had
        pytest.skip("one block")
    _, blocks = read(tmp_path, CODECS[codec](TEXT)[:-9])
    assert joined(blocks)[:-100] == TEXT[: len(joined(blocks)) - 100]
    assert len(joined(blocks)) > len(TEXT) - 200


@pytest.mark.parametrize("codec", CODECS)
def test_corrupt(tmp_path: Path, codec: str) -> None:
    pack = CODECS[codec]
    stream, blocks = read(tmp_path, pack(TEXT) + b"garbage garbage garbage")
    assert joined(blocks) == TEXT
    assert f"corrupt {codec} stream" in stream.problems[0].reason


@pytest.mark.parametrize("codec", CODECS)
def test_corrupt_in_the_middle(tmp_path: Path, codec: str) -> None:
    noise = random.Random(1)
    text = b"".join(b"%d %d\n" % (i, noise.getrandbits(100)) for i in range(100_000))
    data = bytearray(CODECS[codec](text))
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    stream, blocks = read(tmp_path, bytes(data))
    assert len(stream.problems) == 1
    good = joined(blocks)
    keep = good.rfind(b"\n", 0, int(len(text) * 0.3)) + 1
    assert text.startswith(good[:keep])
    assert keep > (0 if codec == "bz2" else len(text) * 0.2)


def test_small_file_with_a_wrong_checksum_is_kept(tmp_path: Path) -> None:
    short = TEXT[:3000]
    data = bytearray(gzip.compress(short))
    data[-6] ^= 0xFF
    stream, blocks = read(tmp_path, bytes(data))
    assert joined(blocks) == short
    assert "corrupt gzip stream" in stream.problems[0].reason
    checked = zstd.compress(short, options={zstd.CompressionParameter.checksum_flag: 1})
    stream, blocks = read(tmp_path, checked[:-1] + bytes([checked[-1] ^ 0xFF]))
    assert joined(blocks) == short
    assert "corrupt zstd stream" in stream.problems[0].reason


def test_truncated_header(tmp_path: Path) -> None:
    stream, blocks = read(tmp_path, gzip.compress(TEXT)[:5])
    assert blocks == []
    assert "truncated" in stream.problems[0].reason


def test_a_bomb_stays_small(tmp_path: Path) -> None:
    stream, blocks = read(tmp_path, gzip.compress(bytes(50_000_000)), max_line=1 << 20)
    assert joined(blocks) == b""
    assert [p.reason for p in stream.problems] == ["line longer than 1048576 bytes"]
    assert stream.bytes == 50_000_000


@pytest.mark.parametrize("block_bytes", [64, 1000, 1 << 20])
def test_over_long_lines(tmp_path: Path, block_bytes: int) -> None:
    data = b"a\n" + b"x" * 5000 + b"\nb\n" + b"y" * 300 + b"\n" + b"z" * 301 + b"\n" + b"c\n" + b"w" * 400
    stream, blocks = read(tmp_path, data, block_bytes=block_bytes, max_line=300)
    assert joined(blocks) == b"a\nb\n" + b"y" * 300 + b"\nc\n"
    assert [(p.line, p.offset, p.reason) for p in stream.problems] == [
        (2, 2, "line longer than 300 bytes"),
        (5, data.find(b"z"), "line longer than 300 bytes"),
        (7, data.find(b"w"), "line longer than 300 bytes"),
    ]
    assert stream.lines == 7
    for block in blocks:
        assert data[block.offset :].startswith(block.data)
        assert block.line == data[: block.offset].count(b"\n") + 1


def test_five_megabyte_line(tmp_path: Path) -> None:
    data = b"a\n" + b"x" * 5_000_000 + b"\nb\n"
    stream, blocks = read(tmp_path, data)
    assert joined(blocks) == data
    assert stream.problems == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("bom", ["\ufeff", ""])
def test_utf16(tmp_path: Path, encoding: str, bom: str) -> None:
    text = TEXT.decode() + "Grüße 😀\r\nend"
    data = (bom + text).encode(encoding)
    stream, blocks = read(tmp_path, data, block_bytes=1001)
    assert joined(blocks) == text.encode()
    assert (stream.encoding, stream.bytes) == (encoding, len(data))
    assert stream.sha256 == hashlib.sha256(data).hexdigest()


def test_utf16_with_an_odd_byte(tmp_path: Path) -> None:
    _, blocks = read(tmp_path, "\ufeffabc\n".encode("utf-16-le") + b"x")
    assert joined(blocks) == "abc\n\ufffd".encode()


def test_utf8_bom(tmp_path: Path) -> None:
    stream, blocks = read(tmp_path, b"\xef\xbb\xbfabc\n")
    assert (joined(blocks), stream.encoding, stream.bytes, blocks[0].offset) == (b"abc\n", "utf-8-bom", 7, 0)


@pytest.mark.parametrize(
    "data",
    [
        random.Random(7).randbytes(40_000),
        b"\x7fELF" + TEXT,
        b"PK\x03\x04" + TEXT,
        b"PAR1" + TEXT,
        b"SQLite format 3\0" + TEXT,
        b"\x80\x04\x95" + TEXT,
        struct.pack("<1000i", *range(1000)),
        bytes(range(128, 256)) * 40,
    ],
    ids=["noise", "elf", "zip", "parquet", "sqlite", "pickle", "ints", "high"],
)
def test_binary(tmp_path: Path, data: bytes) -> None:
    stream, blocks = read(tmp_path, data)
    assert stream.binary
    assert blocks == []
    assert stream.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "data",
    [
        TEXT[:3000] + bytes(4096) + TEXT[3000:],
        bytes(100_000) + b"\n" + TEXT,
        b"a\0b\n" * 2 + TEXT,
        b"\x1b[32mINFO\x1b[0m ok\n" * 50,
        "Grüße aus Köln\n".encode("latin-1") * 50,
        "日本語のログ\n".encode() * 50,
        b"\xff\n",
    ],
    ids=["nul run", "nul head", "some nuls", "ansi", "latin-1", "japanese", "one byte"],
)
def test_text(tmp_path: Path, data: bytes) -> None:
    stream, blocks = read(tmp_path, data)
    assert not stream.binary
    assert joined(blocks) == data


def test_unreadable(tmp_path: Path) -> None:
    with BlockStream(source(tmp_path / "gone")) as stream:
        assert list(stream) == []
    assert stream.problems[0].reason == "cannot be read: No such file or directory"


@pytest.mark.parametrize("span", [None, (0, len(TEXT))])
def test_no_block_of_a_file_is_cut(
    tmp_path: Path, span: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_PEEK", 100)
    (tmp_path / "a.log").write_bytes(TEXT)
    with BlockStream(source(tmp_path / "a.log"), block_bytes=1000, span=span, figures=span is None) as stream:
        pieces: list[bytes] = []
        blocks = list(stream.blocks(one for one in stream.pieces() if pieces.append(one) is None))
    behind_the_head = pieces[2 if span is None else 0 :]
    assert len(behind_the_head) > 5
    assert all(piece.endswith(b"\n") for piece in behind_the_head)
    assert {id(piece) for piece in behind_the_head} <= {id(block.data) for block in blocks}
    assert joined(blocks) == TEXT


def test_what_stands_before_a_bad_part_of_the_disk_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 2500:
                raise OSError(5, "Input/output error")
            return super().read(min(size or -1, 2500 - self.tell()))

    monkeypatch.setattr(stream_module, "_PEEK", 100)
    monkeypatch.setattr(BlockStream, "_open", lambda self: Failing(TEXT))
    with BlockStream(source(tmp_path), block_bytes=1000) as stream:
        got = joined(list(stream))
    assert got == TEXT[:2500]
    assert "Input/output error" in stream.problems[0].reason


def test_error_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 1000:
                raise OSError(5, "Input/output error")
            return super().read(min(size or -1, 600))

    monkeypatch.setattr(BlockStream, "_open", lambda self: Failing(TEXT))
    with BlockStream(source(tmp_path)) as stream:
        got = joined(list(stream))
    assert TEXT.startswith(got)
    assert len(got) >= 1000
    assert "Input/output error" in stream.problems[0].reason


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(gzip.compress(TEXT))

    monkeypatch.setattr(stream_module.sys, "stdin", Stdin)
    with BlockStream(SourceFile(None, "<stdin>", "0" * 16, None, None)) as stream:
        assert joined(list(stream)) == TEXT
    assert not Stdin.buffer.closed


ONLY_PATH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@ONLY_PATH
@given(
    data=st.binary(max_size=400) | st.lists(st.binary(max_size=30)).map(b"\n".join), block=st.integers(1, 60),
    longest=st.integers(1, 60), peek=st.integers(1, 60),
)  # fmt: skip
def test_any_bytes_in_any_blocks(tmp_path: Path, data: bytes, block: int, longest: int, peek: int) -> None:
    data = b"text " + data.translate(None, bytes(range(9))) + b"\n\n"
    with patch.object(stream_module, "_PEEK", peek):
        stream, blocks = read(tmp_path, data, block_bytes=block, max_line=longest)
    if stream.binary:
        return
    lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
    kept = [line for line in lines if len(line) - 1 <= longest]
    assert joined(blocks) == b"".join(kept)
    assert stream.lines == len(lines)
    assert [p.line for p in stream.problems] == [n for n, line in enumerate(lines, 1) if len(line) - 1 > longest]
    for one in blocks:
        assert data[one.offset :].startswith(one.data)
        assert one.line == data[: one.offset].count(b"\n") + 1


@ONLY_PATH
@given(data=st.binary(max_size=200), magic=st.sampled_from([b"", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh91AY&SY",
       b"\xfd7zXZ\0", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\x50\x2a\x4d\x18"]))  # fmt: skip
def test_noise_never_raises(tmp_path: Path, data: bytes, magic: bytes) -> None:
    read(tmp_path, magic + data)
