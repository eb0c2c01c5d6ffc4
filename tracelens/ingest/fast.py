"""The fast road for files of canonical JSON lines: DuckDB reads, checks and writes, and a proof says nothing was lost.

DuckDB's reader turns 3.7 into 4, `true` into 1 and "5" into 5 without a word, takes NaN, and numbers no lines
(MEASURED.md, fault behaviour). So counts are read as doubles and must be whole and finite, every identity of the schema
is an `error()` inside the statement, rows must be as many as lines, and quotes must be as many as the keys and texts of
a uniform file have. Whatever is not proved sends the file to the slow road, which finds the line and the reason; both
roads take the same rules from `engines/generic/rules.py`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.engines.generic import rules
from tracelens.ingest.fast_sql import Statement, columns_of, statement
from tracelens.ingest.rows import Naming
from tracelens.lake.parquet import COMPRESSION, NO_DAY, ROW_GROUP
from tracelens.lake.schema import DAY_OF, FACTS
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

if TYPE_CHECKING:
    import duckdb

    from tracelens.ingest.sift import Sifted

# Below this the start of DuckDB costs more than it saves.
SMALLEST = 1 << 20
_SAMPLE_LINES = 64
_LEVEL = 1  # 7% less CPU than DuckDB's default for files 5% larger
_MEMORY = "384MB"
_IDS = frozenset({"request_id", "step_id", "run_id", "replica", "process"})
_ZONED = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?Z$")
_BARE = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?$")


@dataclass(frozen=True, slots=True)
class Shape:
    """What the first lines of a file say it is."""

    table: str
    keys: tuple[str, ...]
    texts: tuple[str, ...]
    booleans: tuple[str, ...]
    ts_basis: str
    zoned: bool
    uniform: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """One pass over the bytes: the ledger's figures, and what the proof needs."""

    sha256: str
    bytes: int
    lines: int
    encoding: str
    compression: str
    prefixes: dict[int, str]
    quotes: int
    truths: int
    suspicious: int


@dataclass(frozen=True, slots=True)
class Written:
    """Rows written by the fast road."""

    table: str
    rows: int
    runs: tuple[Mapping[str, Any], ...]
    faults: tuple[tuple[int, str], ...]


class Unproved(Exception):  # noqa: N818 - no failure: the slow road reads the file
    """The file is not, or not provably, clean canonical JSON lines."""


class NotUniform(Unproved):
    """The rows are not all like the first ones: the next try looks at every column and every value."""


def shape_of(head: bytes, tz: str | None, foreign: Sequence[bytes]) -> Shape | None:
    """The shape of a file whose first whole lines are `head`, or None when it is nothing for this road.

    Args:
        head: some whole lines.
        tz: `--tz`: stamps without a zone are read here only as UTC.
        foreign: keys of other engines' records, which are offered records first.
    """
    import msgspec

    lines = [line for line in head.split(b"\n")[:_SAMPLE_LINES] if line.strip()]
    if not lines or any(key in head for key in foreign):
        return None
    try:
        values = [msgspec.json.decode(line) for line in lines]
    except (msgspec.DecodeError, RecursionError):
        return None
    if not all(isinstance(v, dict) for v in values):
        return None
    kinds = {rules.kind_of(v) for v in values}
    kind = kinds.pop()
    if kinds or kind not in FACTS:
        return None
    stamps = rules.stamp_columns(kind)
    given = [k for v in values for k in v if k in stamps]
    numeric = frozenset(k for v in values for k in given if isinstance(v.get(k), int | float))
    basis = _basis([v[k] for v in values for k in v if k in stamps and isinstance(v[k], str)], bool(numeric), tz)
    if basis is None:
        return None
    known = set(columns_of(kind))
    keys = tuple(dict.fromkeys(k for v in values for k in v))
    texts = tuple(k for k in keys if any(isinstance(v.get(k), str) for v in values))
    booleans = tuple(k for k in keys if any(isinstance(v.get(k), bool) for v in values))
    uniform = all(tuple(sorted(v)) == tuple(sorted(keys)) and None not in v.values() for v in values)
    plain = not any(isinstance(v[k], dict) or (isinstance(v[k], list) and k not in known) for v in values for k in v)
    return Shape(kind, keys, texts, booleans, basis, _zoned(values, stamps), uniform and plain and set(keys) <= known)


def _zoned(values: Sequence[Mapping[str, Any]], stamps: Mapping[str, Any]) -> bool:
    return any(_ZONED.match(v[k]) for v in values for k in v if k in stamps and isinstance(v[k], str))


def _basis(texts: Sequence[str], numeric: bool, tz: str | None) -> str | None:
    """`ts_basis` of all rows when one rule fits all stamps of the sample, else None."""
    if not texts:
        return "absolute" if numeric else "none"
    if numeric:
        return None
    if all(_ZONED.match(t) for t in texts):
        return "absolute"
    if tz in (None, "UTC") and all(_BARE.match(t) for t in texts):
        return "absolute" if tz else "zone_assumed"
    return None


