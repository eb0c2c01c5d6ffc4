"""A file of canonical JSON lines that is not clean: its good lines for the fast road, the others one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tracelens.engines.generic import rules
from tracelens.ingest.fast_sql import HOLE, columns_of
from tracelens.lake.schema import table
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

if TYPE_CHECKING:
    import msgspec

    from tracelens.ingest.fast import Shape

_WHOLE = 2**53  # from here on a double, in which DuckDB reads counts here, is not exact
_STAMP = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?"


@dataclass(frozen=True, slots=True)
class Sifted:
    """The file that `sift` wrote, and how many of its lines are holes."""

    path: Path
    holes: int


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not, or may not be, a clean record of the file's kind."""

    line: int
    offset: int
    data: bytes


def sift(file: SourceFile, shape: Shape, target: Path, take: Callable[[Sequence[BadLine]], None]) -> Sifted:
    """Copy a file with every line that is not a typed record of its kind replaced by a hole; hand those lines on.

    Args:
        file: the file.
        shape: what its first lines say.
        target: where to write the copy.
        take: called with the lines taken out, block by block.
    """
    decode = _decoder(shape).decode
    holes = 0
    with BlockStream(file) as stream, target.open("wb") as out:
        for block in stream:
            lines = block.data.split(b"\n")
            if not lines[-1]:
                lines.pop()
            bad: list[int] = []
            for i, line in enumerate(lines):
                try:
                    if not decode(line).counted():
                        bad.append(i)
                except Exception:  # whatever is wrong with it, the slow road says what
                    bad.append(i)
            if bad:
                take([b for b in _bad_lines(block.line, block.offset, lines, bad) if b.data.strip()])
                for i in bad:
                    lines[i] = HOLE
                holes += len(bad)
            out.write(b"\n".join(lines) + b"\n")
    return Sifted(target, holes)


def _bad_lines(first: int, offset: int, lines: Sequence[bytes], bad: Sequence[int]) -> list[BadLine]:
    found: list[BadLine] = []
    at, done = offset, 0
    for i in bad:
        at += sum(map(len, lines[done:i])) + (i - done)
        found.append(BadLine(first + i, at, lines[i]))
        done = i
    return found


def _decoder(shape: Shape) -> msgspec.json.Decoder[Any]:
    """A strict decoder of the file's kind; a key that neither the table nor the sample knows is an error."""
    import msgspec

    kind = shape.table
    stamps = rules.stamp_columns(kind)
    counts = {
        c.name: 2**31 - 1 if c.arrow == "int32" else _WHOLE
        for c in table(kind).columns
        if c.arrow in ("int32", "int64")
    }
    number = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    fields: dict[str, Any] = {}
    for key, duck in columns_of(kind).items():
        if key in stamps:
            stamp = _STAMP + ("Z$" if shape.ts_basis == "absolute" and shape.zoned else "$")
            fields[key] = Annotated[str, msgspec.Meta(pattern=stamp)] if key in shape.texts else number
        elif key in counts and key not in rules.time_columns(kind):
            fields[key] = Annotated[int, msgspec.Meta(ge=0, le=counts[key])]
        else:
            fields[key] = {
                "VARCHAR": str,
                "BOOLEAN": bool,
                "DOUBLE": number,
                "DOUBLE[]": list[Annotated[int, msgspec.Meta(ge=0, le=_WHOLE)]],
            }[duck]
    for key in ("request_id", "step_id", "run_id", "replica", "process"):
        if key in fields:
            fields[key] = str | int
    fields |= {k: Any for k in shape.keys if k not in fields}
    # The kind is the sample's only where the record says nothing else.
    fields.pop("record", None)
    needed = {"rounds": "accepted"}.get(kind)
    names = [(k, t | None if t is not Any else t, None) for k, t in fields.items()]
    record = msgspec.defstruct(
        "Record", names, forbid_unknown_fields=True, gc=False,
        namespace={"counted": (lambda self: getattr(self, needed) is not None) if needed else (lambda self: True)},
    )  # fmt: skip
    return msgspec.json.Decoder(record)
