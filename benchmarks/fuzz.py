"""`python -m benchmarks.fuzz [--minutes 30] [--only TARGET]`: parsers and envelopes under a coverage-guided fuzzer.

Needs atheris (`pip install atheris`), which is no dependency of tracelens. Every target runs in a process of its own
for an equal share of the time, from samples of `samples/` and `tests/data/` sorted by the reader that takes them. A
crash is any exception that is no answer to a user (`InputError`), a hang a case that takes a minute; both are kept
in the folder named at the end and are tried first by the next run there.

A case that reads is read by all readers, assembled and finished as an ingest would, without the files of the lake.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
LONGEST = 60  # seconds of one case: longer is a hang
LARGEST = 16 << 10  # bytes of one case
MEMORY = 3000  # MB
# Below so many bytes the time of a case is that of setting up, and no byte's.
_TELLING = 4000
_SEED_BYTES = 4 << 10

Act = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    """What is fuzzed: `seeds` gives inputs to begin with, `make` (called once, instrumented) what to do with one."""

    seeds: Callable[[], list[bytes]]
    make: Callable[[Path], Act]


# ---------------------------------------------------------------- what is done with a case


def _reader(work: Path) -> Act:
    """Read, assemble and finish a source."""
    from tracelens.engines import load
    from tracelens.engines.base import Context
    from tracelens.ingest.labels import Labels
    from tracelens.ingest.read import read
    from tracelens.ingest.rows import Naming, finish
    from tracelens.sources.clocks import resolve
    from tracelens.sources.discover import discover

    path = work / "case.log"
    path.touch()
    file, engines, labels = discover([str(path)])[0][0], load(), Labels()
    context = Context("fuzz", lambda frame: resolve(frame, tz=None, year=2026, mtime=None))

    def act(data: bytes) -> None:
        path.write_bytes(data)
        reading = read(file, engines)
        for engine in engines:
            frames = reading.parsed[engine.name].frames
            if not frames:
                continue
            tables = engine.assemble(frames, context)
            finish(engine.name, tables, Naming("fuzz", "fuzz", None, None, {}), {}, labels, None)

    return act


def _staged(work: Path) -> Act:
    """The roads for canonical JSON lines, down to the files."""
    from benchmarks.faults import _staged as staged
    from tracelens.ingest import fast, quick, walk  # noqa: F401  (instrumented)

    path = work / "case.log"

    def act(data: bytes) -> None:
        path.write_bytes(data)
        staged(path, work / "staged", quick_road=True)

    return act


def _stream(work: Path) -> Act:
    """Compression, encodings, blocks and lines."""
    from tracelens.sources.discover import discover
    from tracelens.sources.lines import LineFinder
    from tracelens.sources.stream import BlockStream

    path = work / "case.log"
    path.touch()
    file = discover([str(path)])[0][0]

    def act(data: bytes) -> None:
        path.write_bytes(data)
        finder = LineFinder([b"drafted", b"accepted"])
        with BlockStream(file, block_bytes=1 << 12, checkpoints=(100, 1000)) as stream:
            for block in stream:
                finder.find(block)
        finder.finish()

    return act


def _peeled(work: Path) -> Act:
    """Envelopes line by line, their stamps, and parts that are put together."""
    import polars as pl

    from tracelens.sources.clocks import resolve
    from tracelens.sources.envelopes import peel

    def act(data: bytes) -> None:
        lines = data.decode("utf-8", "replace").split("\n")
        frame = pl.DataFrame({"text": lines}).with_row_index("line").cast({"line": pl.Int64})
        out = peel(frame.select("line", pl.col("line").alias("offset"), "text"), ["drafted", "SpecDecoding"])
        resolve(out.select("stamp", inner="text"), tz="Europe/Berlin", year=None, mtime=1.8e9)

    return act


def _asked(work: Path) -> Act:
    """Files that a user writes: labels, rules, claims."""
    from tracelens.analysis.claim import parse_claim
    from tracelens.errors import InputError
    from tracelens.ingest.labels import read_labels, read_rules

    paths = [work / f"labels{ending}" for ending in (".csv", ".jsonl", ".json")]

    def act(data: bytes) -> None:
        for path in paths:
            path.write_bytes(data)
            with suppress(InputError):
                read_labels(path)
        with suppress(InputError):
            read_rules(paths[-1])
        with suppress(InputError):
            parse_claim(f"@{paths[-1]}")
        with suppress(InputError):
            parse_claim(data.decode("utf-8", "replace"))

    return act


# ---------------------------------------------------------------- where the cases come from


@cache
def _samples() -> Mapping[str, list[bytes]]:
    """The samples, by the reader that takes them; the head of each that is longer."""
    import canaries

    from tracelens.ingest import signals

    found: dict[str, list[bytes]] = {}
    for path in canaries.corpus():
        data = canaries.unpacked(path)
        reader = signals.reader_of(data)
        kind = "json" if data.lstrip()[:1] in (b"{", b"[") else "text"
        kind = kind if reader is None else reader.__name__.strip("_")
        if len(data) > _SEED_BYTES and kind in ("json", "text") and data.count(b"\n") > 3:
            data = data[: data.rfind(b"\n", 0, _SEED_BYTES) + 1]
        if 0 < len(data) <= LARGEST:
            found.setdefault(kind, []).append(data)
    return found


def _of(*kinds: str) -> Callable[[], list[bytes]]:
    return lambda: [data for kind in kinds for data in _samples().get(kind, ())]


def _canonical() -> list[bytes]:
    return [d for d in _samples()["json"] if b'"record"' in d]


def _packed() -> list[bytes]:
    """Samples in every compression and encoding."""
    texts = [b'{"record":"round","drafted":3,"accepted":1}\n' * 9, *(d[:600] for d in _samples()["text"][:4])]
    ways: list[Callable[[bytes], bytes]] = [
        gzip.compress, lzma.compress, lambda d: gzip.compress(d) * 2, lambda d: gzip.compress(d)[:-9],
        lambda d: d.decode("utf-8", "replace").encode("utf-16"), lambda d: b"\xef\xbb\xbf" + d,
        lambda d: d.replace(b"\n", b"\r\n"), lambda d: gzip.compress(gzip.compress(d)), _zstd,
    ]  # fmt: skip
    return [packed for text in texts for way in ways if (packed := way(text))]


def _zstd(data: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        try:
            from backports import zstd
        except ImportError:
            return b""
    return bytes(zstd.compress(data))


def _wrapped() -> list[bytes]:
    """A record in every envelope."""
    inner = "INFO 05-06 12:00:01 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.1, Drafted: 30 tokens"
    at = "2026-05-06T12:00:01.123456789Z"
    heads = (
        f"{at} stdout F ", f"{at} stderr P ", "[pod/vllm-0/main] ", f"<34>1 {at} node vllm 17 - - ",
        f'<34>1 {at} node vllm 17 id [a@1 b="c\\"]"] ', "May  6 12:00:01 node vllm[17]: ", f"{at} node vllm[17]: ",
        f'{at} {{app="vllm",pod="a-1"}} ', f"{at} | ", "2026-05-06 12:00:01,123 | ", "vllm-1  | ",
        "\x1b[36m(EngineCore pid=7)\x1b[0m ",
        "(APIServer pid=12) ",
    )  # fmt: skip
    lines = [head + inner for head in heads] + [heads[0] + heads[9] + heads[10] + inner]
    records: list[dict[str, Any]] = [
        {"log": f"{inner}\n", "stream": "stdout", "time": at},
        {"log": inner[:40], "stream": "stdout", "time": at, "partial_message": True},
        {"MESSAGE": inner, "__REALTIME_TIMESTAMP": "1778068801000000", "_PID": "17", "SYSLOG_IDENTIFIER": "vllm"},
        {"MESSAGE": list(inner.encode()), "_HOSTNAME": "n"},
        {"message": inner, "levelname": "INFO", "asctime": "2026-05-06 12:00:01,123"},
        {"streams": [{"stream": {"app": "vllm"}, "values": [["1778068801000000000", inner]]}]},
        {"kubernetes": {"pod_name": "a-1", "container_name": "c"}, "log": inner, "@timestamp": at},
    ]
    return [b"\n".join(line.encode() for line in lines), *(line.encode() for line in lines),
            *(json.dumps(r).encode() for r in records)]  # fmt: skip


def _questions() -> list[bytes]:
    rules = [{"name": "a", "task_type": "x", "request_id": "^r", "model": ["m"], "context_len": [0, 5]}]
    return [
        b"request_id,task_type\nr-1,chat\nr-2,code\n",
        b'{"request_id": "r-1", "task_type": "chat", "temperature": 0.5}\n',
        b'[[task]]\ntype = "a"\nrequest_id = "^r"\nmodel = "m"\ntemperature = [0, 0.5]\n[[task]]\nat = 2026-05-06\n',
        json.dumps({"rules": rules}).encode(), json.dumps(rules).encode(), b"alpha=.72,rho=.1,k=5",
        b'{"alpha": 0.7, "rho": 0.1, "k": 5}', b'{"mean_accept_length": [2.5, 3], "k": [3, 5]}', b"@x.json,k=3",
    ]  # fmt: skip


def _traces() -> list[bytes]:
    """Profiler traces with the scopes of vLLM and RTP-LLM, and spans in protobuf."""
    names = ("gpu_model_runner: forward", "gpu_model_runner: draft", "gpu_model_runner: sample",
             "execute_context_0(0)_generation_2(12)", "rtp_llm::MtpExecutor::process",
             "draft_model_decode")  # fmt: skip
    events = [
        {"ph": "X", "cat": "user_annotation", "name": n, "pid": 1, "tid": 2, "ts": 10.0 * i, "dur": 8,
         "args": {"External id": i}}
        for i, n in enumerate(names)
    ]  # fmt: skip
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 2,
        "args": {"correlation": 5},
    }
    whole = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "distributedInfo": {"rank": 0},
             "baseTimeNanoseconds": 1_778_068_800_000_000_000, "traceEvents": [*events, kernel]}  # fmt: skip
    return [json.dumps(whole).encode(), json.dumps(whole, indent=1).encode(), json.dumps(events).encode()]


TARGETS: Mapping[str, Target] = {
    "text logs": Target(_of("text"), _reader),
    "JSON records": Target(_of("json"), _reader),
    "canonical lines": Target(_canonical, _staged),
    "metrics": Target(_of("exposition", "series"), _reader),
    "traces and spans": Target(lambda: [*_traces(), *_of("trace", "protobuf")()], _reader),
    "envelopes": Target(_wrapped, _peeled),
    "compression": Target(_packed, _stream),
    "labels, rules, claims": Target(_questions, _asked),
}


# ---------------------------------------------------------------- one target, in a process of its own


def mutated(data: bytes, seed: int, others: Sequence[bytes], mutate: Callable[[bytes, int], bytes]) -> bytes:
    """Half of the time what libFuzzer makes of it, else the damage of `benchmarks.faults`: records keep their form."""
    from benchmarks.faults import damaged

    chance = random.Random(seed)
    if chance.random() < 0.5:
        return mutate(data, LARGEST)
    return damaged(data, others, chance)[:LARGEST]


def fuzz_one(name: str, seconds: int, work: Path) -> None:
    """The process behind a target: never comes back, libFuzzer ends it."""
    import atheris

    from benchmarks import faults  # noqa: F401  (before the hook: not what is fuzzed)

    os.environ |= {"TRACELENS_RAISE_FAULTS": "1", "POLARS_MAX_THREADS": "1"}  # threads cost more than small cases need
    target = TARGETS[name]
    seeds = target.seeds()
    folder = work / _file_name(name)
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    (folder / "kept").mkdir(exist_ok=True)
    for i, seed in enumerate(seeds):
        (folder / "corpus" / f"seed-{i:03d}").write_bytes(seed)
    for module in [m for m in sys.modules if m == "tracelens" or m.startswith("tracelens.")]:
        del sys.modules[module]
    with atheris.instrument_imports(include=["tracelens"], enable_loader_override=False):
        act = target.make(folder)
    book = _Book(folder)
    act(seeds[0])  # modules that are loaded late are instrumented all the same, and cost no case its time

    def one(data: bytes) -> None:
        book.tried(act, data)

    def change(data: bytes, most: int, seed: int) -> bytes:
        return mutated(data, seed, seeds, atheris.Mutate)[:most]

    given = [sys.argv[0], str(folder / "corpus"), f"-max_total_time={seconds}", f"-max_len={LARGEST}",
             f"-timeout={LONGEST}", f"-rss_limit_mb={MEMORY}", f"-artifact_prefix={folder}/kept/",
             "-print_final_stats=1", "-reload=0", "-detect_leaks=0"]  # fmt: skip
    atheris.Setup(given, one, custom_mutator=change)
    atheris.Fuzz()


class _Book:
    """What a target's cases came to, kept in a file: the process ends without a word of ours."""

    def __init__(self, folder: Path) -> None:
        self.path, self.kept = folder / "book.json", folder / "kept"
        self.cases, self.slowest, self.crashes = 0, 0.0, dict[str, str]()
        self.written = 0.0

    def tried(self, act: Act, data: bytes) -> None:
        begun = time.process_time()
        try:
            act(data)
        except Exception as error:
            self._crashed(error, data)
        spent = time.process_time() - begun
        self.cases += 1
        if len(data) >= _TELLING and spent / len(data) > self.slowest:
            self.slowest = spent / len(data)
            (self.kept / "slowest").write_bytes(data)
        if time.monotonic() - self.written > 5:
            self.written = time.monotonic()
            self._write()

    def _crashed(self, error: Exception, data: bytes) -> None:
        from tracelens.errors import place_of

        where = f"{type(error).__name__} at {place_of(error)}"
        if where not in self.crashes:
            self.crashes[where] = str(error)[:200]
            (self.kept / f"crash-{len(self.crashes)}").write_bytes(data)
            self._write()

    def _write(self) -> None:
        told = {"cases": self.cases, "slowest": self.slowest, "crashes": self.crashes}
        self.path.write_text(json.dumps(told), encoding="utf-8")


