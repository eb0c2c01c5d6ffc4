"""RTP-LLM: the built examples of /tests/data/rtp-llm (synthetic, from the sources) and variants made by hand."""

import copy
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, Engine, JsonRecord, Parsed, Reject, Tables
from tracelens.engines.rtp_llm import ENGINE
from tracelens.lake.schema import table

DATA = Path(__file__).parent.parent / "data" / "rtp-llm"
LINES = {"line": pl.Int64, "offset": pl.Int64, "text": pl.String, "stamp": pl.String, "stream": pl.String}


def resolve(stamps: pl.DataFrame) -> pl.DataFrame:
    text = pl.coalesce("stamp", "inner")
    ts = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    return stamps.select(ts=ts, ts_basis=pl.when(ts.is_null()).then(pl.lit("none")).otherwise(pl.lit("zone_assumed")))


def ingest(*entries: Any, stream: str | None = None) -> tuple[Tables, list[Reject]]:
    """Records (dicts) and text lines as one source, each in a block of its own."""
    parsed = Parsed()
    for i, entry in enumerate(entries, 1):
        if isinstance(entry, dict):
            parsed.merge(ENGINE.records([JsonRecord(i, 10 * i, None, stream, entry)]))
        elif any(needle.decode() in entry for needle in ENGINE.needles):
            frame = pl.DataFrame([(i, 10 * i, entry, None, stream)], schema=LINES, orient="row")
            parsed.merge(ENGINE.lines(frame))
    tables = ENGINE.assemble(parsed.frames, Context("src", resolve))
    check(tables)
    return tables, parsed.rejects + tables.rejects


def check(tables: Tables) -> None:
    """Every frame has canonical columns of the right type, and keeps the identities of SCHEMA.md."""
    for name in ("rounds", "windows", "requests", "runs"):
        frame = getattr(tables, name)
        if frame is None:
            continue
        types = table(name).polars_schema() | {"run_key": pl.Int64()}
        assert {c: t for c, t in frame.schema.items() if types.get(c) != t} == {}
        for row in frame.iter_rows(named=True):
            assert row.get("accepted") is None or 0 <= row["accepted"] <= row.get("drafted", 1 << 62)
            if row.get("accepted_hist"):
                assert sum(row["accepted_hist"]) == row["rounds"]
                assert sum(j * n for j, n in enumerate(row["accepted_hist"])) == row["accepted"]
            numbers = [v for k, v in row.items() if isinstance(v, (int, float)) and k != "accepted_hist"]
            assert all(v >= 0 and v == v for v in numbers), row
            if name == "rounds":
                assert row["emitted"] <= row["accepted"] + 1


def entries(name: str) -> list[Any]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) if line.startswith("{") else line for line in lines]


def shown(frame: pl.DataFrame | None, *columns: str) -> list[tuple[Any, ...]]:
    assert frame is not None
    return frame.select(columns).rows()


def only(frame: pl.DataFrame | None) -> dict[str, Any]:
    assert frame is not None
    assert frame.height == 1
    return frame.to_dicts()[0]


def access(**aux: Any) -> dict[str, Any]:
    """The built access line, with other fields in its aux_info."""
    record = copy.deepcopy(entries("access_r0_s0.log")[0])
    record["response"]["responses"][0]["aux_info"] |= aux
    return record


def test_is_an_engine_with_declared_surfaces() -> None:
    assert isinstance(ENGINE, Engine)
    names = [s.name for s in ENGINE.surfaces]
    assert len(set(names)) == len(names)


ACCESS = {
    "prompt_tokens": 812, "output_tokens": 15, "cached_tokens": 0, "iterations": 4, "rounds": 4, "drafted": 20,
    "accepted": 10, "emitted": 14, "accepted_hist": [1, 0, 1, 1, 0, 1], "num_speculative_tokens": 5, "queue_us": 3100,
    "decode_us": 213549, "tpot_us": 15253.5, "tpot_basis": "derived", "counts_basis": "logged", "model": "target-72b",
    "temperature": 0.7, "top_p": 0.9, "request_id": "3536840114397185", "finish_reason": "stop", "error": False,
    "engine": "rtp-llm", "source_line": 1,
}  # fmt: skip


