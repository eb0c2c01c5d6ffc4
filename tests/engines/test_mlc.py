"""MLC-LLM: engine metrics as JSON and as `/metrics` prints them; one run asked again and again."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_small_definitions import _prometheus as prometheus
from whole_source import ingest, reasons, shown

from tracelens.engines.base import JsonRecord
from tracelens.engines.mlc import ENGINE

COUNTS = ("rounds", "drafted", "accepted", "emitted", "accepted_per_pos", "plain_steps", "num_speculative_tokens")
START = datetime(2026, 11, 29, 11)


def metrics(
    drafts: list[int] | None, accepts: list[int] | None = None, *, completion: int = 0,
    times: dict[str, dict[int, tuple[float, int]]] | None = None, finished: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What the engine answers; `finished` are the decoded tokens of requests that are done."""
    out: dict[str, Any] = {
        "engine_prefill_time_sum": 0.5, "engine_decode_time_sum": 12.5, "prompt_tokens_sum": 3 * completion,
        "completion_tokens_sum": completion, "decode_tokens_sum": sum(accepts or []) if finished is None else finished,
    }  # fmt: skip
    if drafts is not None and accepts is not None:
        share = [a / d for a, d in zip(accepts, drafts, strict=True)]
        out["spec_decode"] = {
            "draft_count": drafts, "accept_count": accepts,
            "accept_prob": {f"accept_prob{{step={i}}}": p for i, p in enumerate(share)},
            "accept_len": {f"accept_len{{step={i}}}": sum(share[: i + 1]) for i in range(len(share))},
        }  # fmt: skip
    for kind in ("decode", "draft", "verify"):
        listed: dict[str, float] = {}
        for size, (mean, count) in (times or {}).get(kind, {}).items():
            listed |= {f"mean{{batch_size={size}}}": mean, f"count{{batch_size={size}}}": count}
        out[f"{kind}_time_by_batch_size"] = listed
    return out


def content(form: str, *answers: dict[str, Any]) -> str:
    if form == "json":
        return "\n".join(json.dumps({"id": "x", "usage": {"prompt_tokens": 0, "extra": a}}) for a in answers) + "\n"
    stamps = [f"# {START + timedelta(seconds=10 * i):%Y-%m-%dT%H:%M:%SZ}" for i in range(len(answers))]
    return "".join("\n".join([s, *prometheus(a)]) + "\n" for s, a in zip(stamps, answers, strict=True))


@pytest.mark.parametrize("form", ["json", "text"])
def test_answers_are_differenced(tmp_path: Path, form: str) -> None:
    text = content(
        form,
        metrics([100] * 3, [100, 80, 40], completion=250),
        metrics([150] * 3, [150, 120, 70], completion=400),
    )
    tables, rejects = ingest(tmp_path, text, "mlc")
    assert rejects == []
    assert shown(tables.windows, *COUNTS) == [
        (100, 200, 120, 220, [80, 40], 0, 2),
        (50, 100, 70, 120, [40, 30], 0, 2),
    ]
    basis = "logged" if form == "json" else "derived"
    assert shown(tables.windows, "generated_tokens", "prompt_tokens", "counts_basis") == [
        (250, 750, basis), (150, 450, basis),
    ]  # fmt: skip
    if form == "text":
        assert shown(tables.windows, "ts_start", "ts_end", "window_us") == [
            (None, START, None), (START, START + timedelta(seconds=10), 10_000_000),
        ]  # fmt: skip


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_restart_begins_anew(tmp_path: Path, form: str) -> None:
    text = content(form, metrics([100] * 2, [100, 80], completion=90), metrics([10] * 2, [10, 8], completion=9))
    tables, _ = ingest(tmp_path, text, "mlc")
    assert shown(tables.windows, "rounds", "accepted", "generated_tokens", "ts_start") == [
        (100, 80, 90, None), (10, 8, 9, None),
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["json", "text"])
def test_answers_of_two_engines(tmp_path: Path, form: str) -> None:
    """100 more passes can't accept 160 more of the first draft: another engine answered."""
    text = content(form, metrics([100] * 2, [100, 20], completion=120), metrics([200] * 2, [200, 180], completion=380))
    tables, rejects = ingest(tmp_path, text, "mlc")
    assert [r.split(" (")[0] for r in reasons(rejects)] == ["these counts do not follow the last ones"]
    assert shown(tables.windows, "rounds", "accepted", "generated_tokens") == [(100, 20, 120)]


def test_drafts_of_changing_length(tmp_path: Path) -> None:
    """100 passes, 90 of them with a draft, 60 with two: the JSON counts each."""
    tables, rejects = ingest(tmp_path, content("json", metrics([100, 90, 60], [100, 70, 30])), "mlc")
    assert rejects == []
    assert shown(tables.windows, *COUNTS) == [(90, 150, 100, 200, [70, 30], 10, 2)]
    # The text has three rates of different numbers of passes, and no rounds follow from them.
    tables, rejects = ingest(tmp_path, content("text", metrics([100, 90, 60], [100, 70, 30])), "mlc")
    assert [r.split(" (")[0] for r in reasons(rejects)] == ["rates without the number of rounds"]


