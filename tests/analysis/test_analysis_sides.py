"""What the words of a comparison name, what is refused, and what ties the two sides together."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lakes import Row, write_lake

from tracelens.analysis.compare import compare
from tracelens.analysis.compared import TWO_CONVENTIONS, Change, Compared
from tracelens.analysis.contrasts import both_sides, contrasts, one_convention, told_apart
from tracelens.analysis.results import Warning
from tracelens.analysis.session import Question, Session
from tracelens.analysis.sides import Word, resolve
from tracelens.analysis.spreads import same_baseline
from tracelens.errors import InputError
from tracelens.reporters.compare import VIEW

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

    long = [
        {**row, "ts": day(4), "labels": [("team", "red")]} if row["round_index"] < 6 else {**row, "ts": day(5)}
        for row in rounds("long", 5)
    ]
    rows = [
        *rounds("one", ts=day(1)),
        *rounds("two", ts=day(2), labels=[("team", "red")]),
        *rounds("three", ts=day(3), labels=[("team", "blue")]),
        *rounds("2026-05-01..2026-05-02", ts=day(9)),
        *long,
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
@pytest.mark.long
def test_a_word(named: Path, word: Word, kind: str, runs: tuple[str, ...]) -> None:
    _, side = resolve(named, Word("one"), word)
    assert (side.name, side.kind, side.runs) == ("B", kind, runs)
    assert side.question(ALL).runs == runs


def test_sides_select_and_may_share_requests(named: Path) -> None:
    """A label on one side, a period on the other; every request of `long` has a part on both."""
    found = compare(named, Word("label:team=red"), period(5, None), ALL)
    assert found.total.a is not None
    assert found.total.b is not None
    assert (found.total.a["requests"], found.total.b["requests"]) == (4 + 5, 5 + 4)
    warning = next(w for w in found.warnings if w.code == "requests_across")
    assert warning.evidence == {"requests": 5}
    assert not any(w.code == "one_run" for w in found.warnings)
    assert "one run" not in " ".join(VIEW.sheet(found).lead)


def test_one_run_is_said_where_the_sides_are_of_several() -> None:
    def of(*runs: str) -> dict[str, frozenset[str]]:
        return {"run": frozenset(runs)} | dict.fromkeys(("engine", "model", "draft_model", "method"), frozenset())

    assert told_apart(of("r"), of("r"), 0) == (), "one process is on both sides"
    (warning,) = told_apart(of("r"), of("s", "t"), 0)
    assert warning.text.startswith("A is one run")
    assert warning.evidence == {"runs_a": 1, "runs_b": 2}
    (warning,) = told_apart(of("r"), of("s"), 0)
    assert warning.text.startswith("each side is one run")


def test_advice_on_two_conventions() -> None:
    one, other = ({"engine": frozenset({"v"}), "model": frozenset({model})} for model in "mn")
    assert one_convention(one, other, named=True) == "", "the baseline's own warning says that it is of another model"
    assert "its own engine and model" in one_convention(one, other, named=False)
    assert "--baseline" in one_convention(one, one, named=False)
    change = {
        "rho": Change(because=f"{TWO_CONVENTIONS}: A run_step, B verify_pass"),
        "round_cost": Change(because=f"{TWO_CONVENTIONS}: A run_step, B verify_pass"),
        "tau_committed": Change(because=f"{TWO_CONVENTIONS}: A emitted, B verified"),
    }
    (warning,) = contrasts((), Compared({}, {}, {}, change), {}, "name one")
    assert warning.text == (
        "not compared, for each side has a convention of its own: rho, round_cost: A run_step, B verify_pass; "
        "tau_committed: A emitted, B verified; name one"
    )
    (warning,) = contrasts((), Compared({}, {}, {}, change), {}, "")
    assert warning.text.endswith("B verified")


def test_what_both_sides_say_is_said_once() -> None:
    """A sum that was taken in another order is no other evidence."""
    one, other = (Warning("noise", "two runs differ", {"low_ms": low}) for low in (0.1 + 0.2, 0.3))
    few, many = (Warning("few", text) for text in ("3 requests", "4 requests"))
    told = both_sides((one, few), (other, many), lambda w: w.text, lambda w, text: dataclasses.replace(w, text=text))
    assert [w.text for w in told] == ["two runs differ", "A: 3 requests", "B: 4 requests"]


@pytest.mark.parametrize(
    ("weights", "same"), [((0.5, 0.5, 20.2), True), ((0.1, 0.9, 20.2), True), ((0.1, 0.9, 21.0), False)]
)
def test_one_baseline_in_other_shares(weights: tuple[float, float, float], same: bool) -> None:
    """The total meets the same plain steps in other shares: one baseline where its mean is the same."""

    def side(easy: float, hard: float, baseline: float) -> Session:
        rows = [
            {"engine": "v", "model": "m", "basis": "run_step", "rounds": share, "price": price}
            for share, price in ((easy, 20.0), (hard, 20.5))
        ]
        priced = SimpleNamespace(base={"baseline_basis": "run_step"}, baseline=baseline)
        answers = SimpleNamespace(priced={"mix": {None: rows}})
        return cast("Session", SimpleNamespace(answers=answers, priced=lambda _: priced))

    assert same_baseline(side(0.5, 0.5, 20.2), side(*weights), None) is same


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (Word("four"), "runs: 2026-05-01..2026-05-02, long, off, one, three, two; versions: 0.1, 0.2"),
        (Word("two+four"), "no run four"),
        (Word("version:9"), "versions: 0.1, 0.2"),
        (Word("label:team=green"), "labels: team=blue, team=red"),
        (Word("label:nothing"), "labels: team=blue, team=red"),
        (Word("x..y", why_not="x is no time"), "x is no time"),
        (Word(""), "names nothing"),
        (period(1, 3, "2026-05-01..2026-05-02"), "is a run and a period"),
        (period(1, 2), "share 48 of the 48 records of B"),
    ],
)
@pytest.mark.long
def test_a_side_that_cannot_be(named: Path, word: Word, told: str) -> None:
    with pytest.raises(InputError) as error:
        compare(named, Word("one"), word, ALL)
    assert told in str(error.value)


def test_a_baseline_is_no_side(named: Path) -> None:
    told = (
        "A (off): Nothing to compare: only runs without speculation are selected (off: no times). Both sides must "
        "speculate; what speculation gains over such a run is told by `tracelens report --baseline off`, whether it "
        "pays by `tracelens gate --baseline off`"
    )
    with pytest.raises(InputError) as error:
        compare(named, Word("off"), Word("one"), ALL)
    assert str(error.value) == told


def test_both_sides_keep_the_filters(named: Path) -> None:
    kept = Question(by=(), until=dt.datetime(2026, 5, 3), where="task_type = 't'", runs=("one", "two"))
    _, build = resolve(named, Word("one"), Word("version:0.2"))
    assert build.question(kept) == dataclasses.replace(kept, runs=("two",))
    _, days = resolve(named, Word("one"), period(1, 9))
    assert days.question(kept) == dataclasses.replace(kept, since=dt.datetime(2026, 5, 1, tzinfo=dt.UTC))
    for word in (Word("three"), period(8, 9)):
        with pytest.raises(InputError, match="nothing is left of B"):
            compare(named, Word("one"), word, kept)
