"""Whatever rounds hold, rolled up they add up to the same by every class, minute and length."""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.compact.roll_sql import _GROUPED, _TIMES
from tracelens.compact.run import compact
from tracelens.lake import ledger
from tracelens.lake.connection import connect
from tracelens.lake.schema import table
from tracelens.lake.store import Store

DAY = dt.datetime(2026, 5, 6)


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


TIME = some(st.sampled_from([0, 1, 7, 1000, 10**9, 10**14]))
ROUND = st.fixed_dictionaries(
    {
        "run_id": st.sampled_from(["a", "b"]), "engine": st.just("e"), "surface": st.sampled_from(["s", "vllm.trace"]),
        "source_id": st.sampled_from(["one", "two"]), "accepted": st.integers(0, 2),
        "drafted": some(st.integers(2, 3)), "emitted": some(st.just(1)), "draft_steps": some(st.just(2)),
        "ts": st.integers(0, 400).map(lambda s: DAY + dt.timedelta(seconds=s / 2)),
        "request_id": some(st.sampled_from(["r1", "r2", "r3", "chatcmpl-r1"])), "round_index": some(st.integers(0, 3)),
        "replica": some(st.just("0")), "task_type": some(st.sampled_from(["x", "y"])),
        "temperature": some(st.sampled_from([0.0, 0.7])), "forced_acceptance": some(st.booleans()),
        "has_prefill": some(st.booleans()), "is_replay": some(st.booleans()), "num_draft_nodes": some(st.just(9)),
        "weight": some(st.sampled_from([1.0, 0.5, 16.0])), "labels": some(st.sampled_from([[("k", "v")], []])),
        "step_id": some(st.just("step")), "step_share": some(st.sampled_from([1.0, 0.25])),
        "batch_size": some(st.sampled_from([0, 1, 3, 4, 9])), "context_len": some(st.sampled_from([1, 511, 512, 1025])),
        **dict.fromkeys(_TIMES, TIME),
    }
)  # fmt: skip


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A lake with these rounds, each source with a file."""
    store = Store(folder / "lake")
    for i, row in enumerate(rows):
        row["source_line"] = i
    with store.transaction() as txn:
        for source in ("one", "two"):
            mine = [r for r in rows if r["source_id"] == source]
            there = pa.Table.from_pylist(mine, schema=table("rounds").arrow_schema())
            pq.write_table(there, txn.path(f"rounds/date=2026-05-06/{source}-0.parquet"))
        entries = [{"source_id": s, "name": "", "sha256": s, "schema_version": 1} for s in ("one", "two")]
        ledger.write(entries, txn.path("sources/t.parquet"))
        txn.commit()
    return store.root


def sums(lake: Path) -> list[tuple[Any, ...]]:
    """Rounds and time sums of every class, exactly: weights are multiples of a half."""
    keys = [c for c in _GROUPED if c not in ("ts", "request_id", "labels", "weight")]
    times = ", ".join(f"sum((2 * weight)::bigint * {c}::hugeint), sum(weight) filter ({c} is null)" for c in _TIMES)
    sql = (
        f"select {', '.join(keys)}, labels::varchar, date_trunc('minute', ts) as at, batch_bucket_of(batch_size),"
        f" context_bucket_of(context_len), request_id is null, sum(weight), {times} from rounds group by all"
    )
    con = connect(lake, grouped=False)
    try:
        return sorted(con.execute(sql).fetchall(), key=repr)
    finally:
        con.close()


@settings(max_examples=12)
@given(st.lists(ROUND, min_size=1, max_size=60))
@pytest.mark.long
def test_sums_of_every_class_are_exact(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = write(Path(folder), rows)
        before = sums(lake)
        done = compact(lake, DAY.date() + dt.timedelta(days=1)).rolled
        assert (done.rounds, done.single) == (len(rows), 0)
        assert done.rows <= 2 * len(rows)
        assert sums(lake) == before
        con = connect(lake, grouped=False)
        requests = con.execute(
            "select sum(rolled_requests)::bigint, sum(rolled_squares), max(rolled_longest) from rounds"
        ).fetchone()
        con.close()
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        if row["request_id"] is not None:
            key = row["run_id"], row["request_id"].removeprefix("chatcmpl-")
            weight = 1.0 if row["weight"] is None else row["weight"]
            found[key] = found.get(key, 0.0) + (0.0 if row["is_replay"] else weight)
    assert requests is not None
    assert requests[0] == len(found)
    if all(n == int(n) for n in found.values()):
        assert requests[1] == sum(n * n for n in found.values())
        assert requests[2] == max(found.values(), default=None)