def test_access_line() -> None:
    tables, rejects = ingest(*entries("access_r0_s0.log"))
    own = {"surface": "rtp.access", "ttft_us": 212400, "e2e_us": 425949, "task_type": "summarize"}
    own |= {"ts_end": datetime(2026, 8, 20, 20, 40, 5, 912000), "ts_basis": "zone_assumed"}
    assert only(tables.requests) == ACCESS | own
    assert (rejects, tables.rounds, tables.windows, tables.runs) == ([], None, None, None)


def test_dash_line_has_the_clients_clock_and_the_engines_counts() -> None:
    tables, _ = ingest(*entries("dash_sc_grpc_access_r0_s0.log"))
    own = {"surface": "rtp.dash_sc", "ttft_us": 214000, "e2e_us": 441200, "process": "frontend", "ts_basis": "absolute"}
    own |= {
        "ts_start": datetime(2026, 8, 20, 12, 40, 5, 471000),
        "ts_first_token": datetime(2026, 8, 20, 12, 40, 5, 685000),
        "ts_end": datetime(2026, 8, 20, 12, 40, 5, 911000),
    }
    assert only(tables.requests) == ACCESS | own


def test_query_line_is_the_arrival() -> None:
    row = only(ingest(*entries("query_access_r0_s0.log"))[0].requests)
    assert row == {
        "source_line": 1, "surface": "rtp.query", "ts_basis": "zone_assumed", "request_id": "3536840114397185",
        "ts_start": datetime(2026, 8, 20, 20, 40, 5, 471000), "model": "target-72b", "task_type": "summarize",
        "temperature": 0.7, "top_p": 0.9, "engine": "rtp-llm",
    }  # fmt: skip


def test_before_the_speculative_fields_only_iterations_and_emitted_are_known() -> None:
    row = only(ingest(*entries("access_v0.2.0.log"))[0].requests)
    assert row["task_type"] == "extract"
    assert (row["iterations"], row["emitted"], row["counts_basis"], row["tpot_us"]) == (4, 14, "derived", 442810 / 14)
    assert not {"rounds", "drafted", "accepted", "temperature", "num_speculative_tokens"} & row.keys()


def test_recorded_values() -> None:
    """Numbers of 82 recorded responses (rtp-llm.md 2.5): (out - 1) / (iter - 1)."""
    recorded = [r for r in entries("real_aux_info.jsonl") if r["iter_count"] is not None]
    tables, rejects = ingest(*({"aux_info": r} for r in recorded))
    assert tables.requests is not None
    assert (tables.requests.height, rejects) == (len(recorded), [])
    rates = [
        (r["output_tokens"], r["iterations"] + 1, round(r["emitted"] / r["iterations"], 3))
        for r in tables.requests.filter(pl.col("iterations") > 0).iter_rows(named=True)
    ]
    for expected in ((100, 26, 3.96), (20, 5, 4.75), (20, 7, 3.167), (700, 691, 1.013), (911, 906, 1.006), (50, 50, 1)):
        assert expected in rates
    assert tables.requests["request_id"][0] == "src#1"


@pytest.mark.parametrize("aux", [{"cost_time": -1.5}, {"cost_time": 100.0}, {"cost_time": float("nan")}])
def test_wrapped_or_missing_cost_is_not_measured(aux: dict[str, Any]) -> None:
    row = only(ingest(access(**aux))[0].requests)
    assert not {"e2e_us", "decode_us", "tpot_us", "tpot_basis"} & row.keys()
    assert row["ttft_us"] == 212400


def test_no_round() -> None:
    aux = {"speculative_draft_rounds": 0, "speculative_accepted_tokens_per_pos": [], "iter_count": 15}
    row = only(ingest(access(**aux))[0].requests)
    assert (row["rounds"], row["drafted"], row["accepted"], row["emitted"]) == (0, 0, 0, 14)
    assert "accepted_hist" not in row


