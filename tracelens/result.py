"""What the methods of a lake return: an answer, or rows of a query, that notebooks and data frames take."""

from __future__ import annotations

import dataclasses
import importlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tracelens.arguments import named_in_python
from tracelens.errors import InputError

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from tracelens.analysis.gate import GateResult
    from tracelens.analysis.page import Page
    from tracelens.analysis.results import Missing, Warning
    from tracelens.analysis.session import Question
    from tracelens.reporters.sheet import View


class Answer(Protocol):
    """What every analysis returns."""

    @property
    def by(self) -> tuple[str, ...]:
        """The columns that the strata are grouped by."""

    @property
    def strata(self) -> tuple[Any, ...]:
        """One entry a class of traffic."""

    @property
    def total(self) -> Any:
        """All traffic."""

    @property
    def coverage(self) -> tuple[Missing, ...]:
        """Figures that these records cannot give."""

    @property
    def warnings(self) -> tuple[Warning, ...]:
        """What a reader of the figures must know."""


#: Charts that need more than a report holds.
_OF_PAGE = ("waterfall", "over-time", "sweep", "heat-map")


class Later:
    """The page of a question, asked for once and only when a chart needs it."""

    __slots__ = ("_made", "_path", "_question")

    def __init__(self, path: Path, question: Question) -> None:
        self._path, self._question = path, question
        self._made: Page | None = None

    def __call__(self) -> Page:
        """The page.

        Raises:
            InputError: as the report.
        """
        from tracelens.analysis.page import page

        if self._made is None:
            self._made = page(self._path, self._question)
        return self._made


A_co = TypeVar("A_co", bound=Answer, covariant=True)


