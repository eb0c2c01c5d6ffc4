"""Old days rolled up: what every query says before and after, what is gone and told, how single rounds come back."""

from __future__ import annotations

import datetime as dt
import math
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compact_lakes import AFTER, answers, jsonl, requests_of, rounds_of, run, site

from tracelens.analysis.gate import gate
from tracelens.analysis.report import report
from tracelens.analysis.session import Question
from tracelens.analysis.sweep import sweep
from tracelens.compact.roll import Rolled
from tracelens.compact.run import compact
from tracelens.lake.connection import connect
from tracelens.lake.forget import forget
from tracelens.lake.schema import table
from tracelens.lake.store import Store

#: What single requests and steps tell: NULL after.
LOST = {
    "tau_request_mean", "near_k_request_share", "rollback_request_share", "mixed_steps", "mixed_rounds", "drag",
    "padding_waste", "step_gain", "verify_ms_per_position",
}  # fmt: skip
#: Sums of a share of a step times something else than the step's time: the share is a mean of the row's rounds.
NEAR = {"plain_tokens", "near_k_draft_ms", "near_k_step_ms", "near_k_draft_share", "near_k_step_share"}
#: Of intervals: independent units are fewer and larger.
SPREAD = ("_sums", "_relvar", "_var", "_units", "step_spread", "units", "buckets")
#: Rows, by their own words; and what is told of rolled-up rows alone.
OF_ROWS = {"records", "rows_with", "rolled_rounds"}
#: Single rounds in order, and requests one by one.
SINGLE = {"run_lengths", "top_requests", "replay_domain"}
TOTALS = (
    "select sum(weight * (drafted > 0)::integer)::bigint, sum(weight)::bigint, sum(weight * drafted)::bigint,"
    " sum(weight * accepted)::bigint, sum(weight * emitted)::bigint, sum(weight * step_us)::bigint,"
    " sum(weight * draft_us)::bigint, sum(weight * target_us)::bigint from rounds"
)


def totals(lake: Path) -> tuple[Any, ...]:
    con = connect(lake, grouped=False)
    try:
        return con.execute(TOTALS).fetchall()[0]
    finally:
        con.close()


def count(lake: Path, sql: str) -> Any:
    """The first value of a query over the files of a lake: no view, so copies are there twice."""
    con = duckdb.connect()
    for name in ("rounds", "sources"):
        con.execute(f"create view {name} as from read_parquet('{lake}/{name}/**/*.parquet', union_by_name = true)")
    found = con.execute(sql).fetchone()
    assert found is not None
    return found[0]


def single(lake: Path) -> int:
    """Rows of rounds that are not rolled up."""
    return int(count(lake, "select count(*) from rounds where rolled_requests is null"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "lake"))


