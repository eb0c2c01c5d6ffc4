"""Copies are looked for in bounded memory: the same are found, and no bound is too low for an ingest."""

from __future__ import annotations

import resource
from itertools import combinations
from pathlib import Path
from typing import Any

import duckdb
import pytest
from ingest_logs import jsonl, table
from ingest_logs import run as ingest

from tracelens.ingest import copies_sql
from tracelens.lake import connection

RECORDS = 20_000


def logged(i: int, shift: int = 0) -> dict[str, Any]:
    second = i // 4 + shift
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return {"record": "request", "run_id": "r", "engine": "e", "request_id": f"req-{i:06d}",
            "ts_end": f"2026-05-06T{clock}Z", "output_tokens": 90 + i % 7, "decode_ms": 700 + i * 0.013}  # fmt: skip


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A log, the end of it, and one of another gateway, which stamps three seconds later."""
    folder = tmp_path_factory.mktemp("logs")
    every = range(RECORDS)
    contents = [(logged(i) for i in every), (logged(i) for i in every[RECORDS // 2 :]), (logged(i, 3) for i in every)]
    paths = [folder / f"{name}.jsonl" for name in ("a", "b", "c")]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(jsonl(*content))
    return paths


def copied(lake: Path) -> dict[str, dict[str, str]]:
    rows = table(lake, "sources")
    names = {row["source_id"]: row["name"] for row in rows}
    return {row["name"]: {names[other]: lines for other, lines in row["same_as"] or ()} for row in rows}


EXPECTED = {
    "a.jsonl": {},
    "b.jsonl": {"a.jsonl": "1-10000"},
    "c.jsonl": {"a.jsonl": "1-20000", "b.jsonl": "10001-20000"},
}


@pytest.mark.parametrize("low", [None, "1MB", "12MB"])
def test_copies_are_found_under_any_bound(
    logs: list[Path], tmp_path: Path, low: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if low is not None:
        monkeypatch.setattr(connection, "MEMORY", low)
        monkeypatch.setattr(connection, "TWICE", low)
    ingest(tmp_path, *logs)
    assert copied(tmp_path) == EXPECTED


def looked(con: duckdb.DuckDBPyConnection, lake: Path) -> tuple[list[tuple[str, str, int, int]], int | None]:
    """Copies among the requests of a lake, and how often the bound was raised for them."""
    connection.limit(con)
    files = sorted(map(str, (lake / "requests").rglob("*.parquet")))
    ids = [row["source_id"] for row in table(lake, "sources")]
    pairs = [(b, a) for a, b in combinations(ids, 2)]
    found = sorted(copies_sql.same(con, "requests", files, pairs))
    raised = con.execute("select getvariable('bound_raised')").fetchone()
    con.close()
    return found, None if raised is None else raised[0]


def test_what_does_not_fit_is_spilled_and_a_full_disk_raises_the_bound(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(tmp_path, *logs)
    every, raised = looked(connection.silent(), tmp_path)
    assert (len(every), raised) == (3, 0)
    monkeypatch.setattr(connection, "MEMORY", "4MB")
    no_folder = connection.silent()
    no_folder.execute("set temp_directory = ''")
    assert looked(no_folder, tmp_path) == (every, 1)
    # No file may grow: what a full disk is to whoever spills.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, hard))
    try:
        assert looked(connection.silent(), tmp_path) == (every, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
