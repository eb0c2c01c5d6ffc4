"""Parquet of another writer: what no log can hold counts nowhere, is told, and breaks no command."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lakes import Row, write_lake

from tracelens import api
from tracelens.engines.generic import block
from tracelens.engines.generic.rules import IDENTITIES, NOT_READ
from tracelens.lake.connection import connect
from tracelens.lake.schema import FACTS, table

DAY = dt.datetime(2026, 5, 1, 12)
NAN, INF = float("nan"), float("inf")
NEVER = (2**63 - 1, -(2**63) + 1)  # what DuckDB takes for an infinite time
CLAIM = "alpha=.7,rho=.1,k=3"

ROUND: Row = {
    "ts": DAY, "run_id": "k3", "task_type": "x", "batch_size": 2, "context_len": 100, "drafted": 3, "accepted": 2,
    "emitted": 3, "draft_us": 1000, "target_us": 2000, "step_us": 4000, "num_speculative_tokens": 3, "weight": 1.0,
    "temperature": 0.5,
}  # fmt: skip
WINDOW: Row = {
    "ts_end": DAY, "run_id": "w", "task_type": "x", "steps": 10, "rounds": 10, "plain_steps": 2, "drafted": 30,
    "accepted": 12, "emitted": 24, "accepted_per_pos": [8, 3, 1], "draft_us": 100, "target_us": 200, "step_us": 300,
    "num_speculative_tokens": 3, "running": 2, "time_basis": "sum",
}  # fmt: skip
REQUEST: Row = {
    "ts_end": DAY, "run_id": "q", "task_type": "x", "output_tokens": 20, "rounds": 10, "iterations": 11, "drafted": 30,
    "accepted": 9, "emitted": 20, "accepted_hist": [5, 2, 2, 1], "decode_us": 100_000, "num_speculative_tokens": 3,
}  # fmt: skip
ROWS: Mapping[str, Row] = {"rounds": ROUND, "windows": WINDOW, "requests": REQUEST}


def lake_of(folder: Path, bad: Sequence[tuple[str, Row]] = ()) -> api.Lake:
    """Five good rows a table, a baseline, and bad rows of a source of their own each: `bad 0`, `bad 1`, …"""
    found: dict[str, list[Row]] = {name: [dict(row) for _ in range(5)] for name, row in ROWS.items()}
    for i, (name, row) in enumerate(bad):
        found[name].append({**ROWS[name], **row, "source_id": f"bad {i}"})
    plain = {**ROUND, "run_id": "off", "drafted": 0, "accepted": 0, "emitted": 1, "step_us": 3000}
    found["rounds"] += [{**plain, "draft_us": None, "target_us": None} for _ in range(3)]
    for name in ("rounds", "requests"):
        found[name] = [{**row, "request_id": f"{name} {i}"} for i, row in enumerate(found[name])]
    runs = [{"run_id": "off", "role": "baseline"}, {"run_id": "k3", "num_speculative_tokens": 3}]
    return api.open_lake(write_lake(folder, **found, runs=runs))


def answers(lake: api.Lake) -> dict[str, Any]:
    """Every answer as its JSON document, strictly valid, without the warning that this is about."""

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    asked: dict[str, dict[str, Any]] = {
        "report": {}, "gap": {"run": "k3", "claim": CLAIM}, "sweep": {"run": "q"}, "gate": {"run": "w"},
        "compare": {"a": "k3", "b": "q"},
    }  # fmt: skip
    found = {}
    for name, given_ in asked.items():
        answer = json.loads(getattr(lake, name)(**given_).to_json(), parse_constant=refuse)
        answer["warnings"] = [w for w in answer["warnings"] if w["code"] != "impossible_records"]
        found[name] = answer
    return found


BAD: list[tuple[str, Row]] = [
    *(("rounds", {"weight": v}) for v in (NAN, INF, -INF, -1.0, 0.0, 1e300, 5e-324)),
    ("rounds", {"accepted": 2**31 - 1}),
    ("rounds", {"accepted": -1}),
    ("rounds", {"drafted": 2**31 - 1}),
    ("rounds", {"emitted": 2**31 - 1}),
    ("rounds", {"draft_us": 2**62}),
    ("rounds", {"step_us": -(2**62)}),
    *(("rounds", {"step_share": v}) for v in (NAN, 0.0, 1.5, 1e-300)),
    *(("rounds", {"temperature": v}) for v in (NAN, INF, -1.0)),
    ("rounds", {"num_speculative_tokens": 2**31 - 1}),
    *(("rounds", {"ts": v}) for v in NEVER),
    ("windows", {"ts_end": NEVER[0]}),
    ("requests", {"ts_end": NEVER[0]}),
    ("requests", {"ts_start": NEVER[1]}),
    ("windows", {"running": 2**62}),
    ("windows", {"accepted_per_pos": [2**62, 2**62, 2**62]}),
    ("windows", {"accepted_per_pos": [1, 3, 8]}),
    ("windows", {"draft_ms_per_token": NAN}),
    ("windows", {"drafted": 2**62}),
    ("requests", {"accepted_hist": [2**62, 2**62, 2**62, 2**62]}),
    ("requests", {"tpot_us": INF}),
    ("requests", {"output_tokens": 2**62}),
]


@pytest.mark.long
def test_what_cannot_be_counts_nowhere_and_is_told(tmp_path: Path) -> None:
    good, lake = lake_of(tmp_path / "good"), lake_of(tmp_path / "bad", BAD)
    found = {row["source_id"]: (row["name"], row["records"]) for row in lake.query("from impossible").to_dict()}
    assert found == {f"bad {i}": (name, 1) for i, (name, _) in enumerate(BAD)}
    told = {w.code: w for w in lake.report().warnings}
    assert told["impossible_records"].evidence == {"records": len(BAD)}
    assert "impossible_records" not in {w.code for w in good.report().warnings}
    assert answers(lake) == answers(good)


def test_a_run_keeps_its_role(tmp_path: Path) -> None:
    row = {"run_id": "off", "role": "baseline", "num_speculative_tokens": 2**31 - 1}
    con = connect(write_lake(tmp_path / "lake", rounds=[ROUND], runs=[row]), keep=True)
    assert con.execute("select role, num_speculative_tokens from runs").fetchall() == [("baseline", None)]


def _numeric(name: str) -> list[tuple[str, str]]:
    """Identities of ingest that the views keep: those of numbers."""
    return [(why, sql) for why, sql in IDENTITIES[name] if not ("ts_" in sql or " in (" in sql or "not null" in sql)]


def _cells(name: str) -> st.SearchStrategy[dict[str, Any]]:
    floats = st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0, 1e-9, 1e9, 1.1e9, 1e15, 1.1e15, 1e300, 1e-300, NAN, INF])
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        pl.Int32(): st.sampled_from([-1, 0, 1, 2, 3, 5, 65_536, 65_537, 2**31 - 1]),
        pl.Int64(): st.sampled_from([-1, 0, 1, 2, 3, 5, 10**15, 10**15 + 1, 2**62]),
        pl.Float64(): floats,
        pl.List(pl.Int64()): st.lists(st.sampled_from([-1, 0, 1, 1, 2, 2**62]), max_size=3),
    }
    types = {c: t for c, t in table(name).polars_schema().items() if c not in NOT_READ and t in kinds}
    # Mostly null: a row in which everything is set breaks something always.
    return st.fixed_dictionaries({}, optional={c: st.one_of(st.none(), st.none(), kinds[t]) for c, t in types.items()})


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.long
def test_the_views_keep_what_ingest_would_keep(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    numeric = {why for why, _ in _numeric(name)}

    @settings(max_examples=6, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(_cells(name), min_size=20, max_size=40))
    def agree(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row.get("accepted") is None:
                row["accepted"] = 0 if name == "rounds" else None  # its file would not be written without
        lake = write_lake(tmp_path_factory.mktemp("agree") / "lake", **{name: rows})
        con = connect(lake, grouped=False)
        kept = {n for (n,) in con.execute(f"select source_line from {name}").fetchall()}
        con.close()
        types = {c: t for c, t in table(name).polars_schema().items() if c not in NOT_READ}
        frame = pl.DataFrame({c: [r.get(c) for r in rows] for c in types}, schema=types)
        broken = _broken(name, frame)
        assert kept == {line for line, whys in enumerate(broken) if not whys & numeric}

    agree()


def _broken(name: str, frame: pl.DataFrame) -> list[set[str]]:
    """All identities that each row breaks: taken one at a time, as the reader tells only the first."""
    found: list[set[str]] = [set() for _ in range(frame.height)]
    left = list(IDENTITIES[name])
    with pytest.MonkeyPatch.context() as patch:
        for one in left:
            patch.setattr("tracelens.engines.generic.block.IDENTITIES", {name: [one]})
            block._identities.cache_clear()
            for line, why in enumerate(block.broken_identities(name, frame).to_list()):
                if why is not None:
                    found[line].add(why)
    block._identities.cache_clear()
    return found


def test_nan_is_seen_through_the_statistics_of_a_file(tmp_path: Path) -> None:
    """Parquet's statistics leave NaN out, and DuckDB believes them: a mere comparison would find nothing."""
    lake = lake_of(tmp_path / "lake", [("rounds", {"weight": NAN})])
    files = f"'{lake.path}/rounds/*/rows.parquet'"
    (low, high), *_ = duckdb.sql(
        f"select min(stats_min), max(stats_max) from parquet_metadata({files}) where path_in_schema = 'weight'"
    ).fetchall()
    assert (low, high) == ("1.0", "1.0")
    assert math.isnan(dict(duckdb.sql(f"select source_id, weight from {files}").fetchall())["bad 0"])
    assert [w.evidence for w in lake.report().warnings if w.code == "impossible_records"] == [{"records": 1}]
