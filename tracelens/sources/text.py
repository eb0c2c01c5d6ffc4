"""Is it text, and in which encoding? Decided on the first bytes of a stream."""

from __future__ import annotations

import re

UTF8_BOM = b"\xef\xbb\xbf"

# First bytes of files that hold no log lines, however textual the rest may look.
_BINARY_MAGIC = (
    b"\x7fELF",
    b"PK\x03\x04",
    b"PAR1",
    b"ARROW1",
    b"SQLite format 3\x00",
    b"\x80\x02",
    b"\x80\x03",
    b"\x80\x04",
    b"\x80\x05",
    b"\x93NUMPY",
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"GIF8",
    b"%PDF-",
    b"\x89HDF",
    b"GGUF",
    b"LPKSHHRH",  # systemd journal
    b"\xca\xfe\xba\xbe",
    b"7z\xbc\xaf\x27\x1c",
    b"\x04\x22\x4d\x18",  # lz4 frame
    b"!<arch>",
)
_CONTROL = bytes(c for c in range(32) if c not in b"\0\t\n\v\f\r\x08\x1b")
_NUL_RUN = re.compile(rb"\0{16,}")


def encoding_of(head: bytes) -> str:
    """Name the encoding of a text by its first bytes: utf-8, utf-8-bom, utf-16-le, utf-16-be.

    UTF-16 without a mark is taken where nearly every second byte is NUL, as in mostly Latin text.
    """
    if head.startswith(UTF8_BOM):
        return "utf-8-bom"
    if head.startswith(b"\xff\xfe"):
        return "utf-16-le"
    if head.startswith(b"\xfe\xff"):
        return "utf-16-be"
    sample = head[:4096]
    if len(sample) >= 8:
        half = len(sample) // 2
        even, odd = sample[0::2].count(0), sample[1::2].count(0)
        if odd > 0.7 * half and even < 0.05 * half:
            return "utf-16-le"
        if even > 0.7 * half and odd < 0.05 * half:
            return "utf-16-be"
    return "utf-8"


def is_binary(head: bytes, encoding: str) -> bool:
    """Whether the first bytes (64 KiB are enough) are of something that is no text.

    Runs of NULs are what a crash or a truncated log leaves in a text: they do not count, scattered NULs do.
    """
    if encoding.startswith("utf-16"):
        text = head[: len(head) // 2 * 2].decode(encoding, "replace")
        bad = text.count("\ufffd") + text.count("\0")
        return bad > 0.1 * len(text)
    if head.startswith(_BINARY_MAGIC):
        return True
    rest = _NUL_RUN.sub(b"", head)
    if not rest:
        return False
    nuls = rest.count(0)
    control = len(rest) - len(rest.translate(None, _CONTROL))
    if (nuls + control) * 50 > len(rest) and nuls + control > 8:
        return True
    # Eight-bit noise without control bytes: text in a legacy code page has few high bytes in a row.
    if len(rest) < 64 or rest.isascii():
        return False
    return rest.decode("utf-8", "replace").count("\ufffd") > 0.3 * len(rest)
