"""`python -m benchmarks.faults [--quick]`: what was done to lakes and logs, and what survived it, as one table.

    faults      an error of the disk (EIO, ENOSPC), and a kill -9, at every write, make, rename, remove and fsync of an
                ingest that makes a lake and of one that replaces a source in it
    parts       the same of an ingest that writes a long log in parts
    forgets     the same of `tracelens forget` with sources of their own files and of a merged one
    kills       kill -9 of an ingest at a moment drawn by chance
    fuzz        samples of every surface, damaged: bits, cuts, doubled and swapped pieces, huge and odd numbers, nesting
    canaries    secrets of 38 kinds in every surface's sample; what the tool wrote and said is searched for them
    writers     processes that ingest shared and own logs into one lake, while another reads it all the time

After a fault a reader must find whole sources only, and the same command must give the rows of an undisturbed run.
The whole takes some 20 minutes on two cores, --quick some 3. Seeds are fixed; moments of kills are not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "ingest")]
SEED = 20_261_129
LONGEST = 60  # seconds of one fuzz case: longer is a hang


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was done, how often, and what came of it."""

    what: str
    done: str
    outcome: str
    seconds: float


# ---------------------------------------------------------------- faults and kills


def _logs(folder: Path) -> Path:
    """A server's log and responses beside it, as in tests/ingest/test_ingest_crash.py."""
    from test_ingest_crash import grow

    folder.mkdir(parents=True)
    grow(folder)
    return folder


def _asked(cases: Sequence[tuple[str, int, Path]], *asked: str | Path) -> list[dict[str, Any]]:
    import faults

    told = "".join(f"{kind} {step} {lake}\n" for kind, step, lake in cases)
    done = subprocess.run(
        [sys.executable, faults.__file__, *map(str, asked)], input=told, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:3])},
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(cases):
        raise SystemExit(f"the fault injector ended early: {done.stderr[-400:]}")
    return answers


def _is_whole(answer: dict[str, Any], expected: str) -> bool:
    return bool(answer["whole"] and answer["rows"] == expected and not answer["staged"])


# At every how many-th step a fault is injected: in full, and with --quick.
_EVERY = (1, 12)


def which_steps(quick: bool) -> str:
    """Where `injected` puts its faults, in words of the table."""
    return f"every {_EVERY[1]}th step" if quick else "every step"


def injected(work: Path, quick: bool) -> list[Row]:
    """A fault at the steps of `which_steps` of a first ingest, and of one that replaces a source."""
    import faults
    from ingest_logs import log, run
    from test_ingest_crash import server_lines

    begun = time.monotonic()
    logs = _logs(work / "logs")
    (work / "short").mkdir()
    (work / "short" / "server.log").write_text(log(*server_lines(3)))
    earlier = work / "earlier"
    run(earlier, work / "short")
    counts = {kind: [0, 0] for kind in faults.KINDS}
    for name, base in (("first", None), ("replacing", earlier)):
        _faulted(work / name, base, [logs], _EVERY[quick], counts)
    return _fault_rows("an ingest", counts, quick, time.monotonic() - begun)


def parted(work: Path, quick: bool) -> list[Row]:
    """The same of an ingest of a log that is put together in parts: its files are open from the first to the last."""
    import faults
    from test_ingest_crash import long_log

    begun = time.monotonic()
    logs = long_log(work / "logs")
    counts = {kind: [0, 0] for kind in faults.KINDS}
    _faulted(work / "parts", None, ["--parts", logs], _EVERY[quick], counts)
    return _fault_rows("an ingest in parts", counts, quick, time.monotonic() - begun)


def forgotten(work: Path, quick: bool) -> list[Row]:
    """The same of a forget: of a source that has files of its own, and of one whose rows lie with another's."""
    import faults
    from test_ingest_crash import shared_lake

    begun = time.monotonic()
    lake, asked = shared_lake(work)
    counts = {kind: [0, 0] for kind in faults.KINDS}
    _faulted(work / "forgetting", lake, asked, _EVERY[quick], counts)
    return _fault_rows("a forget", counts, quick, time.monotonic() - begun)


def _faulted(
    work: Path, base: Path | None, asked: Sequence[str | Path], apart: int, counts: dict[str, list[int]]
) -> None:
    """Fail at one step in so many of a command, each in a copy of a lake; adds how often, and how often it survived."""
    import faults
    from test_ingest_crash import clone

    work.mkdir()
    if base is not None:
        clone(base, work / "calm")
    [undisturbed] = _asked([("kill", -1, work / "calm")], *asked)
    steps = range(1, undisturbed["steps"] + 1, apart)
    cases = [(kind, step, work / f"{kind}-{step}") for step in steps for kind in faults.KINDS]
    for _, _, lake in cases if base is not None else ():
        clone(base, lake)
    for (kind, _, _), answer in zip(cases, _asked(cases, *asked), strict=True):
        counts[kind][0] += 1
        counts[kind][1] += _is_whole(answer, undisturbed["rows"])


