"""Generic canonical JSON lines, and their rules read by polars and by DuckDB."""

from datetime import datetime
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, Engine, JsonRecord, Parsed, Reject, Tables
from tracelens.engines.generic import DERIVED, ENGINE, IDENTITIES, LIST_FACTS, NOT_READ, kind_of, time_columns
from tracelens.engines.generic.block import broken_identities
from tracelens.lake.schema import FACTS, table

ROUND = {"request_id": "r1", "round_index": 0, "drafted": 5, "accepted": 3}
REQUEST = {"request_id": "r1", "output_tokens": 31}
WINDOW = {"ts_end": "2026-04-19T10:00:10Z", "rounds": 4, "drafted": 20, "accepted": 6}


def resolve(stamps: pl.DataFrame) -> pl.DataFrame:
    text = pl.coalesce("stamp", "inner")
    ts = text.str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us", strict=False)
    return stamps.select(ts=ts, ts_basis=pl.when(ts.is_null()).then(pl.lit("none")).otherwise(pl.lit("absolute")))


def ingest(*values: dict[str, Any], stamp: str | None = None) -> tuple[Tables, list[Reject]]:
    parsed = Parsed()
    for start in range(0, len(values), 3):  # blocks of three
        part = enumerate(values[start : start + 3], start + 1)
        parsed.merge(ENGINE.records([JsonRecord(i, 10 * i, stamp, None, v) for i, v in part]))
    tables = ENGINE.assemble(parsed.frames, Context("src", resolve))
    for name in (*FACTS, "runs"):
        frame = getattr(tables, name)
        types = table(name).polars_schema() | {"run_key": pl.Int64()}
        assert frame is None or {c: t for c, t in frame.schema.items() if types.get(c) != t} == {}
    return tables, parsed.rejects + tables.rejects


def only(frame: pl.DataFrame | None) -> dict[str, Any]:
    assert frame is not None
    assert frame.height == 1
    return frame.to_dicts()[0]


def test_is_an_engine() -> None:
    assert isinstance(ENGINE, Engine)
    assert ENGINE.lines(pl.DataFrame()).frames == {}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (ROUND, "rounds"),
        ({"accepted": 3, "emitted": 4}, None),  # anybody's summary
        ({"accepted": 3, "emitted": 4, "ts": 1}, "rounds"),
        ({"accepted": 3, "drafted": 4, "engine": "mine"}, "rounds"),
        ({"accepted": 3}, None),
        ({"accepted": 3, "drafted": None}, None),
        (REQUEST, "requests"),
        ({"tpot_ms": 3}, "requests"),
        (ROUND | {"decode_s": 1}, "requests"),
        ({"request_id": "a", "rounds": 3, "accepted": 4}, "requests"),
        (WINDOW, "windows"),
        ({"window_s": 5, "generated_tokens": 9}, "windows"),
        ({"ts_end": "…"}, None),
        ({"run_id": "a", "engine_version": "1"}, "runs"),
        ({"engine_version": "1"}, None),
        (REQUEST | {"record": "round"}, "rounds"),
        (ROUND | {"table": "windows"}, "windows"),
        (ROUND | {"record": "heartbeat"}, None),
        (ROUND | {"table": "mine"}, "rounds"),
        ({}, None),
    ],
)
def test_kinds(value: dict[str, Any], kind: str | None) -> None:
    assert kind_of(value) == kind


def test_a_round_with_units_and_the_articles_figures() -> None:
    """7 ms a draft token, K = 5, 18 ms for the target."""
    value = ROUND | {"draft_ms": 35, "target_s": 0.018, "sample_us": 300, "step_ms": 53.4564, "emitted": 4}
    value |= {"engine": "My-Engine", "num_speculative_tokens": 5.0, "request_id": 7, "run_id": "a", "prompt": "zebra"}
    value |= {"ts": 1787229605.471, "step_id": "s", "labels": {"a": "zebra"}, "unknown": "zebra", "weight": 2}
    tables, rejects = ingest(value)
    assert rejects == []
    assert only(tables.rounds) == {
        "source_line": 1, "surface": "generic.round", "engine": "my-engine", "run_id": "a", "request_id": "7",
        "round_index": 0, "step_id": "s", "step_share": 1.0, "drafted": 5, "accepted": 3, "emitted": 4,
        "num_speculative_tokens": 5, "draft_us": 35000, "target_us": 18000, "sample_us": 300, "step_us": 53456,
        "ts": datetime(2026, 8, 20, 12, 40, 5, 471000), "ts_basis": "absolute", "weight": 2.0,
    }  # fmt: skip


