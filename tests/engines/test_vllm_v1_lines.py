"""V1's SpecDecoding line in all its forms, engine lines and iteration lines."""

from __future__ import annotations

import pytest
from vllm_lines import API, BRACKET, CORE, OLD, at, c_line, engine_line, ingest, iteration, only, parsed_lines, shown

from tracelens.engines.base import Engine
from tracelens.engines.vllm import ENGINE

PER_POS = "Per-position acceptance rate: 0.900, 0.700, 0.500, 0.400"
COUNTS = "Accepted: 250 tokens, Drafted: 400 tokens"
FORMS = {
    "pre-A": (
        "Speculative metrics: Draft acceptance rate: 0.625, Number of accepted tokens: 250, "
        "Number of draft tokens: 400, ",
        {},
    ),
    "A": (f"SpecDecoding metrics: Draft acceptance rate: 62.5%, {COUNTS}", {}),
    "B": (
        f"SpecDecoding metrics: Draft acceptance rate: 62.5%, Mean acceptance length: 2.50, {COUNTS}, {PER_POS}",
        {"k": 4},
    ),
    "B'": (
        f"SpecDecoding metrics: Draft acceptance rate: 62.5%, Mean acceptance length: 3.50, {COUNTS}, {PER_POS}",
        {"k": 4},
    ),
    "C": (c_line(250, 400, [90, 70, 50, 40], 100), {"k": 4, "window": 10_000_000}),
    "C with keys of tomorrow": (
        c_line(250, 400, [90, 70, 50, 40], 100).replace(", Accepted: ", ", Rejected: 7 tokens, Accepted: ")
        + ", Verified: 400 tokens, Note: all fine",
        {"k": 4, "window": 10_000_000},
    ),
}


def test_is_an_engine_with_declared_surfaces() -> None:
    assert isinstance(ENGINE, Engine)
    names = [s.name for s in ENGINE.surfaces]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("prefix", ["", OLD, BRACKET, API, "(EngineCore_0 pid=123) " + BRACKET, "gateway| " + API])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_under_every_prefix(form: str, prefix: str) -> None:
    text, extra = FORMS[form]
    tables, rejects = ingest(prefix.format(7) + text)
    expected = {"run_key": 0, "source_line": 1, "surface": "vllm.v1_line", "accepted": 250, "drafted": 400}
    expected |= {"counts_basis": "logged", "ts_basis": "none"}
    if prefix:
        expected |= {"ts_end": at(7), "ts_basis": "year_inferred"}
    if "pid=123" in prefix:
        expected["process"] = "EngineCore_0 123"
    elif "APIServer" in prefix:
        expected["process"] = "APIServer 1"
    if "k" in extra:
        expected |= {"num_speculative_tokens": 4, "rounds": 100, "accepted_per_pos": [90, 70, 50, 40]}
        expected["rounds_basis"] = "exact"
    if "window" in extra:
        expected["window_us"] = extra["window"]
        if prefix:
            expected["ts_start"] = at(57).replace(hour=11, minute=59)
    assert (only(tables.windows), rejects) == (expected, [])


def test_real_line_of_0_32() -> None:
    line = (
        "(APIServer pid=330) INFO 11-29 11:42:09 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 1.39, "
        "Accepted throughput: 35.61 tokens/s, Drafted throughput: 367.92 tokens/s, Accepted: 72 tokens, Drafted: 744 "
        "tokens, Per-position acceptance rate: 0.172, 0.086, 0.065, 0.065, Avg Draft acceptance rate: 9.7%"
    )
    row = only(ingest(line)[0].windows)
    assert (row["rounds"], row["accepted_per_pos"], row["rounds_basis"]) == (186, [32, 16, 12, 12], "exact")
    assert row["window_us"] == 2_022_179


def test_nothing_drafted_is_zero_rounds_and_no_rate() -> None:
    nan = (
        "SpecDecoding metrics: Draft acceptance rate: nan%, Mean acceptance length: nan, Accepted: 0 tokens, "
        "Drafted: 0 tokens, Per-position acceptance rate: nan, nan, nan, nan"
    )
    tables, rejects = ingest(BRACKET.format(1) + nan, BRACKET.format(2) + FORMS["B"][0])
    columns = ("drafted", "accepted", "rounds", "rounds_basis", "accepted_per_pos")
    assert shown(tables.windows, *columns) == [
        (0, 0, 0, "logged", None),
        (400, 250, 100, "exact", [90, 70, 50, 40]),
    ]
    assert rejects == []


