"""What the logs print is what the truth says, by the engines' own rounding and conventions."""

from __future__ import annotations

import csv
import gzip
import json
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from sample_generator import TASKS

VLLM_RUNS = ("baseline", "k1", "k2", "k3", "k5", "k7")
SPEC = re.compile(
    r"^\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[metrics\.py:120\] SpecDecoding metrics: "
    r"Mean acceptance length: (?P<mal>[\d.]+), Accepted throughput: [\d.]+ tokens/s, "
    r"Drafted throughput: [\d.]+ tokens/s, Accepted: (?P<accepted>\d+) tokens, Drafted: (?P<drafted>\d+) tokens, "
    r"Per-position acceptance rate: (?P<rates>[\d., ]+), Avg Draft acceptance rate: (?P<alpha>[\d.]+)%$"
)
STREAM = re.compile(
    r"stream \[(\d+)\], topk = \[\d+\], topp = \[[\d.]+\], propose_token_num = \[(\d+)\], accept_token_num = \[(\d+)\]$"
)
TOTALS = re.compile(r" propose_token_num: (\d+), accept_token_num: (\d+), stream_num: (\d+)$")
TIMES = re.compile(r" total_step_time: (\d+), propose_time: (\d+), score_time: (\d+), sampler_time: (\d+)$")


def _lines(path: Path) -> list[str]:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()


def _truth(folder: Path) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    return truth


@pytest.mark.parametrize("run", VLLM_RUNS)
def test_interval_lines_are_vllms_rounding_of_exact_counts(samples: Path, run: str) -> None:
    folder = samples / "vllm-site" / run
    truth, log = _truth(folder), _truth(folder)["log"]
    found = [m for line in _lines(folder / "server.log") if (m := SPEC.match(line))]
    exact = log["printed"]
    assert len(found) == log["interval_lines"] == len(exact["drafts"])
    for m, n, drafted, accepted, per_pos in zip(
        found, exact["drafts"], exact["drafted"], exact["accepted"], exact["accepted_per_pos"], strict=True
    ):
        assert int(m["drafted"]) == drafted == n * truth["k"]
        assert int(m["accepted"]) == accepted == sum(per_pos)
        assert m["mal"] == f"{1 + accepted / n:.2f}"
        assert m["rates"] == ", ".join(f"{count / n:.3f}" for count in per_pos)
        assert m["alpha"] == f"{accepted / drafted * 100:.1f}"
    total = truth["realised"]["total"]
    for name in ("drafted", "accepted"):
        assert sum(exact[name]) + sum(log["lost_tail"][name]) == total[name]
    if truth["k"]:
        assert found
        assert len(log["lost_tail"]["drafts"]) == 1
        assert sum(exact["drafts"]) + sum(log["lost_tail"]["drafts"]) == total["rounds"]
    else:
        assert not found


@pytest.mark.parametrize("run", VLLM_RUNS)
def test_responses_give_the_truth(samples: Path, run: str) -> None:
    folder = samples / "vllm-site" / run
    realised = _truth(folder)["realised"]
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in _lines(folder / "responses.jsonl.gz"):
        row = json.loads(line)
        metrics, output = row["metrics"], row["usage"]["completion_tokens"]
        spec = metrics.get("speculative_decoding")
        for key in ("total", row["task_type"]):
            sums[key]["requests"] += 1
            sums[key]["decode_ms"] += metrics["generation_time_ms"]
            sums[key]["after_first"] += output - 1
            if spec:
                sums[key]["rounds"] += spec["num_spec_steps"]
                sums[key]["accepted"] += spec["num_accepted_draft_tokens"]
                sums[key]["drafted"] += spec["num_draft_tokens"]
        if spec:
            accepted, drafted = spec["per_step_accepted"], spec["per_step_drafted"]
            assert all(a <= d for a, d in zip(accepted, drafted, strict=True))
            assert sum(spec["acceptance_histogram"]) == spec["num_spec_steps"] == len(accepted)
            # Prefill's token, the accepted, one of the target's own a round, less what the end cut off.
            assert 0 <= 1 + sum(accepted) + len(accepted) - output <= spec["num_spec_tokens"]
        assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / (output - 1))
    for key, figures in {"total": realised["total"], **realised["by_task"]}.items():
        assert sums[key]["requests"] == figures["requests"]
        assert sums[key]["rounds"] == figures["rounds"]
        assert sums[key]["accepted"] == figures["accepted"]
        assert sums[key]["drafted"] == figures["drafted"]
        assert sums[key]["decode_ms"] / sums[key]["after_first"] == pytest.approx(figures["tpot_ms"], abs=1e-5)


