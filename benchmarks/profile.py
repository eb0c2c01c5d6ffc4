"""`python -m benchmarks.profile LAKE [report|gap|sweep|gate …]`: CPU seconds of every statement of an analysis.

The analysis runs in this process, over a connection that measures what passes through it. CPU time is of all threads.
"""

from __future__ import annotations

import argparse
import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

CLAIM = "alpha=.6,rho=.1,k=5"


@dataclass(slots=True)
class Spent:
    """CPU seconds and calls by the beginning of a statement, in the order of the first call."""

    cpu: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, cpu: float) -> None:
        """Count one statement."""
        self.cpu[name] = self.cpu.get(name, 0.0) + cpu
        self.calls[name] = self.calls.get(name, 0) + 1
        self.peak[name] = max(self.peak.get(name, 0.0), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


class Measured:
    """A connection that keeps account of what its statements cost."""

    def __init__(self, con: Any, spent: Spent) -> None:
        self._con, self._spent = con, spent

    def execute(self, sql: Any, *given: Any, **named: Any) -> Any:
        """Run a statement and count it."""
        begun = time.process_time()
        try:
            return self._con.execute(sql, *given, **named)
        finally:
            self._spent.add(name_of(str(getattr(sql, "query", sql))), time.process_time() - begun)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)


def name_of(sql: str) -> str:
    """A statement in a few words: the query's question, or its first characters."""
    asked = re.search(r"-- Question: (.*)", sql)
    words = " ".join(line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return f"? {asked[1]}" if asked else re.sub(r"\s+", " ", words)[:110].strip()


@contextmanager
def measured() -> Iterator[Spent]:
    """Within it every connection to a lake is measured."""
    from tracelens.lake import connection

    spent, silent = Spent(), connection.silent
    with patch.object(connection, "silent", lambda: Measured(silent(), spent)):
        yield spent


def analyses() -> dict[str, Callable[[Path], object]]:
    """The analyses by the name of their command."""
    from tracelens.analysis.claim import parse_claim
    from tracelens.analysis.gap import gap
    from tracelens.analysis.gate import gate
    from tracelens.analysis.report import report
    from tracelens.analysis.session import Question
    from tracelens.analysis.sweep import sweep

    claimed = Question(claim=parse_claim(CLAIM))
    return {
        "report": lambda lake: report(lake, Question()),
        "gap": lambda lake: gap(lake, claimed),
        "sweep": lambda lake: sweep(lake, Question()),
        "gate": lambda lake: gate(lake, Question()),
    }


def told(name: str, spent: Spent, whole: float, *, least: float = 0.01) -> Iterator[str]:
    """The statements of an analysis that took at least `least` seconds, and all others together."""
    sql = sum(spent.cpu.values())
    yield f"{name}: {whole:.2f} CPU s, of which {sql:.2f} in DuckDB, {sum(spent.calls.values())} statements"
    yield f"{'CPU s':>9}{'calls':>6}{'peak MB':>9}  statement"
    for statement, cpu in spent.cpu.items():
        if cpu >= least:
            yield f"{cpu:>9.3f}{spent.calls[statement]:>6}{spent.peak[statement]:>9.0f}  {statement}"
    rest = [cpu for cpu in spent.cpu.values() if cpu < least]
    yield f"{sum(rest):>9.3f}{len(rest):>6}           others"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("lake", type=Path)
    parser.add_argument("names", nargs="*", default=["report"], help="report, gap, sweep, gate (default report)")
    parser.add_argument("--least", type=float, default=0.01, help="seconds below which a statement is not listed")
    given = parser.parse_args()
    known = analyses()
    for name in given.names:
        with measured() as spent:
            begun = time.process_time()
            known[name](given.lake)
            whole = time.process_time() - begun
        print("\n".join(told(name, spent, whole, least=given.least)), flush=True)


if __name__ == "__main__":
    main()