def _fault_rows(what: str, counts: dict[str, list[int]], quick: bool, seconds: float) -> list[Row]:
    import faults

    errors = [sum(counts[k][i] for k in faults.KINDS if k != "kill") for i in (0, 1)]
    where = which_steps(quick)
    return [
        Row(f"disk errors (EIO, ENOSPC), one at {where} of {what}", f"{errors[0]} injected",
            f"{errors[1]} survived", seconds),
        Row(f"kill -9 at {where} of {what}", f"{counts['kill'][0]} kills", f"{counts['kill'][1]} survived", 0.0),
    ]  # fmt: skip


def killed(work: Path, quick: bool) -> list[Row]:
    """Kills at moments drawn by chance, in a process that has all modules loaded already."""
    begun, times = time.monotonic(), 25 if quick else 200
    logs = _logs(work / "logs")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults", "--kill", str(times), str(work), str(logs)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the killer ended early: {done.stderr[-400:]}")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    hit = sum(a.get("how") == "kill" for a in answers)
    survived = sum(_is_whole(a, answers[0]["rows"]) for a in answers)
    return [
        Row("kill -9 at a random moment of an ingest", f"{times} kills ({hit} met it at work)",
            f"{survived - 1} survived", time.monotonic() - begun)
    ]  # fmt: skip


def kill_at_random(times: int, work: Path, logs: Path) -> None:
    """The process behind `killed`: answers one line a lake, the first of them undisturbed."""
    import faults

    # Loaded once, and nothing is run here: a fork of a process with threads may hang.
    for name in faults._IMPORTED_ONCE:
        with suppress(ImportError):
            import_module(name)
    from ingest_logs import run

    answer = faults._in_child(lambda: faults._again(work / "calm", [str(logs)]))
    print(json.dumps(answer | {"how": "done"}))
    begun = time.monotonic()
    faults._in_child(lambda: faults._fail("kill", -1, work / "timed", [str(logs)]))
    whole, chance = time.monotonic() - begun, random.Random()
    for i in range(times):
        lake = work / f"lake-{i}"
        how = _fork_and_kill(lambda lake=lake: run(lake, logs), chance.uniform(0, whole))  # type: ignore[misc]
        after = faults._in_child(lambda lake=lake: faults._again(lake, [str(logs)]))  # type: ignore[misc]
        print(json.dumps(after | {"how": how}), flush=True)


def _fork_and_kill(act: Callable[[], object], seconds: float) -> str:
    pid = os.fork()
    if not pid:
        try:
            act()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)  # our own child, which has not been waited for
    return "kill" if os.waitpid(pid, 0)[1] == signal.SIGKILL else "done"


# ---------------------------------------------------------------- fuzz

_ODD = (b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 400, b"null", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b'"', b"{",
        b"[", b"\r", b"\x1b[31m", b"%s%n", b"'; drop table rounds; --", b"\\u0000", b"\\ud800", b"0" * 5000,
        b"[" * 3000, b'{"a":' * 2000, b"(" * 2000, b" " * 20_000, b"a" * 20_000 + b"!")  # fmt: skip