def test_a_request_and_its_tpot() -> None:
    value = REQUEST | {
        "accepted_hist": [2, 2, 2, 2, 2, 0],
        "rounds": 10,
        "accepted": 20,
        "decode_ms": 300,
        "tpot_ms": 9,
    }
    tables, rejects = ingest(value, REQUEST | {"tpot_ms": 9.5, "ts_start_ms": 1787229605471})
    assert rejects == []
    assert tables.requests is not None
    assert tables.requests["tpot_us"].to_list() == [10000.0, 9500.0]
    assert tables.requests["tpot_basis"].to_list() == ["derived", "logged"]
    assert tables.requests["accepted_hist"].to_list() == [[2, 2, 2, 2, 2, 0], None]
    assert tables.requests["ts_start"].to_list() == [None, datetime(2026, 8, 20, 12, 40, 5, 471000)]


def test_rows_that_name_no_run_are_of_the_record_above_them() -> None:
    a, b = ({"record": "run", "run_id": name, "role": role} for name, role in (("a", "speculative"), ("b", "baseline")))
    window = {"record": "window", "ts_end": "2026-04-19T10:00:00Z", "rounds": 1, "drafted": 1, "accepted": 1}
    tables, _ = ingest(ROUND, a, ROUND, window, b, ROUND, ROUND | {"run_id": "c"})
    assert tables.rounds is not None
    assert tables.rounds["run_id"].to_list() == [None, "a", "b", "c"]
    assert tables.windows is not None
    assert tables.windows["run_id"].to_list() == ["a"]


def test_a_run_record_without_a_name_is_told_by_its_place() -> None:
    run = {"record": "run", "role": "baseline"}
    tables, _ = ingest(ROUND, run, ROUND, ROUND | {"run_id": "c"}, run, ROUND)
    assert tables.rounds is not None
    assert tables.rounds["run_key"].to_list() == [0, 1, 0, 2]


def test_a_single_run_record_speaks_for_its_whole_file() -> None:
    run = {"record": "run", "run_id": "a", "role": "baseline"}
    for records in ((run, ROUND, ROUND), (ROUND, run, ROUND), (ROUND, ROUND, run)):
        tables, _ = ingest(*records)
        assert tables.rounds is not None
        assert tables.rounds["run_id"].to_list() == ["a", "a"]


def test_a_window_and_a_run() -> None:
    tables, _ = ingest(
        WINDOW | {"accepted_per_pos": [4, 2, 0], "window_s": 10},
        {"record": "run", "run_id": "a", "engine": "x", "started": "2026-04-19T10:00:00Z", "tensor_parallel": 2},
    )
    window, run = only(tables.windows), only(tables.runs)
    assert (window["window_us"], window["accepted_per_pos"]) == (10_000_000, [4, 2, 0])
    assert (run["run_key"], run["run_id"], run["started"]) == (1, "a", datetime(2026, 4, 19, 10))


def test_step_share_counts_the_good_rows_of_a_step() -> None:
    a, b = ROUND | {"step_id": 1}, ROUND | {"step_id": 1, "request_id": "r2"}
    tables, rejects = ingest(a, b, a | {"accepted": 6}, ROUND | {"step_id": 2}, a | {"run_id": "x"}, ROUND)
    assert tables.rounds is not None
    assert tables.rounds["step_share"].to_list() == [0.5, 0.5, 1.0, 1.0, None]
    assert len(rejects) == 1