def scan(file: SourceFile, shape: Shape, checkpoints: Sequence[int], *, sifted: bool = False) -> Scan:
    """Read the file once: digest, lines, and the counts of the proof (none for a file to be sifted).

    Raises:
        Unproved: the bytes themselves are not clean (a broken stream, an over-long line, UTF-16, no text).
    """
    import numpy as np

    hunt = None if shape.uniform or sifted else _Hunt(shape.table)
    quotes = truths = suspicious = 0
    with BlockStream(file, checkpoints=checkpoints) as stream:
        for block in stream:
            if shape.uniform:
                quotes += int(np.count_nonzero(np.frombuffer(block.data, np.uint8) == 34))
                truths += _truths(block.data)
            elif hunt is not None:
                suspicious += hunt.count(block.data)
    if (
        stream.problems
        or stream.binary
        or not stream.encoding.startswith("utf-8")
        or stream.compression not in ("none", "gzip", "zstd")
    ):
        raise Unproved("bytes")
    return Scan(
        stream.sha256, stream.bytes, stream.lines, stream.encoding, stream.compression, dict(stream.prefix_sha256),
        quotes, truths, suspicious,
    )  # fmt: skip


def _truths(data: bytes) -> int:
    """How many values are true or false.

    One pass of a compiled regular expression over the block as one text: two `bytes.count` cost twice as much.
    """
    import polars as pl
    import pyarrow as pa

    text = pl.from_arrow(pa.array([data], pa.large_string()))
    assert isinstance(text, pl.Series)
    return int(text.str.count_matches(r": ?(?:true|false)")[0])


class _Hunt:
    """Values of a wrong type in a file that is not uniform: a text or a truth where a number is due, and so on."""

    def __init__(self, kind: str) -> None:
        import ahocorasick_rs

        patterns: list[bytes] = []
        for key, duck in columns_of(kind).items():
            wrong = {"DOUBLE": '"tf[', "BOOLEAN": '"0123456789-[{', "VARCHAR": "tf[{", "DOUBLE[]": '"tf'}[duck]
            if duck == "VARCHAR" and key not in _IDS:
                wrong += "0123456789-"
            if duck == "DOUBLE" and key in rules.stamp_columns(kind) and rules.stamp_columns(kind)[key][1] is None:
                wrong = "tf["  # a text is a stamp too
            patterns += [f'"{key}":{gap}{first}'.encode() for first in wrong for gap in ("", " ")]
            # Gaps that the patterns above don't know of.
            patterns += [f'"{key}" '.encode(), f'"{key}":  '.encode(), f'"{key}":\t'.encode()]
            if duck == "DOUBLE[]":
                patterns += [f'"{key}":{gap}[{first}'.encode() for first in '"tfn[' for gap in ("", " ")]
        self._automaton = ahocorasick_rs.BytesAhoCorasick(patterns, implementation=ahocorasick_rs.Implementation.DFA)

    def count(self, data: bytes) -> int:
        """How many are in a block."""
        return len(self._automaton.find_matches_as_indexes(data))


def write(
    file: SourceFile,
    shape: Shape,
    found: Scan,
    constants: Mapping[str, Any],
    naming: Naming,
    staging: Path,
    sifted: Sifted | None = None,
) -> Written:
    """Write the rows of a file below `staging`.

    Args:
        file: the file.
        shape: what `shape_of` said.
        found: what `scan` counted.
        constants: canonical columns set for all rows.
        naming: names the runs; its source_id is the stem of the file names.
        staging: folder of the transaction.
        sifted: what `sift` made of a file that is not clean.

    Raises:
        Unproved: something in the file is not clean; nothing is left below `staging`.
    """
    import shutil

    import duckdb

    if set(constants) & set(shape.keys):
        raise Unproved("a constant over a column of the record")
    folder = staging / "fast" / naming.source_id
    folder.mkdir(parents=True)
    path, compression = (str(file.path), found.compression) if sifted is None else (str(sifted.path), "none")
    rows = statement(path, compression, shape, constants, naming, sifted=sifted is not None)
    con = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    try:
        con.execute(f"set memory_limit = '{_MEMORY}'; set timezone = 'UTC'; set threads = 2")
        con.execute("set temp_directory = $1", [str(folder / "spill")])
        one_day = _one_day(file, shape)
        _copy(con, rows, shape.table, naming.source_id, folder, one_day)
        written, runs, days = _facts_of(con, shape, found, folder, sifted is not None)
        if one_day and len(days) > 1:
            (folder / "one.parquet").unlink()
            _copy(con, rows, shape.table, naming.source_id, folder, False)
        faults = _faults(con, rows, found.lines - written - (sifted.holes if sifted else 0))
        _move(folder, shape.table, days, staging, naming.source_id)
    except duckdb.Error as error:
        raise Unproved(type(error).__name__) from None
    finally:
        con.close()
        shutil.rmtree(staging / "fast", ignore_errors=True)
    return Written(shape.table, written, runs, faults)


