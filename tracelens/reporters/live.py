"""A watch on a terminal, drawn over itself like `top`; one line a change where the output is piped."""

from __future__ import annotations

import io
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from tracelens.analysis.results import Report, Stratum
from tracelens.reporters import answer, tables
from tracelens.reporters import format as fmt
from tracelens.reporters.sheet import Bullets, Cell, Grid, Sheet, key_cells
from tracelens.reporters.terminal import sheet as draw
from tracelens.wording import many

if TYPE_CHECKING:
    from rich.live import Live

    from tracelens.analysis.watched import Freshness, Watched
    from tracelens.ingest.watch import Held, Round

_WIDE_FROM = 140
_STYLES = {"yes": "green", "no": "red"}
_REDRAW = 0.25  # seconds between two drawings while a source is read
_BELOW = "see what is missing, below"
Now = Callable[[], datetime]


def _now() -> datetime:
    return datetime.now(UTC)


def state(fresh: Freshness) -> str:
    """Up to when the lake knows, its rows and rejects."""
    last = f"{fresh.last_record:%Y-%m-%d %H:%M:%S} UTC" if fresh.last_record else "without a time"
    counts = [(fresh.rounds, "rounds"), (fresh.windows, "windows"), (fresh.requests, "requests")]
    rows = ", ".join(f"{fmt.count(n)} {name}" for n, name in counts if n) or "none"
    return f"last record {last}; rows {rows}; rejects {fmt.count(fresh.rejects)}"


def outcome(report: Report, width: int) -> Grid:
    """The headline table of a report, of the strata and the total, with its conventions below."""
    table = tables.WIDE[0] if width >= _WIDE_FROM else tables.NARROW[0]
    rows = tables.rows_of(report)
    columns = tables.present(table, rows)
    keys = max(len(report.by), 1)

    def cells(row: Stratum) -> tuple[Cell, ...]:
        shown = (column.cell(row.figures) for column in columns)
        return (
            *key_cells(row, report.by, total=row is report.total),
            *(Cell(text, quiet, _STYLES.get(text, "")) for text, quiet in shown),
        )

    return Grid(
        table.title,
        (*(report.by or ("",)), *(column.head for column in columns)),
        tuple(cells(row) for row in rows),
        keys=keys,
        sections=frozenset({len(rows) - 1}) if report.strata else frozenset(),
        notes=tuple(tables.notes(columns, rows)),
        left=frozenset(keys + i for i, column in enumerate(columns) if column is tables.VERDICT),
    )


def waiting(held: Sequence[Held]) -> Bullets:
    """The sources that have changed and are not read yet."""
    told = []
    for one in held:
        soon = "" if one.seconds is None else f", in about {fmt.duration(1000 * max(one.seconds, 1))}"
        told.append(f"{fmt.visible(one.name)}, {size(one.bytes)}: {one.why}{soon}")
    return Bullets("Changed and not read yet", tuple(told[:5]) + ((f"{len(told) - 5} more",) if told[5:] else ()))


def size(count: float) -> str:
    """Bytes in the unit that reads best: 1.2 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _headline(seen: Watched) -> list[str]:
    if seen.report is None:
        return [f"Nothing to show: {fmt.visible(seen.problem)}."]
    # What a report lists below is not on this page.
    return [answer.answer(seen.report)[0].replace(_BELOW, "`tracelens report` says what is missing")]


def final(found: Round, seen: Watched, lake: Path, width: int) -> Sheet:
    """What is left on the page when a watch has ended: the answer, the table, and what the lake lacks."""
    first = _headline(seen)
    told = state(seen.fresh)
    lead = (*first, f"{told[:1].upper()}{told[1:]}; {many(seen.fresh.sources, 'source')} in the lake.")
    missed = waiting([replace(one, seconds=None) for one in found.held])
    place = "" if lake == Path("lake") else f" --lake {fmt.visible(shlex.quote(str(lake)))}"
    ends = [f"tracelens report{place}"]
    if found.held or found.dropped:
        ends.append(f"tracelens ingest PATH…{place} reads what the watch did not come to")
    grids = () if seen.report is None else (outcome(seen.report, width),)
    return Sheet(lead, grids, tuple(b for b in (missed, Bullets("Next", tuple(ends))) if b.items))


class Display(Protocol):
    """A way to show a watch; a context manager that gives the output back."""

    def __enter__(self) -> Display:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the output back."""

    def reading(self, name: str, count: int) -> None:
        """So many bytes more of this source were read."""

    def show(self, found: Round, seen: Watched) -> None:
        """Show what a look has found."""

    def end(self, found: Round, seen: Watched) -> None:
        """Show what the last look has found."""


