"""Answers and rows of a query as Arrow tables: typed columns, NULL for what cannot be had, no NaN."""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tracelens.analysis.compare import CHANGES
from tracelens.analysis.compared import Change, Compared, Comparison
from tracelens.analysis.gate import GateResult, GateStratum
from tracelens.analysis.mixing import Mix
from tracelens.analysis.results import BaselineTerm, GapResult, GapStratum, GapTerm, Report
from tracelens.analysis.sweep import SweepEntry, SweepResult, SweepStratum
from tracelens.reporters.json_ import plain
from tracelens.reporters.rows import unique

Answer = Report | GapResult | SweepResult | GateResult | Comparison
Row = dict[str, Any]

COMMANDS: dict[type, str] = {
    Report: "report", GapResult: "gap", SweepResult: "sweep", GateResult: "gate", Comparison: "compare"
}  # fmt: skip

# Figures of the model that are no number with decimals: text, whole numbers, one number a position.
_TEXT = re.compile("(^grain|_basis)$")
_WHOLE = re.compile(
    "^((tpot_)?requests|rounds|plain_steps|drafted|accepted|emitted|output_tokens|control_runs"
    "|num_speculative_tokens(_min|_max)?)$"
)
_POSITIONS = re.compile("^(hazard|survival)(_low|_high)?$")
_HISTOGRAM = "rollback_len"
_OF_HINT: tuple[tuple[Any, pa.DataType], ...] = (
    (str, pa.string()),
    (bool, pa.bool_()),
    (int, pa.int64()),
    (float, pa.float64()),
    (tuple[str, ...], pa.list_(pa.string())),
    (tuple[int, ...], pa.list_(pa.int64())),
    (tuple[float, ...], pa.list_(pa.float64())),
)
_LENGTHS = pa.map_(pa.int64(), pa.list_(pa.float64()))


class _Part(NamedTuple):
    """One stratum: the columns that all its rows share, and its rows (terms, draft lengths, figures)."""

    key: Mapping[str, Any]
    shared: Row
    rows: Sequence[Row]


def table(answer: Answer, document: Mapping[str, Any]) -> pa.Table:
    """Every figure of an answer: one row a stratum, or a stratum's term, draft length or figure.

    `row` says stratum or total; the columns of the key follow, then those of the row, then those of its stratum. A
    column of the key that has the name of a figure keeps it, and the figure is `figure_<name>`.

    Args:
        answer: what an analysis returned.
        document: its JSON document, in the CLI's shape.
    """
    parts, types = _parts(answer, document)
    by = tuple(answer.by)
    renamed = {name: f"figure_{name}" if name in (*by, "row") else name for name in types}
    last = len(parts) - 1
    rows = [
        {
            "row": "total" if i == last else "stratum",
            **{name: part.key.get(name) for name in by},
            **{renamed[name]: value for name, value in (*row.items(), *part.shared.items())},
        }
        for i, part in enumerate(parts)
        # A stratum without a term or draft length has a row all the same.
        for row in part.rows or ({},)
    ]
    columns = {"row": _column(rows, "row", pa.string())}
    columns |= {name: _column(rows, name, _of_values(row[name] for row in rows)) for name in by}
    columns |= {renamed[name]: _column(rows, renamed[name], kind) for name, kind in types.items()}
    return pa.table(columns)


def _parts(answer: Answer, document: Mapping[str, Any]) -> tuple[list[_Part], dict[str, pa.DataType]]:
    """Every stratum and the total at the end, and the types of their columns in order."""
    if isinstance(answer, Comparison):
        return _compared(answer)
    told = [*document["strata"], document["total"]]
    if isinstance(answer, Report):
        figures = [s.figures for s in (*answer.strata, answer.total)]
        types = _figure_types(figures)
        return [_Part(told[i]["key"], {n: f.get(n) for n in types}, ({},)) for i, f in enumerate(figures)], types
    if isinstance(answer, GateResult):
        types = _types(GateStratum)
        return [_Part(s.key, _own(s, t, types), ({},)) for s, t in _both(answer, told)], types
    if isinstance(answer, SweepResult):
        entry, own = _types(SweepEntry), _types(SweepStratum)
        swept = [_Part(s.key, _own(s, t, own), [_fields(e, entry) for e in s.entries]) for s, t in _both(answer, told)]
        return swept, entry | own
    return _gaps(answer, told)