@pytest.fixture(scope="module")
def rolled(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = Path(shutil.copytree(made, tmp_path_factory.mktemp("rolled") / "lake"))
    compact(lake, AFTER)
    return lake


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A cell as the values in it, by their names; a list of structs in the order of what they are of."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        value = sorted(value, key=lambda v: str([x for x in v.values() if not isinstance(x, float)]))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from flat(inner, f"{path}[{i}]")
    else:
        yield path, value


def same(before: Any, after: Any, tolerance: float) -> bool:
    if isinstance(before, int) or not isinstance(before, float) or not isinstance(after, float):
        return bool(before == after) or (
            isinstance(before, int | float) and isinstance(after, int | float)
            and not isinstance(before, bool) and math.isclose(before, after, rel_tol=tolerance)
        )  # fmt: skip
    return math.isclose(before, after, rel_tol=tolerance, abs_tol=1e-12)


def test_every_query_says_what_it_said(made: Path, rolled: Path) -> None:
    before, after = answers(made), answers(rolled)
    assert single(rolled) == 0
    compared = 0
    for name in before.keys() - SINGLE - {"spread"}:
        assert len(before[name]) == len(after[name]), name
        for old, new in zip(before[name], after[name], strict=True):
            for column, value in old.items():
                if column in OF_ROWS or column.endswith(SPREAD):
                    continue
                if column in LOST:
                    assert new[column] is None, (name, column)
                    continue
                tolerance = 0.01 if column in NEAR else 1e-9
                told = dict(flat(new[column]))
                for path, cell in flat(value):
                    assert same(cell, told[path], tolerance), (name, old.get("stratum"), column, path, cell, told[path])
                    compared += 1
    assert compared > 2000
    assert any(row[c] is not None for c in ("tau_request_mean",) for row in before["alpha"])


def test_sums_of_bootstraps_are_the_same_over_fewer_units(made: Path, rolled: Path) -> None:
    before, after = (answers(lake, "spread")["spread"] for lake in (made, rolled))
    for old, new in zip(before, after, strict=True):
        for name, values in old.items():
            if isinstance(values, list) and name != "buckets":
                assert math.isclose(sum(values), sum(new[name]), rel_tol=1e-9, abs_tol=1e-9), name


def test_single_rounds_and_requests_are_gone(rolled: Path) -> None:
    found = answers(rolled, *SINGLE)
    assert found["run_lengths"] == []
    assert found["top_requests"] == []
    assert {row["kind"] for row in found["replay_domain"]} == {"rolled_up"}


def test_fewer_rows_than_rounds(made: Path, rolled: Path) -> None:
    rows, weight = (count(rolled, f"select {what} from rounds") for what in ("count(*)", "sum(weight)"))
    assert weight == count(made, "select sum(coalesce(weight, 1)) from rounds")
    assert rows < count(made, "select count(*) from rounds")
    assert count(rolled, "select sum(rolled_requests) from rounds") == count(
        made, "select count(distinct (run_id, request_id)) from rounds where request_id is not null"
    )
    # Ids of requests are gone with them, and so are lines and steps.
    assert count(rolled, "select count(*) from rounds where request_id not like 'rolled %'") == 0
    assert count(rolled, "select count(coalesce(step_id, source_line::varchar)) from rounds") == 0


@pytest.mark.long
def test_intervals_are_about_as_wide(tmp_path: Path) -> None:
    """Of one run: several hundred requests, a few hundred groups of them."""
    spec, plain = rounds_of("k4", 360, k=4, seed=1, spans=False), rounds_of("off", 100, k=0, seed=2, spans=False)
    (tmp_path / "k4.jsonl").write_text(jsonl([*spec, *requests_of(spec)]))
    (tmp_path / "off.jsonl").write_text(jsonl([*plain, *requests_of(plain)]))
    lake = tmp_path / "lake"
    run(lake, tmp_path / "k4.jsonl")
    run(lake, tmp_path / "off.jsonl", role="baseline")
    question = Question(runs=("k4",), baseline="off")
    before = report(lake, question).total.figures
    compact(lake, AFTER)
    after = report(lake, question).total.figures
    names = ("draft_accept_ratio", "tau_verified", "tau_committed", "rho", "round_cost", "relative_token_time")
    for name in names:
        assert math.isclose(before[name], after[name], rel_tol=1e-9), name
        widths = [f[f"{name}_high"] - f[f"{name}_low"] for f in (before, after)]
        assert 0.75 < widths[1] / widths[0] < 1.33, (name, widths)
    assert before["requests"] == after["requests"] == 360
    assert math.isclose(before["n_eff"], after["n_eff"])


def in_batches(run_id: str, k: int, seed: int) -> list[dict[str, Any]]:
    """Rounds of requests that go through their steps eight at a time; the time of a step is one for all of them."""
    draw = random.Random(seed)
    out = []
    begin = dt.datetime(2026, 5, 6, 10)
    for batch in range(40):
        for step in range(12):
            ts = begin + dt.timedelta(seconds=31 * batch + 0.7 * step)
            draft, verify = draw.gauss(900.0 * k, 250.0), draw.gauss(9000, 900)
            for i in range(8):
                accepted = next((j for j in range(k) if draw.random() > 0.6), k)
                out.append(
                    {"record": "round", "run_id": run_id, "engine": "acme", "request_id": f"{run_id}-{8 * batch + i}",
                     "round_index": step, "ts": f"{ts.isoformat()}Z", "step_id": f"{batch}/{step}", "batch_size": 8,
                     "drafted": k, "accepted": accepted, "emitted": accepted + 1, "target_us": round(verify),
                     "step_us": round(verify + (draft if k else 0))} | ({"draft_us": round(draft)} if k else {})
                )  # fmt: skip
    return out


@pytest.mark.long
@pytest.mark.parametrize("baseline", ["off", 20.0])
def test_what_requests_of_one_step_share_stays_in_the_intervals(tmp_path: Path, baseline: str | float) -> None:
    """Rolled-up rounds name no step; they say how many shared one."""
    (tmp_path / "k4.jsonl").write_text(jsonl(in_batches("k4", 4, 1)))
    (tmp_path / "off.jsonl").write_text(jsonl(in_batches("off", 0, 2)))
    lake = tmp_path / "lake"
    run(lake, tmp_path / "k4.jsonl")
    run(lake, tmp_path / "off.jsonl", role="baseline")
    question = Question(runs=("k4",), baseline=baseline)
    before = report(lake, question).total.figures
    compact(lake, AFTER)
    after = report(lake, question).total.figures
    # As if no two requests shared a step, the first two would be a third as wide.
    for name in ("rho", "rho_round", "rho_verify", "verify_inflation", "round_cost", "relative_token_time"):
        widths = [f[f"{name}_high"] - f[f"{name}_low"] for f in (before, after)]
        assert 0.8 < widths[1] / widths[0] < 1.5, (name, widths)


@pytest.mark.long
def test_a_request_over_midnight_waits_for_its_other_day(lake: Path, made: Path) -> None:
    """No request is counted twice, whenever its days are rolled up."""
    before = answers(made, "alpha")["alpha"]
    seen = []
    for day in (7, 8, 9, 9):
        done = compact(lake, dt.date(2026, 5, day)).rolled
        seen.append((done.days, done.single > 0))
        after = answers(lake, "alpha")["alpha"]
        assert [r["requests"] for r in after] == [r["requests"] for r in before], day
        assert [r["n_eff"] for r in after] == pytest.approx([r["n_eff"] for r in before]), day
        assert totals(lake) == totals(made), day
    assert seen == [(1, True), (2, True), (2, False), (0, False)]
    assert single(lake) == 0


@pytest.mark.long
def test_the_same_log_is_known_and_replace_brings_its_rounds_back(lake: Path, made: Path) -> None:
    compact(lake, AFTER)
    log = made.parent / "logs" / "k5-2026-05-07.jsonl"
    again = run(lake, log)
    assert (again.sources, again.rows) == (0, {})
    assert totals(lake) == totals(made)
    back = run(lake, log, replace=True)
    assert single(lake) == back.rows["rounds"] > 100
    assert totals(lake) == totals(made)
    assert compact(lake, AFTER).rolled.rounds == back.rows["rounds"]
    assert totals(lake) == totals(made)
    assert single(lake) == 0


def test_a_source_can_be_forgotten(lake: Path, made: Path) -> None:
    compact(lake, AFTER)
    for path in (lake, made):
        assert count(path, "select count(*) from sources where name like '%k5-2026-05-07%'") == 1
    gone = count(lake, "select source_id from sources where name like '%k5-2026-05-07%'")
    other = Path(shutil.copytree(made, lake.parent / "other"))
    for path in (lake, other):
        forget(Store(path), [gone])
        assert count(path, f"select count(*) from rounds where source_id = '{gone}'") == 0
    assert totals(lake) == totals(other) != totals(made)


def test_copies_stay_single_and_count_when_the_other_goes(tmp_path: Path) -> None:
    rounds = rounds_of("r", 30, k=3, seed=3, spans=False)
    (tmp_path / "a.jsonl").write_text(jsonl(rounds))
    (tmp_path / "b.jsonl").write_text(jsonl(rounds[100:]) + '{"record":"note"}\n')  # a tail of it, as another file
    lake = tmp_path / "lake"
    run(lake, tmp_path / "a.jsonl")
    before = totals(lake)
    run(lake, tmp_path / "b.jsonl")
    assert totals(lake) == before
    done = compact(lake, AFTER)
    assert done.rolled.single == len(rounds) - 100
    assert totals(lake) == before
    compact(lake, AFTER)
    assert totals(lake) == before
    forget(Store(lake), [count(lake, "select source_id from sources where same_as is null")])
    assert count(lake, "select sum(coalesce(weight, 1)) from rounds") == len(rounds) - 100


def test_a_copy_of_a_log_that_was_merged_is_found(tmp_path: Path) -> None:
    rounds = rounds_of("r", 30, k=3, seed=4, spans=False)
    lake = tmp_path / "lake"
    for i in range(3):
        (tmp_path / f"{i}.jsonl").write_text(jsonl([r for j, r in enumerate(rounds) if j // 10 % 3 == i]))
        run(lake, tmp_path / f"{i}.jsonl")
    before = totals(lake)
    compact(lake)
    (tmp_path / "all.jsonl").write_text('{"record":"note"}\n' + jsonl(rounds))
    run(lake, tmp_path / "all.jsonl")
    assert totals(lake) == before
    assert count(lake, "select len(map_keys(same_as)) from sources where same_as is not null") == 3


def test_a_day_with_a_foreign_file_is_left(lake: Path) -> None:
    rows = [{"run_id": "x", "engine": "e", "surface": "s", "source_id": "theirs", "accepted": 1, "drafted": 2,
             "ts": dt.datetime(2026, 5, 7, 12)}]  # fmt: skip
    place = lake / "rounds" / "date=2026-05-07" / "theirs.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=table("rounds").arrow_schema()), place)
    before = totals(lake)
    done = compact(lake, AFTER)
    assert done.rolled.days == 2
    assert place.exists()
    assert totals(lake) == before
    assert single(lake) > 1


def test_nothing_is_rolled_up_twice(rolled: Path) -> None:
    names = sorted(p.name for p in rolled.rglob("*.parquet"))
    assert compact(rolled, AFTER).rolled == Rolled()
    assert sorted(p.name for p in rolled.rglob("*.parquet")) == names


@pytest.mark.long
def test_every_answer_says_so(made: Path, rolled: Path) -> None:
    question = Question(runs=("k5",), baseline="plain")
    before, after = report(made, question), report(rolled, question)
    assert "rolled_up" not in {w.code for w in before.warnings}
    [told] = [w for w in after.warnings if w.code == "rolled_up"]
    assert told.text.startswith("all of the rounds (days up to 2026-05-08) are rolled up")
    assert told.evidence["rounds"] == after.total.figures["rolled_rounds"]
    [lost] = [m for m in after.coverage if "tau_request_mean" in m.figure]
    assert lost.figure == "tau_request_mean, near_k_request_share, rollback_request_share"
    assert "rolled up" in lost.because
    assert "--replace" in lost.switch_on
    assert "rolled_up" in {w.code for w in gate(rolled, question).warnings}
    swept = sweep(rolled, question)
    assert "rolled_up" in {w.code for w in swept.warnings}
    assert swept.total.trace_k is None


def test_a_new_log_of_a_rolled_up_day_is_told(lake: Path, made: Path, tmp_path: Path) -> None:
    """Rounds that are sums have no line or time by which a copy could be known."""
    new = rounds_of("k3", 3, k=3, seed=77, days=("2026-05-07",), spans=False)
    (tmp_path / "new.jsonl").write_text(jsonl(new))
    compact(lake, AFTER)
    [(name, told)] = run(lake, tmp_path / "new.jsonl").remarks
    assert name.endswith("new.jsonl")
    assert told.startswith("has rounds of 2026-05-07, a day that is rolled up")
    assert run(lake, made.parent / "logs" / "k5-2026-05-07.jsonl", replace=True).remarks == ()
    assert run(lake, tmp_path / "new.jsonl", replace=True).remarks == ()
