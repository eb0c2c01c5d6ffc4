"""The recorder among threads, forks and ends of processes: each writes its own, and all of it."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tests.recorders.recorder_steps import Event, a_step, lines_of, rounds_of
from tracelens.recorders import DeviceClock, Recorder


def test_threads_share_a_recorder(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, queue=10**6, flush_s=0.01)
    faults: list[BaseException] = []
    barrier = threading.Barrier(5)

    def work(name: str) -> None:
        barrier.wait()
        try:
            for i in range(400):
                if name == "flush":
                    recorder.flush()
                    continue
                with recorder.step() as step:
                    step.round(f"{name}-{i}", drafted=1, accepted=1)
        except Exception as error:
            faults.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c", "d", "flush")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    recorder.close()
    rows = rounds_of(tmp_path)
    assert faults == []
    assert len(rows) == len({row["request_id"] for row in rows}) == len({row["step_id"] for row in rows}) == 1600


def test_a_recorder_that_is_dropped_has_written_all_and_closed_its_file(tmp_path: Path) -> None:
    Event.reached = -1.0
    recorder = Recorder(tmp_path, clock=DeviceClock(Event), flush_s=30)
    a_step(recorder, 1)
    recorder.flush()
    recorder.request("r")
    files, thread = recorder.files, recorder.writer._thread
    recorder.writer.flush()
    assert files._fd is not None
    del recorder
    assert files._fd is None
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()
    assert [line["record"] for line in lines_of(tmp_path)] == ["run", "request", "round"]


def test_what_the_thread_writes_needs_no_close(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, flush_s=0.02)
    a_step(recorder)
    deadline = time.monotonic() + 5
    while not list(tmp_path.glob("*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(rounds_of(tmp_path)) == 2
    recorder.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_writes_a_file_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, flush_s=30, run_id="r")
    a_step(recorder, 1)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(recorder,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    recorder.close()
    _two_files(tmp_path)


def test_a_spawned_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, flush_s=30, run_id="r")
    assert pickle.loads(pickle.dumps(recorder)).settings == recorder.settings
    a_step(recorder, 1)
    child = multiprocessing.get_context("spawn").Process(target=_in_child, args=(recorder,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    recorder.close()
    _two_files(tmp_path)


def _in_child(recorder: Recorder) -> None:
    a_step(recorder, 2)  # no close: it is written when the process ends


def _two_files(folder: Path) -> None:
    # Numbers of steps are alike only within a process.
    assert len({row["step_id"] for row in rounds_of(folder)}) == 2
    found = [[json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")]
    assert sorted(len(lines) for lines in found) == [2, 3]
    assert {lines[0]["run_id"] for lines in found} == {"r"}


_BEHIND = """
    import os, sys
    from tracelens.recorders import DeviceClock, Recorder

    class Event:
        def record(self): pass
        def query(self): return False

    recorder = Recorder(sys.argv[1], clock=DeviceClock(Event), flush_s=30)
    def a_step(name):
        with recorder.step() as step:
            with step.target(): pass
            step.round(name, drafted=1, accepted=1)
    a_step("parent")
    if sys.argv[2] == "fork":
        with recorder.step() as step:
            step.round("open", drafted=1, accepted=1)
            child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            a_step("child")
"""


@pytest.mark.parametrize("how", ["exit", "fork"])
def test_steps_that_wait_for_a_device_are_written_at_the_end_by_their_own_process(how: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(_BEHIND), str(tmp_path), how], check=True)
    found = sorted([row["request_id"] for row in map(json.loads, path.read_text().splitlines()[1:])]
                   for path in tmp_path.glob("*.jsonl"))  # fmt: skip
    assert found == ([["parent"]] if how == "exit" else [["child"], ["parent", "open"]])


_LOOP = """
    import sys, time
    from tracelens.recorders import Recorder
    recorder = Recorder(sys.argv[1], flush_s=0.01, run_id="k")
    i = 0
    while True:
        with recorder.step() as step:
            for r in range(4):
                step.round(f"r{r}", drafted=3, accepted=1, emitted=2)
        i += 1
        if i == 60:
            print("go", flush=True)
        time.sleep(0.002)
"""


def test_after_kill_9_only_a_torn_last_line_is_lost(tmp_path: Path) -> None:
    code = textwrap.dedent(_LOOP)
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    (path,) = tmp_path.glob("*.jsonl")
    *whole, last = path.read_text().split("\n")
    assert len(whole) > 100
    assert all(json.loads(line) for line in whole)
    # Where the kernel was not in a write the line is whole; so tear it, and let ingest count it.
    path.write_text("\n".join(whole) + "\n" + (last or whole[-1][: len(whole[-1]) // 2]))
    from tracelens.ingest.options import IngestOptions
    from tracelens.ingest.run import ingest
    from tracelens.lake.connection import connect

    lake = tmp_path / "lake"
    assert ingest([str(path)], lake, IngestOptions(jobs=1)).rejects == 1
    with connect(lake, keep=True) as db:
        assert db.execute("select count(*), sum(accepted) from rounds").fetchone() == (len(whole) - 1, len(whole) - 1)
        assert db.execute("select count(*) from rejects").fetchone() == (1,)


def test_an_ended_process_has_written_all(tmp_path: Path) -> None:
    code = """
        import sys
        from tracelens.recorders import Recorder
        recorder = Recorder(sys.argv[1], flush_s=30)
        with recorder.step() as step:
            step.round("a", drafted=1, accepted=1)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=True)
    assert len(rounds_of(tmp_path)) == 1


def test_nothing_heavy_is_imported() -> None:
    code = """
        import sys
        from tracelens.recorders import DeviceClock, Recorder, Settings, patterns, writer
        import tracelens.recorders.vllm.hooks, tracelens.recorders.vllm.stats
        heavy = {"polars", "duckdb", "pyarrow", "numpy", "torch", "vllm", "msgspec", "typer"} & set(sys.modules)
        assert not heavy, heavy
        assert not [m for m in sys.modules if m.startswith("tracelens.") and ".recorders" not in m]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
