"""Files that come out the same every time: gzip without name and time, JSON with fixed layout."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8 with LF; `.gz` names are compressed (level 9, mtime 0)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    if path.suffix == ".gz":
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as out:
            out.write(data)
        data = buffer.getvalue()
    path.write_bytes(data)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """One LF after every line."""
    write_text(path, "".join(f"{line}\n" for line in lines))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Indented, but a list of numbers stays on one line."""
    write_text(path, _layout(value, 0) + "\n")


def dumps(value: object) -> str:
    """One JSON line, as Python's own encoder writes it."""
    return json.dumps(value, ensure_ascii=False)


def at(start: datetime, us: int) -> datetime:
    """`start` plus microseconds."""
    return start + timedelta(microseconds=int(us))


def utc(*parts: int) -> datetime:
    """A UTC time from year, month, day, …"""
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def _layout(value: object, depth: int) -> str:
    pad = "  " * (depth + 1)
    if isinstance(value, Mapping) and value:
        inner = ",\n".join(f"{pad}{json.dumps(str(k))}: {_layout(v, depth + 1)}" for k, v in value.items())
        return "{\n" + inner + "\n" + "  " * depth + "}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        inner = ",\n".join(f"{pad}{json.dumps(v, ensure_ascii=False)}" for v in value)
        return "[\n" + inner + "\n" + "  " * depth + "]"
    return json.dumps(value, ensure_ascii=False)