@pytest.mark.parametrize(
    ("stamps", "ts", "basis"),
    [
        ({"ts": 1787229605}, datetime(2026, 8, 20, 12, 40, 5), "absolute"),
        ({"ts": 1787229605471}, datetime(2026, 8, 20, 12, 40, 5, 471000), "absolute"),
        ({"ts": 1787229605471002}, datetime(2026, 8, 20, 12, 40, 5, 471002), "absolute"),
        ({"ts_ns": 1787229605471002000}, datetime(2026, 8, 20, 12, 40, 5, 471002), "absolute"),
        ({"ts": "2026-04-19T10:00:10Z"}, datetime(2026, 4, 19, 10, 0, 10), "absolute"),
        ({"ts_s": 12.5}, None, "relative"),
        ({}, None, "none"),
    ],
)
def test_stamps(stamps: dict[str, Any], ts: datetime | None, basis: str) -> None:
    row = only(ingest(ROUND | stamps)[0].rounds)
    assert (row.get("ts"), row["ts_basis"]) == (ts, basis)
    # An envelope says when the record was written down: what says itself when the round was is exact.
    row = only(ingest(ROUND | stamps, stamp="2026-01-01T00:00:00Z")[0].rounds)
    assert row["ts"] == (ts or datetime(2026, 1, 1))


@pytest.mark.parametrize("ts", ["2026-04-19T10:00:10", "2026-04-19 10:00", "2026-13-19T10:00:10Z", "soon Z"])
def test_an_envelope_stands_before_a_text_that_names_no_zone_or_no_time(ts: str) -> None:
    row = only(ingest(ROUND | {"ts": ts}, stamp="2026-01-01T00:00:00Z")[0].rounds)
    assert row["ts"] == datetime(2026, 1, 1)


def test_an_envelope_does_not_draw_out_a_window() -> None:
    """Both of its ends are told by the record."""
    told = {"ts_start": "2026-11-10T02:00:05Z", "ts_end": "2026-11-10T02:00:15Z"}
    row = only(ingest(WINDOW | told, stamp="2026-11-25T09:00:00Z")[0].windows)
    assert (row["ts_start"], row["ts_end"]) == (datetime(2026, 11, 10, 2, 0, 5), datetime(2026, 11, 10, 2, 0, 15))


@pytest.mark.parametrize("named", ["run_id", None])
def test_rows_that_name_no_engine_have_that_of_their_run(named: str | None) -> None:
    a, b = ({"record": "run", "engine": f"E{n}"} | ({named: n} if named else {}) for n in ("a", "b"))
    plain = {k: v for k, v in ROUND.items() if k != "engine"}
    tables, _ = ingest(plain, a, plain, plain | {"engine": "own"}, plain | {"run_id": "x"}, b, plain)
    assert tables.rounds is not None
    assert tables.rounds["engine"].to_list() == ["generic", "ea", "own", "generic", "eb"]
    if named:
        tables, _ = ingest(
            a, b, plain | {"run_id": "a"}, {"record": "run", "run_id": "c"}, plain | {"run_id": "c"}, plain
        )
        assert tables.rounds is not None
        assert tables.rounds["engine"].to_list() == ["ea", "generic", "generic"]
        assert tables.runs is not None
        assert tables.runs["engine"].to_list() == ["ea", "eb", "generic"]


def test_the_engine_of_a_run_without_a_name_is_that_of_its_own_rows_alone() -> None:
    plain = {k: v for k, v in ROUND.items() if k != "engine"}
    unnamed, named = {"record": "run", "engine": "u"}, {"record": "run", "engine": "n", "run_id": "a"}
    tables, _ = ingest(plain, unnamed, plain, named, plain, plain | {"run_id": "b"}, named | {"engine": "late"}, plain)
    assert tables.rounds is not None
    assert tables.rounds["engine"].to_list() == ["generic", "u", "n", "generic", "n"]