def test_all_rejected_interval() -> None:
    tables, _ = ingest(API.format(1) + c_line(0, 400, [0, 0, 0, 0], 100))
    row = only(tables.windows)
    assert (row["accepted"], row["accepted_per_pos"]) == (0, [0, 0, 0, 0])
    assert (row["rounds"], row["rounds_basis"]) == (100, "estimated")  # 100 to 400 rounds give these figures


def test_chains_of_a_fixed_length_are_derived() -> None:
    start = (
        API.format(0) + "non-default args: {'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 4}}"
    )
    tables, _ = ingest(start, API.format(1) + c_line(0, 400, [0, 0, 0, 0], 100))
    assert shown(tables.windows, "rounds", "rounds_basis", "run_key") == [(100, "derived", 1)]


def test_cut_lines() -> None:
    whole = FORMS["B'"][0]
    for end in range(len("SpecDecoding metrics: "), len(whole)):
        tables, rejects = ingest(API.format(1) + whole[:end])
        if end < whole.index(", Per-position"):
            assert tables.windows is None, whole[:end]
            assert [r.reason.split(":")[0] for r in rejects] == ["incomplete line"]
            continue
        row = only(tables.windows)
        assert (row["accepted"], row["drafted"], rejects) == (250, 400, [])
        # A part of the positions is no smaller K.
        assert "num_speculative_tokens" not in row
        assert "rounds" not in row


def test_a_cut_behind_the_positions_keeps_them() -> None:
    line = c_line(250, 400, [90, 70, 50, 40], 100)
    row = only(ingest(API.format(1) + line[: line.index(", Avg Draft")])[0].windows)
    assert row["accepted_per_pos"] == [90, 70, 50, 40]


def test_impossible_figures_are_refused_or_left_out() -> None:
    tables, rejects = ingest(
        API.format(1)
        + "SpecDecoding metrics: Draft acceptance rate: 162.5%, Accepted: 650 tokens, Drafted: 400 tokens",
        API.format(2) + f"SpecDecoding metrics: Accepted: {2**70} tokens, Drafted: {2**71} tokens",
        API.format(3) + "SpecDecoding metrics: Accepted: -3 tokens, Drafted: 4 tokens",
        API.format(4)
        + "SpecDecoding metrics: Mean acceptance length: 1e300, Accepted: 2 tokens, Drafted: 4 tokens, "
        + "Per-position acceptance rate: 1e300, 1e300",
    )
    assert [r.reason for r in rejects] == [
        "incomplete line: no accepted, drafted",
        "incomplete line: no accepted",
        "accepted <= drafted does not hold",
    ]
    assert shown(tables.windows, "accepted", "drafted", "rounds", "accepted_per_pos") == [(2, 4, None, None)]


def test_what_is_no_speculation_is_ignored() -> None:
    diffusion = (
        "DiffusionDecoding metrics: Committed token throughput: 1.00 tokens/s, Mean denoising steps per canvas: 2.00, "
        "Mean tokens committed per denoising step: 2.00, Committed: 4 tokens, Denoising steps: 2, Canvas: 3"
    )
    prose = "the docs say SpecDecoding metrics: Accepted: 5 tokens, Drafted: 5 tokens"
    tables, rejects = ingest(API.format(1) + diffusion, prose, API.format(1) + "note: " + prose)
    assert (tables.windows, rejects) == (None, [])


def test_the_engine_line_before_it_names_the_engine() -> None:
    same = c_line(250, 400, [90, 70, 50, 40], 100)
    two = "(ApiServer_1 pid=2) INFO 05-06 12:00:{:02d} [loggers.py:335] "
    tables, _ = ingest(
        API.format(10) + engine_line(0, running=3, kv=5.1),
        two.format(10) + engine_line(2, running=7, kv=50.0),
        API.format(10) + same,
        API.format(10) + engine_line(1, running=4, kv=6.0),
        two.format(11) + same,  # printed over the edge of a second
        API.format(10) + same,  # engine 1 had the very same figures: no repeat
        API.format(40) + same,  # no engine line of its own
    )
    rows = tables.windows
    assert rows is not None
    rows = rows.filter(rows["surface"] == "vllm.v1_line")
    assert shown(rows, "source_line", "replica", "process", "running", "kv_cache_usage") == [
        (3, "0", "APIServer 1", 3, pytest.approx(0.051)),
        (5, "2", "ApiServer_1 2", 7, 0.5),
        (6, "1", "APIServer 1", 4, 0.06),
        (7, None, "APIServer 1", None, None),
    ]