def _file_name(name: str) -> str:
    return re.sub(r"\W+", "-", name)


# ---------------------------------------------------------------- the run


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a target: cases, edges of our code that were reached, crashes by place, and seconds a byte."""

    name: str
    cases: int
    edges: int
    inputs: int
    crashes: Mapping[str, str]
    hangs: int
    slowest: float


def told(name: str, folder: Path, output: str) -> Row:
    """Read the figures of a target from its book and from what libFuzzer said."""
    book = json.loads((folder / "book.json").read_text(encoding="utf-8"))
    figures = {k: int(n) for k, n in re.findall(r"stat::(\w+):\s+(\d+)", output)}
    edges = [int(n) for n in re.findall(r"\bcov: (\d+)", output)]
    units = figures.get("number_of_executed_units", book["cases"])
    hangs = len(re.findall(r"ERROR: libFuzzer: (?:timeout|out-of-memory|deadly signal)", output))
    inputs = sum(1 for _ in (folder / "corpus").iterdir())
    return Row(name, max(units, book["cases"]), max(edges, default=0), inputs, book["crashes"], hangs, book["slowest"])


def runs(names: Sequence[str], seconds: int, work: Path) -> Iterator[Row]:
    """Fuzz one target after the other."""
    for name in names:
        command = [sys.executable, "-m", "benchmarks.fuzz", "--one", name, str(seconds), str(work)]
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
            check=False,
        )  # fmt: skip
        folder = work / _file_name(name)
        (folder / "output.txt").write_text(done.stderr, encoding="utf-8")
        if not (folder / "book.json").exists():
            raise SystemExit(f"{name}: the fuzzer did not begin: {done.stderr[-600:]}")
        yield told(name, folder, done.stderr)


def without_guidance(name: str, cases: int, work: Path) -> None:
    """The same target without atheris: its seeds, and so many damaged ones. Whatever fails is raised."""
    from benchmarks.faults import SEED, damaged

    target, chance = TARGETS[name], random.Random(SEED)
    seeds, act = target.seeds(), target.make(work)
    for seed in islice(seeds, cases):
        act(seed)
    for i in range(cases):
        act(damaged(seeds[i % len(seeds)], seeds, chance)[:LARGEST])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of all targets together")
    parser.add_argument("--only", choices=TARGETS, action="append", help="one target (repeatable)")
    parser.add_argument("--work", type=Path, help="where inputs and crashes are kept (default: a temporary folder)")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        fuzz_one(options.one[0], int(options.one[1]), Path(options.one[2]))
        return
    try:
        import atheris  # noqa: F401
    except ImportError:
        raise SystemExit("benchmarks.fuzz needs atheris: pip install atheris") from None
    work = options.work or Path(tempfile.mkdtemp(prefix="tracelens-fuzz-"))
    names = options.only or list(TARGETS)
    print("| target | executions | edges | inputs kept | crashes | hangs | slowest |\n|---|---|---|---|---|---|---|")
    bad = 0
    for row in runs(names, max(5, round(options.minutes * 60 / len(names))), work):
        bad += len(row.crashes) + row.hangs
        print(f"| {row.name} | {row.cases:,} | {row.edges:,} | {row.inputs:,} | {len(row.crashes)} | {row.hangs} "
              f"| {row.slowest * 1e6:.1f} µs a byte |", flush=True)  # fmt: skip
        for where, text in row.crashes.items():
            print(f"{row.name}: {where}: {text}", file=sys.stderr)
    print(f"inputs and crashes: {work}", file=sys.stderr)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
