"""Labels from files and rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ingest_logs import interval, jsonl, log, received, response, run, table

from tracelens.errors import InputError
from tracelens.ingest.labels import read_labels, read_rules, request_key

LABELS = pl.DataFrame(
    {
        "request_id": ["sum.1", "chatcmpl-cht.2", "cmpl-ext.3-0-0a1b2c3d", "other"],
        "task_type": ["summarise", "chat", None, "x"],
        "tenant": ["a", "b", "c", "d"],
        "temperature": ["0.5", "nan", "-3", ""],
    }
)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def written(path: Path) -> Path:
    if path.suffix == ".csv":
        LABELS.write_csv(path)
    elif path.suffix == ".parquet":
        LABELS.write_parquet(path)
    else:
        LABELS.write_ndjson(path)
    return path


@pytest.mark.parametrize("name", ["l.csv", "l.jsonl", "l.parquet"])
def test_labels_match_ids_on_every_surface(tmp_path: Path, lake: Path, name: str) -> None:
    records = [response("chatcmpl-sum.1"), response("chatcmpl-cht.2", task_type="own"), response("cmpl-ext.3")]
    (tmp_path / "r.jsonl").write_text(jsonl(*records))
    (tmp_path / "s.log").write_text(
        log(received("chatcmpl-sum.1-9f8e7d6c"), received("cmpl-ext.3-0"), interval("12:00:10"))
    )
    run(lake, tmp_path / "r.jsonl", tmp_path / "s.log", labels=written(tmp_path / name), sets={"team": "x"})
    rows = {(r["surface"], r["request_id"]): r for r in table(lake, "requests")}
    found = {key[1]: (r["task_type"], r["temperature"], dict(r["labels"])) for key, r in rows.items()}
    assert found == {
        "chatcmpl-sum.1": ("summarise", 0.5, {"team": "x", "tenant": "a"}),
        "chatcmpl-cht.2": ("chat", None, {"team": "x", "tenant": "b"}),
        "cmpl-ext.3": (None, None, {"team": "x", "tenant": "c"}),
        "chatcmpl-sum.1-9f8e7d6c": ("summarise", 0.5, {"team": "x", "tenant": "a"}),
        "cmpl-ext.3-0": (None, 0.7, {"team": "x", "tenant": "c"}),
    }
    assert {r for (r,) in table(lake, "rounds", "task_type")} == {"summarise", "chat", None}
    assert [dict(r) for (r,) in table(lake, "windows", "labels")] == [{"team": "x"}]
    assert table(lake, "rejects") == []  # a label that is no temperature takes no row away


def test_a_label_of_the_file_stands_before_one_for_all(tmp_path: Path, lake: Path) -> None:
    (tmp_path / "r.jsonl").write_text(jsonl(response("chatcmpl-sum.1"), response("chatcmpl-new.9")))
    run(lake, tmp_path / "r.jsonl", labels=written(tmp_path / "l.csv"), sets={"tenant": "everybody"})
    found = {r["request_id"]: r["labels"] for r in table(lake, "requests")}  # as pairs: a map has each key once
    assert found == {"chatcmpl-sum.1": [("tenant", "a")], "chatcmpl-new.9": [("tenant", "everybody")]}


@pytest.mark.parametrize(
    ("request_id", "key"),
    [
        ("chatcmpl-sum.7f3a", "sum.7f3a"),
        ("chatcmpl-sum.7f3a-8395499e", "sum.7f3a"),
        ("cmpl-a.1-0", "a.1"),
        ("cmpl-a.1-0-838b5265", "a.1"),
        ("cmpl-a.1", "a.1"),
        ("plain-0", "plain-0"),
        ("", ""),
        (None, None),
    ],
)
def test_request_keys(request_id: str | None, key: str | None) -> None:
    frame = pl.DataFrame({"request_id": [request_id]}, schema={"request_id": pl.String})
    assert frame.select(request_key(pl.col("request_id"))).item() == key


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("l.csv", "id,task_type\na,b\n", "no column request_id"),
        ("l.csv", "request_id,task_type\na,b\na,c\n", "labelled twice"),
        ("l.csv", "request_id,task_type\nsum.1,b\nchatcmpl-sum.1,c\n", "labelled twice"),
        ("l.csv", "", "can't be read"),
        ("l.jsonl", "{broken", "can't be read"),
        ("l.parquet", "no parquet", "can't be read"),
        ("l.csv", None, "no such file"),
    ],
)
def test_label_files_that_cannot_be_used(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=words):
        read_labels(tmp_path / name)


def test_the_same_label_twice_is_one(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("request_id,task_type\na,b\na,b\n,c\n")
    assert read_labels(tmp_path / "l.csv").rows() in ([("b", "a")], [("b", "a"), ("c", "")])


def rules(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tracelens.toml"
    path.write_text(text)
    return path


def test_rules_apply_in_order(tmp_path: Path, lake: Path) -> None:
    toml = """
    [[task]]
    type = "first"
    request_id = '^chatcmpl-sum\\.'
    temperature = [0.0, 0.3]
    [[task]]
    type = "second"
    request_id = '^chatcmpl-sum\\.'
    [[task]]
    type = "third"
    model = 'big|huge'
    [[task]]
    type = "never"
    model = '.'
    """
    records = [
        response("chatcmpl-sum.1", temperature=0.3),
        response("chatcmpl-sum.2", temperature=0.31),
        response("chatcmpl-sum.3"),
        response("chatcmpl-x.4"),
        response("chatcmpl-sum.5", task_type="own"),
        response("chatcmpl-x.6", model="small"),
        response("chatcmpl-x.7", model=None),
    ]
    (tmp_path / "r.jsonl").write_text(jsonl(*records))
    run(lake, tmp_path / "r.jsonl", rules=rules(tmp_path, toml))
    expected = ["first", "second", "second", "third", "own", "never", None]
    assert [r for (r,) in table(lake, "requests", "task_type")] == expected
    assert {r for (r,) in table(lake, "rounds", "task_type")} == {*expected}


def test_rules_on_tables_without_requests(tmp_path: Path, lake: Path) -> None:
    (tmp_path / "s.log").write_text(log(interval("12:00:10")))
    toml = "[[task]]\ntype = 'a'\nrequest_id = '.'\n[[task]]\ntype = 'b'\nmodel = 'big'\n"
    run(lake, tmp_path / "s.log", rules=rules(tmp_path, toml), sets={"model": "big"})
    assert table(lake, "windows", "task_type") == [("b",)]


@pytest.mark.parametrize(
    "text",
    [
        "[[task]",
        "task = 3",
        "[[task]]\nrequest_id = 'x'",
        "[[task]]\ntype = 3\nrequest_id = 'x'",
        "[[task]]\ntype = 'x'",
        "[[task]]\ntype = 'x'\ncolour = 'red'",
        "[[task]]\ntype = 'x'\nrequest_id = '('",
        "[[task]]\ntype = 'x'\nrequest_id = '(?=a)'",
        "[[task]]\ntype = 'x'\nrequest_id = 5",
        "[[task]]\ntype = 'x'\ntemperature = 0.5",
        "[[task]]\ntype = 'x'\ntemperature = [0.5]",
        "[[task]]\ntype = 'x'\ntemperature = [0.5, 0.1]",
        "[[task]]\ntype = 'x'\ntemperature = [0.5, nan]",
        "[[task]]\ntype = 'x'\ntemperature = ['a', 'b']",
    ],
)
def test_rules_that_cannot_be(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"tracelens\.toml"):
        read_rules(rules(tmp_path, text))


def test_no_rules_file_is_no_rules(tmp_path: Path) -> None:
    nothing: Any = read_rules(tmp_path / "none.toml")
    assert nothing == read_rules(None) == ()
