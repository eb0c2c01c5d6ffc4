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
from tracelens.ingest.rows import Naming
from tracelens.lake.parquet import COMPRESSION, NO_DAY, ROW_GROUP
from tracelens.lake.schema import DAY_OF, FACTS, table
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

if TYPE_CHECKING:
    import duckdb

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
    known = set(_columns(kind))
    keys = tuple(dict.fromkeys(k for v in values for k in v))
    texts = tuple(k for k in keys if any(isinstance(v.get(k), str) for v in values))
    booleans = tuple(k for k in keys if any(isinstance(v.get(k), bool) for v in values))
    uniform = all(tuple(sorted(v)) == tuple(sorted(keys)) and None not in v.values() for v in values)
    plain = not any(isinstance(v[k], dict) or (isinstance(v[k], list) and k not in known) for v in values for k in v)
    return Shape(kind, keys, texts, booleans, basis, uniform and plain and set(keys) <= known)


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


def _columns(kind: str) -> dict[str, str]:
    """DuckDB type in which each key of a record is read; numbers as doubles, so that 3.7 stays 3.7."""
    types = {k: "DOUBLE" for k in rules.time_columns(kind)}
    types |= {k: "DOUBLE" for k in rules.stamp_columns(kind)}
    for column in table(kind).columns:
        if column.name in rules.NOT_READ or column.name in types:
            continue
        types[column.name] = {"string": "VARCHAR", "bool": "BOOLEAN", "list<int64>": "DOUBLE[]"}.get(column.arrow, "DOUBLE")
    return types | {"record": "VARCHAR"}


def scan(file: SourceFile, shape: Shape, checkpoints: Sequence[int]) -> Scan:
    """Read the file once: digest, lines, and the counts of the proof.

    Raises:
        Unproved: the bytes themselves are not clean (a broken stream, an over-long line, UTF-16, no text).
    """
    import numpy as np

    hunt = None if shape.uniform else _Hunt(shape.table)
    quotes = truths = suspicious = 0
    with BlockStream(file, checkpoints=checkpoints) as stream:
        for block in stream:
            if shape.uniform:
                quotes += int(np.count_nonzero(np.frombuffer(block.data, np.uint8) == 34))
                truths += _truths(block.data)
            else:
                assert hunt is not None
                suspicious += hunt.count(block.data)
    if stream.problems or stream.binary or not stream.encoding.startswith("utf-8") or stream.compression not in ("none", "gzip", "zstd"):
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
        for key, duck in _columns(kind).items():
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
) -> Written:
    """Write the rows of a file below `staging`.

    Args:
        file: the file.
        shape: what `shape_of` said.
        found: what `scan` counted.
        constants: canonical columns set for all rows.
        naming: names the runs; its source_id is the stem of the file names.
        staging: folder of the transaction.

    Raises:
        Unproved: something in the file is not clean; nothing is left below `staging`.
    """
    import shutil

    import duckdb

    if set(constants) & set(shape.keys):
        raise Unproved("a constant over a column of the record")
    stem = naming.source_id
    folder = staging / "fast" / stem
    folder.mkdir(parents=True)
    con = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    try:
        con.execute(f"set memory_limit = '{_MEMORY}'; set timezone = 'UTC'; set threads = 2")
        con.execute("set temp_directory = $1", [str(folder / "spill")])
        one_day = _one_day(file, shape)
        _copy(con, file, shape, found, constants, naming, folder, one_day)
        rows, runs, days = _prove(con, shape, found, folder)
        if one_day and len(days) > 1:
            (folder / "one.parquet").unlink()
            _copy(con, file, shape, found, constants, naming, folder, False)
        _move(folder, shape.table, days, staging, stem)
    except duckdb.Error as error:
        raise Unproved(f"{type(error).__name__}: {str(error)[:300]}") from None
    finally:
        con.close()
        shutil.rmtree(staging / "fast", ignore_errors=True)
    return Written(shape.table, rows, runs)


