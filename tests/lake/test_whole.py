"""Files of another writer whose columns are of other kinds: the first of them is named, whatever it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracelens.analysis.report import report
from tracelens.errors import InputError
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake import connection

LINE = (
    '{{"record":"round","request_id":"r-{n}","ts":"2026-04-0{day}T00:00:00Z","drafted":3,"accepted":2,"emitted":3}}\n'
)


@pytest.fixture(params=["tiny", pytest.param("small", marks=pytest.mark.long), "large"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two days, read by each road."""
    if request.param != "tiny":
        monkeypatch.setattr(connection, "TINY", 0)
        monkeypatch.setattr(connection, "FEW", -1)
    monkeypatch.setattr(connection, "LARGE_FILE", 1 if request.param == "large" else 1 << 40)
    log = tmp_path / "r.jsonl"
    log.write_text("".join(LINE.format(n=n, day=1 + n % 2) for n in range(20)))
    ingest([str(log)], tmp_path / "la[k]e*", IngestOptions(jobs=1))
    return tmp_path / "la[k]e*"


def rewrite(path: Path, column: str, kind: pa.DataType) -> None:
    written = pq.ParquetFile(path).read()
    cells = pa.nulls(written.num_rows, kind)
    pq.write_table(written.set_column(written.schema.get_field_index(column), column, cells), path)


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.long)], ids=["one", "all"])
@pytest.mark.parametrize(
    ("column", "kind", "is_told"),
    [
        ("forced_acceptance", pa.string(), "forced_acceptance is VARCHAR where a lake has BOOLEAN"),
        ("temperature", pa.string(), "temperature is VARCHAR where a lake has DOUBLE"),
        ("drafted", pa.list_(pa.int64()), r"drafted is BIGINT\[\] where a lake has INTEGER"),
        ("ts", pa.string(), "ts is VARCHAR where a lake has TIMESTAMP"),
    ],
)
def test_a_column_of_another_kind_is_named(
    lake: Path, column: str, kind: pa.DataType, is_told: str, everywhere: bool
) -> None:
    files = sorted((lake / "rounds").glob("date=2*/*.parquet"))
    assert len(files) == 2
    for path in files if everywhere else files[1:]:
        rewrite(path, column, kind)
    with pytest.raises(InputError, match=rf": its column {is_told}.*tracelens schema") as error:
        report(lake)
    assert str(error.value).startswith(tuple(f"{path}: " for path in files))


@pytest.mark.parametrize(
    ("column", "kind"), [("drafted", pa.int64()), ("step_us", pa.float64()), ("top_p", pa.float32())]
)
def test_a_number_of_another_width_is_read(lake: Path, column: str, kind: pa.DataType) -> None:
    [*_, last] = sorted((lake / "rounds").glob("date=2*/*.parquet"))
    rewrite(last, column, kind)
    assert report(lake).total.figures["accepted"] is not None
