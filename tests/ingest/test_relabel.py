"""Labels onto a lake that exists: what changes, what must not, and what a crash leaves."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ingest_logs import jsonl, stored, table

from tracelens.errors import InputError
from tracelens.ingest import fast
from tracelens.ingest.labels import read_labels, read_rules
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.relabel import Relabelled, relabel
from tracelens.ingest.run import ingest
from tracelens.lake.store import Store

HOSTILE = "'); drop table label; --\x1b[31m<script>%s $1 \u202e é"
IDS = ["sum.1", "chatcmpl-cht.2", "cmpl-ext.3-0", "chatcmpl-agt.4-0a1b2c3d", "free"]


def _request(i: int, request: str) -> dict[str, Any]:
    more = {"task_type": "old", "temperature": 0.5} if i == 0 else {"model": "big"}
    hist = {"rounds": 3, "accepted": 3, "accepted_hist": [1, 1, 1], "decode_us": 900 + i}
    return {"record": "request", "ts_end": f"2026-04-{19 + i % 2}T00:00:00Z", "request_id": request, **hist, **more}


def _round(i: int, request: str | None) -> dict[str, Any]:
    return {
        "record": "round",
        "ts": f"2026-04-19T00:00:{i:02d}Z",
        "request_id": request,
        "drafted": 3,
        "accepted": i % 3,
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Requests and rounds, with a constant label on some, written by the slow and by the fast road."""
    tmp_path = tmp_path_factory.mktemp("made")
    (tmp_path / "requests.jsonl").write_text(jsonl(*(_request(i, r) for i, r in enumerate(IDS))))
    (tmp_path / "rounds.jsonl").write_text(jsonl(*(_round(i, r) for i, r in enumerate([*IDS, *IDS]))))
    (tmp_path / "quick.jsonl").write_text(jsonl(*(_round(59 - i % 60, IDS[i % 5]) for i in range(100))))
    options = IngestOptions(sets={"team": "a"}, jobs=1)
    ingest([str(tmp_path / "requests.jsonl"), str(tmp_path / "rounds.jsonl")], tmp_path / "lake", options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "SMALLEST", 0)
        ingest([str(tmp_path / "quick.jsonl")], tmp_path / "lake", IngestOptions(jobs=1))
    return tmp_path / "lake"


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "lake"))


def labelled(lake: Path, *rows: dict[str, Any]) -> Relabelled:
    path = lake.parent / "labels.jsonl"
    path.write_text(jsonl(*rows))
    return relabel(lake, read_labels(path), ())


def others(lake: Path, *but: str) -> dict[str, list[str]]:
    """All rows of the lake without some columns."""
    return {
        name: sorted(repr({k: v for k, v in row.items() if k not in but}) for row in table(lake, name))
        for name in ("rounds", "windows", "requests", "runs", "rejects", "sources")
    }


def tasks(lake: Path, name: str = "requests") -> dict[str, set[str | None]]:
    found: dict[str, set[str | None]] = {}
    for request, task in table(lake, name, "request_id", "task_type"):
        found.setdefault(request, set()).add(task)
    return found


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_every_row_of_a_request_is_labelled_and_nothing_else_changes(suffix: str, lake: Path) -> None:
    frame = pl.DataFrame(
        {
            "request_id": ["sum.1", "cht.2", "chatcmpl-ext.3", "agt.4", "nowhere"],
            "task_type": ["summarise", "chat", None, "agent", "x"],
            "tenant": ["t1", "t2", "t3", None, "t5"],
        }
    )
    path = lake.parent / f"labels{suffix}"
    write = {".csv": frame.write_csv, ".jsonl": frame.write_ndjson, ".parquet": frame.write_parquet}[suffix]
    write(path)
    before = others(lake, "task_type", "labels")
    done = relabel(lake, read_labels(path), ())
    assert done == Relabelled({"rounds": 4 * 22, "requests": 4}, 4, 5, 1)
    assert others(lake, "task_type", "labels") == before
    expected = {"sum.1": {"summarise"}, "chatcmpl-cht.2": {"chat"}, "cmpl-ext.3-0": {None}, "free": {None}}
    for name in ("requests", "rounds"):
        assert tasks(lake, name) == expected | {"chatcmpl-agt.4-0a1b2c3d": {"agent"}}
    labels = {r: dict(found or []) for r, found in table(lake, "requests", "request_id", "labels")}
    assert labels["sum.1"] == {"team": "a", "tenant": "t1"}
    assert labels["chatcmpl-agt.4-0a1b2c3d"] == labels["free"] == {"team": "a"}
    files = stored(lake)
    assert relabel(lake, read_labels(path), ()) == Relabelled({"rounds": 0, "requests": 0}, 0, 5, 1)
    assert stored(lake) == files


