"""Seeded inputs of a wanted size."""

from __future__ import annotations

import json
import random
from pathlib import Path

_NOISE = '(APIServer pid=812) INFO:     192.0.2.{a}:{p} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def _stamp(second: int) -> str:
    day, rest = divmod(second, 86_400)
    return f"04-{1 + day % 28:02d} {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def _pair(rng: random.Random, second: int) -> str:
    """An engine line and its SpecDecoding line, rounded as vLLM rounds them."""
    n, k = rng.randint(50, 900), 4
    counts = []
    left = n
    for _ in range(k):
        left = sum(rng.random() < 0.75 for _ in range(8)) * left // 8
        counts.append(left)
    accepted, drafted = sum(counts), n * k
    head = f"(APIServer pid=812) INFO {_stamp(second)} "
    positions = ", ".join(f"{c / n:.3f}" for c in counts)
    return (
        f"{head}[loggers.py:271] Engine 000: Avg prompt throughput: {rng.random() * 900:.1f} tokens/s, Avg generation "
        f"throughput: {(accepted + n) / 10:.1f} tokens/s, Running: {rng.randint(1, 16)} reqs, Waiting: 0 reqs, GPU KV "
        f"cache usage: {rng.random() * 90:.1f}%, Prefix cache hit rate: 12.5%\n"
        f"{head}[metrics.py:101] SpecDecoding metrics: Mean acceptance length: {1 + accepted / n:.2f}, Accepted "
        f"throughput: {accepted / 10:.2f} tokens/s, Drafted throughput: {drafted / 10:.2f} tokens/s, Accepted: "
        f"{accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {positions}, Avg Draft "
        f"acceptance rate: {100 * accepted / drafted:.1f}%\n"
    )


def text_log(path: Path, size: int, relevant: float, seed: int = 1) -> None:
    """A vLLM server log of `size` bytes in which a share `relevant` of the lines are records."""
    rng = random.Random(seed)
    noise = [_NOISE.format(a=rng.randint(1, 250), p=rng.randint(1024, 65_000)) for _ in range(4096)]
    between = round(2 / relevant) - 2
    written = second = 0
    with path.open("w") as out:
        while written < size:
            start = rng.randrange(3000)
            body = _pair(rng, second) + "".join(noise[(start + i) % 4096] for i in range(between))
            written += out.write(body)
            second += 10


def json_lines(path: Path, size: int, broken: float = 0.0, seed: int = 2, cut: int | None = 100) -> None:
    """Canonical rounds, about 380 bytes a line, eight requests a step; a share `broken` of the lines is cut.

    They are cut behind `cut` bytes, or anywhere: what is cut late is a record that is refused, not any line.
    """
    rng = random.Random(seed)
    written = step = 0
    tasks = [("summarise", 0.2), ("extraction", 0.0), ("writing", 0.9), ("chat", 0.7)]
    with path.open("w") as out:
        while written < size:
            draft, target = rng.randint(6000, 9000), rng.randint(17_000, 19_000)
            for lane in range(8):
                task, temperature = tasks[lane % 4]
                accepted = rng.choice((0, 1, 2, 3, 4, 5, 5, 5))
                ms = step * 27 % 86_000_000
                clock = f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms // 1000 % 60:02d}.{ms % 1000:03d}"
                row = {
                    "ts": f"2026-04-19T{clock}Z",
                    "request_id": f"req-{step // 64 * 8 + lane:08d}", "round_index": step % 64, "step_id": f"s{step}",
                    "batch_size": 8, "context_len": 400 + 5 * (step % 64), "drafted": 5, "accepted": accepted,
                    "emitted": accepted + 1, "draft_us": draft, "target_us": target, "sample_us": rng.randint(200, 400),
                    "step_us": draft + target + 900, "timing_basis": "device", "task_type": task,
                    "temperature": temperature, "model": "target-72b", "engine": "acme", "num_speculative_tokens": 5,
                    "has_prefill": False,
                }  # fmt: skip
                line = json.dumps(row, separators=(",", ":"))
                if rng.random() < broken:
                    line = line[: cut or rng.randrange(1, len(line))]
                written += out.write(line + "\n")
            step += 1


def small_files(folder: Path, count: int) -> None:
    """So many files, a hundred a folder: logs of 60 lines, 12 of them records, and as many JSON lines of 20 rounds."""
    for number in range(count // 2):
        place = folder / f"{number // 50:04d}"
        place.mkdir(parents=True, exist_ok=True)
        rng = random.Random(number)
        with (place / f"server-{number:05d}.log").open("w") as out:
            for pair in range(6):
                out.write(_pair(rng, number * 60 + pair * 10))
                out.writelines(_NOISE.format(a=rng.randint(1, 250), p=rng.randint(1024, 65_000)) for _ in range(8))
        with (place / f"rounds-{number:05d}.jsonl").open("w") as out:
            for index in range(20):
                ms = number * 1000 + index * 27
                clock = f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms // 1000 % 60:02d}.{ms % 1000:03d}"
                accepted = rng.choice((0, 1, 2, 3, 4, 5, 5, 5))
                row = {
                    "ts": f"2026-04-{19 + number % 3}T{clock}Z", "request_id": f"req-{number:08d}",
                    "round_index": index, "batch_size": 1, "context_len": 400 + 5 * index, "drafted": 5,
                    "accepted": accepted, "emitted": accepted + 1, "draft_us": rng.randint(6000, 9000),
                    "step_us": rng.randint(25_000, 29_000),
                    "task_type": ("summarise", "extraction", "writing", "chat")[number % 4], "engine": "acme",
                    "temperature": (0.2, 0.0, 0.9, 0.7)[number % 4], "model": "target-72b", "timing_basis": "device",
                    "num_speculative_tokens": 5,
                }  # fmt: skip
                out.write(json.dumps(row, separators=(",", ":")) + "\n")
