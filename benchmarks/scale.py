"""`python -m benchmarks.scale [--keep PLACE] [--rounds 1000000,10000000,100000000]`: a report and its pieces at scale.

Three tables. Pieces: SQL by hand over the files of the largest lake, beside a bare sum of one column. Commands: report,
gap, gate, sweep and compare of every lake as whole processes, beside the report's own statements run by hand in a bare
DuckDB: CPU as a multiple of these, and of the report in the same turns.
Days: the same report over one day of ten. CPU seconds are those of all threads; lakes are made where they are missing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from multiprocessing import Process
from pathlib import Path
from typing import Any

from benchmarks.lakes import DAYS, FIRST_DAY, SERVERS, lake
from benchmarks.measure import Sample, in_turns, run
from benchmarks.profile import CLAIM

COMMANDS = ("report", "gap", "gate", "sweep", "compare")
SIZES = (1_000_000, 10_000_000, 100_000_000)
ROUNDS = "read_parquet('{lake}/rounds/**/*.parquet', union_by_name = true, hive_partitioning = true)"
REQUESTS = "read_parquet('{lake}/requests/**/*.parquet', union_by_name = true, hive_partitioning = true)"
# Name, SQL, times the first that it may take.
PIECES = (
    ("bare sum of one column", f"select sum(accepted) from {ROUNDS}", None),
    ("alpha by task type", f"select task_type, sum(accepted) / sum(drafted) from {ROUNDS} group by 1", 4.0),
    ("alpha with its interval, by request",
     f"with u as (select task_type, run_id, request_id, sum(accepted) as y, sum(drafted) as x from {ROUNDS} group by"
     " all) select task_type, count(*), sum(y), sum(x), sum(y * y), sum(x * y), sum(x * x) from u group by 1", 15.0),
    ("TPOT percentiles, from rounds",
     f"with u as (select task_type, run_id, request_id, sum(step_us) / nullif(sum(emitted), 0) as tpot from {ROUNDS}"
     " group by all) select task_type, quantile_cont(tpot, [0.5, 0.95, 0.99]) from u group by 1", 35.0),
    ("TPOT percentiles, from requests",
     f"select task_type, quantile_cont(tpot_us, [0.5, 0.95, 0.99]) from {REQUESTS} group by 1", 35.0),
)  # fmt: skip
_PIECE = """
import json, resource, sys, time, duckdb
con = duckdb.connect()
con.execute("set enable_progress_bar_print = false")
con.execute("set memory_limit = '400MB'")
con.execute("set temp_directory = '" + sys.argv[2] + "'")
spent = []
for _ in range(2):
    begun = time.process_time()
    con.execute(sys.argv[1]).fetchall()
    spent.append(time.process_time() - begun)
