"""The statement of the fast road: canonical JSON lines to canonical columns, in DuckDB's words.

The rules are those of `engines/generic/rules.py`. Values that a user or a log names are parameters, never SQL text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens.engines.generic import rules
from tracelens.ingest.rows import Naming
from tracelens.lake.schema import table

if TYPE_CHECKING:
    from tracelens.ingest.fast import Shape

# Stands in a sifted file where a line was taken out, so that rows and lines stay as many.
HOLE = b'{"record":" "}'


@dataclass(frozen=True, slots=True)
class Statement:
    """Rows of a file: `good` are the canonical columns of the rows to keep, `faults` the others with the reason.

    `values` are the parameters of both.
    """

    good: str
    faults: str
    values: Mapping[str, Any]


def columns_of(kind: str) -> dict[str, str]:
    """DuckDB type in which each key of a record is read; numbers as doubles, so that 3.7 stays 3.7."""
    types = dict.fromkeys(rules.time_columns(kind), "DOUBLE")
    types |= dict.fromkeys(rules.stamp_columns(kind), "DOUBLE")
    for column in table(kind).columns:
        if column.name in rules.NOT_READ or column.name in types:
            continue
        types[column.name] = {"string": "VARCHAR", "bool": "BOOLEAN", "list<int64>": "DOUBLE[]"}.get(
            column.arrow, "DOUBLE"
        )
    return types | {"record": "VARCHAR"}


def statement(
    path: str, compression: str, shape: Shape, constants: Mapping[str, Any], naming: Naming, *, sifted: bool
) -> Statement:
    """The statement for one file.

    Args:
        path: the file, or what `sift` made of it.
        compression: none, gzip or zstd.
        shape: what the first lines say.
        constants: canonical columns set for all rows.
        naming: names the runs.
        sifted: rows that break an identity are left out (and are in `faults`) instead of ending the statement.
    """
    kind = shape.table
    types = columns_of(kind) | {k: "VARCHAR" for k in rules.stamp_columns(kind) if k in shape.texts}
    if shape.uniform:
        # The count of quotes will prove that no row has another key: the other columns need not be looked at.
        types = {k: types[k] for k in shape.keys}
    read = (
        f"select *, row_number() over () as source_line from read_json($path, format = 'newline_delimited', "
        f"columns = {_struct(types)}, maximum_object_size = 16777216, compression = '{compression}')"
    )
    if sifted:
        read = f"select * from ({read}) where record is distinct from ' '"
    values: dict[str, Any] = {"path": path, "source_id": naming.source_id}
    values |= {f"set_{c}": v for c, v in constants.items() if c in table(kind).names}
    columns = _typed(kind, shape, types, values, naming)
    typed = f"select {', '.join(f'{sql} as {name}' for name, sql in columns.items())} from ({read})"
    known = {name for name, sql in columns.items() if not sql.startswith("null::")}
    facts = {f: sql for f, sql in rules.LIST_FACTS.get(kind, {}).items() if _names(sql) & set(columns) <= known}
    more = "".join(f", {sql} as {f}" for f, sql in facts.items())
    # A rule over a column that no row has can't be broken.
    every = set(columns) | set(rules.LIST_FACTS.get(kind, {}))
    held = [(why, sql) for why, sql in rules.IDENTITIES[kind] if _names(sql) & every <= known | set(facts)]
    fault = "case " + " ".join(f"when not ({sql}) then '{_escaped(why)}'" for why, sql in held) + " end"
    with_facts = f"select *{more} from ({typed})"
    kept = ", ".join(_derived(kind, n, shape) for n in table(kind).names)
    test = f"({fault}) is null" if sifted else f"if(({fault}) is null, true, error('identity'))"
    return Statement(
        f"select {kept} from ({with_facts}) where {test}",
        f"select source_line, {fault} as fault from ({with_facts}) where ({fault}) is not null",
        values,
    )


def _escaped(text: str) -> str:
    return text.replace("'", "''")


def _typed(kind: str, shape: Shape, types: Mapping[str, str], values: dict[str, Any], naming: Naming) -> dict[str, str]:
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
    values["folder"] = naming.folder_key[:8]
    named = f"{_engine(types)} || '-' || $folder"
    named = f"case{cases} else {named} end" if cases else named
    return f"coalesce(run_id, {named})" if "run_id" in types else named


def _plain(name: str, arrow: str, duck: str) -> str:
    if arrow in ("int32", "int64"):
        return f"if({name} is null or ({name} = floor({name}) and abs({name}) < 9007199254740992), {name}, error('count'))::{duck}"
    if arrow == "double":
        return f"if({name} is null or isfinite({name}), {name}, error('number'))"
    if arrow == "list<int64>":
        whole = (
            f"list_bool_and(list_transform({name}, lambda v: v is not null and v = floor(v) and v < 9007199254740992))"
        )
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
        by = (
            str(factor)
            if factor
            else f"case when {key} < 1e11 then 1e6 when {key} < 1e14 then 1e3 when {key} < 1e17 then 1.0 else 1e-3 end"
        )
        numbers.append(
            f"make_timestamp(if({key} is null or {key} * ({by}) between 1e15 and 4.1e15, round({key} * ({by})), error('stamp'))::BIGINT)"
        )
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


def _struct(types: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"'{k}': '{v}'" for k, v in types.items()) + "}"