def _gaps(answer: GapResult, told: Sequence[Mapping[str, Any]]) -> tuple[list[_Part], dict[str, pa.DataType]]:
    term, own, plain_step = _types(GapTerm), _types(GapStratum), _types(BaselineTerm)
    parts = []
    for stratum, document in _both(answer, told):
        baseline = {f"baseline_{n}": v for n, v in _fields(stratum.baseline, plain_step).items()}
        terms = [_named("term", _fields(t, term)) for t in stratum.terms]
        parts.append(_Part(stratum.key, _own(stratum, document, own) | baseline | document["figures"], terms))
    types = _named("term", term) | own | {f"baseline_{n}": kind for n, kind in plain_step.items()}
    return parts, types | _figure_types([document["figures"] for document in told])


def _compared(answer: Comparison) -> tuple[list[_Part], dict[str, pa.DataType]]:
    """One row a figure: both sides, the change, and in total what of it the mix of traffic did."""
    ends, change, mix = ("", "_low", "_high"), _types(Change), _types(Mix)
    sides: list[Mapping[str, Any]] = [s for row in (*answer.strata, answer.total) for s in (row.a, row.b) if s]
    figures = {f"{name}{end}" for name in CHANGES for end in ends}
    counts = {n: kind for n, kind in _figure_types(sides).items() if n not in figures}
    parts = []
    for row in (*answer.strata, answer.total):
        own: Row = {"a_name": answer.a.text, "b_name": answer.b.text}
        own |= {f"{side}_{n}": (told or {}).get(n) for side, told in (("a", row.a), ("b", row.b)) for n in counts}
        parts.append(_Part(row.key, own, [_figure(answer, row, name, change, mix) for name in CHANGES]))
    types: dict[str, pa.DataType] = {"a_name": pa.string(), "b_name": pa.string(), "figure": pa.string()}
    types |= {f"{side}{end}": pa.float64() for side in "ab" for end in ends}
    types |= {_change_name(n): kind for n, kind in change.items()} | {_mix_name(n): kind for n, kind in mix.items()}
    return parts, types | {f"{side}_{n}": kind for side in "ab" for n, kind in counts.items()}


def _figure(answer: Comparison, row: Compared, name: str, change: Iterable[str], mix: Iterable[str]) -> Row:
    told: Row = {"figure": name}
    for side, figures in (("a", row.a), ("b", row.b)):
        told |= {f"{side}{end}": (figures or {}).get(f"{name}{end}") for end in ("", "_low", "_high")}
    moved = None if row.change is None else row.change.get(name)
    told |= {_change_name(n): getattr(moved, n, None) for n in change}
    if moved is None and row.change is None:
        told["change_because"] = f"this class of traffic is on {'A' if row.b is None else 'B'} only"
    split = answer.mix_effect.get(name) if row is answer.total else None
    return told | {_mix_name(n): getattr(split, n, None) for n in mix}


def _change_name(name: str) -> str:
    return "change" if name == "value" else f"change_{name}"


def _mix_name(name: str) -> str:
    return "mix_effect_reversed" if name == "is_reversed" else f"mix_effect_{name}"