@dataclass(frozen=True, slots=True, repr=False)
class Result(Generic[A_co]):
    """The answer of one command. A notebook shows it as a small table, `print` as the terminal does.

    `command` is the CLI's name, `answer` the dataclass that the analysis returned.

    Example:
        >>> gap = tracelens.open("lake").gap(claim="alpha=.72,rho=.1,k=5", run="k5", baseline="off")
        >>> round(gap.answer.total.speedup_claimed, 2)
        2.4
        >>> gap.to_polars().columns[:4]
        ['row', 'task_type', 'term', 'factor']
    """

    command: str
    answer: A_co
    _page: Later | None = field(default=None, repr=False, compare=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What the answer has beside the common fields: `decision` of a gate, `mix_effect` of a comparison, …"""
            if name.startswith("_") or name == "answer":
                raise AttributeError(name)
            if hasattr(self.answer, name):
                return getattr(self.answer, name)
            own = [field.name for field in dataclasses.fields(self.answer)]
            raise AttributeError(
                f"the answer of {self.command} has no {name!r}: it has {', '.join(own)}; figures are on `.total` and "
                "on each of `.strata`"
            )

    def __hash__(self) -> int:
        """Equal answers have one; figures are in dicts, which have none."""
        return hash((self.command, self.answer.by, len(self.answer.strata)))

    @property
    def decision(self: Result[GateResult]) -> str:
        """GO, NO_GO or INCONCLUSIVE over all classes, of a gate."""
        return self.answer.decision

    @property
    def strata(self) -> tuple[Any, ...]:
        """One dataclass a class of traffic, in the order printed; `key` is its class."""
        return self.answer.strata

    @property
    def total(self) -> Any:
        """The dataclass of all traffic."""
        return self.answer.total

    @property
    def coverage(self) -> tuple[Missing, ...]:
        """Figures that these records cannot give: why, and what to switch on."""
        return self.answer.coverage

    @property
    def warnings(self) -> tuple[Warning, ...]:
        """What a reader of the figures must know, with the evidence."""
        return self.answer.warnings

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the CLI as plain Python values; what cannot be had is None."""
        from tracelens.reporters.json_ import plain

        document: dict[str, Any] = plain(self._view.document(self.answer))
        return document

    def to_json(self) -> str:
        """What the CLI prints with `--json`."""
        return self._text("json")

    def to_markdown(self) -> str:
        """What the CLI prints with `--format markdown`."""
        return self._text("markdown")

    def to_arrow(self) -> pa.Table:
        """Every figure in typed columns: one row a stratum, or a stratum's term, draft length or figure.

        The column `row` says stratum or total. It is the table of `--format parquet`, with its metadata.
        """
        from tracelens.reporters import parquet_

        view = self._view
        answer: Any = self.answer
        return parquet_.table(answer, view.document(answer), view.sheet(answer))

    def to_polars(self) -> pl.DataFrame:
        """`to_arrow` as a polars data frame."""
        return _polars(self.to_arrow())

    def to_pandas(self) -> Any:
        """`to_arrow` as a pandas data frame.

        Raises:
            InputError: pandas is not installed.
        """
        return _pandas(self.to_arrow())

    def chart(self, name: str | None = None) -> Any:
        """One chart of the answer as an Altair chart.

        Args:
            name: which; by default the one that answers the command's question: of a report with a claim the
                waterfall, as on the command line. A report has the charts of its page: waterfall, over-time, sweep and
                heat-map ask the lake again.

        Raises:
            InputError: the answer has no such chart.
        """
        from tracelens.reporters import charts

        with named_in_python():
            if self._page is not None and (name in _OF_PAGE or (name is None and self._has_claim)):
                return charts.chart(self._page(), name)
            return charts.chart(self.answer, name)

    @property
    def _has_claim(self) -> bool:
        return getattr(self.answer, "claim", None) is not None

    @property
    def _view(self) -> View[Any]:
        from tracelens.reporters.views import view

        return view(self.command)

    def _text(self, chosen: str) -> str:
        out = io.StringIO()
        self._view.render(self.answer, chosen, out)
        return out.getvalue()

    def __str__(self) -> str:
        return self._text("table").rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from tracelens.reporters import notebook

        return notebook.html(self._view.sheet(self.answer))


@dataclass(frozen=True, slots=True, repr=False)
class Rows:
    """Rows of a query, or of the list of queries or tables. A notebook shows the first of them.

    They have no chart: draw one from `to_polars()`, or take that of an answer (`lake.report().chart("alpha")`).

    Example:
        >>> rows = tracelens.open("lake").query("SELECT sum(drafted) AS drafted FROM rounds")
        >>> rows.to_dict()
        [{'drafted': 1536}]
    """

    _table: pa.Table = field(repr=False)
    _document: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __hash__(self) -> int:
        """Equal rows have one; their values are in a table, which has none."""
        return hash((self.columns, len(self)))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "chart":
                raise AttributeError(
                    "rows of a query have no chart: draw one from to_polars() or to_pandas(), or take that of an answer"
                    " such as lake.report().chart('alpha')"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, each once."""
        return tuple(self._table.schema.names)

    def to_arrow(self) -> pa.Table:
        """The rows in simple types: int64, double, text, truth values, times in µs, lists; NULL is never 0."""
        return self._table

    def to_polars(self) -> pl.DataFrame:
        """`to_arrow` as a polars data frame."""
        return _polars(self._table)

    def to_pandas(self) -> Any:
        """`to_arrow` as a pandas data frame.

        Raises:
            InputError: pandas is not installed.
        """
        return _pandas(self._table)

    def to_dict(self) -> Any:
        """The JSON document of the CLI: a list of one dict a row; of `schema`, the description of the tables."""
        from tracelens.reporters.json_ import plain

        if self._document is not None:
            return plain(self._document)
        return [dict(zip(self.columns, row, strict=True)) for row in map(plain, self._rows())]

    def to_json(self) -> str:
        """What the CLI prints with `--json`."""
        if self._document is None:
            return self._text("json")
        from tracelens.reporters import json_

        return json_.dumps(self._document, indent=2) + "\n"

    def to_markdown(self) -> str:
        """What the CLI prints with `--format markdown`."""
        return self._text("markdown")

    def _rows(self, most: int | None = None) -> list[tuple[Any, ...]]:
        shown = self._table if most is None else self._table.slice(0, most)
        columns = [column.to_pylist(maps_as_pydicts="lossy") for column in shown.columns]
        return list(zip(*columns, strict=True)) if columns else []

    def _text(self, chosen: str, most: int | None = None) -> str:
        from tracelens.reporters import rows

        out = io.StringIO()
        rows.render(self.columns, self._rows(most), chosen, out)
        return out.getvalue()

    def __str__(self) -> str:
        from tracelens.reporters.rows import TABLE_ROWS

        # One more than is shown, so that it says that it is cut.
        return self._text("table", TABLE_ROWS + 1).rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from tracelens.reporters import notebook

        return notebook.table(self.columns, self._rows(notebook.MOST_ROWS), len(self))


def _polars(table: pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)  # of a table, and not of one array
    return frame


def _pandas(table: pa.Table) -> Any:
    # pyarrow's own message for its absence differs from version to version.
    try:
        importlib.import_module("pandas")
    except ImportError as error:
        raise InputError("to_pandas needs pandas: install it, or use to_polars or to_arrow") from error
    return table.to_pandas()
