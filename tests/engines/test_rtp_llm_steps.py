"""RTP-LLM: engine.log at DEBUG (both engines), the configuration dump, step JSON lines. All examples are synthetic."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Tables
from tracelens.engines.rtp_llm import ENGINE
from tracelens.lake.schema import table

DATA = Path(__file__).parent.parent / "data" / "rtp-llm"
LINES = {"line": pl.Int64, "offset": pl.Int64, "text": pl.String, "stamp": pl.String, "stream": pl.String}
OLD = "[rtp_llm/cpp/SpeculativeEngine.cc:1][void rtp_llm::Sampler::update(...) const [with T = int; U = X<int[3]>]] "


def resolve(stamps: pl.DataFrame) -> pl.DataFrame:
    text = pl.coalesce("stamp", "inner")
    ts = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    return stamps.select(ts=ts, ts_basis=pl.when(ts.is_null()).then(pl.lit("none")).otherwise(pl.lit("zone_assumed")))


def ingest(*entries: Any, blocks: int = 1) -> tuple[Tables, list[Reject]]:
    """Text lines and records (dicts) as one source, in some number of blocks."""
    parsed = Parsed()
    size = -(-len(entries) // blocks)
    for start in range(0, len(entries), size):
        part = list(enumerate(entries[start : start + size], start + 1))
        records = [JsonRecord(i, i, None, None, e) for i, e in part if isinstance(e, dict)]
        texts = [(i, i, e, None, None) for i, e in part if isinstance(e, str)]
        parsed.merge(ENGINE.records(records))
        texts = [t for t in texts if any(n.decode() in t[2] for n in ENGINE.needles)]
        if texts:
            parsed.merge(ENGINE.lines(pl.DataFrame(texts, schema=LINES, orient="row")))
    tables = ENGINE.assemble(parsed.frames, Context("src", resolve))
    for name in ("rounds", "windows", "runs"):
        frame = getattr(tables, name)
        types = table(name).polars_schema() | {"run_key": pl.Int64()}
        assert frame is None or {c: t for c, t in frame.schema.items() if types.get(c) != t} == {}
    if tables.rounds is not None:
        for row in tables.rounds.iter_rows(named=True):
            drafted = row["drafted"]
            assert 0 <= row["accepted"] == row["emitted"] - 1
            assert drafted is None or row["accepted"] <= drafted
    return tables, parsed.rejects + tables.rejects


def sample(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").splitlines()


def at(us: int, message: str, *, pid: str = "4242:4311", rank: str | None = "0", where: str = OLD) -> str:
    mine = f"[RANK {rank}][192.0.2.10]{where}" if rank is not None else ""
    return f"[2025-11-03 10:15:42.{us:06d}] [DEBUG] [{pid}] {mine}{message}"


def stream(request: int, propose: int, accept: int) -> str:
    head = f"stream [{request}], topk = [1], topp = [0.900000], "
    return f"{head}propose_token_num = [{propose}], accept_token_num = [{accept}]"


def times(total: int, draft: int, target: int, sample_us: int, more: str = "") -> str:
    head = f"total_step_time: {total}, propose_time: {draft}, score_time: {target}"
    return f"{head}, sampler_time: {sample_us}{more}"


def rows(frame: pl.DataFrame | None, *columns: str) -> list[tuple[Any, ...]]:
    assert frame is not None
    return frame.select(columns).rows()


COUNTS = ("request_id", "round_index", "drafted", "accepted", "emitted", "batch_size", "step_share")
TIMES = ("draft_us", "target_us", "sample_us", "step_us", "timing_basis", "has_prefill")


@pytest.mark.parametrize("blocks", [1, 3, 16])
def test_the_triple_of_the_old_engine(blocks: int) -> None:
    tables, rejects = ingest(*sample("engine_v0.2.0_debug.log"), blocks=blocks)
    accepted = [(2, 3), (5, 1), (0, 5), (3, 0)]
    assert rows(tables.rounds, *COUNTS) == [
        (request, i, 5, a, a + 1, 2, 0.5)
        for i, pair in enumerate(accepted)
        for request, a in zip(("81423", "81425"), pair, strict=True)
    ]
    steps = [
        (35120, 17984, 308, 53412),
        (34870, 18105, 291, 53266),
        (35301, 17920, 300, 53521),
        (35004, 18051, 295, 53350),
    ]
    assert rows(tables.rounds, *TIMES) == [(*step, "host", False) for step in steps for _ in range(2)]
    assert tables.rounds is not None
    assert tables.rounds["step_id"].n_unique() == 4
    assert tables.rounds["top_p"].to_list() == [1.0, 0.9] * 4
    # No start is told: the rounds stay in the run that the access log beside them has too.
    assert set(rows(tables.rounds, "num_speculative_tokens")) == {(5,)}
    assert (rejects, tables.windows, tables.runs, "run_key" in tables.rounds.columns) == ([], None, None, False)


def test_the_articles_example() -> None:
    """7 ms a draft token, K = 5, 18 ms for the target: rho_verify 7/18, 53 ms a round."""
    tables, _ = ingest(at(1, stream(7, 5, 4)), at(2, times(53000, 35000, 18000, 0)))
    assert rows(tables.rounds, *TIMES[:4], "repack_us") == [(35000, 18000, None, 53000, None)]


def test_prefill_rounds_plain_steps_and_the_fifth_field() -> None:
    tables, rejects = ingest(
        at(1, stream(7, 0, 1)),
        at(2, stream(8, 5, 6)),
        at(3, "propose_token_num: 5, accept_token_num: 6, stream_num: 1"),
        at(4, times(60, 20, 30, 6, ", update_time: 4")),
        at(5, "stream [7], topk = [1], topp = [1.000000], propose_tokens = 0, accept_tokens = 1"),
        at(6, times(40, 0, 30, 10)),
    )
    assert rejects == []
    assert rows(tables.rounds, *COUNTS[:6], "has_prefill") == [
        ("8", 0, 5, 5, 6, 2, True), ("7", 0, 0, 0, 1, 1, False),
    ]  # fmt: skip
    assert rows(tables.rounds, "draft_us", "sample_us", "repack_us", "step_us") == [
        (20, 6, 4, 60), (0, 10, None, 40),
    ]  # fmt: skip


def test_zero_phases_are_not_measured() -> None:
    tables, _ = ingest(
        at(1, stream(7, 5, 4)), at(2, times(53, 0, 0, 0)), at(3, stream(7, 5, 4)), at(4, times(9, 0, 8, 1))
    )
    assert rows(tables.rounds, *TIMES[:4]) == [(None, None, None, 53), (None, 8, 1, 9)]


def test_steps_are_told_apart_by_writer_and_by_what_is_missing() -> None:
    other = {"pid": "9:9", "rank": "4"}
    tables, _ = ingest(
        at(1, stream(7, 5, 1)),
        at(2, stream(7, 5, 2), **other),
        at(3, times(11, 5, 5, 1)),
        at(4, times(22, 10, 10, 2), **other),
        at(5, stream(7, 5, 3)),  # its times line was lost
        at(6, stream(7, 5, 4)),
        at(7, times(33, 15, 15, 3)),
        at(8, stream(7, 5, 5)),
        at(9, times(44, 20, 20, 4)[:-12]),  # cut
        at(10, stream(7, 5, 6)),  # the log ends
    )
    expected = [(0, 1.0, 11), (1, 1.0, 22), (2, 1.0, None), (3, 1.0, 33), (4, 1.0, None), (5, 1.0, None)]
    assert rows(tables.rounds, "accepted", "step_share", "step_us") == expected
    assert tables.rounds is not None
    assert tables.rounds["step_id"].n_unique() == 6


def test_times_alone_are_windows_of_one_step() -> None:
    totals = "propose_token_num: 10, accept_token_num: 7, stream_num: 2"
    tables, _ = ingest(at(1, times(53, 35, 17, 1)), at(2, totals), at(3, times(54, 36, 17, 1)))
    columns = ("steps", "rounds", "drafted", "accepted", "emitted", "draft_us", "time_basis")
    assert rows(tables.windows, *columns) == [(1, None, None, None, None, 35, "sample"), (1, 2, 10, 5, 7, 36, "sum")]


def test_broken_rounds_and_differing_totals_are_told() -> None:
    tables, rejects = ingest(
        at(1, stream(7, 5, 7)),
        at(2, stream(8, 5, 0)),
        at(3, stream(9, 5, 2)),
        at(4, "propose_token_num: 20, accept_token_num: 9, stream_num: 3"),
        at(5, times(53, 35, 17, 1)),
        at(6, stream(10, 5, 10**30)),
    )
    assert rows(tables.rounds, "request_id", "batch_size", "step_share", "step_us") == [("9", 3, 1.0, 53)]
    assert sorted((r.line, r.reason.split(":")[0]) for r in rejects) == [
        (1, "identity broken"), (2, "identity broken"), (4, "totals differ from the stream lines"),
        (6, "identity broken"),
    ]  # fmt: skip


def test_quoted_metrics_are_no_metrics() -> None:
    fake = stream(7, 5, 5)
    tables, rejects = ingest(
        fake,
        "INFO " + at(1, fake),
        at(1, "prompt: " + fake),
        at(1, f"prompt: [x] {fake}"),
        at(1, "generate input: dispatch decode done"),
        at(1, "query [stream 5 (1 -> 3)] no swap cache blocks"),
        at(1, "the user writes gen_num_per_cycle: 9 here"),
    )
    assert (tables.rounds, tables.runs, rejects) == (None, None, [])
    tables, rejects = ingest(at(1, fake + " said the user"))
    assert (tables.rounds, [r.reason for r in rejects]) == (None, ["stream line is not whole"])
    # In TRACE mode there is no place, other loggers have no rank.
    tables, _ = ingest(at(1, " " + fake, where=""), at(2, fake, rank=None))
    assert tables.rounds is not None
    assert tables.rounds.height == 2


@pytest.mark.parametrize("blocks", [1, 5])
def test_mtp_executor(blocks: int) -> None:
    tables, rejects = ingest(*sample("engine_main_debug.log"), blocks=blocks)
    assert rejects == []
    columns = (*COUNTS[1:], "context_len", "step_us", "timing_basis", "num_speculative_tokens", "source_line")
    assert rows(tables.rounds, *columns) == [
        (0, 4, 2, 3, 1, 1.0, 813, None, None, 4, 11),
        (1, 4, 4, 5, 1, 1.0, 816, 22030, "derived", 4, 23),
        (2, 4, 0, 1, 1, 1.0, 821, 22030, "derived", 4, 35),
    ]
    assert tables.rounds is not None
    assert set(tables.rounds["request_id"]) == {"3536840114397185"}
    assert not {"draft_us", "target_us"} & set(tables.rounds.columns)
    assert tables.runs is None


def test_mtp_ids_batches_idle_and_unknown_k() -> None:
    def swap(request: str, before: int, after: int) -> str:
        return f"[stream {request} ({before} -> {after})] no swap cache blocks"

    tables, rejects = ingest(
        at(1, swap("-77", 5, 7)),
        at(2, swap("request_id=u-1 trace_id=(1 -> 9)] swap source_role=x", 10, 11), pid="4242:99"),
        at(3, "dispatch decode done"),
        at(4, swap("-77", 7, 7)),
        at(5, "dispatch decode done"),
        at(6, swap("5", 1, 3)),
        at(9, "dispatch decode done"),
    )
    assert rows(tables.rounds, "request_id", "drafted", "accepted", "batch_size", "step_share", "step_us") == [
        ("-77", None, 1, 2, 0.5, None),
        ("u-1", None, 0, 2, 0.5, None),
        ("5", None, 1, 1, 1.0, None),  # nobody of the step before: the engine may have idled
    ]
    assert [(r.line, r.surface) for r in rejects] == [(4, "rtp.mtp_debug")]
    loop = at(1, "[MTP draftDecode] loop step 0/1 start, batch_size 1")
    tables, rejects = ingest(loop, at(2, swap("5", 1, 4)), at(3, swap("6", 1, 5)))
    assert (rows(tables.rounds, "drafted", "accepted"), [r.line for r in rejects]) == ([(2, 2)], [3])


def test_the_configuration_dump_starts_a_run() -> None:
    dump = ["[SpeculativeExecutionConfig]", "model_type: qwen_2-mtp", "type: mtp", "gen_num_per_cycle: 4"]
    tables, _ = ingest(*dump, *dump, at(1, stream(7, 4, 2)), "gen_num_per_cycle: 2", at(2, stream(7, 2, 2)))
    columns = ("run_key", "method", "num_speculative_tokens", "engine_era", "role")
    assert rows(tables.runs, *columns) == [(0, "mtp", 4, "sp_engine", "speculative"), (1, None, 2, "sp_engine", None)]
    assert rows(tables.rounds, "run_key", "num_speculative_tokens") == [(0, None), (1, None)]  # from the run
    varied = [stream(7, propose, 1) for propose in (1, 2, 3, 0, 2)]
    tables, _ = ingest(*(at(i, text) for i, text in enumerate(varied)))
    assert set(rows(tables.rounds, "num_speculative_tokens")) == {(None,)}


STEP: dict[str, Any] = {
    "ts_us": 1787229605471000, "dp_rank": 0, "step_latency_us": 53412, "propose_step_latency_us": 35120,
    "score_step_latency_us": 17984, "speculative_sampler_latency_us": 308, "total_propose_token_num": 10,
    "total_accepted_token_num": 7, "total_stream_num": 2, "spec_steps": 5, "generate_batch_size": 2,
    "streams": [
        {"request_id": 81423, "propose_token_num": 5, "accept_token_num": 3, "top_k": 1, "top_p": 1.0},
        {"request_id": 81425, "propose_token_num": 5, "accept_token_num": 4, "top_k": 20, "top_p": 0.9},
    ],
}  # fmt: skip


def test_step_json() -> None:
    tables, rejects = ingest(STEP)
    assert rejects == []
    assert rows(tables.rounds, *COUNTS) == [("81423", 0, 5, 2, 3, 2, 0.5), ("81425", 0, 5, 3, 4, 2, 0.5)]
    assert rows(tables.rounds, *TIMES) == [(35120, 17984, 308, 53412, "host", False)] * 2
    assert (
        rows(tables.rounds, "replica", "num_speculative_tokens", "ts_basis", "surface")
        == [("0", 5, "absolute", "rtp.step_json")] * 2
    )
    alone = {k: v for k, v in STEP.items() if k != "streams"}
    tables, _ = ingest(alone)
    columns = ("steps", "rounds", "drafted", "accepted", "emitted", "draft_us", "target_us", "window_us", "time_basis")
    assert rows(tables.windows, *columns) == [(1, 2, 10, 5, 7, 35120, 17984, 53412, "sum")]


def test_step_json_of_mtp_executor_has_no_phases_and_lagging_counts() -> None:
    zero = {"propose_step_latency_us": 0, "score_step_latency_us": 0, "speculative_sampler_latency_us": 0}
    assert rows(ingest(STEP | zero)[0].rounds, *TIMES[:4]) == [(None, None, None, 53412)] * 2
    late = [STEP | {"accept_lag_steps": 1, "step_latency_us": 100 * i} for i in (1, 2, 3)]
    assert rows(ingest(*late)[0].rounds, "step_us") == [(s,) for s in (None, None, 100, 100, 200, 200)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"total_accepted_token_num": 8}, "totals differ"),
        ({"streams": [{"propose_token_num": 5, "accept_token_num": 7}]}, "1 <= accept_token_num"),
        ({"streams": [{"propose_token_num": 5}]}, "missing"),
        ({"streams": [5]}, "wrong type"),
        ({"streams": [], "total_accepted_token_num": 1}, "streams <= total_accepted_token_num"),
        ({"step_latency_us": -1}, "negative"),
        ({"spec_steps": float("nan")}, "not a finite number"),
    ],
)
def test_broken_steps(change: dict[str, Any], reason: str) -> None:
    tables, rejects = ingest(STEP | change)
    assert (tables.rounds, tables.windows) == (None, None)
    assert reason in rejects[0].reason


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(STEP["streams"][0])), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(STEP)), anything, max_size=5))
def test_any_step_gives_rows_or_a_reject(change: dict[str, Any]) -> None:
    tables, rejects = ingest(STEP | change)
    assert tables.rounds is not None or tables.windows is not None or rejects or not change.get("streams", True)


line = st.one_of(
    st.builds(stream, st.integers(0, 3), st.integers(0, 6), st.integers(0, 8)),
    st.builds(times, *[st.integers(0, 99)] * 4),
    st.builds("propose_token_num: {}, accept_token_num: {}, stream_num: {}".format, *[st.integers(0, 30)] * 3),
    st.builds("[stream {} ({} -> {})] no swap cache blocks".format, *[st.integers(0, 9)] * 3),
    st.builds("[MTP draftDecode] loop step 0/{} start, batch_size {}".format, *[st.integers(0, 4)] * 2),
    st.just("dispatch decode done"),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(line, st.sampled_from(["1:1", "1:2"]), st.integers(0, 40)), max_size=25), st.integers(1, 4))
def test_any_order_of_lines_keeps_the_identities(messages: list[tuple[str, str, int]], blocks: int) -> None:
    texts = [
        at(i, text[: len(text) - cut] if cut < 4 else text, pid=pid) for i, (text, pid, cut) in enumerate(messages)
    ]
    tables, _ = ingest(*texts, blocks=blocks) if texts else ingest("x")
    if tables.rounds is not None:
        shares = tables.rounds.group_by("surface", "step_id").agg(pl.col("step_share").sum())["step_share"]
        assert all(abs(share - 1) < 1e-9 for share in shares)
        json.dumps(tables.rounds.drop("ts").to_dicts())
