"""SGLang: batch lines of every release, start-up lines, adaptive K, simulated acceptance. Synthetic examples."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Tables
from tracelens.engines.sglang import ENGINE
from tracelens.engines.sglang.windows import fitting, identified
from tracelens.lake.schema import table

DATA = Path(__file__).parent.parent / "data" / "sglang"
LINES = {"line": pl.Int64, "offset": pl.Int64, "text": pl.String, "stamp": pl.String, "stream": pl.String}
COUNTS = ("rounds", "plain_steps", "drafted", "accepted", "emitted")


def resolve(stamps: pl.DataFrame) -> pl.DataFrame:
    text = pl.coalesce("stamp", "inner").str.replace("T", " ")
    ts = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    return stamps.select(ts=ts, ts_basis=pl.when(ts.is_null()).then(pl.lit("none")).otherwise(pl.lit("zone_assumed")))


def ingest(*entries: Any, blocks: int = 1, streams: Any = None) -> tuple[Tables, list[Reject]]:
    """Text lines (str) and records (dict) as one source, in some number of blocks."""
    parsed = Parsed()
    size = -(-len(entries) // blocks)
    for start in range(0, len(entries), size):
        part = list(enumerate(entries[start : start + size], start + 1))
        parsed.merge(ENGINE.records([JsonRecord(i, i, None, None, e) for i, e in part if isinstance(e, dict)]))
        texts = [(i, i, e, None, streams and streams[i - 1]) for i, e in part if isinstance(e, str)]
        texts = [t for t in texts if any(n.decode() in t[2] for n in ENGINE.needles)]
        if texts:
            parsed.merge(ENGINE.lines(pl.DataFrame(texts, schema=LINES, orient="row")))
    tables = ENGINE.assemble(parsed.frames, Context("src", resolve))
    for name in ("windows", "requests", "runs"):
        frame = getattr(tables, name)
        types = table(name).polars_schema()
        if frame is not None:
            frame.select(c for c in types if c in frame.columns).cast(
                {c: types[c] for c in types if c in frame.columns}
            )
    return tables, parsed.rejects + tables.rejects


def sample(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").splitlines()


def decoded(tables: Tables) -> pl.DataFrame:
    assert tables.windows is not None
    return tables.windows.filter(pl.col("surface") == "sglang.decode_line")


def line(
    at: str,
    running: int,
    length: float | None = None,
    rate: float | None = None,
    *,
    ranks: str = " TP0",
    tput: float = 100.0,
    number: int | None = None,
    more: str = "",
) -> str:
    accept = "" if length is None else f"accept len: {length:.2f}, "
    accept += "" if rate is None else f"accept rate: {rate:.2f}, "
    batch = "" if number is None else f" [{number}]"
    return (
        f"[2026-03-12 {at}{ranks}] Decode batch{batch}, #running-req: {running}, #token: 512, token usage: 0.01, "
        f"{accept}{more}cuda graph: True, gen throughput (token/s): {tput:.2f}, #queue-req: 0"
    )


def test_every_form_since_0_4_1() -> None:
    tables, rejects = ingest(*sample("sglang_decode_lines.log"))
    assert rejects == []
    # 1 + accepted / rounds is accept len in each: 2.44 in both conventions of the rate, which is 0.61 and 0.48.
    assert decoded(tables).select(*COUNTS).rows() == [
        (0, 40, 0, 0, 40),
        (40, None, 120, 88, 128),
        (80, None, 240, 137, 217),
        *[(320, None, 960, 461, 781)] * 9,
    ]
    assert decoded(tables)["replica"].to_list() == [None] * 4 + ["1"] + [None] * 6 + ["0"]
    assert decoded(tables)["waiting"].to_list() == [0] * 3 + [3] * 9
    assert decoded(tables)["kv_cache_usage"].to_list() == [0.01, 0.01, 0.02] + [0.11] * 9
    assert decoded(tables)["ts_end"][11] == datetime(2026, 9, 20, 10, 0, 0, 123000)
    assert set(decoded(tables)["rounds_basis"]) == {"estimated"}


@pytest.mark.parametrize("blocks", [1, 2, 10])
def test_a_server_log(blocks: int) -> None:
    tables, rejects = ingest(*sample("server.log"), blocks=blocks)
    assert rejects == []
    second = datetime(2026, 3, 12, 10, 0, 1)
    columns = (*COUNTS, "running", "rounds_basis", "window_us", "step_us", "steps", "num_speculative_tokens", "run_key")
    assert decoded(tables).select(*columns).rows() == [
        (160, None, 480, 240, 400, 4, "estimated", None, None, 40, 3, 1),
        # The same batch at both ends, no prefill between, and the stamps agree: 4 x 40 rounds in 400 / 400 s.
        (160, None, 480, 240, 400, 4, "derived", 1_000_000, 1_000_000, 40, 3, 1),
        (200, None, 600, 280, 480, 5, "estimated", 2_000_000, None, 40, 3, 1),
        (120, None, 360, 360, 480, 3, "estimated", 1_000_000, None, 40, 3, 1),
    ]
    assert decoded(tables)["ts_start"].to_list()[1] == second
    assert tables.windows is not None
    prefill = tables.windows.filter(pl.col("surface") == "sglang.prefill_line")
    assert prefill.select("prompt_tokens", "running", "waiting", "steps", "rounds").rows() == [
        (2048, 0, 0, 1, None),
        (512, 4, 1, 1, None),
    ]
    assert tables.runs is not None
    told = ("model", "draft_model", "method", "role", "num_speculative_tokens", "tensor_parallel", "max_num_seqs")
    assert tables.runs.select(told).rows() == [("llama-8b", "eagle3-llama-8b", "eagle3", "speculative", 3, 2, 64)]
    assert tables.runs["started"].to_list() == [datetime(2026, 3, 12, 9, 59, 40)]


def test_a_tree_has_a_depth_and_nodes() -> None:
    args = "speculative_num_steps=5, speculative_eagle_topk=4, speculative_num_draft_tokens=8"
    args = f"speculative_algorithm='EAGLE', {args}"
    tables, _ = ingest(
        f"[2025-05-01 09:00:00] server_args=ServerArgs(model_path='m', {args})", line("10:00:01", 2, 3.0, 0.43)
    )
    assert decoded(tables).select("drafted", "accepted", "num_speculative_tokens", "num_draft_nodes").rows() == [
        (400, 160, 5, 7)
    ]
    # Without the start the rate tells 7 nodes and no depth.
    tables, _ = ingest(line("10:00:01", 2, 3.0, 0.43), line("10:00:02", 2, 2.5, 0.31))
    assert decoded(tables).select("drafted", "accepted", "num_draft_nodes").rows() == [
        (None, 160, None),
        (None, 120, None),
    ]


def test_baseline_and_restart() -> None:
    plain = (
        "[2026-03-12 09:00:00] server_args=ServerArgs(model_path='org/m', speculative_algorithm=None, random_seed=1)"
    )
    tables, _ = ingest(
        plain, line("10:00:01", 2), plain.replace("=1)", "=2)"), plain.replace("=1)", "=2)"), line("10:00:02", 1)
    )
    assert tables.runs is not None
    assert tables.runs.select("run_key", "role", "model", "method").rows() == [
        (1, "baseline", "org/m", None),
        (2, "baseline", "org/m", None),
    ]
    assert decoded(tables).select("run_key", *COUNTS).rows() == [(1, 0, 80, 0, 0, 80), (2, 0, 40, 0, 0, 40)]


def test_tp_ranks_once_dp_ranks_each() -> None:
    lines = [
        line("10:00:01", r, 2.0, ranks=ranks)
        for r, ranks in ((1, " DP0 TP0"), (1, " DP0 TP1"), (3, " DP1 TP4"), (3, " DP1 TP5"))
    ]
    tables, _ = ingest(*lines, lines[0])
    assert decoded(tables).select("replica", "running").rows() == [("0", 1), ("1", 3)]
    tables, _ = ingest(*[lines[0]] * 2, streams=["pod-a", "pod-b"])
    assert decoded(tables).height == 2


def test_the_forward_counter_tells_interval_and_prefill() -> None:
    marks = [(0, 1000), (1, 1040), (2, 1090)]
    rows = [line(f"10:00:0{s}", 2, 2.0, tput=160.0, number=n) for s, n in marks]
    assert decoded(ingest(*rows)[0])["rounds_basis"].to_list() == ["estimated", "derived", "estimated"]
    # A decode server of a P/D pair gets requests without a prefill pass.
    rows = [r.replace("cuda graph", "#prealloc-req: 0, #transfer-req: 0, cuda graph") for r in rows]
    assert decoded(ingest(*rows)[0])["rounds_basis"].to_list() == ["estimated"] * 3
    # An interval below 40 shows in the counter.
    rows = [line(f"10:00:0{s}", 2, 2.0, number=n) for s, n in ((0, 10), (1, 20), (2, 30))]
    assert decoded(ingest(*rows)[0])["rounds"].to_list() == [20, 20, 20]


def test_cut_lines() -> None:
    whole = line("10:00:01", 4, 2.17, 0.54)
    rate = whole[: whole.index("accept rate") + 14]
    tables, rejects = ingest(
        rate, whole[: whole.index("2.17") + 2], whole[: whole.index("token usage")], whole[: whole.index("4,") + 1]
    )
    assert decoded(tables).select("source_line", "accepted", "generated_tokens").rows() == [(1, 187, 347)]
    assert [(r.line, r.reason) for r in rejects] == [
        (2, "incomplete line: no accept len"),
        (3, "incomplete line: no accept len"),
        (4, "incomplete line: no #running-req"),
    ]


@given(st.integers(60, 190))
@settings(max_examples=60, deadline=None)
def test_wrapped_lines(at: int) -> None:
    whole = line("10:00:01", 4, 2.17, 0.54)
    at = min(at, whole.index("#queue-req") - 1)
    assert (
        decoded(ingest(whole[:at], whole[at:])[0])
        .drop("source_line")
        .equals(decoded(ingest(whole)[0]).drop("source_line"))
    )
    blank = whole.rindex(" ", 0, at)
    if "#running-req" in whole[:blank]:  # wrapped at a blank that is lost
        words = decoded(ingest(whole[:blank], whole[blank + 1 :])[0])
        assert words.select(COUNTS).rows() == decoded(ingest(whole)[0]).select(COUNTS).rows()


@pytest.mark.parametrize("width", [70, 80, 100, 132, 200])
def test_a_line_wrapped_by_a_terminal(width: int) -> None:
    """Pieces of one width; a cut may fall into a number or a word, as long as each piece has something of ours."""
    long = sample("sglang_decode_lines.log")[-1]
    pieces = [long[i : i + width] for i in range(0, len(long), width)]
    other = "[2026-09-20 10:00:01] INFO: token usage is explained in the documentation"
    tables, rejects = ingest(*pieces, other)
    assert rejects == []
    assert decoded(tables).equals(decoded(ingest(long)[0]))


def test_pieces_of_other_lines_are_not_put_together() -> None:
    whole = line("10:00:01", 4, 2.17, 0.54)
    cut = whole[: whole.index("2.17") + 2]
    for after in ("accept len: 9.99, #queue", whole, "[2026-03-12 10:00:02 TP0] accept len: 9.99, #queue-req: 0"):
        tables, rejects = ingest(cut, after)
        assert [r.reason for r in rejects] == ["incomplete line: no accept len"]
        assert [round(a / 160, 2) for a in ([] if tables.windows is None else decoded(tables)["accepted"])] in (
            [],
            [1.17],
        )


def test_stamps_with_fractions_tell_the_rounds_of_a_batch_that_changed() -> None:
    """2.5 tokens a round: 1250 tokens a second for 0.8 s are 400 rounds, where 12 x 40 and 8 x 40 are both wrong."""

    def at(ms: int, running: int, tput: float, **more: Any) -> str:
        return line(f"10:00:{ms // 1000:02}.{ms % 1000:03}", running, 2.5, tput=tput, **more)

    first, second = at(1100, 8, 900.0), at(1900, 12, 1250.0)
    columns = ("rounds", "accepted", "emitted", "rounds_basis", "step_us")
    assert decoded(ingest(first, second)[0]).select(columns).rows()[1] == (400, 600, 1000, "derived", None)
    # Lines that are missing between make the time too long: the last line's batch is all there is.
    assert decoded(ingest(first, at(9900, 12, 1250.0))[0]).select(columns).rows()[1][:4] == (
        480,
        720,
        1200,
        "estimated",
    )
    # Whole seconds are too coarse.
    coarse = [r.replace(".100", "").replace(".900", "") for r in (first, second.replace("01.900", "02.900"))]
    assert decoded(ingest(*coarse)[0])["rounds_basis"].to_list() == ["estimated"] * 2
    # Without speculation they are the request-steps: one token each.
    plain = [r.replace("accept len: 2.50, ", "").replace("1250", "500") for r in (first, second)]
    assert decoded(ingest(*plain)[0]).select("plain_steps", "emitted").rows()[1] == (400, 400)


def test_a_start_that_prints_a_dictionary() -> None:
    """0.5.23 prints the resolved arguments; a key inside a text is none."""
    told = {
        "model_path": "/data/acme/llama", "served_model_name": "llama", "tp_size": 2, "node_rank": 0,
        "chat_template": "x, 'speculative_num_steps': 9", "decode_log_interval": 10,
        "speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4, "max_running_requests": None,
    }  # fmt: skip
    start = f"[2026-10-02 09:00:00] server_args={told!r}"
    tables, _ = ingest(start, start.replace("'node_rank': 0", "'node_rank': 1"), line("10:00:01", 2, 2.5))
    assert tables.runs is not None
    columns = ("model", "method", "role", "num_speculative_tokens", "tensor_parallel", "max_num_seqs")
    assert tables.runs.select(columns).rows() == [("llama", "eagle", "speculative", 3, 2, None)]
    assert decoded(tables).select("rounds", "drafted", "run_key").rows() == [(20, 60, 1)]
    off = start.replace("'speculative_algorithm': 'EAGLE'", "'speculative_algorithm': None")
    tables, _ = ingest(off)
    assert tables.runs is not None
    assert tables.runs.select("role", "num_speculative_tokens").rows() == [("baseline", None)]


def test_prefixes_of_ray_and_of_ranks() -> None:
    ray = "(SchedulerActor pid=411, ip=192.0.2.4) " + line(
        "10:00:01", 2, 2.5, ranks=" DP1 PP0 ATTN_CP0 MOE_DP0 TP3 EP3"
    )
    tables, rejects = ingest(ray, ray.replace("TP3", "TP2").replace("10:00:01", "10:00:02"))
    assert rejects == []
    assert decoded(tables).select("replica", "rounds").rows() == [("1", 80)]
    assert "192.0.2" not in str(tables)


def test_adaptive_k_from_its_first_line_on() -> None:
    tables, _ = ingest(
        "[2026-05-02 09:59:00 TP0] AdaptiveSpeculativeParams initialized: steps=3, candidate_steps=[1, 3, 5, 7]",
        line("10:00:01", 1, 1.5),
        line("10:00:02", 1, 1.5),
        "[2026-05-02 10:00:03 TP0] Adaptive spec params updated (confidence): steps 3 -> 5 (r=0.91)",
        line("10:00:04", 1, 1.5),
        line("10:00:05", 1, 1.5),
    )
    assert decoded(tables)["num_speculative_tokens"].to_list() == [None, 3, None, 5]


def test_adaptive_k() -> None:
    def adapt(at: str, before: int, after: int) -> str:
        return f"[2026-05-02 {at} TP0] Adaptive spec params updated: steps {before} -> {after} (ema_accept_len=0.41)"

    args = "speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4"
    args = f"speculative_algorithm='EAGLE', {args}"
    tables, _ = ingest(
        f"[2026-05-02 09:00:00] server_args=ServerArgs({args}, speculative_adaptive=True)",
        line("10:00:01", 1, 1.5, 0.17),
        adapt("10:00:02", 3, 1),
        line("10:00:03", 1, 1.5, 0.17),
        line("10:00:04", 1, 1.5, 0.17),
    )
    assert decoded(tables).select("drafted", "num_speculative_tokens").rows() == [(120, 3), (None, None), (40, 1)]


def test_simulated_acceptance() -> None:
    start = "[2026-03-12 09:00:00] server_args=ServerArgs(speculative_algorithm='EAGLE', random_seed={})"
    row = line("10:00:01", 1, 3.5)
    forced = "+ SGLANG_SIMULATE_ACC_LEN=3.5 python -m sglang.launch_server"
    tables, _ = ingest(
        row, forced, start.format(1), row.replace("01 ", "02 "), start.format(2), row.replace("01 ", "03 ")
    )
    assert decoded(tables)["forced_acceptance"].to_list() == [None, True, None]
    assert tables.runs is not None
    assert tables.runs["forced_acceptance"].to_list() == [True, None]
    row_after = row.replace("01 ", "04 ")
    for told in (
        "+ export SIMULATE_ACC_LEN=3",
        "SGLANG_SIMULATE_ACC_LEN: '3.5'",
        "[2026-10-02 09:00:00 TP0] Simulated acceptance drawn ahead of the draft launch (first step).",
    ):
        assert decoded(ingest(told, row_after)[0])["forced_acceptance"].to_list() == [True]
    quoted = "INFO prompt: 'SGLANG_SIMULATE_ACC_LEN=3 makes numbers up'"
    for harmless in (quoted, "SGLANG_SIMULATE_ACC_LEN=0", "SGLANG_SIMULATE_ACC_LEN=-1"):
        assert decoded(ingest(harmless, row)[0])["forced_acceptance"].to_list() == [None]


def test_a_line_in_a_users_text_is_no_record() -> None:
    inner = line("10:00:01", 4, 2.17)
    for text in (
        f"[2026-03-12 10:00:00] Receive: obj=GenerateReqInput(rid='1', text='{inner}')",
        f'[2026-03-12 10:00:00] prompt="{inner}',
        f"[2026-03-12 10:00:00] body {{{inner}}}",
    ):
        assert ingest(text)[0].windows is None


@given(st.integers(1, 40), st.integers(1, 6), st.booleans(), st.data())
@settings(max_examples=80, deadline=None)
def test_the_rate_never_counts_as_acceptance(running: int, k: int, own: bool, data: st.DataObject) -> None:
    """What the log prints of known rounds comes back: to half a hundredth a round, with K right or unknown."""
    rows, truth = [], []
    for i in range(8):
        rounds = running * 40
        accepted = data.draw(st.integers(0, rounds * k))
        length = (accepted + rounds) / rounds
        rate = length / (k + 1) if own else accepted / (rounds * k)
        rows.append(line(f"10:00:{i:02}", running, length, rate))
        truth.append((rounds, accepted))
    found = decoded(ingest(*rows)[0])
    for (rounds, accepted), row in zip(truth, found.iter_rows(named=True), strict=True):
        assert row["rounds"] == rounds
        assert abs(row["accepted"] - accepted) <= 0.5 + 0.005 * rounds
        assert row["emitted"] == row["accepted"] + row["rounds"]
        assert row["drafted"] in (None, rounds * k)
        assert row["drafted"] is None or 0 <= row["accepted"] <= row["drafted"]


@pytest.mark.parametrize(
    ("lengths", "rates", "drafts"),
    [
        ([2.5, 2.25], [0.5, 0.42], 3),
        ([5.3], [0.86], 5),
        ([2.17, 1.95], [0.54, 0.49], 3),
        ([1.0], [0.0], None),  # any K
        ([], [], None),
        ([2.5], [7.0], None),
    ],
)
def test_identified(lengths: list[float], rates: list[float], drafts: int | None) -> None:
    assert identified(fitting(np.array(lengths), np.array(rates))) == drafts


HOSTILE = st.sampled_from(
    [
        "Decode batch",
        "Prefill batch",
        "[2026-03-12 10:00:00 TP0] ",
        "[99]",
        ", ",
        ".",
        "#running-req:",
        " 4",
        "#queue-req: 0",
        "accept len: ",
        "2.5",
        "nan",
        "inf",
        "999999999999999999999",
        "-1",
        "accept rate: 0.5",
        "gen throughput (token/s): ",
        "0.00",
        "ServerArgs(",
        "speculative_num_steps=",
        "daptive spec params updated: steps 3 -> 9999",
        "SGLANG_SIMULATE_ACC_LEN=2",
        "meta_info",
        "{",
        "}",
        "'",
        '"',
        "Finish: obj=GenerateReqInput(",
        "out={'meta_info': {",
        "'spec_verify_ct': 3",
        "'completion_tokens': 9",
        "\\",
        "\n",
        "sampling_params={",
    ]
)


@given(st.lists(st.lists(HOSTILE | st.text(max_size=8), max_size=14).map("".join), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_hostile_lines(texts: list[str]) -> None:
    tables, _ = ingest(*texts)
    for row in () if tables.windows is None else tables.windows.iter_rows(named=True):
        assert row.get("accepted") is None or row["accepted"] >= 0
        assert row.get("drafted") is None or row["accepted"] <= row["drafted"]
