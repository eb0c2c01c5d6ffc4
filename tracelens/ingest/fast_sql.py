"""The statement of the fast road: canonical JSON lines to canonical columns, in DuckDB's words.

The rules are those of `engines/generic/rules.py`. Values that a user or a log names are parameters, never SQL text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens.engines.generic import rules
from tracelens.ingest import names
from tracelens.ingest.rows import Naming
from tracelens.ingest.typed import columns_of
from tracelens.lake.schema import DAY_OF, Column, table

if TYPE_CHECKING:
    from tracelens.ingest.fast import Shape
    from tracelens.ingest.redact import Redaction

_MAGNITUDE = "(case when {key} < 1e11 then 1e6 when {key} < 1e14 then 1e3 when {key} < 1e17 then 1.0 else 1e-3 end)"


@dataclass(frozen=True, slots=True)
class Statement:
    """Rows of a file: `good` are the canonical columns of the rows to keep, `faults` the others with the reason.

    `values` are the parameters of both.
    """

    good: str
    faults: str
    values: Mapping[str, Any]


def statement(
    path: str,
    compression: str,
    shape: Shape,
    constants: Mapping[str, Any],
    naming: Naming,
    *,
    sifted: bool,
    redaction: Redaction | None = None,
) -> Statement:
    """The statement for one file.

    Args:
        path: the file, or what `sift` made of it.
        compression: none, gzip or zstd.
        shape: what the first lines say.
        constants: canonical columns set for all rows.
        naming: names the runs.
        sifted: rows that break an identity are left out (and are in `faults`) instead of ending the statement.
        redaction: how ids are hashed; None keeps them.
    """
    kind = shape.table
    types = columns_of(kind) | {k: "VARCHAR" for k in rules.stamp_columns(kind) if k in shape.texts}
    if shape.uniform and not sifted:
        # No row has another key (`fast.scan`).
        types = {k: types[k] for k in shape.keys if k in types}
    read = (
        f"select *, row_number() over () as source_line from read_json($path, format = 'newline_delimited', "
        f"columns = {_struct(types)}, maximum_object_size = 16777216, compression = '{compression}')"
    )
    if sifted:
        read = f"select * from ({read}) where record is distinct from ' '"  # a HOLE
    values: dict[str, Any] = {"path": path, "source_id": naming.source_id}
    values |= {f"set_{c}": v for c, v in constants.items() if c in table(kind).names}
    columns = _typed(kind, shape, types, values, naming, redaction)
    # A step is one of the run that the record names, whatever the lake calls it.
    own_run = "run_id" if "run_id" in types else "null::VARCHAR"
    listed = ", ".join(f"{sql} as {name}" for name, sql in columns.items())
    typed = f"select {listed}, {own_run} as own_run from ({read})"
    known = {name for name, sql in columns.items() if not sql.startswith("null::")}
    facts = {f: sql for f, sql in rules.LIST_FACTS.get(kind, {}).items() if names_in(sql) & set(columns) <= known}
    more = "".join(f", {sql} as {f}" for f, sql in facts.items())
    # A rule over a column that no row has can't be broken.
    every = set(columns) | set(rules.LIST_FACTS.get(kind, {}))
    held = [
        (why, sql)
        for why, sql in rules.IDENTITIES[kind]
        if names_in(sql) & every <= known | set(facts) or "is not null" in sql
    ]
    fault = "case " + " ".join(f"when not ({sql}) then '{_escaped(why)}'" for why, sql in held) + " end"
    with_facts = f"select *{more} from ({typed})"
    kept = ", ".join(_derived(kind, n, shape, sifted) for n in table(kind).names)
    test = f"({fault}) is null" if sifted else f"if(({fault}) is null, true, error('identity'))"
    return Statement(
        f"select {kept} from ({with_facts}) where {test}",
        f"select source_line, {fault} as fault from ({with_facts}) where ({fault}) is not null",
        values,
    )


def _escaped(text: str) -> str:
    return text.replace("'", "''")


def _typed(
    kind: str, shape: Shape, types: Mapping[str, str], values: dict[str, Any], naming: Naming,
    redaction: Redaction | None,
) -> dict[str, str]:  # fmt: skip
    """One expression a canonical column, as the generic reader would read it; `null::TYPE` where no key can fill it."""
    own = {
        "run_id": _run(naming, types, values),
        "engine": _engine(naming, types, values),
        "surface": f"'generic.{kind.removesuffix('s')}'",
        "source_id": "$source_id",
        "source_line": "source_line",
        "ts_basis": f"if({_stamp(kind, DAY_OF[kind], types)} is null, 'none', '{shape.ts_basis}')",
    }
    for word in {*names.GENERIC} & set(types):
        own[word], forms = names.word_sql(word)
        values |= forms
    if redaction is not None:
        for column_name in redaction.columns(kind) & set(types):
            own[column_name], parameters = redaction.sql(column_name)
            values |= parameters
    if kind == "requests":
        place = "$source_id || '#' || source_line"
        given = own.get("request_id", "request_id")
        own["request_id"] = f"coalesce({given}, {place})" if "request_id" in types else place
    out: dict[str, str] = {}
    for column in table(kind).columns:
        name, duck = column.name, table(kind).duckdb_types()[column.name]
        if name in own:
            out[name] = own[name]
        elif f"set_{name}" in values:
            out[name] = f"$set_{name}::{duck}"
        else:
            out[name] = _cell(kind, column, types) or f"null::{duck}"
    return out


def _cell(kind: str, column: Column, types: Mapping[str, str]) -> str | None:
    """What the keys of the record give for a column; None where there is none."""
    times = rules.time_columns(kind)
    spellings = [(key, times[key][1]) for key in times if key in types and times[key][0] == column.name]
    if spellings and column.arrow == "double":
        return f"coalesce({', '.join(f'{key} * {factor}' for key, factor in spellings)})"
    if spellings:
        return f"coalesce({', '.join(f'floor({key} * {factor} + 0.5)' for key, factor in spellings)})::BIGINT"
    if column.arrow == "timestamp[us]":
        return _stamp(kind, column.name, types)
    return column.name if column.name in types and column.name not in rules.NOT_READ else None


def names_in(sql: str) -> set[str]:
    """Words of an expression."""
    return set(re.findall(r"[a-z_][a-z0-9_]*", sql))


def _engine(naming: Naming, types: Mapping[str, str], values: dict[str, Any]) -> str:
    values["engine"] = naming.engine or "generic"
    return "lower(coalesce(engine, $engine))" if "engine" in types else "$engine"


def _run(naming: Naming, types: Mapping[str, str], values: dict[str, Any]) -> str:
    """The run of a row, as `Naming` names it."""
    if naming.governs and not naming.run:
        values["run"] = naming.governs
        return "coalesce(run_id, $run)" if "run_id" in types else "$run"
    if naming.run:
        values["run"] = naming.run
        return "$run"
    cases = ""
    for number, (engine, run) in enumerate(naming.adopt.items()):
        values |= {f"engine_{number}": engine, f"adopted_{number}": run}
        cases += f" when {_engine(naming, types, values)} = $engine_{number} then $adopted_{number}"
    values["folder"] = naming.folder_key[:8]
    named = f"{_engine(naming, types, values)} || '-' || $folder"
    named = f"case{cases} else {named} end" if cases else named
    return f"coalesce(run_id, {named})" if "run_id" in types else named


def _stamp(kind: str, name: str, types: Mapping[str, str]) -> str:
    """A stamp in UTC: numbers before text, as the generic reader prefers."""
    numbers, texts = [], []
    for key, (column, factor) in rules.stamp_columns(kind).items():
        if column != name or key not in types:
            continue
        if types[key] == "VARCHAR":
            texts.append(f"({key}::TIMESTAMPTZ at time zone 'UTC')")
            continue
        by = factor or _MAGNITUDE.format(key=key)
        # Half a microsecond goes to the even side, as Python's round has it.
        numbers.append(f"make_timestamp(round_even({key} * {by}, 0)::BIGINT)")
    return f"coalesce({', '.join([*numbers, *texts])})" if numbers or texts else "null::TIMESTAMP"


def _derived(kind: str, name: str, shape: Shape, sifted: bool) -> str:
    """DERIVED of the rules; its window over the steps is spared where it can give nothing else."""
    how = rules.DERIVED.get(kind, {}).get(name)
    if how is None:
        return name
    if name == "step_share":
        how = re.sub(r"\brun_id\b", "own_run", how)
        if not sifted and shape.uniform and "batch_size" in shape.keys:
            return "if(batch_size > 0, coalesce(step_share, 1.0 / batch_size), error('batch_size')) as step_share"
        if not sifted and shape.uniform and "step_id" not in shape.keys:
            return name
    return f"{how} as {name}"


def _struct(types: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"'{k}': '{v}'" for k, v in types.items()) + "}"