def _copy(con: duckdb.DuckDBPyConnection, rows: Statement, kind: str, stem: str, folder: Path, one_day: bool) -> None:
    # A partitioned write costs a third more than one file (benchmarks/): only files that cross midnight pay for it.
    select, target, split = rows.good, "one.parquet", ""
    if not one_day:
        select = f"select *, {DAY_OF[kind]}::date as date from ({rows.good})"
        target, split = "rows", f", partition_by (date), filename_pattern '{stem}-{{i}}'"
    con.execute(
        f"copy ({select}) to '{_quoted(folder / target)}' (format parquet, compression {COMPRESSION}, "
        f"compression_level {_LEVEL}, row_group_size {ROW_GROUP}{split})",
        rows.values,
    )


def _faults(con: duckdb.DuckDBPyConnection, rows: Statement, missing: int) -> tuple[tuple[int, str], ...]:
    """Lines that were left out because they break an identity; looked for only when rows are missing."""
    if not missing:
        return ()
    found = con.execute(rows.faults, rows.values).fetchall()
    if len(found) != missing:
        raise Unproved("rows and lines differ")
    return tuple((line, why) for line, why in found)


def _one_day(file: SourceFile, shape: Shape) -> bool:
    """Whether the first and the last line of a plain file are of one UTC day; a wrong guess costs a second write."""
    import msgspec

    if file.path is None or shape.ts_basis == "none":
        return False
    with file.path.open("rb") as handle:
        first = handle.readline()
        handle.seek(max(0, (file.size or 0) - (1 << 16)))
        last = handle.read().rstrip().rsplit(b"\n", 1)[-1]
    days = []
    for line in (first, last):
        try:
            value = msgspec.json.decode(line.lstrip(b"\xef\xbb\xbf"))
        except (msgspec.DecodeError, RecursionError):
            return False
        text = value.get(DAY_OF[shape.table], value.get("ts")) if isinstance(value, dict) else None
        days.append(text[:10] if isinstance(text, str) else None)
    return days[0] is not None and days[0] == days[1]


def _facts_of(
    con: duckdb.DuckDBPyConnection, shape: Shape, found: Scan, folder: Path, sifted: bool
) -> tuple[int, tuple[Mapping[str, Any], ...], list[dt.date]]:
    """Rows as many as lines; no value of a wrong type; then the runs and the days of the rows."""
    files = f"'{_quoted(folder)}/**/*.parquet'"
    given = [_canonical(shape.table, k) for k in shape.keys]
    counted = ", ".join(f"count({c})" for c in dict.fromkeys(g for g in given if g))
    row = con.execute(f"select count(*), {counted or '0'} from read_parquet({files})").fetchone()
    assert row is not None
    rows = row[0]
    if sifted:  # every line was looked at already
        return rows, _runs(con, shape, files), _days(con, shape, files)
    if rows != found.lines:
        raise Unproved("rows and lines differ")
    as_sampled = (
        shape.uniform
        and all(n == rows for n in row[1:])
        and found.quotes == 2 * rows * (len(shape.keys) + len(shape.texts))
        and found.truths == rows * len(shape.booleans)
    )
    if shape.uniform and not as_sampled:
        raise NotUniform
    if found.suspicious:
        raise Unproved("a value of another type")
    return rows, _runs(con, shape, files), _days(con, shape, files)


def _runs(con: duckdb.DuckDBPyConnection, shape: Shape, files: str) -> tuple[Mapping[str, Any], ...]:
    """The runs of the rows, with what all rows of a run agree on."""
    same = ", ".join(
        f"case when min({c}) = max({c}) and count({c}) = count(*) then min({c}) end as {c}"
        for c in ("model", "draft_model", "method", "num_speculative_tokens", "forced_acceptance")
    )
    result = con.execute(
        f"select run_id, engine, max({DAY_OF[shape.table]}) as ended, {same} from read_parquet({files}) "
        "group by all order by 1, 2"
    )
    names = [d[0] for d in result.description or ()]
    return tuple(dict(zip(names, r, strict=True)) for r in result.fetchall())


def _days(con: duckdb.DuckDBPyConnection, shape: Shape, files: str) -> list[dt.date]:
    day = f"{DAY_OF[shape.table]}::date"
    return [d for (d,) in con.execute(f"select distinct {day} as d from read_parquet({files}) order by 1").fetchall()]


def _canonical(kind: str, key: str) -> str | None:
    """The canonical column that a key fills; None for one that is not kept."""
    if key in ("record", "table"):
        return None
    return rules.time_columns(kind).get(key, rules.stamp_columns(kind).get(key, (key,)))[0]


def _move(folder: Path, kind: str, days: Sequence[dt.date], staging: Path, stem: str) -> None:
    """From where DuckDB wrote to the lake's paths, numbered."""
    if (folder / "one.parquet").exists():
        day = days[0].isoformat() if days and days[0] else NO_DAY
        found = {f"date={day}": [folder / "one.parquet"]}
    else:
        found = {f.name: sorted(f.glob("*.parquet")) for f in sorted((folder / "rows").iterdir())}
    for name, paths in found.items():
        target = staging / kind / name
        target.mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(paths):
            path.replace(target / f"{stem}-{number}.parquet")


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
