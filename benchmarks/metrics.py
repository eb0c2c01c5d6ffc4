"""`python -m benchmarks.metrics [--mb 100] [--repeats 3]`: metrics in each of their forms, beside a plain pass.

The plain pass is the least that a reader of the form does: lines counted by `grep -c` for text, a document or each line
decoded by msgspec for JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

from benchmarks.measure import Sample, in_turns, run
from tracelens.sources.metric_json import labels_text

_JSON = """
import sys, msgspec
decode = msgspec.json.Decoder().decode
with open(sys.argv[1], "rb") as file:
    for line in file:
        decode(line)
"""
_K = 4
_STEP = 15
_START = 1795953254
_LABELS = {"engine": "0", "model_name": "org/some-model-8b-instruct"}
_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_HISTOGRAMS = (
    "inter_token_latency_seconds", "request_time_per_output_token_seconds", "time_to_first_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "iteration_tokens_total",
)  # fmt: skip

Point = tuple[str, dict[str, str], float]


def _scrapes(seed: int = 1) -> Iterator[tuple[int, list[Point]]]:
    """(time, samples) of one server, for ever: what /metrics of vLLM 0.32 holds, with the histograms' buckets."""
    rng = random.Random(seed)
    rounds, per_pos, steps, firsts = 0, [0] * _K, 0, 0
    at = _START
    while True:
        more = rng.randint(200, 900)
        rounds, steps, firsts = rounds + more, steps + more // 4, firsts + more // 30
        left = more
        for i in range(_K):
            left = left * rng.randint(60, 90) // 100
            per_pos[i] += left
        accepted = sum(per_pos)
        counters = {
            "spec_decode_num_drafts_total": rounds, "spec_decode_num_draft_tokens_total": rounds * _K,
            "spec_decode_num_accepted_tokens_total": accepted, "generation_tokens_total": rounds + accepted + firsts,
            "prompt_tokens_total": firsts * 700, "num_preemptions_total": 0, "num_requests_running": more % 64,
            "num_requests_waiting": 0, "kv_cache_usage_perc": 0.5,
        }  # fmt: skip
        points: list[Point] = [(f"vllm:{n}", _LABELS, float(v)) for n, v in counters.items()]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        points += [(name, {**_LABELS, "position": str(i)}, float(v)) for i, v in enumerate(per_pos)]
        for histogram in _HISTOGRAMS:
            count = {"inter_token_latency_seconds": rounds, "iteration_tokens_total": steps}.get(histogram, firsts)
            points += [(f"vllm:{histogram}_bucket", {**_LABELS, "le": str(b)}, float(count)) for b in _BUCKETS]
            points += [
                (f"vllm:{histogram}_count", _LABELS, float(count)),
                (f"vllm:{histogram}_sum", _LABELS, count * 0.02),
            ]
        yield at, points
        at += _STEP


def text(path: Path, size: int) -> None:
    """Pages as `curl` keeps them, a `date` line before each."""
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for at, points in _scrapes():
            page = [f"# t={at}\n"]
            seen = ""
            for name, labels, value in points:
                if name != seen:
                    page.append(f"# HELP {name} What it counts.\n# TYPE {name} counter\n")
                    seen = name
                page.append(f"{name}{{{labels_text(labels)}}} {value}\n")
            written += file.write("".join(page))
            if written >= size:
                return


def _columns(size: int) -> dict[str, tuple[dict[str, str], list[tuple[int, float]]]]:
    """The same history by series, about `size` bytes of it."""
    out: dict[str, tuple[dict[str, str], list[tuple[int, float]]]] = {}
    written = 0
    for at, points in _scrapes():
        for name, labels, value in points:
            metric = {"__name__": name, **labels, "instance": "192.0.2.7:8000", "job": "vllm"}
            out.setdefault(str(metric), (metric, []))[1].append((at, value))
        written += 22 * len(points)
        if written >= size:
            return out
    raise AssertionError


def query(path: Path, size: int) -> None:
    """The answer of a range query over all metrics, on one line."""
    result = [{"metric": m, "values": [[at, str(v)] for at, v in values]} for m, values in _columns(size).values()]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


def export(path: Path, size: int) -> None:
    """An export of VictoriaMetrics: a line a series."""
    with path.open("w", encoding="utf-8") as file:
        for metric, values in _columns(size).values():
            series = {"metric": metric, "values": [v for _, v in values], "timestamps": [at * 1000 for at, _ in values]}
            file.write(json.dumps(series, separators=(",", ":")) + "\n")


def aiperf(path: Path, size: int) -> None:
    """Server metrics of AIPerf: a line a scrape."""
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for at, points in _scrapes():
            metrics: dict[str, list[dict[str, object]]] = {}
            for name, labels, value in points:
                base, _, part = name.rpartition("_")
                own = {k: v for k, v in labels.items() if k != "le"}
                if part == "bucket":
                    sample = metrics.setdefault(base, [{"labels": own, "histogram": {}}])[0]
                    sample["histogram"][labels["le"]] = value  # type: ignore[index]
                elif base in metrics and part in ("sum", "count"):
                    metrics[base][0][part] = value
                else:
                    metrics.setdefault(name.removesuffix("_total"), []).append({"labels": labels, "value": value})
            line = {
                "endpoint_url": "http://192.0.2.7:8000/metrics", "timestamp_ns": at * 10**9, "endpoint_latency_ns": 9,
                "metrics": metrics,
            }  # fmt: skip
            written += file.write(json.dumps(line, separators=(",", ":")) + "\n")
            if written >= size:
                return


FORMS: dict[str, tuple[Callable[[Path, int], None], list[str]]] = {
    "Prometheus text": (text, ["grep", "-c", "-F", "-e", "vllm:"]),
    "range query, one line": (query, [sys.executable, "-c", _JSON]),
    "VictoriaMetrics export": (export, [sys.executable, "-c", _JSON]),
    "AIPerf server metrics": (aiperf, [sys.executable, "-c", _JSON]),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics", description=__doc__)
    parser.add_argument("--mb", type=int, default=100, help="size of each input in MB (default 100)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; medians are printed (default 3)")
    options = parser.parse_args()
    print(f"{'input':<26}{'MB':>5}{'plain s':>9}{'ours s':>9}{'ratio':>8}{'MB/s':>7}{'peak MB':>9}")
    with tempfile.TemporaryDirectory(prefix="tracelens-bench-") as folder:
        for number, (name, (make, plain)) in enumerate(FORMS.items()):
            path = Path(folder) / f"input-{number}"
            # In a process of its own: what this one has held would count as the peak of those it starts.
            maker = get_context("spawn").Process(target=make, args=(path, options.mb * 1_000_000))
            maker.start()
            maker.join()
            _measured(name, path, plain, options.repeats)
            path.unlink()


def _measured(name: str, path: Path, plain: list[str], repeats: int) -> None:
    lakes = iter(range(1000))

    def ingest() -> Sample:
        lake = path.with_suffix(f".lake-{next(lakes)}")
        return run([sys.executable, "-m", "tracelens", "ingest", str(path), "--lake", str(lake)])

    taken = in_turns({"plain": lambda: run([*plain, str(path)], {"LC_ALL": "C"}), "ours": ingest}, repeats)
    base, ours, mb = taken["plain"], taken["ours"], path.stat().st_size / 1e6
    print(
        f"{name:<26}{mb:>5.0f}{base.cpu:>9.2f}{ours.cpu:>9.2f}{ours.cpu / base.cpu:>7.1f}x{mb / ours.cpu:>7.0f}"
        f"{ours.rss_mb:>9.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
