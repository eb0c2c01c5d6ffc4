"""Alarms of the field: what the data themselves say is wrong with them, each with its evidence and the way out.

Every alarm looks at the rows of the question alone, and is silent where it has too little to go by. What is asked of
the rounds themselves is asked of the kept sums where they know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.analysis.alarms import acceptance, chosen, counters, duplicates, identities, times, warm_up, zones
from tracelens.analysis.results import Stratum, Warning
from tracelens.analysis.selection import Defined

if TYPE_CHECKING:
    import duckdb


def counted_wrongly(
    con: duckdb.DuckDBPyConnection, total: Stratum, strata: Sequence[Stratum], defined: Defined
) -> list[Warning]:
    """Alarms about counts: acceptance, identities, running totals, restarts, duplicates."""
    chosen.define(con, defined)
    return [
        *acceptance.alarms(con, [total, *strata], forced=defined.forced),
        *identities.alarms(con, defined),
        *counters.alarms(con),
        *duplicates.alarms(con),
    ]


def timed_wrongly(con: duckdb.DuckDBPyConnection, total: Stratum) -> list[Warning]:
    """Alarms about times: TPOT from chunks, step times that are none, zones, warm-up. After `counted_wrongly`."""
    return [*times.alarms(con, total), *zones.alarms(con), *warm_up.alarms(con)]
