"""docs/limits.md names every cap with the value that the code has, and what is cut is told."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tracelens.ingest import read as reading
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect
from tracelens.sources import stream

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "limits.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the docs are beside the package, not in it")
ROW = re.compile(r"^\| [^|]+ \| ([^|]+) \| `([\w.]+)` \| [^|]+ \|$", re.M)


def documented() -> dict[str, str]:
    return {place: value.strip() for value, place in ROW.findall(PAGE.read_text(encoding="utf-8"))}


def test_the_page_has_the_values_of_the_code() -> None:
    found = documented()
    assert len(found) >= 25
    for place, value in found.items():
        module, _, name = place.rpartition(".")
        assert str(getattr(importlib.import_module(f"tracelens.{module}"), name)) == value, place


def test_no_cap_of_the_readers_is_missing() -> None:
    """A constant of `sources` whose name says that it is a cap stands on the page."""
    # A share; where a name is looked for; which of two ways is quicker.
    inner = {"exposition._MOST", "metric_json._LONGEST_LABELS", "needles._MOST"}
    caps = set()
    for path in sorted((ROOT / "tracelens" / "sources").glob("*.py")):
        names = re.findall(r"^(_?(?:MAX|MOST|LONGEST|LEVELS)\w*) = ", path.read_text(encoding="utf-8"), re.M)
        caps |= {f"{path.stem}.{name}" for name in names}
    assert len(caps) >= 8
    assert {f"sources.{cap}" for cap in caps - inner} <= set(documented())


def reasons(lake: Path) -> list[str]:
    with connect(lake, keep=True) as con:
        return [row[0] for row in con.execute("select reason from rejects order by line").fetchall()]


def test_caps_that_are_hit_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = '{"record":"round","request_id":"r-1","drafted":3,"accepted":2,"emitted":3}'
    (tmp_path / "a.jsonl").write_text(f'{good}\n{{"x":"{"y" * (stream.MAX_LINE + 10)}"}}\n{good}\n')
    done = ingest([str(tmp_path / "a.jsonl")], tmp_path / "a", IngestOptions(jobs=1))
    assert (done.rows["rounds"], done.rejects) == (2, 1)
    assert reasons(tmp_path / "a") == [f"line longer than {stream.MAX_LINE} bytes"]
    monkeypatch.setattr(reading, "DOCUMENT_LIMIT", 100)
    (tmp_path / "b.json").write_text("[\n" + ",\n".join([good] * 50) + "\n]\n")
    ingest([str(tmp_path / "b.json")], tmp_path / "b", IngestOptions(jobs=1))
    assert "a JSON document longer than 100 bytes: read as lines" in reasons(tmp_path / "b")