print(json.dumps([min(spent), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
# What a report asks, by hand: the views of a lake, what they keep, and each query once. argv: lake, queries/, spill.
_BY_HAND = """
import sys, duckdb
lake, queries, spill = sys.argv[1:]
con = duckdb.connect()
text = lambda name: open(f"{queries}/{name}.sql").read().rstrip().rstrip(";")
con.execute("set enable_progress_bar_print = false; set preserve_insertion_order = false; set memory_limit = '1GB'")
con.execute(f"set temp_directory = '{spill}'; attach '{spill}/kept.db' as kept")
con.execute("set variable lake = $1", [lake])
con.execute(text("views"))
con.execute("set variable rounds_held = (select count(*) from logged_rounds)")
con.execute("set variable all_possible = (select count(*) = 0 from impossible)")
[(gaps,)] = con.execute("select exists(from rounds where task_type is null or temperature is null or top_p is null)"
                        ).fetchall()
for name in ("met_again", "held", "superseded", "run_traits", "request_traits"):
    only = " where false" if name == "request_traits" and not gaps else ""
    con.execute(f"create table kept.{name} as from {name}{only}; create or replace view {name} as from kept.{name}")
if not gaps:
    con.execute("create or replace view labelled_rounds as from rounds")
strata = ("create or replace view strata as select {'task_type': task_type} as stratum, {'task_type': task_type} as"
          " traffic, * from facts where role is distinct from 'baseline' and not coalesce(forced_acceptance, false)")
days = [row[0] for row in con.execute("select distinct date from logged_rounds order by 1").fetchall()]
for number, day in enumerate(days):
    con.execute(f"{strata} and date is not distinct from {'null' if day is None else repr(str(day)) + '::date'}")
    con.execute(("create table kept.unit_sums as" if number == 0 else "insert into kept.unit_sums") + " from unit_sums")
con.execute(strata + "; create or replace view unit_sums as from kept.unit_sums")
con.execute("create table kept.shapes as from round_shapes; create or replace view round_shapes as from kept.shapes")
con.execute(f"create table kept.baseline as {text('baseline')}")
con.execute("create or replace view prices as select stratum, stratum is null as is_total, p.traffic, p.engine,"
            " p.model, p.batch_bucket, p.context_bucket, p.price, p.tpot, p.basis"
            " from kept.baseline, unnest(prices) as u(p)")
for name in ("alpha", "hazards", "rollback", "near_k", "rho", "speedup", "control_noise"):
    con.execute(text(name)).fetchall()
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rounds", default=",".join(map(str, SIZES)), help="sizes of the lakes")
    parser.add_argument("--repeats", type=int, default=3, help="rounds in turns; medians are printed (default 3)")
    parser.add_argument("--keep", type=Path, help="folder for the lakes, kept for another run")
    parser.add_argument("--only", nargs="*", choices=("pieces", "commands", "days"), help="some of the tables")
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=COMMANDS)
    given = parser.parse_args()
    work = given.keep or Path(tempfile.mkdtemp(prefix="tracelens-scale-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        lakes = {n: _made(work / f"lake-{n}", n) for n in map(int, given.rounds.split(","))}
        tables: dict[str, Callable[[], None]] = {
            "pieces": lambda: pieces(lakes[max(lakes)], work, given.repeats),
            "commands": lambda: commands(lakes, work, given.repeats, given.commands),
            "days": lambda: days(lakes[max(lakes)], given.repeats),
        }
        for name in given.only or tables:
            tables[name]()
    finally:
        if given.keep is None:
            shutil.rmtree(work, ignore_errors=True)


def _made(place: Path, rounds: int) -> Path:
    if not place.exists():
        half = place.with_name(f"{place.name}.part")
        shutil.rmtree(half, ignore_errors=True)
        # In a process of its own: what this one has taken counts as the peak of every command that it starts.
        made = Process(target=lake, args=(half, rounds))
        made.start()
        made.join()
        if made.exitcode:
            raise SystemExit(f"no lake: the process that makes it ended with {made.exitcode}")
        half.rename(place)
    return place


def pieces(lake: Path, work: Path, repeats: int) -> None:
    """SQL by hand over the files, beside a bare sum; in turns."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in PIECES}
    for _ in range(repeats):
        for name, sql, _ in PIECES:
            command = [sys.executable, "-c", _PIECE, sql.format(lake=lake), str(work / "spill")]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            taken[name].append(tuple(json.loads(done.stdout)))
    print(f"pieces of {lake.name}, CPU s in DuckDB, least of {2 * repeats}")
    print(f"{'piece':<38}{'CPU s':>8}{'x sum':>8}{'goal':>7}{'peak MB':>9}")
    floor = min(cpu for cpu, _ in taken[PIECES[0][0]])
    for name, _, goal in PIECES:
        cpu, peak = min(c for c, _ in taken[name]), max(p for _, p in taken[name])
        print(f"{name:<38}{cpu:>8.2f}{cpu / floor:>8.1f}{f'{goal:g}x' if goal else '–':>7}{peak:>9.0f}", flush=True)


def commands(lakes: dict[int, Path], work: Path, repeats: int, names: Sequence[str]) -> None:
    """Whole commands of every lake, and the report's statements by hand."""
    print(f"whole processes, median of {repeats} in turns")
    print(f"{'rounds':>12} {'command':<10}{'CPU s':>8}{'wall s':>8}{'us/round':>9}{'x hand':>8}{'x report':>9}"
          f"{'peak MB':>9}")  # fmt: skip
    for rounds, place in sorted(lakes.items()):
        calls: dict[str, Callable[[], Sample]] = {"by hand": lambda p=place: by_hand(p, work)}  # type: ignore[misc]
        calls |= {name: lambda n=name, p=place: command(n, p) for name in names}  # type: ignore[misc]
        taken = in_turns(calls, repeats)
        for name, sample in taken.items():
            times = "–" if name == "by hand" else _times(sample, taken["by hand"])
            reports = "–" if name in ("by hand", "report") or "report" not in taken else _times(sample, taken["report"])
            print(f"{rounds:>12,} {name:<10}{sample.cpu:>8.1f}{sample.wall:>8.1f}{sample.cpu / rounds * 1e6:>9.2f}"
                  f"{times:>8}{reports:>9}{sample.rss_mb:>9.0f}", flush=True)  # fmt: skip


def _times(one: Sample, other: Sample) -> str:
    return f"{one.cpu / other.cpu:.2f}"


def command(name: str, place: Path, *more: str) -> Sample:
    """One command over a lake."""
    sides = SERVERS[0].run, SERVERS[1].run
    own = {"gap": ("--claim", CLAIM), "compare": sides}.get(name, ())
    allowed = {"gate": (0, 1, 2)}.get(name, (0,))
    words = [sys.executable, "-m", "tracelens", name, *own, "--lake", str(place), "--by", "task_type", "--json", *more]
    return run(words, allowed=allowed)


def by_hand(place: Path, work: Path) -> Sample:
    """The statements of a report in a bare DuckDB."""
    with tempfile.TemporaryDirectory(dir=work) as spill:
        queries = Path(__file__).parent.parent / "queries"
        return run([sys.executable, "-c", _BY_HAND, str(place), str(queries), spill])


def days(place: Path, repeats: int) -> None:
    """A report of the last day, beside one of all ten; and which files give rows to it."""
    last = FIRST_DAY + timedelta(DAYS - 1)
    taken = in_turns(
        {"all": lambda: command("report", place), "last": lambda: command("report", place, "--since", str(last))},
        repeats,
    )
    every, one = taken["all"].cpu, taken["last"].cpu
    print(f"{place.name}: report of all {DAYS} days {every:.1f} CPU s, --since {last} {one:.1f}")
    for when, (opened, of) in {"all days": _files(place, None), f"--since {last}": _files(place, str(last))}.items():
        print(f"  files of rounds that a query scans, {when}: {opened} of {of}")


def _files(place: Path, since: str | None) -> tuple[int, int]:
    """Files of rounds that a query of a report scans, and all of them."""
    from tracelens.analysis.selection import keep_small_tables
    from tracelens.lake.connection import connect

    con = connect(place, grouped=False, keep=True)
    keep_small_tables(con)
    condition = "" if since is None else f" where date >= date '{since}' and ts >= timestamp '{since}'"
    plan = con.execute(f"explain (analyze, format json) select sum(accepted) from facts{condition}").fetchall()[0][1]
    found = sum(_scanned(json.loads(plan)))
    [(every,)] = con.execute("select len(getvariable('lake_files')['rounds'])").fetchall()
    con.close()
    return found, int(every)


def _scanned(node: Any) -> Iterator[int]:
    """How many files of rounds each scan of a plan read."""
    if isinstance(node, dict):
        if "/rounds/" in str(node.get("Filename(s)", "")):
            yield int(node["Total Files Read"])
        for value in node.values():
            yield from _scanned(value)
    elif isinstance(node, list):
        for value in node:
            yield from _scanned(value)


if __name__ == "__main__":
    main()
