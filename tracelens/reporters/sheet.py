"""An answer as paragraphs, tables and lists: what a terminal and Markdown both can draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TextIO, TypeVar

from tracelens.analysis.results import Missing, Stratum, Warning
from tracelens.reporters import check
from tracelens.reporters import format as fmt

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, what stands quietly behind it (an interval), and a style that says yes (green) or no (red)."""

    text: str
    quiet: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. The first `keys` columns are text and stand beside every part when it is too wide and is split.

    `heads` may hold line breaks; `sections` are the rows before which a line is drawn; `left` are further columns of
    text; `notes` say the conventions.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: int = 1
    sections: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    left: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list under a title; `folded` ones are closed in Markdown, `warn` ones are warnings.

    `count` is what the title counts where that is not the items, such as figures that share a remedy.
    """

    title: str
    items: tuple[str, ...]
    folded: bool = False
    warn: bool = False
    count: str = ""

    @property
    def counted(self) -> str:
        """The number that a title tells."""
        return self.count or str(len(self.items))


@dataclass(frozen=True, slots=True)
class Sheet:
    """The answer in a sentence first (`lead`), then tables, then lists.

    `selected` stands quietly below the first sentence: what was asked for.
    """

    lead: tuple[str, ...]
    grids: tuple[Grid, ...] = ()
    bullets: tuple[Bullets, ...] = ()
    selected: str = ""


@dataclass(frozen=True, slots=True)
class View(Generic[Result]):
    """How one kind of answer is shown: as a sheet, and as the JSON document of the contract.

    CSV and Parquet have the same columns (`reporters/arrow.py`).
    """

    sheet: Callable[[Result], Sheet]
    document: Callable[[Result], Mapping[str, Any]]

    def render(self, result: Result, chosen: str, out: TextIO, *, width: int | None = None) -> None:
        """Write `result` to `out` in the format `chosen`; `width` is that of a terminal, by default its own."""
        match chosen:
            case "json":
                from tracelens.reporters import json_

                json_.write(self.document(result), out, indent=2)
            case "csv":
                from tracelens.reporters import arrow, csv_

                told: Any = result
                csv_.write_table(arrow.table(told, self.document(result)), out)
            case "markdown":
                from tracelens.reporters import markdown

                out.write(fmt.fold(markdown.sheet(self.sheet(result)), getattr(out, "encoding", None)))
            case "table":
                from tracelens.reporters import terminal

                terminal.sheet(self.sheet(result), out, width)
            case "parquet":
                from tracelens.reporters import parquet_

                answer: Any = result
                parquet_.check_output(out)
                parquet_.write(parquet_.table(answer, self.document(result), self.sheet(result)), out)
            case _:
                check(chosen)


def key_cells(stratum: Stratum, by: Sequence[str], *, total: bool) -> tuple[Cell, ...]:
    """The cells of a stratum's key; `all` for the total."""
    if total or not by:
        return (Cell("all"), *(Cell("") for _ in by[1:]))
    return tuple(
        Cell(fmt.label(stratum.key.get(c), column=c), style="dim" if stratum.key.get(c) is None else "") for c in by
    )


def name_of(key: Mapping[str, Any]) -> str:
    """The key of a stratum in a sentence; `all traffic` for the total."""
    parts = [f"{name}={fmt.label(value, column=name)}" for name, value in key.items()]
    return ", ".join(parts) or "all traffic"


def figure(figures: Mapping[str, Any], name: str, show: Callable[[Any], str], bound: Callable[[Any], str]) -> Cell:
    """A figure with its interval behind it."""
    return Cell(show(figures.get(name)), fmt.bounds(figures, name, bound))


def endnotes(warnings: Sequence[Warning], missing: Sequence[Missing]) -> tuple[Bullets, ...]:
    """Warnings, and what the records cannot tell, at the end of a sheet."""
    from tracelens.reporters import answer

    told = (
        Bullets("Warnings", tuple(answer.warning(w) for w in warnings), warn=True),
        Bullets(
            "What these logs cannot tell, and what gives it",
            tuple(answer.remedies(missing)),
            folded=True,
            count=answer.figures_told(answer.lacking(missing)),
        ),
    )
    return tuple(bullets for bullets in told if bullets.items)