def test_rates_while_requests_run_count_nothing(tmp_path: Path) -> None:
    text = content("text", metrics([97] * 3, [97, 80, 41], finished=200, times={"decode": {1: (0.01, 5)}}))
    tables, rejects = ingest(tmp_path, text, "mlc")
    assert [r.split(" (")[0] for r in reasons(rejects)] == ["rates without the number of rounds"]
    assert tables.windows is None


@pytest.mark.parametrize("form", ["json", "text"])
def test_times_by_batch_size(tmp_path: Path, form: str) -> None:
    """Draft steps are by requests, verify passes by the tokens they verify: 4 (2 + 1) of 4 requests with K = 2.

    The plain steps of a speculating engine are left: their time alone would be that of all steps.
    """
    first = metrics(
        [100] * 3,
        [100, 80, 40],
        completion=9,
        times={"draft": {4: (0.002, 50)}, "verify": {12: (0.02, 25), 7: (1.0, 3)}},
    )
    second = metrics(
        [180] * 3, [180, 150, 90], completion=19,
        times={"draft": {4: (0.003, 100)}, "verify": {12: (0.03, 45), 3: (0.01, 1)}, "decode": {2: (0.015, 10)}},
    )  # fmt: skip
    tables, rejects = ingest(tmp_path, content(form, first, second), "mlc")
    assert rejects == []
    assert tables.windows is not None
    times = ("surface", "running", "steps", "rounds", "drafted", "draft_us", "target_us", "plain_steps", "step_us")
    rows = [r for r in shown(tables.windows, *times) if "times" in r[0]]
    # Between the two: 20 passes of (45 x 30 - 25 x 20) ms, draft steps of (100 x 3 - 50 x 2) / 50 = 4 ms.
    assert sorted(rows, key=str) == sorted(
        [
            ("mlc.batch_times", 4, 25, 100, 200, 100_000, 500_000, None, None),
            ("mlc.batch_times", 4, 20, 80, 160, 160_000, 850_000, None, None),
        ],
        key=str,
    )


def test_a_server_without_speculation_has_its_plain_steps(tmp_path: Path) -> None:
    text = content("json", metrics(None, completion=90, times={"decode": {1: (0.01, 30), 2: (0.012, 20)}}))
    tables, rejects = ingest(tmp_path, text, "mlc")
    assert rejects == []
    columns = ("surface", "running", "plain_steps", "emitted", "step_us", "generated_tokens")
    assert sorted(shown(tables.windows, *columns), key=str) == [
        ("mlc.decode_times", 1, 30, 30, 300_000, None),
        ("mlc.decode_times", 2, 40, 40, 240_000, None),
        ("mlc.engine_metrics", None, None, None, None, 90),
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"draft_count": [10, 10], "accept_count": [10]}, "draft_count and accept_count of different lengths"),
        ({"draft_count": [10, 10], "accept_count": [10, 11]}, "accept_count <= draft_count does not hold"),
        (
            {"draft_count": [10, 10], "accept_count": [7, 5]},
            "the first rate is not 1, so it is not of the target's own token (a changed MLC?): not used",
        ),
        (
            {"draft_count": [10, 10, 10], "accept_count": [10, 5, 6]},
            "draft_count and accept_count grow along the positions",
        ),
        ({"draft_count": [10, -1], "accept_count": [10, 0]}, "draft_count: negative"),
        ({"draft_count": [2**60, 10], "accept_count": [10, 10]}, "draft_count: out of range"),
        ({"draft_count": "10", "accept_count": [10]}, "draft_count: wrong type"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    answer = metrics([10, 10], [10, 8]) | {"spec_decode": change}
    tables, rejects = ingest(tmp_path, json.dumps(answer) + "\n", "mlc")
    assert reasons(rejects) == [reason]
    assert tables.windows is None


def test_rates_of_a_fork_that_leaves_the_first_token_out(tmp_path: Path) -> None:
    tables, rejects = ingest(tmp_path, content("text", metrics([100, 100], [70, 50])), "mlc")
    assert [r.split(",")[0] for r in reasons(rejects)] == ["the first rate is not 1"]
    assert tables.windows is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**60) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*metrics([9, 9], [9, 3])]), _json), st.integers(0, 3))
def test_any_values_are_rows_or_rejects(change: dict[str, Any], depth: int) -> None:
    value = metrics([9, 9], [9, 3], completion=30, times={"decode": {1: (0.01, 30)}}) | change
    for key in ("extra", "usage", "response")[:depth]:
        value = {key: value}
    parsed = ENGINE.records([JsonRecord(1, 0, None, None, value)])
    assert parsed.claimed == 1
    assert len(parsed.rejects) + sum(f.height for fs in parsed.frames.values() for f in fs) == 1
