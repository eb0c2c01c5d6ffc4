"""The quickest proof that a uniform file is clean: what no clean file holds is hunted for, and quotes are counted.

To decode every line by a strict type (typed.py) costs as much as DuckDB's own pass. Here one automaton looks for every
value that is not of its key's type, by its first byte; DuckDB checks the numbers and stamps it reads; afterwards every
column must be filled in every row, and the file must have just the quotes that the keys and texts of its rows need.
Then no row lacks a key, has one more or has one twice. A file that may be clean all the same goes to typed.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.engines.generic import rules
from tracelens.ingest.fast import Scan, Shape, Unproved, figures
from tracelens.ingest.typed import columns_of
from tracelens.sources.discover import SourceFile
from tracelens.sources.stream import BlockStream

# First bytes of values that a column can't hold: texts, truths, null, NaN, Infinity, lists, objects; numbers.
_NUMBER = "0123456789-"
_WRONG = {"DOUBLE": '"tfnNI[{', "BOOLEAN": '"nNI[{' + _NUMBER, "VARCHAR": "tfnNI[{" + _NUMBER}


def applies(shape: Shape) -> bool:
    """Whether all keys are canonical scalars whose JSON type the first lines settle."""
    types = _types(shape)
    named = {
        rules.time_columns(shape.table).get(k, rules.stamp_columns(shape.table).get(k, (k,)))[0] for k in shape.keys
    }
    return (
        shape.uniform
        and "record" not in shape.keys
        and len(named) == len(shape.keys)
        and all(types.get(k) in _WRONG for k in shape.keys)
        and all((types[k] == "VARCHAR") == (k in shape.texts) for k in shape.keys)
    )


def filled(shape: Shape) -> tuple[str, ...]:
    """The canonical columns that every row must fill."""
    times, stamps = rules.time_columns(shape.table), rules.stamp_columns(shape.table)
    return tuple(times.get(k, stamps.get(k, (k,)))[0] for k in shape.keys)


def scan(file: SourceFile, shape: Shape, checkpoints: Sequence[int]) -> Scan:
    """Read the file once; see the module.

    Raises:
        Unproved: it may not be clean.
    """
    import ahocorasick_rs
    import numpy as np

    patterns = _patterns(shape)
    automaton = ahocorasick_rs.BytesAhoCorasick(patterns, implementation=ahocorasick_rs.Implementation.DFA)
    quotes = 0
    with BlockStream(file, checkpoints=checkpoints) as stream:
        for block in stream:
            data = block.data
            # An escape may hide a quote or be no text; what lower case is beyond ASCII, the roads may not agree on.
            if b"\\" in data or b"\r" in data or not data.isascii() or automaton.find_matches_as_indexes(data):
                raise Unproved("a value of another type")
            quotes += int(np.count_nonzero(np.frombuffer(data, np.uint8) == 34))
    found = figures(stream)
    if quotes != 2 * found.lines * (len(shape.keys) + len(shape.texts)):
        raise Unproved("keys or texts that the first lines do not have")
    return found


def _types(shape: Shape) -> dict[str, str]:
    types = columns_of(shape.table) | {k: "VARCHAR" for k in rules.stamp_columns(shape.table) if k in shape.texts}
    return {k: "DOUBLE" if t in ("INTEGER", "BIGINT") else t for k, t in types.items()}


def _patterns(shape: Shape) -> list[bytes]:
    types = _types(shape)
    found: list[str] = []
    for key in shape.keys:
        found += [f'"{key}":{gap}{first}' for first in _WRONG[types[key]] for gap in ("", " ")]
        # Gaps that the patterns above don't know of: the key may be before something else.
        found += [f'"{key}" ', f'"{key}"\t', f'"{key}":  ', f'"{key}":\t', f'"{key}": \t']
    return [pattern.encode() for pattern in found]
