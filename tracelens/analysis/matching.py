"""Which runs without speculation a class of traffic is compared with: the view `baseline_facts` of a connection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens.errors import InputError

if TYPE_CHECKING:
    import duckdb

# Columns that say what was asked of the engine: a class of traffic has them with and without speculation. Engine,
# model, batch and context are matched in baseline.sql, whatever the grouping.
CLASSES = ("task_type", "temperature_bucket", "temperature", "top_p")
# Columns of a filter that fits runs without speculation just as well.
_TRAFFIC = {*CLASSES, "model", "engine", "batch_bucket", "batch_size", "context_bucket", "context_len", "labels"}
_SUBQUERIES = ("SUBQUERY", "LAMBDA")


@dataclass(frozen=True, slots=True)
class Matching:
    """How the baseline was matched with the selection.

    `classes` are the columns both have, `unknown` those of the grouping that the baseline does not hold. `where` says
    what became of the user's filter: None where there is none, `applied`, `other_columns` or `no_rows`.
    """

    classes: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    where: str | None = None


def define_baseline(con: duckdb.DuckDBPyConnection, groups: dict[str, str], where: str | None) -> Matching:
    """Define `baseline_facts`: the rows without speculation that the filter fits, with the class of each.

    Args:
        con: a connection whose variable baseline_run names a run, or nothing.
        groups: the grouping, as names and expressions over `facts`.
        where: the user's filter, checked already.
    """
    # By name of the run, which Parquet can skip by; without such a run nothing is read at all.
    runs = [str(row[0]) for row in con.execute(
        "select run_id from run_traits where case when getvariable('baseline_run') is null then role = 'baseline'"
        " else run_id = getvariable('baseline_run')::varchar end order by run_id"
    ).fetchall()]  # fmt: skip
    named = f"run_id in ({', '.join(map(literal, runs))})" if runs else "false"
    con.execute(f"create or replace view every_baseline as select * from facts where {named}")
    fate, condition = None, ""
    if where is not None:
        fate = "applied" if columns_of(con, where) <= _TRAFFIC else "other_columns"
    if fate == "applied":
        condition = f" where ({where}\n)"
        if _any(con, "grain is not null") and not _any(con, f"({where}\n)"):
            fate, condition = "no_rows", ""
    wanted = {name: sql for name, sql in groups.items() if name in CLASSES or sql.startswith("labels[")}
    wanted = wanted or {"task_type": "task_type"}
    classes = {name: sql for name, sql in wanted.items() if runs and _any(con, f"{sql} is not null")}
    head = f"create or replace view baseline_facts as select {struct(classes)} as traffic, * from every_baseline"
    con.execute(head + condition)
    _define_controls(con, classes, condition, runs)
    return Matching(tuple(classes), tuple(name for name in wanted if name in groups and name not in classes), fate)


def _define_controls(
    con: duckdb.DuckDBPyConnection, classes: dict[str, str], condition: str, baseline: list[str]
) -> None:
    """Define `control_facts`: every run without speculation, that one among them which the user named."""
    runs = con.execute("select run_id from run_traits where role = 'baseline' order by run_id").fetchall()
    names = dict.fromkeys([*baseline, *(str(row[0]) for row in runs)])
    named = f"run_id in ({', '.join(map(literal, names))})" if names else "false"
    con.execute(f"create or replace view every_control as select * from facts where {named}")
    con.execute(
        f"create or replace view control_facts as select {struct(classes)} as traffic, * from every_control{condition}"
    )


def traffic(groups: dict[str, str], matching: Matching) -> str:
    """The class of a row of `facts`, as SQL."""
    return struct({name: groups.get(name, name) for name in matching.classes})


def struct(fields: dict[str, str]) -> str:
    """A struct of names and expressions; one constant where there are none."""
    return "{" + (", ".join(f"{literal(name)}: {sql}" for name, sql in fields.items()) or "'all': 'all'") + "}"


def literal(text: str) -> str:
    """Text as SQL."""
    return "'" + text.replace("'", "''") + "'"


def check_named(con: duckdb.DuckDBPyConnection, run: str) -> None:
    """Refuse a run that speculated as a baseline.

    Raises:
        InputError: the run drafted tokens.
    """
    row = con.execute("select max(drafted) from held where run_id = $1", [run]).fetchone()
    if row and row[0]:
        plain = [name for (name,) in con.execute(
            "select distinct run_id from run_traits where role = 'baseline' order by run_id limit 5").fetchall()
            if name != run]  # fmt: skip
        way = f"name a run without speculation ({', '.join(plain)})" if plain else (
            "run the same traffic without speculation, ingest it with `--role baseline` and name that run")  # fmt: skip
        raise InputError(
            f"--baseline {run}: this run drafted {row[0]:,} tokens, so it speculates itself, and against it no speedup"
            f" over plain decoding can be told; {way}, or give the plain step in ms"
        )


def columns_of(con: duckdb.DuckDBPyConnection, expression: str) -> set[str]:
    """Names of the columns in an expression; `*` stands for what cannot be told (subqueries)."""
    row = con.execute("select json_serialize_sql($1)", [f"select (\n{expression}\n)"]).fetchone()
    return set(_columns(json.loads(row[0]) if row else {}))


def has_subquery(con: duckdb.DuckDBPyConnection, expression: str) -> bool:
    """Whether an expression asks a query of its own."""
    row = con.execute("select json_serialize_sql($1)", [f"select (\n{expression}\n)"]).fetchone()
    return '"class":"SUBQUERY"' in (row[0] if row else "").replace(" ", "")


def label_names(con: duckdb.DuckDBPyConnection, expression: str) -> set[str]:
    """Keys of labels that an expression asks for, as `labels['tenant']`."""
    row = con.execute("select json_serialize_sql($1)", [f"select (\n{expression}\n)"]).fetchone()
    return set(_label_names(json.loads(row[0]) if row else {}))


def _label_names(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") == "ARRAY_EXTRACT":
            of, key = node["children"]
            if of.get("column_names", [""])[-1] == "labels" and key.get("literal", {}).get("kind") == "STRING":
                yield key["literal"]["text"]
        for value in node.values():
            yield from _label_names(value)
    elif isinstance(node, list):
        for value in node:
            yield from _label_names(value)


def _columns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("class") in _SUBQUERIES:
            yield "*"
        if node.get("class") == "COLUMN_REF":
            names: Sequence[str] = node["column_names"]
            yield names[-1] if len(names) < 3 and names[0] != "labels" else names[0]
        for value in node.values():
            yield from _columns(value)
    elif isinstance(node, list):
        for value in node:
            yield from _columns(value)


def _any(con: duckdb.DuckDBPyConnection, condition: str) -> bool:
    row = con.execute(f"select exists(from every_baseline where {condition})").fetchone()
    return bool(row and row[0])