class Lines:
    """One line a change, for a file or a pipe; the table once, at the end."""

    def __init__(self, out: TextIO, lake: Path, now: Now = _now) -> None:
        """Write to `out`; `now` gives the time of a line, UTC."""
        self._out, self._lake, self._now = out, lake, now
        self._last: Round | None = None
        self._told: set[tuple[str, str]] = set()

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.flush()

    def reading(self, name: str, count: int) -> None:
        """Nothing: a pipe needs no progress."""

    def show(self, found: Round, seen: Watched) -> None:
        """Write a line when something has changed, and every note once."""
        notes = [note for note in found.notes if note not in self._told]
        self._told.update(notes)
        if found.changed or self._last is None or notes:
            parts = [state(seen.fresh), _speed(seen)]
            parts += [f"{fmt.visible(name)}: {fmt.visible(why)}" for name, why in notes[:5]]
            line = f"{self._now():%Y-%m-%dT%H:%M:%SZ} {'; '.join(parts)}\n"
            self._out.write(fmt.fold(line, getattr(self._out, "encoding", None)))
            self._out.flush()
        self._last = found

    def end(self, found: Round, seen: Watched) -> None:
        """Write the table."""
        width = shutil.get_terminal_size((80, 24)).columns
        draw(final(found, seen, self._lake, width), self._out, width)
        self._out.flush()


def _speed(seen: Watched) -> str:
    """The total of the table in a line."""
    if seen.report is None:
        return fmt.visible(seen.problem)
    figures = seen.report.total.figures
    observed, time_ = tables.OBSERVED.cell(figures), tables.TIME.cell(figures)
    parts = [f"observed speedup {' '.join(t for t in observed if t)}"]
    if fmt.is_number(figures.get("relative_token_time")):
        parts.append(f"token time / plain {' '.join(t for t in time_ if t)}")
    return ", ".join((*parts, f"pays? {tables.VERDICT.cell(figures)[0]}"))


