"""The quickest road: lines of one form, taken apart by `walk`, to canonical columns and Parquet.

The rules are those of `engines/generic/rules.py`. Lines that are not of the form go to the road that takes lines one by
one, so that a bad line costs what it costs and the others stay quick. What would need all rows of a file at once (the
rows of a step are counted) is for the other roads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracelens.engines.generic import rules
from tracelens.engines.units import INT32_MAX
from tracelens.ingest.fast import Shape, Unproved, Written
from tracelens.ingest.laid import Laid, picked
from tracelens.ingest.sift import BadLine
from tracelens.ingest.stamps import Stamps
from tracelens.ingest.typed import LONGEST_US, MOST, columns_of
from tracelens.ingest.walk import Cut, Form, Places, Same, Texts, Walker, form_of
from tracelens.lake.schema import table
from tracelens.sources.stream import Block, BlockStream

if TYPE_CHECKING:
    from tracelens.ingest.digest import Digest
    from tracelens.ingest.redact import Redaction
    from tracelens.ingest.rows import Naming
    from tracelens.sources.discover import SourceFile

_SAMPLE_LINES = 64
# Two steps of memory per line and key: a block must fit the caches of a core, and not be all overhead.
BLOCK = 2 << 20
# More rows of other forms than one in so many: then the other roads are quicker, and hold fewer of them in memory.
_MOST_OTHERS = 8
_FEW = 4096
# Lines that wait to be read one by one.
_WAITING_LINES, _WAITING_BYTES = 4096, 4 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """How the lines of a file are read.

    Attributes:
        form: what they look like.
        columns: key -> canonical column; other keys are passed over.
        stamps: how the keys that are stamps are read.
    """

    table: str
    form: Form
    columns: Mapping[str, str]
    stamps: Mapping[str, Stamps]
    ts_basis: str


def plan_of(head: bytes, shape: Shape) -> Plan | None:
    """How to read a file whose first whole lines are `head`; None where it is nothing for this road."""
    import msgspec

    lines = [line for line in head.split(b"\n")[:_SAMPLE_LINES] if line.strip()]
    found = form_of(lines, fixed=("record",))
    if found is None:
        return None
    form, example = found
    value = msgspec.json.decode(example)
    if rules.kind_of(value) != shape.table:
        return None
    types, times, given = columns_of(shape.table), rules.time_columns(shape.table), rules.stamp_columns(shape.table)
    columns: dict[str, str] = {}
    stamps: dict[str, Stamps] = {}
    points: set[str] = set()
    for field in form.fields:
        key = field.key
        if key in given:
            stamp = Stamps.of(key, value[key], given[key][1], shape)
            if stamp is None:
                return None
            stamps[key] = stamp
            columns[key] = given[key][0]
        elif key in types:
            needed = {"VARCHAR": ("text",), "BOOLEAN": ("truth",), "DOUBLE": ("whole", "number")}
            if field.kind not in needed.get(types[key], ("whole",)):
                return None
            columns[key] = times.get(key, (key,))[0]
        if types.get(key, "DOUBLE") == "DOUBLE":
            points.add(key)
    if len(set(columns.values())) < len(columns) or _by_steps(shape.table, set(columns.values())):
        return None
    form = form.with_points(points)
    cut = Walker(form).cut(head)
    if 2 * len(cut.taken) < len(cut.starts):
        return None  # numbers too long for it
    return Plan(shape.table, form, columns, stamps, shape.ts_basis)


def _by_steps(name: str, columns: Collection[str]) -> bool:
    """Whether the share of a step is to come from the number of its rows."""
    return name == "rounds" and "step_id" in columns and not {"step_share", "batch_size"} & set(columns)


def write(
    file: SourceFile,
    plan: Plan,
    digest: Digest,
    constants: Mapping[str, Any],
    naming: Callable[[], Naming],
    staging: Path,
    take: Callable[[Sequence[BadLine]], int],
    redaction: Redaction | None = None,
) -> Written:
    """Write the rows of a file below `staging`, and hand on the lines that are not of its form.

    Args:
        file: the file.
        plan: what `plan_of` said.
        digest: of the file.
        constants: canonical columns set for all rows; none of them is a key of the file.
        naming: names the runs, as far as the lines handed on tell.
        staging: folder of the transaction.
        take: called with the lines that are to be read one by one; gives the rows that such lines have made so far.
        redaction: how ids are hashed; None keeps them.

    Returns:
        What was written, with the lines of the file.

    Raises:
        Unproved: the file is for another road, or no more what it was; nothing is left below `staging`.
    """
    import tempfile

    waiting = Waiting(take)
    # No digest is made, and nothing is read that the file has grown by.
    stream = BlockStream(file, block_bytes=BLOCK, figures=False, limit=digest.scan.bytes)
    with stream, tempfile.TemporaryDirectory(prefix="quick-", dir=staging) as folder:
        laid: Laid | None = None
        named = None
        try:
            for block, cut, kept, columns in blocks(stream, plan, waiting):
                if laid is None:
                    waiting.hand_on()  # a record of the run stands first
                    named = naming()
                    laid = Laid(plan.table, plan.ts_basis, constants, named, Path(folder), redaction)
                laid.add(columns, block.line + kept, block.offset + cut.starts[kept])
            waiting.hand_on()
            if laid is None or (naming() != named and "run_id" not in plan.columns.values()):
                raise Unproved("the run of rows is told below them")
            digest.check(file, stream.bytes)
            return laid.finish(staging, stream.lines, tuple(stream.problems))
        finally:
            if laid is not None:
                laid.close()


def blocks(
    stream: Iterable[Block], plan: Plan, waiting: Waiting
) -> Iterator[tuple[Block, Cut, Places, dict[str, Any]]]:
    """Blocks, cut; which of their lines are rows, and the canonical columns of these.

    Raises:
        Unproved: too few lines are of the form.
    """
    walker = Walker(plan.form)
    lines = 0
    for block in stream:
        cut = walker.cut(block.data)
        block.lines = len(cut.starts)
        lines += block.lines
        columns, right = _columns(plan, cut)
        waiting.add(block, cut, right)
        if waiting.rows > _FEW and waiting.rows * _MOST_OTHERS > lines:
            raise Unproved("many rows of other forms")
        if right.all():
            yield block, cut, cut.taken, columns
        else:
            yield block, cut, cut.taken[right], {k: picked(v, right) for k, v in columns.items()}


class Waiting:
    """Lines that are to be read one by one, some thousands at once."""

    def __init__(self, take: Callable[[Sequence[BadLine]], int]) -> None:
        self.rows = 0  # that they have made
        self._take = take
        self._lines: list[BadLine] = []
        self._bytes = 0

    def add(self, block: Block, cut: Cut, right: Any) -> None:
        """Keep the lines of a block that were not taken, or hold a value that is not right."""
        others = cut.others if right.all() else np.sort(np.concatenate((cut.others, cut.taken[~right])))
        for i in others.tolist():
            start, end = int(cut.starts[i]), int(cut.ends[i])
            data = block.data[start:end]
            if data.strip():
                self._lines.append(BadLine(block.line + i, block.offset + start, data))
                self._bytes += len(data)
        if len(self._lines) >= _WAITING_LINES or self._bytes >= _WAITING_BYTES:
            self.hand_on()

    def hand_on(self) -> None:
        """Have them read."""
        if self._lines:
            self.rows = self._take(self._lines)
            self._lines, self._bytes = [], 0


def _columns(plan: Plan, cut: Cut) -> tuple[dict[str, Any], Any]:
    """Canonical columns of the lines taken (`Same`, numpy or Arrow arrays), and which lines have only right values."""
    right = np.ones(len(cut.taken), np.bool_)
    times = rules.time_columns(plan.table)
    types = {c.name: c.arrow for c in table(plan.table).columns}
    out: dict[str, Any] = {}
    for key, column in plan.columns.items():
        value = cut.values[key]
        if key in plan.stamps:
            out[column], good = plan.stamps[key].read(value)
        elif isinstance(value, Texts) and types[column] == "string":
            out[column], good = value.arrow(), None
        elif types[column] in ("string", "bool"):
            out[column], good = value, None
        else:
            factor = times[key][1] if key in times else None
            out[column], good = _number(value, types[column], factor)
        if good is not None and not np.all(good):
            right &= good
    return out, right


def _number(value: Any, arrow: str, factor: int | None) -> tuple[Any, Any]:
    """A column of numbers, and where they are what `typed` takes."""
    if isinstance(value, Same):
        cell, good = _number(np.array([value.value]), arrow, factor)
        return Same(cell[0].item()), good
    if isinstance(value, Texts):
        value = value.arrow().cast(pa.float64()).to_numpy()
    if factor is not None:
        good = value <= LONGEST_US / factor
        time = value * factor
        return (time if arrow == "double" else np.floor(np.where(good, time, 0) + 0.5).astype(np.int64)), good
    if arrow == "double":
        return value, value <= MOST
    if arrow == "int32":
        good = value <= INT32_MAX
        return np.where(good, value, 0).astype(np.int32), good
    return value, None
