"""What one file holds twice counts once: a shipper that sent again what it had sent, logs put together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest_logs import response, run, table

from tracelens.cli import run as cli
from tracelens.lake.connection import connect
from tracelens.lake.forget import forget_named

TOTALS = (
    "select (select [count(*), sum(drafted), sum(accepted), sum(emitted), sum(step_us)] from rounds),"
    " (select [count(*), sum(output_tokens), sum(e2e_us)] from requests)"
)


def a_round(request: int, i: int, **more: Any) -> str:
    n = 6 * request + i
    return json.dumps(
        {"record": "round", "engine": "e", "request_id": f"req-{request:04d}", "round_index": i, "drafted": 4,
         "ts": f"2026-05-06T12:{n // 60 % 60:02d}:{n % 60:02d}.5Z", "accepted": n % 5, "emitted": n % 5 + 1,
         "step_ms": 20 + n * 0.013} | more
    )  # fmt: skip


def a_request(request: int, **more: Any) -> str:
    return json.dumps(
        {"record": "request", "engine": "e", "request_id": f"req-{request:04d}", "output_tokens": 40 + request,
         "ts_end": f"2026-05-06T13:{request // 60:02d}:{request % 60:02d}Z", "e2e_ms": 700 + request} | more
    )  # fmt: skip


LOG = [line for r in range(30) for line in (*(a_round(r, i) for i in range(6)), a_request(r))]


def totals(lake: Path) -> tuple[Any, ...]:
    con = connect(lake, keep=True)
    try:
        return con.execute(TOTALS).fetchall()[0]
    finally:
        con.close()


def ingested(folder: Path, lines: list[str], name: str = "a.jsonl", **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")
    run(folder / "lake", folder / name, **options)
    return folder / "lake"


def same_as(lake: Path) -> dict[str, dict[str, str]]:
    found = table(lake, "sources", "source_id", "name", "same_as")
    names = {source: name for source, name, _ in found}
    return {name: {names[other]: lines for other, lines in same or ()} for _, name, same in found}


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    return totals(ingested(tmp_path_factory.mktemp("once"), LOG))


@settings(max_examples=12)
@given(parts=st.lists(st.tuples(st.integers(0, 190), st.integers(15, 60), st.integers(0, 60)), max_size=4))
def test_whatever_is_sent_again_counts_once(
    tmp_path_factory: pytest.TempPathFactory, once: tuple[Any, ...], parts: list[tuple[int, int, int]]
) -> None:
    sent = list(LOG)
    for first, some, later in sorted(parts, reverse=True):
        end = min(len(LOG), first + some)  # of two requests at least: more than choices of one can be
        sent[end + later : end + later] = LOG[first:end]
    assert totals(ingested(tmp_path_factory.mktemp("again"), sent)) == once


def test_the_ledger_the_ingest_and_the_report_say_so(
    tmp_path: Path, once: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    (tmp_path / "a.jsonl").write_text("\n".join([*LOG, *LOG[70:140], "{}", *LOG[:7]]) + "\n")
    assert cli(["ingest", str(tmp_path / "a.jsonl"), "--lake", str(lake)]) == 0
    assert "lines 211-280, 282-288 hold records that stand before them: counted once" in capsys.readouterr().out
    assert same_as(lake) == {"a.jsonl": {"a.jsonl": "211-280,282-288"}}
    assert cli(["report", "--lake", str(lake), "--format", "json"]) == 0
    told = {w["code"]: w for w in json.loads(capsys.readouterr().out)["warnings"]}
    assert "77 lines hold records that stand before them in the same source (a.jsonl)" in told["counted_once"]["text"]
    assert "written_twice" not in told
    run(lake, tmp_path / "a.jsonl", replace=True)
    assert totals(lake) == once


def test_a_copy_in_another_file_too(tmp_path: Path, once: tuple[Any, ...]) -> None:
    """Whichever of them goes, each record is there once."""
    lake = ingested(tmp_path, [*LOG[:140], *LOG[70:140]])
    ingested(tmp_path, [*LOG[70:], *LOG[100:]], "b.jsonl")
    assert totals(lake) == once
    assert same_as(lake) == {
        "a.jsonl": {"a.jsonl": "141-210"},
        "b.jsonl": {"a.jsonl": "1-70,141-180", "b.jsonl": "141-250"},
    }
    told = forget_named(lake, ["a.jsonl"])
    assert [copy.is_of_others for copy in told.copies] == [False]
    assert totals(lake) == totals(ingested(tmp_path / "alone", LOG[70:]))


def test_ids_that_are_used_again_and_choices_of_one_request_stay(tmp_path: Path) -> None:
    later = [line.replace("2026-05-06", "2026-05-07") for line in LOG]
    other = [line.replace("T12:", "T14:").replace("T13:", "T15:") for line in LOG[:70]]
    assert totals(ingested(tmp_path / "later", [*LOG, *later, *other]))[0][0] == 180 + 180 + 60
    # Two choices: the same step each, and mostly not the same drafts accepted.
    choices = [a_round(r, i, ts=f"2026-05-06T12:{r:02d}:{i:02d}.5Z", step_ms=20.5, accepted=(r + i * c) % 5,
                       emitted=(r + i * c) % 5 + 1) for r in range(20) for i in range(6) for c in (1, 2)]  # fmt: skip
    assert totals(ingested(tmp_path / "choices", choices))[0][0] == 240


@pytest.mark.parametrize("request_id", ["7", None])
def test_what_names_nothing_stays(tmp_path: Path, request_id: str | None) -> None:
    """A number that any server uses, or no id at all: equal records may be of two requests."""
    lines = [a_request(r, request_id=request_id, e2e_ms=700, output_tokens=40) for r in (1, 1, 2)]
    assert totals(ingested(tmp_path, lines))[1][0] == 3


def test_rounds_without_stamps_and_times_are_told_by_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = [a_round(r, i, ts=None, step_ms=None) for r in range(30) for i in range(6)]
    lake = ingested(tmp_path, [*bare, *bare])
    assert totals(lake)[0][0] == 360
    assert cli(["report", "--lake", str(lake), "--format", "json"]) == 0
    assert "written_twice" in {w["code"] for w in json.loads(capsys.readouterr().out)["warnings"]}


@pytest.mark.long
@pytest.mark.parametrize("change", [{"run_id": "other"}, {"model": "n"}, {"task_type": "chat"}, {"temperature": 0.7}])
def test_what_differs_in_any_column_is_no_repetition(tmp_path: Path, change: dict[str, Any]) -> None:
    lines = LOG + [json.dumps(json.loads(line) | change) for line in LOG]
    assert totals(ingested(tmp_path, lines))[0][0] == 360
    assert same_as(tmp_path / "lake") == {"a.jsonl": {}}


@pytest.mark.long
@pytest.mark.parametrize("by_choice", [True, False])
def test_choices_that_do_alike_stay(tmp_path: Path, by_choice: bool) -> None:
    """Short requests of three choices each, in the same steps: many of them accept the same drafts."""
    lines = []
    for group in range(60):
        own = [(r, i, c) for r in (2 * group, 2 * group + 1) for i in range(2) for c in range(3)]
        for r, i, c in sorted(own, key=lambda o: (o[1], o[2], o[0]) if by_choice else (o[0], o[2], o[1])):
            accepted = (r * 7 + i * c * (r % 3)) % 5
            lines.append(a_round(r, i, ts=f"2026-05-06T12:{group:02d}:{i:02d}.5Z", step_ms=20.5, accepted=accepted,
                                 emitted=accepted + 1))  # fmt: skip
    assert totals(ingested(tmp_path, lines))[0][0] == 60 * 12


def test_a_line_whose_rounds_are_new_stays(tmp_path: Path) -> None:
    """Responses logged without their steps, and then with them: each request is there before, its rounds are not."""
    whole = [response(f"chatcmpl-r{i:04d}", (i % 4, 3, i % 3), created=1_778_068_800 + 7 * i) for i in range(30)]
    bare = [json.loads(json.dumps(body)) for body in whole]
    for body in bare:
        del body["metrics"]["speculative_decoding"]["per_step_accepted"]
        del body["metrics"]["speculative_decoding"]["per_step_drafted"]
    alone = totals(ingested(tmp_path / "alone", [json.dumps(b) for b in whole]))
    both = ingested(tmp_path / "both", [json.dumps(b) for b in (*bare, *whole)])
    assert alone[0][0] == 90
    assert totals(both)[0] == alone[0]