def test_ids_labels_and_rules_name_the_same_tasks(samples: Path) -> None:
    site = samples / "vllm-site"
    task = {r["request_id"]: r["task_type"] for r in map(json.loads, _lines(site / "k5" / "responses.jsonl.gz"))}
    with (site / "labels.csv").open(newline="") as file:
        labels = list(csv.DictReader(file))
    assert len(labels) >= 40
    assert all(task[row["request_id"]] == row["task_type"] for row in labels)
    rules = tomllib.loads((site / "tracelens.toml").read_text())["task"]
    received = re.findall(r"Received request (\S+):", "\n".join(_lines(site / "k5" / "server.log")))
    added = re.findall(r"Added request (\S+)\.$", "\n".join(_lines(site / "k5" / "server.log")), re.M)
    assert len(received) == len(added) == len(task)
    assert {re.sub(r"-[0-9a-f]{8}$", "", text) for text in added} == set(received)
    for external in received:
        hits = [rule["type"] for rule in rules if re.search(rule["request_id"], external)]
        assert hits == [task[external.removeprefix("chatcmpl-")]]


@pytest.mark.parametrize("run", ["k1", "k2", "k3", "k5", "k7"])
def test_rtp_triples(samples: Path, run: str) -> None:
    """N stream lines, totals without the prefilling streams, times whose parts add up; and all of it is the truth."""
    folder = samples / "rtp-site" / run
    truth = _truth(folder)
    total, kinds = truth["realised"]["total"], truth["log"]["lines_by_kind"]
    streams: list[tuple[int, int]] = []
    rounds: dict[int, list[int]] = defaultdict(list)
    seen = {"stream": 0, "prefill": 0, "totals": 0, "times": 0, "mixed": 0}
    for line in _lines(folder / "engine.log.gz"):
        if m := STREAM.search(line):
            proposed, accepted = int(m[2]), int(m[3])
            assert 1 <= accepted <= proposed + 1
            streams.append((proposed, accepted))
            seen["stream"] += 1
            seen["prefill"] += proposed == 0
            if proposed:
                rounds[int(m[1])].append(accepted)
        elif m := TOTALS.search(line):
            drafting = [(p, a) for p, a in streams if p]
            assert tuple(map(int, m.groups())) == (
                sum(p for p, _ in drafting),
                sum(a for _, a in drafting),
                len(drafting),
            )
            seen["totals"] += 1
            seen["mixed"] += len(drafting) < len(streams)
            streams = []
        elif m := TIMES.search(line):
            whole, *parts = map(int, m.groups())
            assert whole == sum(parts)
            seen["times"] += 1
    assert not streams
    assert seen["stream"] == kinds["stream_lines"]
    assert seen["prefill"] == kinds["prefill_stream_lines"] == total["requests"]
    assert seen["totals"] == seen["times"] == kinds["times_lines"]
    assert seen["mixed"] == truth["log"]["steps_with_prefill"]
    assert sum(map(len, rounds.values())) == total["rounds"]
    assert sum(map(sum, rounds.values())) == total["accepted"] + total["rounds"]
    for line in _lines(folder / "access_r0_s0.log.gz"):
        row = json.loads(line)
        aux = row["response"]["responses"][0]["aux_info"]
        mine = rounds[row["id"]]
        assert aux["iter_count"] == 1 + len(mine)
        assert 0 <= 1 + sum(mine) - aux["output_len"] <= truth["k"]