def damaged(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """One to eight kinds of damage to a sample."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.randint(1, 400))
        kind = chance.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end] * chance.randint(1, 40)
        elif kind == 3:
            data[at:end] = chance.choice(_ODD)
        elif kind == 4:
            other = chance.choice(others)
            start = chance.randrange(len(other) + 1)
            data[at:at] = other[start : start + chance.randint(1, 2000)]
        elif kind == 5:
            del data[at:]
        elif kind == 6:
            digits = [i for i in range(at, end) if 48 <= data[i] <= 57]
            for i in digits:
                data[i] = chance.randint(48, 57)
        else:
            lines = bytes(data).split(b"\n")
            chance.shuffle(lines)
            data = bytearray(b"\n".join(lines))
    return bytes(data)


# In full, and with --quick.
_CASES = (6000, 400)


def fuzzed(work: Path, quick: bool) -> list[Row]:
    """Damaged samples by every road of an ingest; a crash is any exception, a hang one that takes a minute."""
    import canaries

    from tracelens.ingest.guard import RAISE

    begun, cases = time.monotonic(), _CASES[quick]
    seeds = [canaries.unpacked(p)[: 24 << 10] for p in canaries.corpus()]
    seeds, chance = [s for s in seeds if s], random.Random(SEED)
    crashes, slowest = [], 0.0
    signal.signal(signal.SIGALRM, _hung)
    os.environ[RAISE] = "1"  # a fault of a reader would be a refused record, and count as none
    path = work / "case.log"
    for i in range(cases):
        data = damaged(seeds[i % len(seeds)], seeds, chance)
        path.write_bytes(data)
        signal.alarm(LONGEST)
        started = time.process_time()
        try:
            _staged(path, work / f"staged-{i}", quick_road=i % 4 == 0)
        except Exception as error:
            crashes.append(f"case {i} ({type(error).__name__}: {str(error)[:200]})")
            (work / f"crash-{i}.log").write_bytes(data)
        finally:
            signal.alarm(0)
        if len(data) >= 8000 and i >= len(seeds):  # what every case costs is no cost of a byte; the first load modules
            slowest = max(slowest, (time.process_time() - started) / len(data))
    del os.environ[RAISE]
    for crash in crashes[:10]:
        print(f"fuzz: {crash}", file=sys.stderr)
    return [
        Row("damaged samples of every surface", f"{cases} cases",
            f"{len(crashes)} crashes or hangs; slowest {slowest * 1e6:.1f} µs a byte", time.monotonic() - begun)
    ]  # fmt: skip


def _hung(number: int, frame: object) -> None:
    raise TimeoutError(f"longer than {LONGEST} s")


def _staged(path: Path, staging: Path, *, quick_road: bool) -> None:
    import shutil

    from tracelens.engines import load
    from tracelens.ingest import fast
    from tracelens.ingest.labels import Labels
    from tracelens.ingest.options import IngestOptions
    from tracelens.ingest.stage import stage
    from tracelens.ingest.write import Job
    from tracelens.sources.discover import discover

    before, fast.SMALLEST = fast.SMALLEST, 0 if quick_road else 1 << 60
    staging.mkdir()
    try:
        file = discover([str(path)])[0][0]
        stage(Job(file, IngestOptions(year=2026), {}, (), {}, {}, staging), load(), Labels())
    finally:
        fast.SMALLEST = before
        shutil.rmtree(staging)


# ---------------------------------------------------------------- canaries, writers


def planted(work: Path, quick: bool) -> list[Row]:
    """The session of tests/test_canaries.py; in full with a secret in the place of every text, one by one."""
    if not quick:
        os.environ["TRACELENS_EVERY_CANARY"] = "1"
    os.environ["TRACELENS_REDACT_SALT"] = "the salt of this benchmark"
    import canaries
    import test_canaries

    begun = time.monotonic()
    outcome = test_canaries.session(work)
    logs = [p.read_bytes() for folder in ("every", "few") for p in (work / folder).iterdir()]
    count = sum(data.count(text.encode()) for data in logs for text in canaries.SECRETS.values())
    found = canaries.leaks(outcome.texts)
    for kind, places in found.items():
        print(f"leak of {kind}: {places[0]}", file=sys.stderr)
    size = sum(map(len, outcome.texts.values()))
    return [
        Row(f"secrets of {len(canaries.SECRETS)} kinds in samples of {len(outcome.surfaces)} surfaces",
            f"{count:,} planted", f"{sum(map(len, found.values()))} leaked into {size / 1e6:.0f} MB written and said",
            time.monotonic() - begun)
    ]  # fmt: skip


def crowded(work: Path, quick: bool) -> list[Row]:
    """Writers with logs of their own and shared ones, and one reader; every round must be there once."""
    from faults import whole

    from tracelens.lake.connection import connect

    begun, writers, files, rounds = time.monotonic(), 4, 6 if quick else 40, 50
    folders = [work / f"logs-{n}" for n in (*range(writers), "shared")]
    for folder in folders:
        folder.mkdir(parents=True)
        for i in range(files):
            one = '{{"record":"round","request_id":"{0}-{1}","round_index":{2},"drafted":3,"accepted":2,"emitted":3}}\n'
            (folder / f"{i}.jsonl").write_text("".join(one.format(folder.name, i, r) for r in range(rounds)))
    lake = work / "lake"
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tracelens", "ingest", str(folder), str(folders[-1]), "--lake", str(lake)],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for folder in folders[:-1]
    ]  # fmt: skip
    looks = torn = 0
    while any(p.poll() is None for p in running):
        if (lake / "sources").is_dir():
            looks += 1
            torn += not whole(lake)
        time.sleep(0.05)
    failed = sum(p.wait() != 0 for p in running)
    expected = len(folders) * files * rounds
    con = connect(lake)
    found, distinct = con.execute("select count(*), count(distinct (request_id, round_index)) from rounds").fetchone()
    con.close()
    return [
        Row(f"{writers} writers into one lake, {looks} looks of a reader meanwhile", f"{expected:,} rows",
            f"{expected - distinct} lost, {found - distinct} doubled; {torn} half-read lakes, {failed} failed writers",
            time.monotonic() - begun)
    ]  # fmt: skip


RUNS: tuple[Callable[[Path, bool], list[Row]], ...] = (injected, parted, forgotten, killed, fuzzed, planted, crowded)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    parser.add_argument("--only", choices=[run.__name__ for run in RUNS], action="append", help="one part (repeatable)")
    parser.add_argument("--kill", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kill:
        kill_at_random(int(options.kill[0]), Path(options.kill[1]), Path(options.kill[2]))
        return
    print("| what was done | how often | what came of it |\n|---|---|---|")
    for run in RUNS:
        if options.only and run.__name__ not in options.only:
            continue
        with tempfile.TemporaryDirectory(prefix="tracelens-faults-") as folder:
            for row in run(Path(folder), options.quick):
                print(f"| {row.what} | {row.done} | {row.outcome} |", flush=True)
                print(f"{run.__name__}: {row.seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