def test_one_record_of_a_run_speaks_for_all_rows() -> None:
    plain = {k: v for k, v in ROUND.items() if k != "engine"}
    tables, _ = ingest(plain, plain, {"record": "run", "run_id": "a", "engine": "Acme"})
    assert tables.rounds is not None
    assert tables.rounds["engine"].to_list() == ["acme", "acme"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (ROUND | {"accepted": 3.7}, "accepted: not a whole number"),
        (ROUND | {"accepted": True}, "accepted: wrong type"),
        (ROUND | {"accepted": "3"}, "accepted: wrong type"),
        (ROUND | {"accepted": float("nan")}, "accepted: not a finite number"),
        (ROUND | {"accepted": -1}, "accepted: negative"),
        (ROUND | {"drafted": 2_000_000_000}, "identity broken: drafted <= 65536"),
        (ROUND | {"draft_us": 2**60}, "identity broken: draft_us <= 1e15"),
        (WINDOW | {"rounds": 2**60, "drafted": 2**60, "accepted": 1}, "identity broken: rounds <= 1e15"),
        (ROUND | {"accepted": 2**31, "drafted": 5}, "accepted: out of range"),
        (ROUND | {"round_index": 2**63}, "round_index: out of range"),
        (ROUND | {"round_index": 10**400}, "round_index: out of range"),
        (ROUND | {"accepted": 6}, "identity broken: accepted <= drafted"),
        (ROUND | {"emitted": 5}, "identity broken: emitted <= accepted + 1"),
        (ROUND | {"accepted": None, "record": "round"}, "identity broken: accepted is not missing"),
        (ROUND | {"draft_ms": -0.1}, "draft_ms: negative"),
        (ROUND | {"draft_s": 1e300}, "draft_s: out of range"),
        (ROUND | {"temperature": float("inf")}, "temperature: not a finite number"),
        (ROUND | {"temperature": -1.0}, "identity broken: temperature >= 0"),
        (ROUND | {"top_p": 1.5}, "identity broken: top_p <= 1"),
        (ROUND | {"weight": 1e300}, "identity broken: 1e-9 <= weight <= 1e9"),
        (ROUND | {"weight": 1.0000001e9}, "identity broken: 1e-9 <= weight <= 1e9"),
        (ROUND | {"weight": 0}, "identity broken: 1e-9 <= weight <= 1e9"),
        (ROUND | {"weight": 5e-324}, "identity broken: 1e-9 <= weight <= 1e9"),
        (ROUND | {"step_share": 1e-300}, "identity broken: 1e-10 <= step_share <= 1"),
        (ROUND | {"temperature": 1e300}, "identity broken: temperature <= 1e15"),
        (WINDOW | {"draft_ms_per_token": 1e300}, "identity broken: draft_ms_per_token <= 1e15"),
        (REQUEST | {"tpot_us": 1e300}, "tpot_us: out of range"),
        (ROUND | {"model": 5}, "model: wrong type"),
        (ROUND | {"model": "\ud800"}, "model: not text"),
        (ROUND | {"request_id": ["a"]}, "request_id: wrong type"),
        (ROUND | {"has_prefill": 1}, "has_prefill: wrong type"),
        (ROUND | {"timing_basis": "guess"}, "identity broken: timing_basis is known"),
        (ROUND | {"ts": "yesterday"}, "ts: not a time"),
        (ROUND | {"ts": -5}, "ts: negative"),
        (ROUND | {"ts_s": 1e12}, "ts_s: out of range"),
        (REQUEST | {"accepted_hist": [1, 2], "rounds": 4}, "identity broken: sum of accepted_hist = rounds"),
        (REQUEST | {"accepted_hist": [1, 2], "accepted": 3}, "identity broken: sum of j * accepted_hist[j] = accepted"),
        (REQUEST | {"accepted_hist": [1, None]}, "accepted_hist: wrong type"),
        (REQUEST | {"accepted_hist": [2**62] * 4, "rounds": 0}, "identity broken: sum of accepted_hist = rounds"),
        (WINDOW | {"accepted_per_pos": [2, 4]}, "identity broken: accepted_per_pos does not increase"),
        (WINDOW | {"accepted_per_pos": [4, 1]}, "identity broken: sum of accepted_per_pos = accepted"),
        (WINDOW | {"accepted_per_pos": [6]}, "identity broken: accepted_per_pos <= rounds"),
        (WINDOW | {"ts_start": "2026-04-19T10:00:11Z"}, "identity broken: ts_start <= ts_end"),
        (WINDOW | {"kv_cache_usage": 37.5}, "identity broken: kv_cache_usage <= 1"),
    ],
)
def test_refusals_name_what_is_wrong(value: dict[str, Any], reason: str) -> None:
    tables, rejects = ingest(ROUND | {"round_index": 1}, value)
    assert [(r.line, r.offset, r.reason, r.excerpt) for r in rejects] == [(2, 20, reason, None)]
    assert only(tables.rounds)["round_index"] == 1