def _copy(
    con: duckdb.DuckDBPyConnection, file: SourceFile, shape: Shape, found: Scan, constants: Mapping[str, Any],
    naming: Naming, folder: Path, one_day: bool,
) -> None:  # fmt: skip
    kind = shape.table
    types = _columns(kind) | {k: "VARCHAR" for k in rules.stamp_columns(kind) if k in shape.texts}
    if shape.uniform:
        # The count of quotes will prove that no row has another key: the other columns need not be looked at.
        types = {k: types[k] for k in shape.keys}
    read = (
        f"select *, row_number() over () as source_line from read_json($path, format = 'newline_delimited', "
        f"columns = {_struct(types)}, maximum_object_size = 16777216, compression = '{found.compression}')"
    )
    # Values that a user or a log names are parameters, never part of the statement.
    values: dict[str, Any] = {"path": str(file.path), "source_id": naming.source_id, "folder": naming.folder_key[:8]}
    values |= {f"set_{c}": v for c, v in constants.items() if c in table(kind).names}
    columns = _typed(kind, shape, types, values, naming)
    typed = f"select {', '.join(f'{sql} as {name}' for name, sql in columns.items())} from ({read})"
    known = {name for name, sql in columns.items() if not sql.startswith("null::")}
    facts = {f: sql for f, sql in rules.LIST_FACTS.get(kind, {}).items() if _names(sql) <= known | {"x", "i"}}
    with_facts = f"select *, {', '.join(f'{sql} as {f}' for f, sql in facts.items())} from ({typed})" if facts else typed
    kept = ", ".join(_derived(kind, n, shape) for n in table(kind).names)
    # A rule over a column that no row has can't be broken.
    held = [sql for _, sql in rules.IDENTITIES[kind] if _names(sql) & set(table(kind).names) | _names(sql) & set(rules.LIST_FACTS.get(kind, {})) <= known | set(facts)]
    broken = " or ".join(f"not ({sql})" for sql in held)
    good = f"where if(coalesce({broken}, false), error('identity'), true)"
    day = "" if one_day else f", {DAY_OF[kind]}::date as date"
    # A partitioned write costs a third more than one file (benchmarks/): only files that cross midnight pay for it.
    target, split = ("one.parquet", "") if one_day else ("rows", f", partition_by (date), filename_pattern '{naming.source_id}-{{i}}'")
    con.execute(
        f"copy (select {kept}{day} from ({with_facts}) {good}) to '{_quoted(folder / target)}' (format parquet, "
        f"compression {COMPRESSION}, compression_level {_LEVEL}, row_group_size {ROW_GROUP}{split})",
        {k: v for k, v in values.items() if k != "folder" or naming.run is None},
    )


def _typed(
    kind: str, shape: Shape, types: Mapping[str, str], values: dict[str, Any], naming: Naming
) -> dict[str, str]:
    """One expression a canonical column, as the generic reader would read it; `null::TYPE` where no key can fill it."""
    out: dict[str, str] = {}
    spellings: dict[str, list[tuple[str, int]]] = {}
    for key, (column, factor) in rules.time_columns(kind).items():
        if key in types:
            spellings.setdefault(column, []).append((key, factor))
    for column in table(kind).columns:
        name, kind_of = column.name, table(kind).duckdb_types()[column.name]
        own = {
            "run_id": _run(naming, types, values),
            "engine": _engine(types),
            "surface": f"'generic.{kind.removesuffix('s')}'",
            "source_id": "$source_id",
            "source_line": "source_line",
            "ts_basis": f"'{shape.ts_basis}'",
            "weight": "coalesce(weight, 1.0)" if "weight" in types else "1.0::DOUBLE",
        }.get(name)
        if own is None and f"set_{name}" in values:
            own = f"$set_{name}::{kind_of}"
        if own is None and name in spellings:
            own = _duration(name, spellings[name], column.arrow == "double")
        if own is None and column.arrow == "timestamp[us]":
            own = _stamp(kind, name, types)
        if own is None and name in types and name not in rules.NOT_READ:
            own = _plain(name, column.arrow, kind_of)
        out[name] = own or f"null::{kind_of}"
    return out


def _names(sql: str) -> set[str]:
    """Words of an expression."""
    return set(re.findall(r"[a-z_]+", sql))


def _engine(types: Mapping[str, str]) -> str:
    return "lower(coalesce(engine, 'generic'))" if "engine" in types else "'generic'"


