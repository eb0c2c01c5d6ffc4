"""What the recorder costs: blocks of steps with it on and off by turns, in one engine.

    VENV/bin/python -m benchmarks.recorder --models FOLDER     # a real vLLM; models of tests/live/toy_models.py
    python -m benchmarks.recorder                              # the hooks alone, on stubs: microseconds a step

Both kinds of blocks have the same requests, batch and machine; neighbours in time are compared: the median over pairs
of blocks of on / off, with the interval of order statistics (95 %), in wall time and in CPU time of the whole process
(engine core, worker and writer are threads of it). Off: the hooks are in place and fall through at once.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BLOCK = 10
BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorder", description=__doc__)
    parser.add_argument("--models", type=Path, help="folder with target/, draft/ and prompts.json")
    parser.add_argument("--waves", type=int, default=8, help="batches of long requests, one after another (default 8)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRACELENS_RECORD"] = folder
        if options.models is None:
            hooks_alone()
        else:
            steps = real_steps(options.models, options.waves)
            print(f"{len(steps)} steps of {BATCH} requests, blocks of {BLOCK}")
            for name, column in (("wall time of a step", 1), ("CPU time of a step", 2)):
                told(name, ratios([(step[0], step[column]) for step in steps]))
            rows = sum(path.read_text().count('"round"') for path in Path(folder).glob("*.jsonl"))
            print(f"{rows} rounds were written")


def real_steps(models: Path, waves: int) -> list[tuple[bool, float, float]]:
    """(recorded, wall seconds, CPU seconds) of every full step of a real vLLM whose engine core is in this process."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    from tracelens.recorders.vllm.core import Switch

    llm = LLM(
        model=str(models / "target"), enforce_eager=True, dtype="bfloat16", max_model_len=1024, max_num_seqs=BATCH,
        seed=0, speculative_config={
            "method": "draft_model", "model": str(models / "draft"), "num_speculative_tokens": 3,
        },
    )  # fmt: skip
    engine, found, rng = llm.llm_engine, [], random.Random(1)
    for wave in range(waves):
        for i in range(BATCH):
            prompt = " ".join(f"w{rng.randrange(2000):04d}" for _ in range(32))
            engine.add_request(f"{wave}-{i}", prompt, SamplingParams(temperature=0.0, max_tokens=900, ignore_eos=True))
        engine.step()
        is_on, at = True, 0
        while engine.has_unfinished_requests():
            if at % BLOCK == 0:
                is_on = not is_on
                Switch.is_on = is_on
            begun, used = time.perf_counter(), time.process_time()
            outputs = engine.step()
            took, used = time.perf_counter() - begun, time.process_time() - used
            at += 1
            if len(outputs) < BATCH or any(output.finished for output in outputs):
                break
            found.append((is_on, took, used))
        Switch.is_on = True
        engine.abort_request([f"{wave}-{i}" for i in range(BATCH)])
        while engine.has_unfinished_requests():
            engine.step()
    return found


def ratios(steps: list[tuple[bool, float]]) -> list[float]:
    """Log of on over off, means of neighbouring blocks."""
    blocks: list[tuple[bool, list[float]]] = []
    for is_on, took in steps:
        if not blocks or blocks[-1][0] != is_on or len(blocks[-1][1]) == BLOCK:
            blocks.append((is_on, []))
        blocks[-1][1].append(took)
    whole = [(is_on, statistics.fmean(took)) for is_on, took in blocks if len(took) == BLOCK]
    pairs = zip(whole[::2], whole[1::2], strict=False)
    return [math.log(a[1] / b[1]) if a[0] else math.log(b[1] / a[1]) for a, b in pairs if a[0] != b[0]]


def told(name: str, logs: list[float]) -> None:
    """The median and its distribution-free interval."""
    logs = sorted(logs)
    out = max(int(len(logs) / 2 - 0.98 * math.sqrt(len(logs))), 0)
    middle, low, high = (math.exp(x) for x in (statistics.median(logs), logs[out], logs[-1 - out]))
    print(f"{name}: on / off {middle:.4f} [{low:.4f}, {high:.4f}] over {len(logs)} pairs")


def hooks_alone() -> None:
    """Microseconds a step in the engine's thread, and of CPU in all (the writing thread too), by batch size."""
    from tracelens.recorders.settings import Settings
    from tracelens.recorders.vllm.core import after, before
    from tracelens.recorders.vllm.rounds import StepBook
    from tracelens.recorders.vllm.worker import ATTRIBUTE

    print(f"{'batch':>6}{'engine thread us':>18}{'CPU in all us':>15}{'bytes':>9}")
    for batch in (1, 8, 64, 256):
        with tempfile.TemporaryDirectory() as folder:
            book = StepBook(Settings(Path(folder), queue=10**6), {"model": "m"}, "0")
            names = [f"cmpl-request-{i:05d}-0-0123abcd" for i in range(batch)]
            params = SimpleNamespace(temperature=0.7, top_p=1.0)
            scheduler = SimpleNamespace(
                requests={n: SimpleNamespace(sampling_params=params, num_prompt_tokens=99) for n in names}
            )
            steps, spent = 2000 if batch < 64 else 400, []
            used = time.process_time()
            for number in range(steps):
                scheduled, reply, result = _a_step(names, number, ATTRIBUTE)
                begun = time.perf_counter()
                seen = before(book, scheduler, scheduled, reply)
                after(book, seen, scheduled, reply, result)
                spent.append(time.perf_counter() - begun)
            book.writer.close()
            used = time.process_time() - used - _empty(names, steps, ATTRIBUTE)
            size = sum(path.stat().st_size for path in Path(folder).iterdir()) / steps
            print(
                f"{batch:>6}{statistics.median(spent) * 1e6:>18.1f}{used / steps * 1e6:>15.1f}{size:>9.0f}", flush=True
            )


def _a_step(names: list[str], number: int, attribute: str) -> tuple[Any, Any, Any]:
    drafts = {name: [1, 2, 3] for name in names}
    scheduled = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 4), scheduled_spec_decode_tokens=drafts, finished_req_ids=(),
        num_invalid_spec_tokens=None, **{attribute: (number, time.perf_counter_ns())},
    )  # fmt: skip
    reply = SimpleNamespace(
        sampled_token_ids=[[1, 2] for _ in names], req_id_to_index={name: i for i, name in enumerate(names)},
        **{attribute: ("host", [(number, {"draft": 900, "target": 9000, "sample": 300})])},
    )  # fmt: skip
    outputs = [SimpleNamespace(request_id=n, new_token_ids=[1, 2], finish_reason=None) for n in names]
    return scheduled, reply, {0: SimpleNamespace(outputs=outputs)}


def _empty(names: list[str], steps: int, attribute: str) -> float:
    used = time.process_time()
    for number in range(steps):
        _a_step(names, number, attribute)
    return time.process_time() - used


if __name__ == "__main__":
    sys.exit(main())