def test_every_duration_has_three_spellings() -> None:
    for name in (*FACTS, "runs"):
        spelled = time_columns(name)
        durations = [c.name for c in table(name).columns if c.unit == "us"]
        assert {column for column, _ in spelled.values()} == set(durations)
        assert len(spelled) == 3 * len(durations)


def duck(name: str, frame: pl.DataFrame) -> list[str | None]:
    """The first identity that each row breaks, as DuckDB reads the rules."""
    facts = "".join(f", {sql} as {fact}" for fact, sql in LIST_FACTS.get(name, {}).items())
    cases = "".join(f" when not ({sql}) then '{label}'" for label, sql in IDENTITIES[name])
    with duckdb.connect() as connection:
        connection.register("t", frame.to_arrow())
        query = f"select case{cases} end as broken from (select *{facts} from t) order by row"
        return [row[0] for row in connection.execute(query).fetchall()]


def cells(name: str) -> st.SearchStrategy[dict[str, Any]]:
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        pl.Int32(): st.integers(-1, 6),
        pl.Int64(): st.integers(-1, 6),
        pl.Float64(): st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0, 1e300, 1e-300, float("nan"), float("inf")]),
        pl.Boolean(): st.booleans(),
        pl.String(): st.sampled_from(["device", "derived", "sum", "baseline", "x"]),
        pl.Datetime("us"): st.sampled_from([datetime(2026, 1, 1), datetime(2026, 1, 2)]),
        pl.List(pl.Int64()): st.lists(st.integers(-1, 3), max_size=4),
    }
    types = {c: t for c, t in table(name).polars_schema().items() if c not in NOT_READ}
    # Mostly null: a row in which everything is set breaks its first identities only.
    return st.fixed_dictionaries(
        {},
        optional={
            c: st.one_of(st.none(), kinds[t]) if c != "accepted" else st.integers(0, 6) for c, t in types.items()
        },
    )


@pytest.mark.parametrize("name", [*FACTS, "runs"])
@pytest.mark.long
def test_polars_and_duckdb_agree_on_the_identities(name: str) -> None:
    @settings(max_examples=40, deadline=None, database=None)
    @given(st.lists(cells(name), min_size=1, max_size=8))
    def agree(rows: list[dict[str, Any]]) -> None:
        types = {c: t for c, t in table(name).polars_schema().items() if c not in NOT_READ}
        frame = pl.DataFrame({c: [r.get(c) for r in rows] for c in types}, schema=types).with_row_index("row")
        assert broken_identities(name, frame).to_list() == duck(name, frame)

    agree()


def test_polars_and_duckdb_agree_on_what_follows() -> None:
    frame = pl.DataFrame(
        {"decode_us": [30, 30, None, 5], "output_tokens": [4, 1, 3, None], "tpot_us": [1.0, 2.0, 3.0, None]}
    )
    select = ", ".join(f"{sql} as {column}" for column, sql in DERIVED["requests"].items())
    with duckdb.connect() as connection:
        connection.register("t", frame.to_arrow())
        found = connection.execute(f"select {select} from t").fetchall()
    assert found == [("derived", 10.0), ("logged", 2.0), ("logged", 3.0), (None, None)]
    assert frame.select(pl.sql_expr(sql).alias(c) for c, sql in DERIVED["requests"].items()).rows() == found


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(0, 9), st.floats(), st.text(max_size=5),
    st.lists(st.integers(-1, 5), max_size=4), st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip
KEYS = sorted({k for name in (*FACTS, "runs") for k in (*table(name).names, *time_columns(name))})


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(KEYS), anything, max_size=8), max_size=8),
    st.sampled_from(["round", "window", "request", "run"]),
)
def test_any_record_is_a_row_or_a_reject(values: list[dict[str, Any]], word: str) -> None:
    tables, rejects = ingest(*({"record": word} | value for value in values))
    frames = [f for f in (tables.rounds, tables.windows, tables.requests, tables.runs) if f is not None]
    assert sum(f.height for f in frames) + len(rejects) == len(values)
    ingest(*values)
    for row in [] if tables.rounds is None else tables.rounds.to_dicts():
        assert 0 <= row["accepted"] <= (row.get("drafted") if row.get("drafted") is not None else 1 << 31)