def test_a_line_printed_once_counts_once() -> None:
    lines = [API.format(10) + engine_line(0), API.format(10) + c_line(250, 400, [90, 70, 50, 40], 100)]
    tables, _ = ingest(*lines, *lines)
    assert shown(tables.windows, "surface", "replica") == [("vllm.engine_line", "0"), ("vllm.v1_line", "0")]


V0_ENGINE = (
    "Avg prompt throughput: 12.3 tokens/s, Avg generation throughput: 45.6 tokens/s, Running: 2 reqs, Swapped: 0 reqs, "
    "Pending: 1 reqs, GPU KV cache usage: 3.4%, CPU KV cache usage: 0.0%"
)
ENGINE_LINES = {
    "0.4.2": (OLD, V0_ENGINE, None, (2, 1, 0.034)),
    "0.5.4": (OLD, V0_ENGINE + ".", None, (2, 1, 0.034)),
    "0.8": (BRACKET, engine_line(0), "0", (3, 1, 0.051)),
    "aggregated": (API, engine_line(0).replace("Engine 000", "8 Engines Aggregated"), None, (3, 1, 0.051)),
    "0.33": (
        API,
        "Engine 011: Avg prompt throughput: 12.3 tokens/s, Avg generation throughput: 45.6 tokens/s, Running: 2 reqs, "
        "Waiting: 0 reqs, Deferred: 3 reqs, KV fetch: 1 waiting to start, 2 in progress, 3 completed waiting, "
        "Preemptions: 4, CPU KV cache usage: 0.1%, External prefix cache hit rate: 3.0%, MM cache hit rate: 1.0%",
        "11",
        (2, 0, 0.001),
    ),
}


@pytest.mark.parametrize("version", ENGINE_LINES)
def test_engine_lines(version: str) -> None:
    prefix, line, replica, state = ENGINE_LINES[version]
    tables, rejects = ingest(prefix.format(0) + line, prefix.format(10) + line)
    assert rejects == []
    columns = ("replica", "running", "waiting", "kv_cache_usage")
    assert shown(tables.windows, *columns) == [(replica, *map(pytest.approx, state))] * 2
    tput = (12.0, 60.0) if "60.0" in line else (12.3, 45.6)
    columns = ("ts_start", "ts_end", "window_us", "prompt_tokens", "generated_tokens", "counts_basis")
    assert shown(tables.windows, *columns) == [
        (None, at(0), None, None, None, None),
        (at(0), at(10), 10_000_000, round(10 * tput[0]), round(10 * tput[1]), "estimated"),
    ]


def test_engine_lines_of_two_engines_have_their_own_windows() -> None:
    tables, _ = ingest(
        API.format(0) + engine_line(0),
        API.format(1) + engine_line(1),
        API.format(10) + engine_line(0, tput=30.0),
        API.format(11) + engine_line(1, tput=50.0),
    )
    columns = ("replica", "window_us", "generated_tokens")
    assert shown(tables.windows, *columns)[2:] == [("0", 10_000_000, 300), ("1", 10_000_000, 500)]


def test_iteration_lines_of_both_generations() -> None:
    tables, rejects = ingest(
        CORE.format(1, 40) + iteration(515, 20, 20, 10.99),
        CORE.format(1, 40) + iteration(516, 20, 20, 0.01) + " (dummy)",
        API.format(57) + "Engine 000: " + iteration(1, 1, 5, 51.17) + ", CPU KV cache usage: 0.1%",
        API.format(58)
        + "Engine 003: "
        + iteration(2, 0, 0, 80.0, context=(2, 700))
        + ", GPU KV cache usage: 0.1%, encoder inputs: 1, encoder output embeddings: 2",
        API.format(58) + "Engine 000: Iteration(3): 0 context requests, 0 context tokens, 1 generation requests, 5 gen",
        API.format(58) + "Engine 000: " + iteration(3, 1, 5, 51.17)[:-5],
    )
    columns = ("source_line", "replica", "process", "step_us", "running", "plain_steps", "prompt_tokens", "time_basis")
    assert shown(tables.windows, *columns) == [
        (1, "1", "EngineCore_DP1 9", 10_990, 20, 20, 0, "sum"),
        (3, "0", "APIServer 1", 51_170, 1, None, 0, "sum"),
        (4, "3", "APIServer 1", 80_000, 0, None, 700, "sum"),
    ]
    assert [r.line for r in rejects] == [5, 6]


