"""Request lines of all generations, and start-up lines of several versions."""

from __future__ import annotations

import pytest
from vllm_lines import API, BRACKET, CORE, OLD, at, c_line, ingest, only, shown

PARAMS = (
    "SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, temperature={t}, "
    "top_p=0.9, top_k=-1, min_p=0.0, seed=None, stop={stop}, max_tokens=16, structured_outputs=None, extra_args=None)"
)
OWN = PARAMS.format(t=0.7, stop=[])
EVIL = "say \\'hi\\' params: SamplingParams(temperature=9, top_p=0.1) INFO 05-06 12:00:01 x.py:1] Speculative metrics: "
PROMPTS = ["'Hello'", f"'{EVIL}'", '"it\'s {EVIL!r}"', "'a \\\\'", '"\\"quoted\\""', "None", f"'{EVIL}\\n{EVIL}'", "''"]
FORMS = {
    "0.4.2": (OLD, "prompt: {p}, sampling_params: {s}, prompt_token_ids: [1, 2], lora_request: None."),
    "0.5.4": (
        OLD,
        "prompt: {p}, params: {s}, prompt_token_ids: [1], lora_request: None, prompt_adapter_request: None.",
    ),
    "0.9": (
        BRACKET,
        "prompt: {p}, params: {s}, prompt_token_ids: None, prompt_embeds shape: None, lora_request: None, "
        "prompt_adapter_request: None.",
    ),
    "0.10": (API, "prompt: {p}, params: {s}, prompt_token_ids: None, prompt_embeds shape: None, lora_request: None."),
    "0.33": (API, "params: {s}, lora_request: None."),
}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("form", FORMS)
def test_the_parameters_are_the_engines_own(form: str, prompt: str) -> None:
    prefix, text = FORMS[form]
    line = prefix.format(3) + "Received request chatcmpl-sum:7f/3a: " + text.format(p=prompt, s=OWN)
    tables, rejects = ingest(line)
    expected = {
        "run_key": 0, "source_line": 1, "surface": "vllm.request_line", "request_id": "chatcmpl-sum:7f/3a",
        "temperature": 0.7, "top_p": 0.9, "ts_start": at(3), "ts_basis": "year_inferred",
    }  # fmt: skip
    if prefix == API:
        expected["process"] = "APIServer 1"
    assert (only(tables.requests), rejects, tables.windows) == (expected, [], None)


def test_text_behind_the_parameters_changes_nothing() -> None:
    stop = ["params: SamplingParams(temperature=9, top_p=0.1)"]
    line = API.format(3) + f"Received request cmpl-1-0: params: {PARAMS.format(t=0.0, stop=stop)}, lora_request: None."
    row = only(ingest(line)[0].requests)
    assert (row["temperature"], row["top_p"]) == (0.0, 0.9)


@pytest.mark.parametrize("params", ["None", "PoolingParams(dimensions=None, temperature=3.0, top_p=0.5)"])
def test_calls_that_sample_nothing_are_no_requests(params: str) -> None:
    for prompt in ("", "prompt: 'params: SamplingParams(temperature=9, ', "):
        tables, rejects = ingest(
            API.format(3) + f"Received request embd-1: {prompt}params: {params}, lora_request: None."
        )
        assert (tables.requests, rejects) == (None, [])


def test_cut_request_lines_give_no_wrong_temperature() -> None:
    line = API.format(3) + "Received request cmpl-1-0: prompt: 'x', params: " + PARAMS.format(t=0.75, stop=[])
    seen = set()
    for end in range(line.index(", temperature"), line.index(", top_k") + 2):
        tables, _ = ingest(line[:end])
        if tables.requests is not None:
            row = only(tables.requests)
            assert row.get("temperature") in (None, 0.75), line[:end]
            assert row.get("top_p") in (None, 0.9), line[:end]
            seen.add(row.get("temperature"))
    assert seen == {None, 0.75}


def test_a_repeated_line_is_one_request() -> None:
    line = API.format(3) + f"Received request cmpl-1-0: params: {OWN}, lora_request: None."
    assert ingest(line, line)[0].requests.height == 1  # type: ignore[union-attr]