@pytest.mark.parametrize("run", VLLM_RUNS)
def test_rtp_access_lines(samples: Path, run: str) -> None:
    folder = samples / "rtp-site" / run
    total = _truth(folder)["realised"]["total"]
    access = [json.loads(line) for line in _lines(folder / "access_r0_s0.log.gz")]
    query = {row["id"]: row for row in map(json.loads, _lines(folder / "query_access_r0_s0.log.gz"))}
    assert len(access) == len(query) == total["requests"]
    decode = tokens = iterations = 0.0
    for row in access:
        aux = row["response"]["responses"][0]["aux_info"]
        assert row["request"]["request_json"]["__request_id__"] == row["id"]
        assert row["request"] == query[row["id"]]["request"]
        assert query[row["id"]]["log_time"] < row["log_time"]
        assert query[row["id"]]["response"]["responses"] == []
        assert not [key for key in aux if key.startswith(("speculative_", "fallback_", "memory_"))]
        assert aux["wait_time"] < aux["first_token_cost_time"] < aux["cost_time"]
        if run == "baseline":
            assert aux["iter_count"] == aux["output_len"]
        decode += aux["cost_time"] - aux["first_token_cost_time"]
        tokens += aux["output_len"] - 1
        iterations += aux["iter_count"] - 1
    assert decode / tokens == pytest.approx(total["tpot_ms"], abs=1e-5)
    assert iterations == total["rounds"] + total["plain"]


def test_rtp_baseline_has_plain_steps_only(samples: Path) -> None:
    lines = _lines(samples / "rtp-site" / "baseline" / "engine.log.gz")
    truth = _truth(samples / "rtp-site" / "baseline")
    plain = [line for line in lines if line.endswith("propose_tokens = 0, accept_tokens = 1")]
    assert not [line for line in lines if "total_step_time" in line]
    assert len(plain) == truth["log"]["lines_by_kind"]["stream_lines"]
    assert len(plain) == truth["realised"]["total"]["output_tokens"]


@pytest.mark.parametrize(("name", "key"), [("rounds.jsonl", None), ("baseline.jsonl", "baseline")])
def test_canonical_rows(samples: Path, name: str, key: str | None) -> None:
    folder = samples / "canonical"
    truth = _truth(folder)[key] if key else _truth(folder)
    total = truth["realised"]["total"]
    head, *rows = [json.loads(line) for line in _lines(folder / name)]
    assert head["record"] == "run"
    assert len(rows) == total["rounds"] + total["plain"]
    for column in ("drafted", "accepted", "emitted"):
        assert sum(row[column] for row in rows) == total[column]
    clean = [row for row in rows if not row["has_prefill"]]
    assert sum(row["step_ms"] for row in clean) / len(clean) == pytest.approx(total["mean_step_ms"], abs=1e-5)
    assert all(("draft_ms" in row) == (row["drafted"] > 0) for row in rows)
    assert {row["task_type"] for row in rows} == {task.name for task in TASKS}


def test_hostile_lines_are_where_the_truth_says(samples: Path) -> None:
    folder = samples / "hostile"
    files = _truth(folder)["files"]
    for name, figures in files.items():
        count = len((folder / name).read_bytes().split(b"\n"))
        assert all(1 <= int(line) <= count for line in figures["bad_lines"]), name
    broken = {"3", "13"}
    for number, line in enumerate((folder / "rounds.jsonl").read_text().split("\n"), start=1):
        if str(number) in broken:
            with pytest.raises(json.JSONDecodeError):
                json.loads(line)
        elif line:
            json.loads(line)
    assert b"\0" * 512 in (folder / "server.log").read_bytes()


@pytest.mark.parametrize("run", ["B-trunc2-k1", "B-trunc2-k3-fix", "B-trunc2-k7", "C-baseline"])
def test_real_runs_agree_with_their_truth(samples: Path, run: str) -> None:
    folder = samples / "vllm-real"
    truth = json.loads((folder / "truth.json").read_text())["runs"][run]
    spec = [m for line in _lines(folder / run / "server.log.gz") if (m := SPEC.match(line))]
    assert len(spec) == truth["from_log"]["interval_lines"]
    assert sum(int(m["accepted"]) for m in spec) == truth["from_log"]["sum_accepted"]
    assert sum(int(m["drafted"]) for m in spec) == truth["from_log"]["sum_drafted"]
    rows = [json.loads(line) for line in _lines(folder / run / "responses.jsonl.gz")]
    parts = [row["metrics"].get("speculative_decoding", {}) for row in rows]
    assert len(rows) == truth["responses"]["n"]
    assert sum(p.get("num_spec_steps", 0) for p in parts) == truth["from_metrics"]["rounds"]
    assert sum(p.get("num_accepted_draft_tokens", 0) for p in parts) == truth["from_metrics"]["accepted"]
