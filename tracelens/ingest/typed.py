"""A strict type for the lines of a file of canonical JSON: what it takes, DuckDB reads as the generic reader does.

DuckDB turns 3.7 into 4, `true` into 1 and "5" into 5 without a word (MEASURED.md, fault behaviour). The type takes a
line only where no such reading is possible: a record of the file's kind, each cell of exactly its column's JSON type
and in a range where doubles are exact and stamps are times.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tracelens.engines.generic import rules
from tracelens.engines.units import INT32_MAX, INT64_MAX
from tracelens.lake.schema import table

if TYPE_CHECKING:
    from tracelens.ingest.fast import Shape

IDS = frozenset({"request_id", "step_id", "run_id", "replica", "process"})
LONGEST_US = 1e14  # three years; a double holds every microsecond of it
MOST = 1e15
# The part of 2001-09-09 to 2099 in which no rounding can leave it.
_EARLIEST_US, _LATEST_US = 1.0001e15, 4.0999e15
MAGNITUDES = ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0), (float("inf"), 1e-3))
_DAY = r"[12][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
BARE = rf"^{_DAY}[T ]{_CLOCK}\Z"
ZONED = rf"^{_DAY}[T ]{_CLOCK}(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])\Z"


def columns_of(kind: str) -> dict[str, str]:
    """DuckDB type in which each key of a record is read; durations and stamps are numbers in any unit."""
    types = dict.fromkeys(rules.time_columns(kind), "DOUBLE")
    types |= dict.fromkeys(rules.stamp_columns(kind), "DOUBLE")
    for column, duck in zip(table(kind).columns, table(kind).duckdb_types().values(), strict=True):
        if column.name not in rules.NOT_READ and column.name not in types:
            types[column.name] = duck
    return types | {"record": "VARCHAR"}


def stamp_range(value: float, factor: float | None) -> tuple[float, float] | None:
    """The numbers that are stamps in the unit of `value`; None where it is no stamp itself.

    Args:
        value: a stamp of the file.
        factor: to microseconds; None goes by the magnitude of the value.
    """
    unit = factor or next(f for limit, f in MAGNITUDES if value < limit)
    low, high = _EARLIEST_US / unit, _LATEST_US / unit
    return (low, high) if low <= value <= high else None


def decoder(shape: Shape, *, closed: bool, without: Collection[str] = ()) -> Any:
    """A msgspec decoder of the file's lines.

    Args:
        shape: what the first lines say.
        closed: every line has exactly the keys of the first ones, and no null.
        without: keys that no line may have.
    """
    import msgspec

    types: dict[str, Any] = {}
    keys = shape.keys if closed else (*columns_of(shape.table), "table", *shape.keys)
    for key in dict.fromkeys(keys):
        if key in without:
            continue
        kind = _word(shape, key) if key in ("record", "table") else _cell(shape, key, closed)
        types[key] = kind if closed or (key == "record" and shape.worded) else kind | None
    # A key may be no Python name.
    names = {f"f{i}": key for i, key in enumerate(types)}
    needed: list[Any] = [(f, types[k]) for f, k in names.items() if closed or (k == "record" and shape.worded)]
    spare = [(f, types[k], None) for f, k in names.items() if (f, types[k]) not in needed]
    record = msgspec.defstruct(
        "Record",
        [*needed, *spare],
        rename=names,
        forbid_unknown_fields=True,
        omit_defaults=True,
        gc=False,
        kw_only=True,
    )
    return msgspec.json.Decoder(record)


def _word(shape: Shape, key: str) -> Any:
    """What `record` and `table` may say: nothing that makes the line one of another kind."""
    if not shape.worded:
        return NoneType
    words = tuple(word for word, kind in rules.KINDS.items() if kind == shape.table)
    return Literal[words] if key == "record" else str


def _cell(shape: Shape, key: str, closed: bool) -> Any:
    import msgspec

    stamps, times = rules.stamp_columns(shape.table), rules.time_columns(shape.table)
    if key in stamps:
        return _stamp(shape, key)
    if key in times:
        return Annotated[float, msgspec.Meta(ge=0, le=LONGEST_US / times[key][1])]
    arrow = {c.name: c.arrow for c in table(shape.table).columns if c.name not in rules.NOT_READ}.get(key)
    if arrow is None:
        # Ignored; what is nested in it might be another engine's record.
        return str if closed and key in shape.texts else int | float | bool if closed else str | int | float | bool
    if key in IDS:
        number = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
        return str if closed and key in shape.texts else number if closed else str | number
    count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
    types: Mapping[str, Any] = {
        # Beyond ASCII the two sides do not agree on what lower case is.
        "string": Annotated[str, msgspec.Meta(pattern=r"^[ -~]*\Z")] if key == "engine" else str,
        "bool": bool,
        "int32": Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)],
        "int64": count,
        "double": Annotated[float, msgspec.Meta(ge=0, le=MOST)],
        "list<int64>": list[count],
    }
    return types[arrow]


def _stamp(shape: Shape, key: str) -> Any:
    import msgspec

    if key in shape.texts:
        return Annotated[str, msgspec.Meta(pattern=ZONED if shape.zoned else BARE)]
    if key in shape.ranges:
        low, high = shape.ranges[key]
        return Annotated[float, msgspec.Meta(ge=low, le=high)]
    return NoneType  # the first lines have none: how it would be read is the slow road's to say