def _named(first: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with `name` under the name `first`."""
    return {first if name == "name" else name: value for name, value in fields.items()}


def _both(
    answer: GapResult | SweepResult | GateResult, told: Sequence[Mapping[str, Any]]
) -> Iterable[tuple[Any, Mapping[str, Any]]]:
    """Every stratum and the total, each with its part of the JSON document."""
    return zip((*answer.strata, answer.total), told, strict=True)


def _own(stratum: Any, told: Mapping[str, Any], names: Iterable[str]) -> Row:
    """The fields of a stratum, as JSON tells them where it does."""
    return {name: told[name] if name in told else getattr(stratum, name) for name in names}


def _fields(item: Any, names: Iterable[str]) -> Row:
    return {name: getattr(item, name) for name in names}


def _types(kind: type) -> dict[str, pa.DataType]:
    """Arrow types of the fields of a dataclass that are numbers, text or lists of text."""
    hints = typing.get_type_hints(kind)
    found = {f.name: _of_hint(hints[f.name]) for f in dataclasses.fields(kind)}
    return {name: arrow for name, arrow in found.items() if arrow is not None}


def _of_hint(hint: Any) -> pa.DataType | None:
    union = isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union
    kinds = set(typing.get_args(hint)) - {NoneType} if union else {hint}
    # A count is `int | float`: whole where it can be.
    return next((arrow for kind, arrow in _OF_HINT if kind in kinds), None)


def _figure_types(rows: Iterable[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """Types of figures by their names, so that a column is of one type in every file, also where all of it is NULL."""
    return {name: _of_figure(name) for name in dict.fromkeys(name for row in rows for name in row)}


def _of_figure(name: str) -> pa.DataType:
    if name == _HISTOGRAM:
        return _LENGTHS
    if _POSITIONS.search(name):
        return pa.list_(pa.float64())
    return pa.string() if _TEXT.search(name) else pa.int64() if _WHOLE.search(name) else pa.float64()


def _of_values(values: Iterable[Any]) -> pa.DataType:
    """The type of a column of the key; text where nothing is known."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pa.bool_()
    return pa.int64() if kinds == {int} else pa.float64() if kinds and kinds <= {int, float} else pa.string()


def _column(rows: Iterable[Row], name: str, kind: pa.DataType) -> pa.Array:
    values = [plain(row.get(name)) for row in rows]
    if pa.types.is_map(kind):
        values = [None if v is None else [(int(d), rounds) for d, rounds in v.items()] for v in values]
    if pa.types.is_int64(kind) and not all(v is None or float(v).is_integer() for v in values):
        kind = pa.float64()  # a weighted count
    elif pa.types.is_int64(kind):
        values = [None if v is None else int(v) for v in values]
    return pa.array(values, type=kind)


def of_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> pa.Table:
    """Rows of text, numbers or truth values, each column of one type."""
    told = list(rows)
    columns = {name: [plain(row[i]) for row in told] for i, name in enumerate(names)}
    return pa.table({name: pa.array(values, type=_of_values(values)) for name, values in columns.items()})


def simple(schema: pa.Schema, whole: Mapping[int, pa.DataType] | None = None) -> pa.Schema:
    """The schema of a query's rows in simple types: int64, double, text, times in µs, lists; each name once.

    Args:
        schema: as DuckDB gives it.
        whole: by column, what whole numbers become that could be too large for int64; int64 by default.
    """
    chosen = whole or {}
    kinds = [_simple(kind, chosen.get(i, pa.int64())) for i, kind in enumerate(schema.types)]
    return pa.schema(list(zip(unique(schema.names), kinds, strict=True)))


def _simple(kind: pa.DataType, whole: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_dictionary(kind):
        return _simple(kind.value_type, whole)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(_simple(kind.value_type, whole))
    if t.is_map(kind):
        return pa.map_(_simple(kind.key_type, whole), _simple(kind.item_type, whole))
    if t.is_struct(kind):
        return pa.struct([(field.name, _simple(field.type, whole)) for field in kind])
    if is_wide(kind):
        return whole
    if t.is_integer(kind):
        return pa.int64()
    if t.is_floating(kind) or t.is_decimal(kind) or t.is_interval(kind):
        return pa.float64()
    return pa.timestamp("us", kind.tz) if t.is_timestamp(kind) else kind


def is_wide(kind: pa.DataType) -> bool:
    """Whether a type holds whole numbers that could be too large for int64, at any depth."""
    if pa.types.is_nested(kind):
        return any(is_wide(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_uint64(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def simplify(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Rows of a query in the types of `simple`; NaN and infinities are NULL.

    Raises:
        pyarrow.ArrowInvalid: a whole number does not fit.
    """
    columns = [_cast(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.table(columns, schema=schema)


def whole_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """All rows of a query in simple types; whole numbers too large for int64 make their column double."""
    read = pa.Table.from_batches(batches, schema=schema)
    chosen = {}
    for i, kind in enumerate(schema.types):
        if is_wide(kind):
            try:
                _cast(read.column(i), _simple(kind, pa.int64()))
            except pa.ArrowInvalid:
                chosen[i] = pa.float64()
    return simplify(read, simple(schema, chosen))


def _cast(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if pa.types.is_interval(column.type):
        # As Python's timedelta, which is what JSON tells: a month of DuckDB is 30 days.
        spans = column.to_pylist()
        told = [None if v is None else (v.months * 30 + v.days) * 86400 + v.nanoseconds / 1e9 for v in spans]
        return pa.array(told, type=kind)
    if pa.types.is_nested(column.type) and not _is_finite(column):
        return pa.array([_without_nan(value) for value in column.to_pylist()], type=kind)
    cast = column.cast(kind, safe=not pa.types.is_timestamp(kind))
    return pc.if_else(pc.is_finite(cast), cast, None) if pa.types.is_floating(kind) else cast


def _without_nan(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [_without_nan(v) for v in value]
        case tuple():  # an entry of a map
            return tuple(_without_nan(v) for v in value)
        case dict():
            return {name: _without_nan(v) for name, v in value.items()}
    return value


def _is_finite(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether no number inside a nested column is NaN or infinite."""
    kind = column.type
    if pa.types.is_floating(kind):
        return bool(pc.all(pc.is_finite(column), min_count=0).as_py())
    if pa.types.is_map(kind):
        column = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        kind = column.type
    if pa.types.is_struct(kind):
        return all(map(_is_finite, column.flatten()))
    return _is_finite(pc.list_flatten(column)) if pa.types.is_nested(kind) else True