def _run(naming: Naming, types: Mapping[str, str], values: dict[str, Any]) -> str:
    """The run of a row, as `Naming` names it."""
    if naming.run is not None:
        values["run"] = naming.run
        return "$run"
    cases = ""
    for number, (engine, run) in enumerate(naming.adopt.items()):
        values |= {f"engine_{number}": engine, f"adopted_{number}": run}
        cases += f" when {_engine(types)} = $engine_{number} then $adopted_{number}"
    named = f"{_engine(types)} || '-' || $folder"
    named = f"case{cases} else {named} end" if cases else named
    return f"coalesce(run_id, {named})" if "run_id" in types else named


def _plain(name: str, arrow: str, duck: str) -> str:
    if arrow in ("int32", "int64"):
        return f"if({name} is null or ({name} = floor({name}) and abs({name}) < 9007199254740992), {name}, error('count'))::{duck}"
    if arrow == "double":
        return f"if({name} is null or isfinite({name}), {name}, error('number'))"
    if arrow == "list<int64>":
        whole = f"list_bool_and(list_transform({name}, lambda v: v is not null and v = floor(v) and v < 9007199254740992))"
        return f"if({name} is null or coalesce({whole}, true), {name}, error('counts'))::{duck}"
    return name


def _duration(name: str, spellings: Sequence[tuple[str, int]], as_float: bool) -> str:
    if as_float:
        value = f"coalesce({', '.join(f'{k} * {f}' for k, f in spellings)})"
        return f"if({value} is null or isfinite({value}), {value}, error('number'))"
    return f"coalesce({', '.join(f'floor({k} * {f} + 0.5)' for k, f in spellings)})::BIGINT"


def _stamp(kind: str, name: str, types: Mapping[str, str]) -> str:
    """A stamp in UTC: numbers before text, as the generic reader prefers."""
    numbers, texts = [], []
    for key, (column, factor) in rules.stamp_columns(kind).items():
        if column != name or key not in types:
            continue
        if types[key] == "VARCHAR":
            texts.append(f"({key}::TIMESTAMPTZ at time zone 'UTC')")
            continue
        by = str(factor) if factor else f"case when {key} < 1e11 then 1e6 when {key} < 1e14 then 1e3 when {key} < 1e17 then 1.0 else 1e-3 end"
        numbers.append(f"make_timestamp(if({key} is null or {key} * ({by}) between 1e15 and 4.1e15, round({key} * ({by})), error('stamp'))::BIGINT)")
    return f"coalesce({', '.join([*numbers, *texts])})" if numbers or texts else "null::TIMESTAMP"


def _derived(kind: str, name: str, shape: Shape) -> str:
    """DERIVED of the rules; its window over the steps is spared where it can give nothing else."""
    how = rules.DERIVED.get(kind, {}).get(name)
    if how is None:
        return name
    if name == "step_share":
        if "step_id" not in shape.keys and "batch_size" not in shape.keys:
            return name
        if shape.uniform and "batch_size" in shape.keys:
            return "coalesce(step_share, 1.0 / nullif(batch_size, 0)) as step_share"
    return f"{how} as {name}"


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


def _prove(
    con: duckdb.DuckDBPyConnection, shape: Shape, found: Scan, folder: Path
) -> tuple[int, tuple[Mapping[str, Any], ...], list[dt.date]]:
    """Rows as many as lines; no value of a wrong type; then the runs and the days of the rows."""
    files = f"'{_quoted(folder)}/**/*.parquet'"
    given = [_canonical(shape.table, k) for k in shape.keys]
    counted = ", ".join(f"count({c})" for c in dict.fromkeys(g for g in given if g))
    row = con.execute(f"select count(*), {counted or '0'} from read_parquet({files})").fetchone()
    assert row is not None
    rows = row[0]
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
    same = ", ".join(
        f"case when min({c}) = max({c}) and count({c}) = count(*) then min({c}) end as {c}"
        for c in ("model", "draft_model", "method", "num_speculative_tokens", "forced_acceptance")
    )
    result = con.execute(f"select run_id, engine, max({DAY_OF[shape.table]}) as ended, {same} from read_parquet({files}) group by all order by 1, 2")
    names = [d[0] for d in result.description or ()]
    runs = tuple(dict(zip(names, r, strict=True)) for r in result.fetchall())
    days = con.execute(f"select distinct {DAY_OF[shape.table]}::date as d from read_parquet({files}) order by 1").fetchall()
    return rows, runs, [d for (d,) in days]


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


def _struct(types: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"'{k}': '{v}'" for k, v in types.items()) + "}"


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
