"""What the words of a comparison name, what is refused, and what ties the two sides together."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from lakes import Row, write_lake

from tracelens.analysis.compare import compare
from tracelens.analysis.session import Question
from tracelens.analysis.sides import Word, resolve
from tracelens.errors import InputError

DAY = dt.datetime(2026, 5, 1, 10)
ALL = Question(by=())


def rounds(run: str, requests: int = 4, **more: Any) -> Iterable[Row]:
    """Requests of 12 rounds each, K = 4."""
    for i in range(requests):
        for j in range(12):
            accepted = (i + j) % 5
            yield {"run_id": run, "ts": DAY, "request_id": f"{run}-{i:03}", "task_type": "t", "round_index": j,
                   "num_speculative_tokens": 4, "drafted": 4, "accepted": accepted, "emitted": accepted + 1,
                   **more}  # fmt: skip


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def day(n: int) -> dt.datetime:
        return DAY.replace(day=n)

    rows = [
        *rounds("one", ts=day(1)),
        *rounds("two", ts=day(2), labels=[("team", "red")]),
        *rounds("three", ts=day(3), labels=[("team", "blue")]),
        *rounds("2026-05-01..2026-05-02", ts=day(9)),
        *rounds("off", ts=day(1), drafted=0, accepted=0, emitted=1),
    ]
    runs = [
        {"run_id": "one", "engine_version": "0.1"}, {"run_id": "two", "engine_version": "0.2"},
        {"run_id": "three", "engine_version": "0.2"}, {"run_id": "off", "role": "baseline"},
    ]  # fmt: skip
    return write_lake(tmp_path_factory.mktemp("named"), rounds=rows, runs=runs)


def period(since: int | None, until: int | None, text: str = "period") -> Word:
    ends = [None if n is None else dt.datetime(2026, 5, n, tzinfo=dt.UTC) for n in (since, until)]
    return Word(text, (ends[0], ends[1]))


@pytest.mark.parametrize(
    ("word", "kind", "runs"),
    [
        (Word("two"), "run", ("two",)),
        (Word("run:two"), "run", ("two",)),
        (Word("two+three"), "run", ("two", "three")),
        (Word("two+two"), "run", ("two",)),
        (Word("version:0.2"), "build", ("three", "two")),
        (Word("label:team=red"), "label", ()),
        (period(2, 3), "period", ()),
    ],
)
def test_a_word(named: Path, word: Word, kind: str, runs: tuple[str, ...]) -> None:
    _, side = resolve(named, Word("one"), word)
    assert (side.name, side.kind, side.runs) == ("B", kind, runs)
    assert side.question(ALL).runs == runs


@pytest.mark.parametrize(("word", "requests"), [(Word("label:team=red"), 4), (period(2, None), 12)])
def test_a_side_selects(named: Path, word: Word, requests: int) -> None:
    found = compare(named, Word("one"), word, ALL)
    assert found.total.a is not None
    assert found.total.b is not None
    assert (found.total.a["requests"], found.total.b["requests"]) == (4, requests)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (Word("four"), "runs: 2026-05-01..2026-05-02, off, one, three, two; versions: 0.1, 0.2"),
        (Word("two+four"), "no run four"),
        (Word("version:9"), "versions: 0.1, 0.2"),
        (Word("label:team=green"), "labels: team=blue, team=red"),
        (Word("label:nothing"), "labels: team=blue, team=red"),
        (Word("x..y", why_not="x is no time"), "x is no time"),
        (Word(""), "names nothing"),
        (period(1, 3, "2026-05-01..2026-05-02"), "is a run and a period"),
        (Word("off"), "only runs without speculation are selected"),
        (period(1, 2), "share 48 of the 48 records of B"),
    ],
)
def test_a_side_that_cannot_be(named: Path, word: Word, told: str) -> None:
    with pytest.raises(InputError) as error:
        compare(named, Word("one"), word, ALL)
    assert told in str(error.value)


def test_both_sides_keep_the_filters(named: Path) -> None:
    kept = Question(by=(), until=dt.datetime(2026, 5, 3), where="task_type = 't'", runs=("one", "two"))
    _, build = resolve(named, Word("one"), Word("version:0.2"))
    assert build.question(kept) == dataclasses.replace(kept, runs=("two",))
    _, days = resolve(named, Word("one"), period(1, 9))
    assert days.question(kept) == dataclasses.replace(kept, since=dt.datetime(2026, 5, 1, tzinfo=dt.UTC))
    for word in (Word("three"), period(8, 9)):
        with pytest.raises(InputError, match="nothing is left of B"):
            compare(named, Word("one"), word, kept)


def test_requests_across_the_border_are_said(tmp_path: Path) -> None:
    rows = [{**row, "ts": DAY.replace(day=1 if row["round_index"] < 6 else 2)} for row in rounds("r", 10)]
    found = compare(write_lake(tmp_path, rounds=rows), period(1, 2), period(2, 3), ALL)
    warning = next(w for w in found.warnings if w.code == "requests_across")
    assert warning.evidence == {"requests": 10}
    assert not any(w.code == "one_run" for w in found.warnings), "one process is on both sides"
