"""`python -m benchmarks.traces [--mb 250] [--repeats 5]`: profiler traces, beside a plain decode of the same file.

The floors read the whole file and build all its objects: msgspec, and Python's own json. Ours is a whole
`tracelens ingest`: reading, hashing, finding, decoding, and a lake written.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Sample, in_turns, run

_BASE_NS = 1790857026000000000
_DECODE = """
import gzip, sys
data = (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rb").read()
if sys.argv[2] == "msgspec":
    import msgspec
    print(len(msgspec.json.decode(data)["traceEvents"]))
else:
    import json
    print(len(json.loads(data)["traceEvents"]))
"""
_START = "import tracelens.ingest.run, tracelens.engines; tracelens.engines.load(); import polars, duckdb, pyarrow"
_OPERATORS = ("aten::empty_strided", "aten::copy_", "aten::mul", "aten::linear", "vllm::unified_attention_with_output")
_KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::{lambda(int)#1}, std::array<char*, 3ul>)"
)


def _complete(cat: str, name: str, where: tuple[int, int], ts: float, dur: float, args: dict[str, Any]) -> Any:
    return {"ph": "X", "cat": cat, "name": name, "pid": where[0], "tid": where[1], "ts": ts, "dur": dur, "args": args}


def _vllm(at: float, requests: int) -> Iterator[Any]:
    """The scopes of one step of vLLM's V1 runner, K = 4; `at` us."""
    host = (5915, 5915)
    name = f"execute_context_0(0)_generation_{requests}({requests * 5})"
    yield _complete("user_annotation", name, host, at, 900.0, {"External id": 1})
    for scope, start, dur in (("forward", 200, 500.0), ("sample", 1000, 90.0), ("draft", 1200, 800.0)):
        yield _complete("user_annotation", f"gpu_model_runner: {scope}", host, at + start, dur, {"External id": 1})
    for scope, start, dur in (("forward", 300, 9000.0), ("sample", 9400, 300.0), ("draft", 9800, 4000.0)):
        yield _complete("gpu_user_annotation", f"gpu_model_runner: {scope}", (0, 7), at + start, dur, {})


def _rtp(at: float, requests: int) -> Iterator[Any]:
    """The scopes of one step of RTP-LLM, K = 4."""
    head, host = "executor.mtp.", (4242, 4311)
    yield _complete("cpu_op", f"{head}process(stream_size={requests},mtp_step=4)", host, at, 14900.0, {})
    for scope, start, dur in (
        (f"decode_step(decode_stream_size={requests})", 10, 14800.0),
        (f"draft_model_decode(batch_size={requests})", 20, 3000.0),
        ("decode_step(target_model_verify)", 3100, 800.0),
        ("decode_step(rejection_sampling)", 4000, 300.0),
        ("decode_step(draft_model_forward)", 4400, 400.0),
    ):
        yield _complete("cpu_op", head + scope, host, at + start, dur, {})


def _events(engine: str, size: int, seed: int = 3) -> Iterator[Any]:
    """Events of about `size` bytes in torch's order: what the host did, then launches and kernels."""
    rng = random.Random(seed)
    scopes, host = (_vllm, (5915, 5915)) if engine == "vllm" else (_rtp, (4242, 4311))
    steps = max(1, size // 1_300_000)
    each = size // steps // 1130
    yield {"ph": "M", "name": "process_name", "ts": 0.0, "pid": host[0], "tid": 0, "args": {"name": "Worker"}}
    for step in range(steps):
        yield from scopes(step * 15_000.0, rng.randint(1, 16))
        for i in range(each * 2):
            dims = [[rng.randint(1, 64), 4096], [4096], []]
            args = {"External id": i, "Record function id": 0, "Ev Idx": i, "Input Dims": dims}
            at = step * 15_000.0 + rng.random() * 14_000
            yield _complete("cpu_op", rng.choice(_OPERATORS), host, round(at, 3), round(rng.random() * 40, 3), args)
    for number in range(steps * each):
        at = number // each * 15_000.0 + rng.random() * 5000
        launch = {"External id": 7, "cbid": 211, "correlation": number}
        yield _complete("cuda_runtime", "cudaLaunchKernel", host, round(at, 3), 4.5, launch)
        work = {"External id": 7, "device": 0, "stream": 7, "correlation": number, "grid": [64, 1, 1]}
        yield _complete("kernel", _KERNEL, (0, 7), round(at + 100, 3), round(rng.random() * 9, 3), work)


def _torch(event: Any) -> str:
    """One event as torch's own writer sets it."""
    args = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in event["args"].items())
    head = ", ".join(
        f"{json.dumps(k)}: {json.dumps(event[k])}" for k in ("ph", "cat", "name", "pid", "tid") if k in event
    )
    times = ", ".join(f'"{k}": {event[k]}' for k in ("ts", "dur") if k in event)
    return f'  {{\n    {head},\n    {times},\n    "args": {{\n      {args}\n    }}\n  }}'


def trace(path: Path, engine: str, layout: str, size: int) -> None:
    """A trace of about `size` bytes (before compression) in torch's layout, or as json.dump puts it, in one line."""
    keys = f'"schemaVersion": 1, "deviceProperties": [{{"id": 0}}], "baseTimeNanoseconds": {_BASE_NS}, "traceEvents": ['
    write, comma = (_torch, ",\n") if layout == "torch" else (json.dumps, ", ")
    with gzip.open(path, "wt", compresslevel=6) if path.suffix == ".gz" else path.open("w") as out:
        out.write("{" + keys)
        for number, event in enumerate(_events(engine, size)):
            out.write((comma if number else "\n") + write(event))
        out.write('],\n"traceName": "trace.json"}\n')


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__)
    parser.add_argument("--mb", type=int, default=250, help="size of each trace in MB (default 250)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; medians are printed (default 5)")
    parser.add_argument("--keep", type=Path, help="folder for the traces, kept for another run")
    options = parser.parse_args()
    work = options.keep or Path(tempfile.mkdtemp(prefix="tracelens-bench-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        _all(work, options.mb, options.repeats)
    finally:
        if options.keep is None:
            shutil.rmtree(work, ignore_errors=True)


def _all(work: Path, mb: int, repeats: int) -> None:
    print(f"about {mb} MB each, median of {repeats}; CPU seconds of whole processes; `start` is the imports alone")
    print(
        f"{'trace':<20}{'MB':>5}{'json s':>8}{'msgspec s':>11}{'start s':>9}{'ours s':>8}{'/ msgspec':>11}{'/ json':>8}"
    )
    print(f"{'':<20}{'MB/s':>5}{'MB':>8}{'MB':>11}{'MB':>9}{'MB':>8}   (MB/s of ours; peak memory)")
    for engine in ("vllm", "rtp-llm"):
        for layout in ("torch", "one line"):
            for suffix in ("", ".gz"):
                path = work / f"{engine}-{layout.replace(' ', '-')}-{mb}.json{suffix}"
                if not path.exists():
                    trace(path, engine, layout, mb * 1_000_000)
                taken = in_turns(
                    {
                        "json": lambda p=path: run([sys.executable, "-c", _DECODE, str(p), "json"]),
                        "msgspec": lambda p=path: run([sys.executable, "-c", _DECODE, str(p), "msgspec"]),
                        "start": lambda: run([sys.executable, "-c", _START]),
                        "ours": lambda p=path: _ingest(p, work),
                    },
                    repeats,
                )
                _rows(f"{engine}, {layout}{', gz' if suffix else ''}", _size(path), taken)


def _size(path: Path) -> float:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.seek(0, 2) / 1e6


def _ingest(path: Path, work: Path) -> Sample:
    lake = work / "lake"
    shutil.rmtree(lake, ignore_errors=True)
    return run([sys.executable, "-m", "tracelens", "ingest", str(path), "--lake", str(lake)])


def _rows(name: str, mb: float, taken: dict[str, Sample]) -> None:
    ours, floor, plain, start = (taken[k] for k in ("ours", "msgspec", "json", "start"))
    cpu = f"{plain.cpu:>8.2f}{floor.cpu:>11.2f}{start.cpu:>9.2f}{ours.cpu:>8.2f}"
    memory = f"{plain.rss_mb:>8.0f}{floor.rss_mb:>11.0f}{start.rss_mb:>9.0f}{ours.rss_mb:>8.0f}"
    print(f"{name:<20}{mb:>5.0f}{cpu}{ours.cpu / floor.cpu:>10.2f}x{ours.cpu / plain.cpu:>7.2f}x")
    print(f"{'':<20}{mb / ours.cpu:>5.0f}{memory}", flush=True)


if __name__ == "__main__":
    main()