@pytest.mark.parametrize(
    ("aux", "reason"),
    [
        ({"speculative_accepted_tokens_per_pos": [3, 4, 2]}, "does not increase"),
        ({"speculative_accepted_tokens_per_pos": [5, 1]}, "[0] <= speculative_draft_rounds"),
        ({"speculative_accepted_tokens_per_pos": []}, "is empty only when"),
        ({"speculative_accepted_tokens_per_pos": "3,3"}, "wrong type"),
        ({"speculative_accepted_tokens_per_pos": [2**40]}, "out of range"),
        ({"speculative_draft_rounds": -1}, "speculative_draft_rounds: negative"),
        ({"output_len": 3.5}, "output_len: not a whole number"),
        ({"output_len": True}, "output_len: wrong type"),
        ({"iter_count": 10**30}, "iter_count: out of range"),
        ({"cost_time": "425"}, "cost_time: wrong type"),
        ({"input_len": float("inf")}, "input_len: not a finite number"),
    ],
)
def test_broken_records_are_refused_by_name(aux: dict[str, Any], reason: str) -> None:
    tables, rejects = ingest(access(**aux))
    assert tables.requests is None
    assert [(r.line, r.surface, r.excerpt) for r in rejects] == [(1, "rtp.access", None)]
    assert reason in rejects[0].reason


def test_batches_have_a_row_an_answer() -> None:
    record = access()
    answer = record["response"]["responses"][0]
    aux = answer["aux_info"]
    bad = aux | {"output_len": -1}
    several = {"response": ["a", "b", "c"], "finished": True, "aux_info": [aux, bad, aux | {"output_len": 14}]}
    for answers, ids in (
        ([{"response_batch": [answer, answer]}], ["-0", "-1"]),
        ([answer, answer], ["-0", "-1"]),
        ([several], ["-0", "-2"]),
    ):
        record["response"]["responses"] = answers
        tables, rejects = ingest(record)
        assert [i for (i,) in shown(tables.requests, "request_id")] == [f"3536840114397185{i}" for i in ids]
        assert len(rejects) == (answers == [several])


def test_double_encoded_lines_of_the_api_server() -> None:
    record = access()
    record["request"]["request_json"] = json.dumps(record["request"]["request_json"])
    record["response"]["responses"] = [json.dumps(r) for r in record["response"]["responses"]]
    assert only(ingest(record)[0].requests) == only(ingest(access())[0].requests)
    record["response"]["responses"] = ["[" * 100_000]
    assert only(ingest(record)[0].requests)["task_type"] == "summarize"


def test_failed_request() -> None:
    record = access()
    partial = {"input_len": 812, "output_len": 3, "step_output_len": 1, "reuse_len": 0, "role_addrs": []}
    record["response"] |= {"responses": [{"aux_info": partial}], "exception": "boom zebra", "exception_traceback": "…"}
    row = only(ingest(record)[0].requests)
    assert (row["error"], row["finish_reason"], row["output_tokens"]) == (True, "error", 3)
    assert not {"emitted", "rounds", "tpot_us"} & row.keys()
    # A private request keeps only its id, and only when it failed.
    private = {
        "request": {},
        "response": {"responses": [], "exception": "x"},
        "id": 5,
        "log_time": "2026-08-20 20:40:05",
    }
    assert only(ingest(private)[0].requests) | {"ts_end": 0} == {
        "source_line": 1, "surface": "rtp.access", "ts_basis": "zone_assumed", "request_id": "5", "ts_end": 0,
        "finish_reason": "error", "error": True, "engine": "rtp-llm",
    }  # fmt: skip


def test_settings_come_from_where_the_endpoint_has_them() -> None:
    record = access()
    request = record["request"]["request_json"]
    request |= {
        "extra_configs": {"generate_config": {"force_sp_accept": True, "temperature": 0.1}},
        "model": "/mnt/ann/m",
    }
    del request["temperature"], request["extend_fields"]
    request |= {"source": "app-a", "response_format": {"type": "json_object"}}
    row = only(ingest(record)[0].requests)
    assert (row["forced_acceptance"], row["temperature"], row["task_type"], row["model"]) == (True, 0.1, "app-a", "m")
    request["source"] = "a prompt\nof two lines"
    request["extra_configs"]["generate_config"]["temperature"] = "hot"
    assert not {"task_type", "temperature"} & only(ingest(record)[0].requests).keys()