ENGINE_START = (
    CORE.format(0, 5) + "Initializing a V1 LLM engine (v{}) with config: model='m', speculative_config={}, x=1"
)
SCHEDULING = API.format(4) + "Asynchronous scheduling is {}."
ARGS = API.format(3) + "non-default args: {{'model': 'm', 'async_scheduling': {}}}"


def drafter(method: str) -> str:
    return f"SpeculativeConfig(method='{method}', model='d', num_spec_tokens=3)"


@pytest.mark.parametrize(
    ("starts", "is_step"),
    [
        ([ENGINE_START.format("0.20.0", drafter("eagle"))], False),
        ([ENGINE_START.format("0.14.1rc1", drafter("deepseek_mtp"))], False),
        ([ENGINE_START.format("0.14.0", "None")], False),
        ([ENGINE_START.format("0.13.0", drafter("eagle3"))], True),
        ([ENGINE_START.format("0.15.2", drafter("draft_model"))], True),
        ([ENGINE_START.format("0.16.0", drafter("draft_model"))], False),
        ([ENGINE_START.format("0.33.0", drafter("ngram"))], True),
        ([ENGINE_START.format("0.33.0", drafter("suffix"))], True),
        ([ENGINE_START.format("0.33.0", drafter("ngram_gpu"))], False),
        ([ENGINE_START.format("0.32.0", drafter("eagle")) + ", device_config=cpu, y=1"], True),
        ([SCHEDULING.format("disabled"), ENGINE_START.format("0.20.0", drafter("eagle"))], True),
        ([SCHEDULING.format("enabled"), ENGINE_START.format("0.33.0", drafter("dflash"))], False),
        ([ENGINE_START.format("0.33.0", drafter("suffix")), SCHEDULING.format("enabled")], False),
        ([ARGS.format("False"), ENGINE_START.format("0.20.0", drafter("eagle"))], True),
        ([ARGS.format("True"), SCHEDULING.format("disabled"), SCHEDULING.format("disabled")], True),
        ([API.format(1) + "vLLM API server version 0.20.0"], True),  # nobody can tell
        ([], True),
    ],
)
def test_what_is_left_of_a_wait_is_no_step(starts: list[str], is_step: bool) -> None:
    """vllm#35072: with asynchronous scheduling the elapsed time is near 0, whatever a step takes."""
    tables, rejects = ingest(*starts, CORE.format(0, 41) + iteration(1, 4, 16, 5.0))
    assert rejects == []
    told = shown(tables.windows, "step_us", "running", "steps")
    assert told == [(5000 if is_step else None, 4, 1)]
    assert tables.runs is None or tables.runs.height == min(1, len(starts))


def test_each_start_has_its_own_scheduling() -> None:
    lines = []
    for minute, how in enumerate(("enabled", "disabled")):
        start = ENGINE_START.format("0.20.0", drafter("eagle"))
        own = [ARGS.format("None"), SCHEDULING.format(how), start, SCHEDULING.format(how)]
        own += [CORE.format(0, 41) + iteration(1, 4, 16, 5.0)]
        lines += [line.replace("12:00:", f"12:0{minute}:") for line in own]
    tables, _ = ingest(*lines)
    assert shown(tables.windows, "run_key", "step_us") == [(1, None), (2, 5000)]
    assert tables.runs is not None
    assert [{c["key"]: c["value"] for c in row} for row in tables.runs["config"].to_list()] == [
        {"async_scheduling": "true"}, {"async_scheduling": "false"}]  # fmt: skip


