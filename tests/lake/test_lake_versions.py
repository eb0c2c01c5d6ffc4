"""Lakes of older versions, kept in tests/data/lakes, open and give their figures; a newer one is told to be newer.

They were written by commits of this project from the first 120 lines of two logs of samples/vllm-site and 12 responses
of each, with the report of that commit beside them. `ac73824` has no `runs.scope`, neither has `sources.request_ids`.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tracelens.analysis.report import report
from tracelens.errors import InputError
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake import ledger
from tracelens.lake.connection import connect
from tracelens.lake.schema import SCHEMA_VERSION
from tracelens.reporters import json_

LAKES = sorted((Path(__file__).parents[1] / "data" / "lakes").glob("*.zip"))
# How intervals are made and baselines matched has changed since; what was counted and timed has not.
CHANGED = re.compile(r"_(low|high)$|^(baseline|speedup|relative|control)_|_basis$|^(n_eff|top_share)$")


@pytest.fixture(params=LAKES, ids=lambda p: p.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with zipfile.ZipFile(request.param) as packed:
        packed.extractall(tmp_path / "lake")
    (tmp_path / "lake" / "report.json").rename(tmp_path / "report.json")
    return tmp_path / "lake"


def test_the_lakes_are_there() -> None:
    assert [p.stem for p in LAKES] == ["0.1.0-ac73824", "0.1.0-f3bf16c"]
    assert sum(p.stat().st_size for p in LAKES) < 150_000


def rows(document: Any) -> dict[str, dict[str, Any]]:
    return {json.dumps(row["key"]): row for row in (*document["strata"], document["total"])}


def test_an_older_lake_gives_its_figures(old: Path) -> None:
    before = rows(json.loads((old.parent / "report.json").read_text()))
    found = report(old)
    now = rows(json.loads(json_.dumps(json_.document(found))))
    assert before.keys() == now.keys()
    assert len(before) == 5
    compared = 0
    for key, row in before.items():
        for name, value in row.items():
            if not CHANGED.search(name) and value is not None:
                expected = pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value
                assert now[key][name] == expected, (key, name)
                compared += 1
    assert compared > 150
    assert found.contains == {"request_ids": "kept"}


def test_an_older_lake_can_be_written(old: Path, tmp_path: Path) -> None:
    with connect(old, keep=True) as con:
        before = con.execute("select count(*), sum(accepted) from rounds").fetchone()
    log = tmp_path / "more.jsonl"
    log.write_text('{"record":"round","request_id":"r-1","drafted":3,"accepted":2,"emitted":3,"run_id":"new"}\n')
    done = ingest([str(log)], old, IngestOptions(jobs=1, redact_ids=True))
    assert (done.rows["rounds"], done.request_ids) == (1, "mixed")
    assert before is not None
    with connect(old, keep=True) as con:
        after = con.execute("select count(*), sum(accepted) from rounds").fetchone()
        assert after == (before[0] + 1, before[1] + 2)
        told = con.execute("select request_ids is null, count(*) from sources group by all order by all").fetchall()
        assert told == [(False, 1), (True, 4)]


def test_a_newer_lake_is_told_to_be_newer(tmp_path: Path) -> None:
    log, lake = tmp_path / "r.jsonl", tmp_path / "lake"
    log.write_text('{"record":"round","request_id":"r-1","drafted":3,"accepted":2,"emitted":3}\n')
    ingest([str(log)], lake, IngestOptions(jobs=1))
    [entry] = ledger.read(lake).entries
    row = ledger.row_of(lake, entry) | {"schema_version": SCHEMA_VERSION + 1}
    ledger.write([row], lake / entry.file)
    for use in (connect, lambda at: ingest([str(log)], at, IngestOptions(jobs=1))):
        with pytest.raises(InputError, match=rf"newer tracelens \(schema {SCHEMA_VERSION + 1}.*upgrade tracelens"):
            use(lake)