def test_dash_forwarder_and_logged_tpot() -> None:
    record = entries("dash_sc_grpc_access_r0_s0.log")[0]
    row = only(ingest({k: v for k, v in record.items() if k != "aux_info"})[0].requests)
    assert (row["tpot_us"], row["tpot_basis"], row["emitted"], row["output_tokens"]) == (15300.0, "logged", 14, 15)
    forwarder = {
        "event": "rpc_completed",
        "component_role": "forwarder",
        "capture_mode": "forward_summary",
        "status": "X",
    }
    forwarder |= {"request_id": "u", "latency_total_ms": 5.5, "ts_epoch_ms": record["ts_epoch_ms"]}
    row = only(ingest(forwarder)[0].requests)
    assert (row["process"], row["e2e_us"], row["error"], "tpot_us" in row) == ("forwarder", 5500, True, False)


def test_only_finished_responses_are_aux_info() -> None:
    aux = access()["response"]["responses"][0]["aux_info"]
    chunk = {"object": "chat.completion.chunk", "choices": [{"delta": {}, "finish_reason": None}], "aux_info": aux}
    for other in (chunk, {"finished": False, "aux_info": aux}, {"aux_info": {"output_len": 3}}, {"aux_info": [aux]}):
        assert ingest(other)[0].requests is None
    assert only(ingest({"response": "x", "finished": True, "aux_info": aux})[0].requests)["surface"] == "rtp.aux_info"


def test_nothing_of_the_user_is_kept() -> None:
    record = json.loads(json.dumps(access()).replace("<redacted>", "zebra-7431").replace("t-0001", "zebra-7431"))
    broken = copy.deepcopy(record)
    broken["response"]["responses"][0]["aux_info"]["output_len"] = "zebra-7431"
    tables, rejects = ingest(record, broken)
    assert "zebra" not in f"{only(tables.requests)} {rejects}"


@pytest.mark.parametrize(("gone", "lost"), [("id", {"request_id"}), ("log_time", {"ts_end"})])
def test_a_record_without_its_id_or_stamp_is_one(gone: str, lost: set[str]) -> None:
    """What a pipeline took away is missed, and the rest of the record is good."""
    record = access()
    whole = only(ingest(record)[0].requests)
    del record[gone]
    tables, rejects = ingest(record)
    row = only(tables.requests)
    assert not rejects
    assert {c for c in whole if row.get(c) != whole[c]} <= lost | {"ts_basis"}
    assert row["accepted"] == whole["accepted"]


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(0, 20), st.floats(), st.text(max_size=4),
    st.lists(st.integers(-2, 9), max_size=5), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip
AUX_KEYS = ("cost_time", "first_token_cost_time", "wait_time", "iter_count", "input_len", "output_len", "reuse_len")
AUX_KEYS += ("speculative_draft_rounds", "speculative_accepted_tokens_per_pos")


@settings(max_examples=150, deadline=None)
@given(
    aux=st.dictionaries(st.sampled_from(AUX_KEYS), values),
    top=values,
    where=st.sampled_from(["request", "response", "id", "log_time"]),
)
def test_any_access_line_gives_a_row_or_a_reject(aux: dict[str, Any], top: Any, where: str) -> None:
    tables, rejects = ingest(access(**aux))
    assert (tables.requests is not None) != bool(rejects)
    tables, rejects = ingest(access(**aux) | {where: top})
    assert tables.requests is not None or rejects


@settings(max_examples=100, deadline=None)
@given(
    changed=st.dictionaries(st.sampled_from(sorted(entries("dash_sc_grpc_access_r0_s0.log")[0])), values, max_size=6),
    top=st.sampled_from(["generate_config", "temperature"]),
)
def test_any_dash_line_gives_a_row_or_a_reject(changed: dict[str, Any], top: str) -> None:
    record = entries("dash_sc_grpc_access_r0_s0.log")[0] | changed | {"event": "rpc_completed"}
    tables, rejects = ingest(record)
    assert (tables.requests is not None) != bool(rejects)
