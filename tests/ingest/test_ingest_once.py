"""Each source once, whatever its name; grown logs replace themselves; runs are named and found again."""

from __future__ import annotations

import gzip
import lzma
import os
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import everything, interval, jsonl, log, received, response, run, start, stored, table

import tracelens.ingest.run as run_module


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder as a server leaves it: a log, and the responses of the gateway."""
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = [start(), received("chatcmpl-sum.1"), *(interval(f"12:01:{i:02d}") for i in range(5))]
    (folder / "server.log").write_text(log(*lines))
    (folder / "responses.jsonl").write_text(jsonl(response("chatcmpl-sum.1"), response("chatcmpl-cht.2", (0, 0))))
    return folder


def test_a_second_ingest_changes_nothing(logs: Path, lake: Path) -> None:
    first = run(lake, logs)
    before = stored(lake)
    second = run(lake, logs)
    assert stored(lake) == before
    assert (second.sources, second.rows, second.skipped) == (0, {}, 2)
    assert {why for _, why in second.notes} == {
        "already in the lake (as server.log)",
        "already in the lake (as responses.jsonl)",
    }
    assert first.rows["windows"] == 5


def test_replace_reads_again_with_other_options(logs: Path, lake: Path) -> None:
    run(lake, logs)
    counts = {name: len(table(lake, name)) for name in ("windows", "requests", "rounds", "sources")}
    again = run(lake, logs, run="off", role="baseline", replace=True)
    assert (again.sources, again.skipped) == (2, 0)
    assert {name: len(table(lake, name)) for name in counts} == counts
    assert set(table(lake, "windows", "run_id")) == set(table(lake, "rounds", "run_id")) == {("off",)}
    assert {(r["run_id"], r["role"]) for r in table(lake, "runs")} == {("off", "baseline")}
    assert all(r["replaces"] in (None, []) for r in table(lake, "sources"))


def test_one_content_under_many_names(logs: Path, lake: Path, tmp_path: Path) -> None:
    content = (logs / "server.log").read_bytes()
    (logs / "server.log.1").write_bytes(content)
    (logs / "server.log.2.gz").write_bytes(gzip.compress(content))
    (logs / "server.log.3.xz").write_bytes(lzma.compress(content))
    found = run(lake, logs)
    assert found.rows["windows"] == 5
    names = {r["name"]: r["also_named"] for r in table(lake, "sources")}
    assert sum(len(n or []) for n in names.values()) == 3
    later = tmp_path / "elsewhere" / "renamed.log"
    later.parent.mkdir()
    later.write_bytes(content)
    before = stored(lake)
    assert run(lake, later).sources == 0
    assert stored(lake) == before


def test_a_grown_log_replaces_its_earlier_version(logs: Path, lake: Path) -> None:
    run(lake, logs)
    runs = set(table(lake, "windows", "run_id"))
    with (logs / "server.log").open("a") as file:
        file.write(log(interval("12:02:00"), interval("12:02:10")))
    again = run(lake, logs)
    assert len(table(lake, "windows")) == 7
    assert len(table(lake, "sources")) == 2
    assert again.rows["windows"] == 7
    # The same server: what was read before of it (its responses) still belongs to the same run.
    assert set(table(lake, "windows", "run_id")) == runs == set(table(lake, "rounds", "run_id"))
    assert [r["replaces"] for r in table(lake, "sources") if r["name"] == "server.log"] != [[]]


def test_a_log_that_grew_and_was_rotated_and_compressed(logs: Path, lake: Path) -> None:
    run(lake, logs)
    grown = (logs / "server.log").read_bytes() + log(interval("12:02:00")).encode()
    (logs / "server.log.1.gz").write_bytes(gzip.compress(grown))
    (logs / "server.log").write_text(log(interval("12:03:00")))
    run(lake, logs)
    assert len(table(lake, "windows")) == 7


def test_a_changed_log_is_another_source(logs: Path, lake: Path) -> None:
    run(lake, logs)
    text = (logs / "server.log").read_text()
    (logs / "server.log").write_text(text.replace("160 tokens", "161 tokens"))
    run(lake, logs)
    assert len(table(lake, "windows")) == 10  # we can't know better


@pytest.mark.parametrize("order", [("old.log", "whole.log"), ("whole.log", "old.log"), ("logs",)])
def test_a_beginning_and_the_whole_in_one_batch(tmp_path: Path, lake: Path, order: tuple[str, ...]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = [start(), *(interval(f"12:01:{i:02d}") for i in range(5))]
    (folder / "whole.log").write_text(log(*lines))
    (folder / "old.log").write_text(log(*lines[:3]))
    paths = [folder] if order == ("logs",) else [folder / name for name in order]
    found = run(lake, *paths)
    assert (found.sources, found.rows["windows"]) == (1, 5)
    assert len(table(lake, "windows")) == 5
    assert table(lake, "sources", "name") == [("whole.log",)]


def test_a_compressed_beginning_and_the_whole_in_one_batch(tmp_path: Path, lake: Path) -> None:
    lines = [start(), *(interval(f"12:01:{i:02d}") for i in range(5))]
    (tmp_path / "whole.log").write_text(log(*lines))
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(log(*lines[:3]).encode()))
    run(lake, tmp_path / "whole.log", tmp_path / "old.log.gz")
    assert len(table(lake, "windows")) == 5


def test_workers_give_the_rows_of_one_process(
    logs: Path, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (logs / "second").mkdir()
    (logs / "second" / "server.log").write_text(log(start("13:00:00", k=5), interval("13:00:10", accepted=9)))
    alone = run(lake, logs, sets={"team": "a"})
    monkeypatch.setattr(run_module, "_PARALLEL_BYTES", 1)
    with_two = run(tmp_path / "two", logs, jobs=2, sets={"team": "a"})
    assert everything(tmp_path / "two") == everything(lake)
    assert (with_two.rows, with_two.surfaces, with_two.sources) == (alone.rows, alone.surfaces, 3)


def test_a_restart_in_one_log_is_two_runs(tmp_path: Path, lake: Path) -> None:
    lines = [
        interval("11:00:00"),
        start("12:00:00"),
        interval("12:00:10"),
        start("13:00:00", k=5),
        interval("13:00:10"),
    ]
    (tmp_path / "s.log").write_text(log(*lines))
    (tmp_path / "r.jsonl").write_text(jsonl(response("a")))
    run(lake, tmp_path)
    windows = table(lake, "windows", "run_id", "num_speculative_tokens", "method")
    ids = [r[0] for r in windows]
    assert len(set(ids)) == 3
    assert ids[1].startswith("vllm-20260506T120000-")
    assert ids[2].startswith("vllm-20260506T130000-")
    assert [r[1:] for r in windows] == [(None, None), (3, "eagle3"), (5, "eagle3")]
    # Two runs were started: the responses can't choose, and stay with what the folder's logs say before any start.
    assert {r[0] for r in table(lake, "requests", "run_id")} == {ids[0]}


def test_what_precedes_a_start_stays_where_it_was_when_the_log_has_grown(tmp_path: Path) -> None:
    """Lines before the only start line are of no run that started: in a fresh lake and in one that saw the log grow."""
    path, first = tmp_path / "logs" / "s.log", [interval("11:00:00"), start("12:00:00"), interval("12:00:10")]
    path.parent.mkdir()
    path.write_text(log(*first))
    run(tmp_path / "grown", path)
    path.write_text(log(*first, interval("12:00:20")))
    for name in ("grown", "fresh"):
        run(tmp_path / name, path)
    ids = [sorted(r[0] for r in table(tmp_path / name, "windows", "run_id")) for name in ("grown", "fresh")]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2


def test_siblings_of_a_folder_share_the_run_and_json_adopts_the_started_one(logs: Path, lake: Path) -> None:
    (logs / "more").mkdir()
    for i in range(2):
        (logs / "more" / f"{i}.jsonl").write_text(jsonl(response(f"x{i}")))
    run(lake, logs)
    runs = {r["run_id"]: r for r in table(lake, "runs")}
    started = {r for r in runs if "T120000" in r}
    assert len(started) == 1
    assert set(table(lake, "windows", "run_id")) == {(r,) for r in started}
    by_request = dict(table(lake, "requests", "request_id", "run_id"))
    assert by_request["chatcmpl-cht.2"] in started
    assert by_request["x0"] == by_request["x1"]
    assert by_request["x0"] not in started


def test_responses_that_come_later_find_the_run_of_their_folder(logs: Path, lake: Path) -> None:
    run(lake, logs)
    (logs / "responses.1.jsonl").write_text(jsonl(response("late")))
    run(lake, logs)
    assert len({r for (r,) in table(lake, "requests", "run_id")}) == 1


def test_run_and_role_can_be_given(logs: Path, lake: Path) -> None:
    run(lake, logs, run="mine", role="baseline")
    for name in ("windows", "requests", "rounds", "runs"):
        assert set(table(lake, name, "run_id")) == {("mine",)}
    assert set(table(lake, "runs", "role")) == {("baseline",)}


def test_the_ledger_tells_what_was_read(logs: Path, lake: Path) -> None:
    run(lake, logs)
    rows = {r["name"]: r for r in table(lake, "sources")}
    assert {n: (r["lines"], dict(r["surfaces"]), r["rejects"], r["unrecognised"]) for n, r in rows.items()} == {
        "server.log": (7, {"vllm.start": 1, "vllm.request_line": 1, "vllm.v1_line": 5}, 0, 0),
        "responses.jsonl": (2, {"vllm.response": 2}, 0, 0),
    }
    for name, row in rows.items():
        assert row["bytes"] == os.stat(logs / name).st_size  # noqa: PTH116
        tables: dict[str, Any] = dict(row["rows"])
        for table_name, count in tables.items():
            stored_rows = [r for r in table(lake, table_name) if r.get("source_id") == row["source_id"]]
            assert len(stored_rows) == count, (name, table_name)
