"""Parquet: every figure of an answer in typed columns, or the rows of a query; what it is stands in the metadata.

Metadata, under keys that start with `tracelens.`: `command`, `version`, `conventions` (a JSON list of sentences); for
an answer, `definitions` (JSON: title, formula and text by column) and `answer` (JSON: grouping, claim, options,
coverage and warnings, as in the JSON document); for a query, `sql`.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import BinaryIO, TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tracelens import __version__
from tracelens.analysis.results import Report
from tracelens.errors import InputError
from tracelens.reporters import arrow
from tracelens.reporters.definitions import DEFINITIONS
from tracelens.reporters.json_ import document as report_document
from tracelens.reporters.json_ import dumps
from tracelens.reporters.sheet import Sheet

# Notes that tell what a single table shows, and no convention.
_OF_ONE_TABLE = ("* ", "moved nothing here")
# What a command's columns have in common.
_BESIDE = {"gap": ("gap_term",), "sweep": ("replay",)}
_NULLS = "NULL is not measured or not to be had, never 0; the key `coverage` of `tracelens.answer` says why"


def table(answer: arrow.Answer, document: Mapping[str, object], sheet: Sheet) -> pa.Table:
    """Every figure of an answer as an Arrow table with the metadata of its file.

    Args:
        answer: what an analysis returned.
        document: its JSON document.
        sheet: how it is shown; the notes below its tables are the conventions.
    """
    notes = dict.fromkeys(note for grid in sheet.grids for note in grid.notes)
    told = [note for note in notes if not note.startswith(_OF_ONE_TABLE)]
    about = {name: value for name, value in document.items() if name not in ("strata", "total")}
    found = arrow.table(answer, document)
    command = arrow.COMMANDS[type(answer)]
    metadata = _metadata(command, (*told, _NULLS)) | {
        "tracelens.definitions": dumps(_definitions(command, found)),
        "tracelens.answer": dumps(about),
    }
    return found.replace_schema_metadata(metadata)


def _definitions(command: str, found: pa.Table) -> dict[str, dict[str, str]]:
    """What the numbers of a table mean, by name; a bound of an interval is told under its figure."""
    figures = found.column("figure").unique().to_pylist() if "figure" in found.schema.names else []
    names = {"interval", *_BESIDE.get(command, ()), *figures, *found.schema.names}
    return {name: dataclasses.asdict(one) for name, one in DEFINITIONS.items() if name in names}


def write(found: pa.Table, out: TextIO) -> None:
    """Write a table to an output that takes bytes.

    Raises:
        InputError: a terminal, or an output for text alone.
    """
    _write(out, found.schema, lambda writer: writer.write_table(found))


def write_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sql: str, out: TextIO) -> None:
    """Write the rows of a query as they come.

    Args:
        schema: as DuckDB gives it.
        batches: the rows.
        sql: the statement, kept in the metadata.
        out: where to.

    Raises:
        InputError: a terminal, or an output for text alone; an error of the query in a late row.
    """
    metadata = _metadata("query", (_NULLS.partition(";")[0],)) | {"tracelens.sql": sql}
    if any(map(arrow.is_wide, schema.types)):
        # Whether sums fit int64 is known at the end only; they are of groups, which are few.
        write(arrow.whole_table(schema, batches).replace_schema_metadata(metadata), out)
        return
    simple = arrow.simple(schema)

    def rows(writer: pq.ParquetWriter) -> None:
        for batch in batches:
            writer.write_table(arrow.simplify(batch, simple))

    _write(out, simple.with_metadata(metadata), rows)


def check_output(out: TextIO) -> None:
    """Refuse an output that bytes would spoil or that takes none.

    Raises:
        InputError: a terminal, or an output for text alone.
    """
    if out.isatty():
        raise InputError("--format parquet is binary and this is a terminal: give a file with -o FILE.parquet")
    if getattr(out, "buffer", None) is None:
        raise InputError("--format parquet is binary and this takes text alone: give a file with -o FILE.parquet")


def _metadata(command: str, conventions: Sequence[str]) -> dict[str, str]:
    return {
        "tracelens.command": command,
        "tracelens.version": __version__,
        "tracelens.conventions": dumps(list(conventions)),
    }


def _write(out: TextIO, schema: pa.Schema, rows: Callable[[pq.ParquetWriter], None]) -> None:
    check_output(out)
    out.flush()
    place = out.buffer
    if place.seekable():
        _fill(place, schema, rows)
        return
    with tempfile.TemporaryFile() as spool:  # Arrow asks a file where it is, which a pipe cannot tell
        _fill(cast(BinaryIO, spool), schema, rows)
        spool.seek(0)
        shutil.copyfileobj(spool, place)


def _fill(place: BinaryIO, schema: pa.Schema, rows: Callable[[pq.ParquetWriter], None]) -> None:
    with pq.ParquetWriter(place, schema, compression="zstd") as writer:
        rows(writer)


class ParquetReporter:
    """The report as Parquet."""

    def render(self, report: Report, out: TextIO) -> None:
        """Write `report` to `out`."""
        from tracelens.reporters.notebook import report_sheet

        check_output(out)
        write(table(report, report_document(report), report_sheet(report)), out)