def test_scheduling_is_of_the_nearest_start() -> None:
    """Without arguments above it stands before the engine's line; in a rotated log it may be of a start long before."""
    engine = ENGINE_START.format("0.20.0", drafter("eagle"))
    lines: list[str] = []
    for minute, how in enumerate(("enabled", "disabled", "enabled")):
        own = [SCHEDULING.format(how), engine, *(CORE.format(0, 41) + iteration(i, 4, 16, 5.0) for i in range(9))]
        lines += [line.replace("12:00:", f"12:0{minute}:") for line in own]
    tables, _ = ingest(*lines)
    assert set(shown(tables.windows, "run_key", "step_us")) == {(1, None), (2, 5000), (3, None)}
    steps = [CORE.format(0, i % 60) + iteration(i, 4, 16, 5.0) for i in range(600)]
    old = ENGINE_START.format("0.13.0", "None").replace("12:00:", "13:00:")
    tables, _ = ingest(SCHEDULING.format("enabled"), *steps, old, CORE.format(0, 59) + iteration(700, 4, 16, 6.0))
    assert tables.runs is not None
    assert tables.runs["first_line"].to_list() == [602]
    assert set(shown(tables.windows, "run_key", "step_us")) == {(0, 5000), (1, 6000)}
    few = ingest(SCHEDULING.format("enabled"), steps[0], old, CORE.format(0, 59) + iteration(700, 4, 16, 6.0))[0]
    assert set(shown(few.windows, "run_key", "step_us")) == {(0, 5000), (1, 6000)}


def test_a_sentence_without_a_prefix_is_nobodys() -> None:
    engine = ENGINE_START.format("0.13.0", drafter("eagle"))
    tables, _ = ingest(engine, "Asynchronous scheduling is enabled.", CORE.format(0, 41) + iteration(1, 4, 16, 5.0))
    assert shown(tables.windows, "step_us") == [(5000,)]


def test_records_pasted_on_one_line() -> None:
    one = API.format(10) + engine_line(0)
    two = API.format(10) + c_line(250, 400, [90, 70, 50, 40], 100)
    three = CORE.format(1, 11) + iteration(9, 2, 2, 5.0)
    for glue in ("", " "):
        tables, rejects = ingest("noise " + one + glue + two + glue + three)
        assert rejects == []
        assert shown(tables.windows, "source_line", "surface", "replica", "process", "ts_end") == [
            (1, "vllm.v1_line", "0", "APIServer 1", at(10)),
            (1, "vllm.engine_line", "0", "APIServer 1", at(10)),
            (1, "vllm.iteration_line", "1", "EngineCore_DP1 9", at(11)),
        ]


def test_a_pasted_line_keeps_the_process_of_its_envelope() -> None:
    line = OLD.format(1) + V0_ENGINE + OLD.format(2) + V0_ENGINE
    frame = parsed_lines(line, process="vllm 812").frames["vllm.engine_line"][0]
    assert frame["process"].to_list() == ["vllm 812", "vllm 812"]


FAKE = API.format(1) + "SpecDecoding metrics: Accepted: 666 tokens, Drafted: 666 tokens"


@pytest.mark.parametrize(
    "text",
    [
        API.format(0) + f"Received request cmpl-1: prompt: '{FAKE}', params: SamplingParams(n=1), x: None.",
        API.format(0) + f"Received request cmpl-1: params: SamplingParams(stop=['{FAKE}']), lora_request: None.",
        API.format(0) + f"Received request cmpl-{FAKE}: params: None.",
        f"Received request cmpl-{FAKE}: params: None.",
        API.format(0) + f"Generated response cmpl-1: output: '{FAKE}', output_token_ids: [1], finish_reason: stop",
        API.format(0) + f"Generated response cmpl-1: output: {FAKE}",
        API.format(0) + f"Request cmpl-1 details: prompt: {FAKE}",
        API.format(0) + 'response_body={"choices": [{"text": "' + FAKE + '"}]}',
        f'INFO:     127.0.0.1:1 - "GET /v1?q={FAKE} HTTP/1.1" 200 OK',
        f"user said: `{FAKE}`",
        # pasted behind a record of ours: its own user's text stays shut
        OLD.format(0)
        + V0_ENGINE
        + API.format(0)
        + f"Received request cmpl-1: prompt: '{FAKE}', params: None, x: None.",
    ],
)
def test_users_text_is_never_a_record(text: str) -> None:
    tables, _ = ingest(text)
    rows = [] if tables.windows is None else tables.windows["surface"].to_list()
    assert "vllm.v1_line" not in rows