class _Frame(io.StringIO):
    """Drawn text that keeps its colours: what is behind it is a terminal."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True


class Screen:
    """A terminal that is drawn over; what stood there before comes back at the end, and the table once below it."""

    def __init__(self, out: TextIO, lake: Path, every: float, now: Now = _now) -> None:
        """Draw on the terminal `out`; `every` seconds there is a look at the files, `now` gives the time, UTC."""
        self._out, self._lake, self._every, self._now = out, lake, every, now
        self._live: Live | None = None
        self._shown: tuple[Round, Watched] | None = None
        self._drawn = 0.0
        self._reading: dict[str, int] = {}

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def reading(self, name: str, count: int) -> None:
        """Say what is read, and how far it has come, without drawing more often than an eye can follow."""
        self._reading[name] = self._reading.get(name, 0) + count
        if self._live is not None and self._shown is not None and time.monotonic() - self._drawn > _REDRAW:
            self._draw(*self._shown, f"Reading {fmt.visible(name)}: {size(self._reading[name])}.")

    def show(self, found: Round, seen: Watched) -> None:
        """Draw the answer, the table, and what happened."""
        self._reading.clear()
        self._shown = (found, seen)
        self._draw(found, seen, self._status(found))

    def _status(self, found: Round) -> str:
        read = f"read {', '.join(fmt.visible(name) for name in found.read[:3])}" if found.read else "nothing new"
        more = f" and {len(found.read) - 3} more" if len(found.read) > 3 else ""
        return (
            f"{self._now():%H:%M:%S} UTC: {read}{more} ({fmt.duration(1000 * found.seconds)}); "
            f"{many(found.files, 'file')}, {self._period(found)}. Ctrl-C stops."
        )

    def _period(self, found: Round) -> str:
        """How often there is a look, and how often there should be one where reading and showing take longer."""
        if found.apart is None or found.apart < 1.5 * self._every:
            return f"a look every {self._every:g} s"
        return f"a look every {found.apart:.1f} s ({self._every:g} s asked for)"

    def _draw(self, found: Round, seen: Watched, status: str) -> None:
        from rich.live import Live
        from rich.text import Text

        columns, lines = shutil.get_terminal_size((80, 24))
        frame = Text.from_ansi(self.frame(found, seen, status, columns, lines), no_wrap=True)
        if self._live is None:
            from rich.console import Console

            console = Console(file=self._out, highlight=False, markup=False, emoji=False)
            self._live = Live(
                frame, console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(frame, refresh=True)
        self._drawn = time.monotonic()

    def frame(self, found: Round, seen: Watched, status: str, columns: int, lines: int) -> str:
        """The page as text, in `lines` lines where it can be: the conventions give way first, then small classes."""
        told = state(seen.fresh)
        lead = (*_headline(seen), f"{told[:1].upper()}{told[1:]}.", status)
        notes = tuple(f"{fmt.visible(name)}: {fmt.visible(why)}" for name, why in found.notes[:3])
        lists = tuple(b for b in (waiting(found.held), Bullets("Notes", notes)) if b.items)
        report = seen.report
        notes_fit = True
        while True:
            grids = () if report is None else (_cut(outcome(report, columns), report, seen.report, notes_fit),)
            drawn = self._text(Sheet(lead, grids, lists), columns)
            over = len(drawn.splitlines()) - lines
            if over <= 0 or report is None or not (notes_fit or report.strata):
                return drawn
            if notes_fit:
                notes_fit = False
            else:
                report = _without_smallest(report, over)

    def _text(self, shown: Sheet, columns: int) -> str:
        frame = _Frame(getattr(self._out, "encoding", None) or "utf-8")
        draw(shown, frame, columns)
        return frame.getvalue()

    def end(self, found: Round, seen: Watched) -> None:
        """Give the terminal back, with the table on it."""
        self._close()
        width = shutil.get_terminal_size((80, 24)).columns
        draw(final(found, seen, self._lake, width), self._out, width)
        self._out.flush()


def _cut(grid: Grid, shown: Report, whole: Report | None, notes_fit: bool) -> Grid:
    """The table with what had to be left out said in its title, and without its conventions where they do not fit."""
    left_out = 0 if whole is None else len(whole.strata) - len(shown.strata)
    told = [f"{left_out} smaller classes do not fit; the total has them"] if left_out else []
    told += [] if notes_fit else ["conventions below the last table"]
    title = f"{grid.title} ({'; '.join(told)})" if told else grid.title
    return replace(grid, title=title, notes=grid.notes if notes_fit else ())


def _without_smallest(report: Report, n: int) -> Report:
    """The report without the n strata of the fewest rounds, in the same order."""
    by_size = sorted(range(len(report.strata)), key=lambda i: report.strata[i].figures.get("rounds") or 0)
    out = set(by_size[:n])
    return replace(report, strata=tuple(s for i, s in enumerate(report.strata) if i not in out))


def display(out: TextIO, lake: Path, every: float) -> Display:
    """The way to show a watch on `out`: drawn over on a terminal, line by line elsewhere."""
    return Screen(out, lake, every) if out.isatty() else Lines(out, lake)