def test_a_label_takes_the_place_of_one_of_its_name(lake: Path) -> None:
    row = {"request_id": "sum.1", "team": "b", "tenant": "x"}
    labelled(lake, row)
    assert labelled(lake, row).files == 0
    (labels,) = (dict(found) for r, found in table(lake, "requests", "request_id", "labels") if r == "sum.1")
    assert labels == {"team": "b", "tenant": "x"}


def test_a_label_that_is_no_value_of_its_column_is_not_taken(lake: Path) -> None:
    wrong = {
        "temperature": ["nan", "-3", "inf", "warm", "1e9"],
        "top_p": ["1.5", "nan", "-1", "x", ""],
        "num_speculative_tokens": ["4.6", "-1", "99999999999", "x", ""],
    }
    before = others(lake)
    rows = [{"request_id": r, **{c: texts[i] for c, texts in wrong.items()}} for i, r in enumerate(IDS)]
    assert labelled(lake, *rows).files == 0
    assert others(lake) == before
    labelled(lake, {"request_id": "sum.1", "temperature": "0.9", "top_p": "1", "num_speculative_tokens": "4"})
    found = table(lake, "requests", "request_id", "temperature", "top_p", "num_speculative_tokens")
    assert ("sum.1", 0.9, 1.0, 4) in found


def test_hostile_text_is_data(lake: Path) -> None:
    labelled(lake, {"request_id": "sum.1", "task_type": HOSTILE, HOSTILE: HOSTILE, "_key": "x", "_extra": "y"})
    rows = table(lake, "requests", "request_id", "task_type", "labels")
    (found,) = (r for r in rows if r[0] == "sum.1")
    assert found[1] == HOSTILE
    assert dict(found[2])[HOSTILE] == HOSTILE
    assert len(rows) == len(IDS)


def test_rules_fill_only_what_has_no_task(lake: Path) -> None:
    path = lake.parent / "tracelens.toml"
    path.write_text(
        '[[task]]\ntype = "it\'s"\nrequest_id = "^chatcmpl-"\n'
        '[[task]]\ntype = "rest"\nrequest_id = "."\nmodel = "big"\n'
        '[[task]]\ntype = "cold"\ntemperature = [0.0, 0.9]\n'
    )
    before = others(lake, "task_type")
    relabel(lake, None, read_rules(path))
    assert others(lake, "task_type") == before
    mine = {"sum.1": {"old"}, "chatcmpl-cht.2": {"it's"}, "chatcmpl-agt.4-0a1b2c3d": {"it's"}}
    assert tasks(lake) == mine | {"cmpl-ext.3-0": {"rest"}, "free": {"rest"}}
    assert relabel(lake, None, read_rules(path)).files == 0


def test_a_pattern_that_only_ingest_knows_is_told_before_anything_is_written(lake: Path) -> None:
    path = lake.parent / "tracelens.toml"
    path.write_text('[[task]]\ntype = "x"\nrequest_id = "a{1,2000}"\n')
    files = stored(lake)
    with pytest.raises(InputError, match="works at ingest only"):
        relabel(lake, None, read_rules(path))
    assert stored(lake) == files


def test_a_crash_leaves_all_or_nothing(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"request_id": "sum.1", "task_type": "new"}
    before, rows = others(lake), others(lake, "task_type")
    whole = Path.replace
    for limit in (0, 1, 3):  # the journal is the first move, then one for each of the four files
        moved = 0

        def replace(self: Path, target: Path, limit: int = limit) -> Path:
            nonlocal moved
            if moved == limit:
                raise RuntimeError("power is off")
            moved += 1
            return whole(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            with pytest.raises(RuntimeError):
                labelled(lake, row)
        assert moved == limit
        Store(lake)  # whoever comes next
        if limit == 0:
            assert others(lake) == before
            continue
        assert others(lake, "task_type") == rows
        assert tasks(lake)["sum.1"] == tasks(lake, "rounds")["sum.1"] == {row["task_type"]}
        row["task_type"] = "newer"


def test_a_lake_with_a_quote_in_its_name(lake: Path) -> None:
    strange = lake.parent / "la'ke ; --"
    lake.rename(strange)
    assert labelled(strange, {"request_id": "free", "task_type": "x"}).rows == {"rounds": 22, "requests": 1}


def test_no_lake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no lake"):
        relabel(tmp_path / "none", None, ())
    assert not (tmp_path / "none").exists()


def test_requests_without_an_id_stay(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl(_round(1, None), _round(2, ""), {"record": "request", "output_tokens": 3}))
    ingest([str(tmp_path / "a.jsonl")], tmp_path / "lake", IngestOptions(jobs=1))
    place = hashlib.sha256((tmp_path / "a.jsonl").read_bytes()).hexdigest()[:16] + "#3"
    done = labelled(tmp_path / "lake", {"request_id": "x", "task_type": "t"}, {"request_id": place, "task_type": "u"})
    assert (done.rows, done.unmatched) == ({"rounds": 0, "requests": 1}, 1)