REST = "tokenizer='/models/big', dtype=torch.bfloat16, tensor_parallel_size=4, data_parallel_size=2, seed=0"
STARTS = {
    "0.6.3": (
        OLD.format(0)
        + "Initializing an LLM engine (v0.6.3) with config: model='/data/secret/big-70b/', speculative_config="
        + f"SpeculativeConfig(draft_model='/data/secret/small-1b', num_spec_tokens=5), {REST}",
        {
            "engine_version": "0.6.3", "engine_era": "v0", "model": "big-70b", "draft_model": "small-1b",
            "num_speculative_tokens": 5, "role": "speculative",
        },
    ),
    "0.6.3 ngram": (
        OLD.format(0)
        + "Initializing an LLM engine (v0.6.3.post1) with config: model='org/big', speculative_config="
        + f"SpeculativeConfig(draft_model='[ngram]', num_spec_tokens=4), {REST}",
        {
            "engine_version": "0.6.3.post1", "engine_era": "v0", "model": "org/big", "method": "ngram",
            "num_speculative_tokens": 4, "role": "speculative",
        },
    ),
    "0.7 V0": (
        OLD.format(0) + f"Initializing a V0 LLM engine (v0.7.3) with config: model='C:\\\\m\\\\big', "
        f"speculative_config=None, {REST}",
        {"engine_version": "0.7.3", "engine_era": "v0", "model": "big", "role": "baseline"},
    ),
    "0.32 V1": (
        CORE.format(0, 0) + "Initializing a V1 LLM engine (v0.32.0) with config: model='s3://bucket/private/big', "
        f"speculative_config=SpeculativeConfig(method='eagle3', model='~/heads/e3', num_spec_tokens=3), {REST}, "
        "served_model_name=tiny-target, enable_prefix_caching=True",
        {
            "engine_version": "0.32.0", "engine_era": "v1", "model": "tiny-target", "draft_model": "e3",
            "method": "eagle3", "num_speculative_tokens": 3, "role": "speculative",
        },
    ),
    "0.32 V1 off": (
        CORE.format(0, 0) + "Initializing a V1 LLM engine (v0.32.0) with config: model='s3://bucket/private/big', "
        f"speculative_config=None, {REST}, served_model_name=None, enable_prefix_caching=True",
        {"engine_version": "0.32.0", "engine_era": "v1", "model": "big", "role": "baseline"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", STARTS)
def test_start_lines(version: str) -> None:
    line, expected = STARTS[version]
    row = only(ingest(line)[0].runs)
    expected = expected | {"tensor_parallel": 4, "data_parallel": 2, "run_key": 1, "first_line": 1, "started": at(0)}
    assert row.pop("config") == []
    assert len(row.pop("start_key")) == 64
    assert row.pop("forced_acceptance") is False
    assert row == expected


def arguments(**speculative: object) -> str:
    args = {"model_tag": "/m/x", "host": "10.1.2.3", "api_key": "sk-1", "model": "/m/big", "max_num_seqs": 16}
    args["served_model_name"] = ["alias", "other"]
    args["speculative_config"] = speculative
    return API.format(0) + f"non-default args: {args!r}"


def test_non_default_arguments() -> None:
    row = only(ingest(arguments(method="ngram", num_speculative_tokens=4, prompt_lookup_max=4))[0].runs)
    expected = {"model": "alias", "method": "ngram", "num_speculative_tokens": 4, "max_num_seqs": 16}
    assert {k: row.get(k) for k in expected} == expected
    assert "draft_model" not in row
    assert "10.1.2.3" not in str(row)
    assert "sk-1" not in str(row)


@pytest.mark.parametrize(
    ("config", "forced"),
    [
        ({"rejection_sample_method": "synthetic"}, True),
        ({"synthetic_acceptance_length": 2.5}, True),
        ({"synthetic_acceptance_rates": [0.9, 0.5]}, True),
        ({"synthetic_acceptance_rates": None, "rejection_sample_method": "standard"}, False),
        ({"model": "org/eagle-synthetic"}, False),  # a name is no setting
    ],
)
def test_simulated_acceptance_is_forced(config: dict[str, object], forced: bool) -> None:
    row = only(ingest(arguments(method="eagle", num_speculative_tokens=4, **config))[0].runs)
    assert row["forced_acceptance"] is forced


def test_settings_that_change_what_counts_mean() -> None:
    dynamic = {"num_speculative_tokens_per_batch_size": [[1, 8, 5]], "parallel_drafting": True}
    nested = {"hf_overrides": {"a": 1}, **dynamic}
    row = only(ingest(arguments(method="eagle", **nested, num_speculative_tokens=5))[0].runs)
    assert row["num_speculative_tokens"] == 5  # behind a nested object
    assert {p["key"]: p["value"] for p in row["config"]} == {"dynamic_k": "true", "parallel_drafting": "true"}


def test_absurd_settings_are_left_out() -> None:
    row = only(ingest(arguments(method="eagle", num_speculative_tokens=99_999_999_999))[0].runs)
    assert "num_speculative_tokens" not in row


def test_all_lines_of_one_start_are_one_run_and_the_next_start_is_another() -> None:
    banner = API.format(0) + "vLLM API server version 0.10.2"
    begin = [banner, arguments(method="eagle3", num_speculative_tokens=3), STARTS["0.32 V1"][0]]
    counts = API.format(9) + c_line(3, 6, [2, 1], 3)
    again = [line.replace("12:00:00", "12:00:30") for line in begin]
    tables, _ = ingest(counts, *begin, counts.replace(":09", ":10"), *again, counts.replace(":09", ":40"))
    assert shown(tables.runs, "run_key", "first_line", "engine_version", "started") == [
        (1, 2, "0.10.2", at(0)),
        (2, 6, "0.10.2", at(30)),
    ]
    assert shown(tables.windows, "source_line", "run_key") == [(1, 0), (5, 1), (9, 2)]


def test_a_run_belongs_to_its_stream() -> None:
    from vllm_lines import parsed_lines

    from tracelens.engines.base import Context, Parsed
    from tracelens.engines.vllm import ENGINE
    from tracelens.sources.clocks import resolve

    parsed = Parsed()
    for pod, first in (("pod-a", 0), ("pod-b", 10)):
        block = parsed_lines(STARTS["0.32 V1"][0], API.format(9) + c_line(3, 6, [2, 1], 3), stream=pod)
        for frames in block.frames.values():
            frames[:] = [f.with_columns(line=f["line"] + first) for f in frames]
        parsed.merge(block)
    tables = ENGINE.assemble(parsed.frames, Context("src", lambda f: resolve(f, tz=None, year=2026, mtime=None)))
    assert shown(tables.windows, "source_line", "run_key") == [(2, 1), (12, 2)]
    assert shown(tables.runs, "run_key", "stream") == [(1, "pod-a"), (2, "pod-b")]
