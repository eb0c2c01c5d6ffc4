"""The fast road for files of canonical JSON lines: DuckDB reads, checks and writes, and a proof says nothing was lost.

DuckDB's reader takes much for a number that is none, and numbers no lines (MEASURED.md, fault behaviour). So every line
is decoded by a strict type first (typed.py): all lines of a uniform file have the same keys and types, and then exactly
so many quotes; every identity of the schema is an `error()` inside the statement; rows must be as many as lines.
Whatever is not proved sends the file to `sift`, which takes the lines apart; all roads take the same rules from
`engines/generic/rules.py`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.engines.base import Reject
from tracelens.engines.generic import rules
from tracelens.ingest.fast_sql import Statement, statement
from tracelens.ingest.refused import Refused
from tracelens.ingest.rows import Naming
from tracelens.ingest.typed import BARE, ZONED, columns_of, decoder, stamp_range
from tracelens.lake.connection import silent
from tracelens.lake.parquet import COMPRESSION, ROW_GROUP
from tracelens.lake.schema import DAY_OF, FACTS, NO_DAY
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

if TYPE_CHECKING:
    import duckdb

    from tracelens.ingest.redact import Redaction
    from tracelens.ingest.sift import Sifted

# What a run has from its rows when all of them agree.
RUN_FACTS = ("model", "draft_model", "method", "num_speculative_tokens", "forced_acceptance")
# Below this the start of DuckDB costs more than it saves.
SMALLEST = 1 << 20
_SAMPLE_LINES = 64
_FAULTS = 1 << 14  # fetched at once
_LEVEL = 1  # 7% less CPU than DuckDB's default for files 5% larger
_MEMORY = "384MB"
# Keys under which a line may carry another one (sources/records.py): such a file is for the slow road.
_ENVELOPES = frozenset({"log", "message", "msg", "line", "MESSAGE", "values", "streams", "textPayload", "jsonPayload"})
_SPECIAL = re.compile(r"([*?\[])")  # in a pattern of files
_NO_NAME = re.compile(r'[\x00-\x1f"\\]')


@dataclass(frozen=True, slots=True)
class Shape:
    """What the first lines of a file say it is.

    `worded`: every record names its kind. `ranges`: stamps that are numbers, and what they may be. `uniform`: all
    lines have the same keys, none is null, and all values are scalars or lists of counts.
    """

    table: str
    keys: tuple[str, ...]
    texts: tuple[str, ...]
    ts_basis: str
    zoned: bool
    ranges: Mapping[str, tuple[float, float]]
    worded: bool
    uniform: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """One pass over the bytes: the ledger's figures."""

    sha256: str
    bytes: int
    lines: int
    encoding: str
    compression: str
    prefixes: dict[int, str]
    text_sha256: str | None = None
    problems: tuple[Reject, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """Rows written by a fast road, and the lines left out with the identity that each breaks.

    `lines` and `problems` (as `BlockStream.problems`) are those of the file, where no scan has counted them.
    """

    table: str
    rows: int
    runs: tuple[Mapping[str, Any], ...]
    faults: Refused
    lines: int = 0
    problems: tuple[Reject, ...] = ()


class Unproved(Exception):  # noqa: N818 - no failure: another road reads the file
    """The file is not, or not provably, clean canonical JSON lines."""


def shape_of(head: bytes, tz: str | None, foreign: Sequence[bytes]) -> Shape | None:
    """The shape of a file whose first whole lines are `head`, or None when it is nothing for this road.

    Args:
        head: some whole lines; at least half of the first ones must be records of one kind.
        tz: `--tz`: stamps without a zone are read here only as UTC.
        foreign: keys of other engines' records, which are offered records first.
    """
    lines = [line for line in head.split(b"\n")[:_SAMPLE_LINES] if line.strip()]
    records = [v for v in map(_record, lines) if v is not None]
    kind, _ = Counter(rules.kind_of(v) for v in records).most_common(1)[0] if records else (None, 0)
    values = [v for v in records if rules.kind_of(v) == kind]
    if kind not in FACTS or 2 * len(values) < len(lines) or any(key in line for key in foreign for line in lines):
        return None
    keys = tuple(dict.fromkeys(k for v in values for k in v))
    words = {isinstance(v.get("record"), str) for v in values}
    worded = words == {True}
    if len(words) > 1 or _unusable(keys, kind) or (not worded and "table" in keys):
        return None
    stamps = _stamps(values, kind, tz)
    if stamps is None:
        return None
    texts = tuple(k for k in keys if any(isinstance(v.get(k), str) for v in values))
    uniform = len(values) == len(lines) and _uniform(values, texts, columns_of(kind))
    return Shape(kind, keys, texts, *stamps, worded, uniform)


def _record(line: bytes) -> dict[str, Any] | None:
    import msgspec

    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unusable(keys: Sequence[str], kind: str) -> bool:
    """Whether some key is another line's wrapping, no name of a column, or one that DuckDB may mistake for another."""
    strange = [k for k in keys if k not in columns_of(kind)]
    folded = {k.casefold() for k in columns_of(kind)}
    return any(k in _ENVELOPES or not k or _NO_NAME.search(k) or k.casefold() in folded for k in strange)


def _uniform(values: Sequence[Mapping[str, Any]], texts: Sequence[str], known: Mapping[str, str]) -> bool:
    """Whether all records have the same keys, with a value that is a text in all or in none."""
    first = values[0].keys()
    return all(
        v.keys() == first
        and all(isinstance(cell, str) == (k in texts) for k, cell in v.items())
        and not any(c is None or isinstance(c, dict) or (isinstance(c, list) and k not in known) for k, c in v.items())
        for v in values
    )


def _stamps(
    values: Sequence[Mapping[str, Any]], kind: str, tz: str | None
) -> tuple[str, bool, dict[str, tuple[float, float]]] | None:
    """`ts_basis` of all rows with a stamp, whether they name a zone, and the ranges of numbers; None: no one rule."""
    factors = rules.stamp_columns(kind)
    given = [(k, v[k]) for v in values for k in v if k in factors and v[k] is not None]
    texts = [cell for _, cell in given if isinstance(cell, str)]
    if not texts:
        ranges: dict[str, tuple[float, float]] = {}
        for key, cell in given:
            number = cell if isinstance(cell, int | float) and not isinstance(cell, bool) else 0.0
            span = stamp_range(number, factors[key][1])
            if span is None or ranges.setdefault(key, span) != span:
                return None
        return ("absolute" if given else "none"), False, ranges
    if len(texts) < len(given):
        return None
    if all(re.match(ZONED, t) for t in texts):
        return "absolute", True, {}
    if tz in (None, "UTC") and all(re.match(BARE, t) for t in texts):
        return ("absolute" if tz else "zone_assumed"), False, {}
    return None


def figures(stream: BlockStream, *, broken: bool = False) -> Scan:
    """What the ledger wants to know of a stream that was read to its end.

    Args:
        stream: the stream.
        broken: a broken end and over-long lines are problems of the scan; else another road is for them.

    Raises:
        Unproved: the bytes themselves are not clean (a broken stream, an over-long line, UTF-16, no text).
    """
    readable = stream.compression in ("none", "gzip", "zstd") and stream.encoding.startswith("utf-8")
    if (stream.problems and not broken) or stream.binary or not readable:
        raise Unproved("bytes")
    return Scan(
        stream.sha256, stream.bytes, stream.lines, stream.encoding, stream.compression, dict(stream.prefix_sha256),
        stream.text_sha256, tuple(stream.problems),
    )  # fmt: skip


def scan(file: SourceFile, shape: Shape, checkpoints: Sequence[int]) -> Scan:
    """Read a uniform file once: every line is of the strict type, and none has a key or text more than the first.

    Raises:
        Unproved: a line is not like the first ones, or see `figures`.
    """
    import msgspec
    import numpy as np

    from tracelens.ingest.sift import stray_return

    lines = decoder(shape, closed=True)
    quotes = count = 0
    with BlockStream(file, checkpoints=checkpoints) as stream:
        for block in stream:
            # An escape may hide a quote, or be text that DuckDB does not take (a lone surrogate).
            if b"\\" in block.data or stray_return(block.data):
                raise Unproved("an escape")
            try:
                count += len(lines.decode_lines(block.data))
            except (msgspec.DecodeError, RecursionError):
                raise Unproved("a line of another form") from None
            quotes += int(np.count_nonzero(np.frombuffer(block.data, np.uint8) == 34))
    found = figures(stream)
    # Every line has at least as many: equal sums leave no room for a key given twice.
    if count != found.lines or quotes != 2 * count * (len(shape.keys) + len(shape.texts)):
        raise Unproved("a key given twice, or lines that are not one record each")
    return found


def write(
    file: SourceFile,
    shape: Shape,
    found: Scan,
    constants: Mapping[str, Any],
    naming: Naming,
    staging: Path,
    sifted: Sifted | None = None,
    *,
    counted: bool = False,
    redaction: Redaction | None = None,
) -> Written:
    """Write the rows of a file below `staging`.

    Args:
        file: the file.
        shape: what `shape_of` said.
        found: what `scan` or `sift` counted.
        constants: canonical columns set for all rows; none of them is a key of the file.
        naming: names the runs; its source_id is the stem of the file names.
        staging: folder of the transaction.
        sifted: what `sift` made of a file that is not clean.
        counted: there are rows of steps elsewhere, so that no share of a step may come from its rows here alone.
        redaction: how ids are hashed; None keeps them.

    Raises:
        Unproved: something in the file is not clean; nothing is left below `staging`.
    """
    import tempfile

    import duckdb

    path, compression = (str(file.path), found.compression) if sifted is None else (str(sifted.path), "none")
    rows = statement(path, compression, shape, constants, naming, sifted=sifted is not None, redaction=redaction)
    # A folder of its own: other processes stage in the same transaction, perhaps a copy of the same file.
    with tempfile.TemporaryDirectory(prefix="fast-", dir=staging) as temporary:
        folder = Path(temporary)
        con = _connection(folder / "spill")
        try:
            one_day = _one_day(file, shape)
            written, steps, runs, days = _copied(con, rows, shape, naming.source_id, folder, one_day=one_day)
            if counted and steps:
                raise Unproved("a step in two places")
            missing = found.lines - written - (sifted.holes if sifted else 0)
            faults = _faults(con, rows, missing, shape.table)
        except duckdb.Error as error:
            raise Unproved(type(error).__name__) from None
        finally:
            con.close()
        if written:
            _move(folder, shape.table, days, staging, naming.source_id)
    return Written(shape.table, written, runs, faults)


def _connection(spill: Path) -> duckdb.DuckDBPyConnection:
    con = silent()
    con.execute(f"set memory_limit = '{_MEMORY}'; set timezone = 'UTC'; set threads = 2")
    con.execute("set temp_directory = $1", [str(spill)])
    return con


def _copied(
    con: duckdb.DuckDBPyConnection, rows: Statement, shape: Shape, stem: str, folder: Path, *, one_day: bool
) -> tuple[int, int, tuple[Mapping[str, Any], ...], list[dt.date]]:
    """Write the rows below `folder`: how many they are, how many take their share of a step from the number of its
    rows, their runs and their days.
    """
    plain = _SPECIAL.sub(r"[\1]", _quoted(folder))
    files = f"'{plain}/**/*.parquet'"
    _copy(con, rows, shape.table, stem, folder, one_day)
    by_rows = "step_id is not null and coalesce(batch_size, 0) = 0" if shape.table == "rounds" else "false"
    row = con.execute(f"select count(*), count(*) filter ({by_rows}) from read_parquet({files})").fetchone()
    runs, days = _runs(con, shape, files), _days(con, shape, files)
    if one_day and len(days) > 1:
        (folder / "one.parquet").unlink()
        _copy(con, rows, shape.table, stem, folder, False)
    count, by_count = row or (0, 0)
    return count, by_count, runs, days


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


def _faults(con: duckdb.DuckDBPyConnection, rows: Statement, missing: int, kind: str) -> Refused:
    """Lines that were left out because they break an identity; looked for only when rows are missing."""
    refused = Refused()
    found = con.execute(rows.faults, rows.values) if missing else None
    while found is not None and (some := found.fetchmany(_FAULTS)):
        refused.extend(broken_identity(line, why, kind) for line, why in some)
    if len(refused) != missing:
        raise Unproved("rows and lines differ")
    return refused


def broken_identity(line: int, why: str, kind: str, offset: int | None = None) -> Reject:
    """The refusal of a row that breaks an identity of its table."""
    return Reject(line, f"identity broken: {why}", f"generic.{kind.removesuffix('s')}", offset)


def _one_day(file: SourceFile, shape: Shape) -> bool:
    """Whether the first and the last line of a plain file are of one UTC day; a wrong guess costs a second write."""
    if file.path is None or shape.ts_basis == "none":
        return False
    with file.path.open("rb") as handle:
        first = handle.readline(1 << 16)
        handle.seek(max(0, (file.size or 0) - (1 << 16)))
        last = handle.read().rstrip().rsplit(b"\n", 1)[-1]
    days = []
    for line in (first.removeprefix(b"\xef\xbb\xbf"), last):
        record = _record(line) or {}
        text = record.get(DAY_OF[shape.table], record.get("ts"))
        days.append(text[:10] if isinstance(text, str) else None)
    return days[0] is not None and days[0] == days[1]


def _runs(con: duckdb.DuckDBPyConnection, shape: Shape, files: str) -> tuple[Mapping[str, Any], ...]:
    """The runs of the rows, with what all rows of a run agree on."""
    same = ", ".join(
        f"case when min({c}) = max({c}) and count({c}) = count(*) then min({c}) end as {c}" for c in RUN_FACTS
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
