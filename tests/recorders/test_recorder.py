"""The recorder: what it writes is canonical, and nothing that happens to it reaches the engine."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tracelens.lake.schema import table
from tracelens.recorders import DeviceClock, Recorder, Settings, patterns, writer
from tracelens.recorders.columns import COLUMNS, leaf
from tracelens.recorders.settings import from_environment


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(folder) if line["record"] == "round"]


def a_step(recorder: Recorder, requests: int = 2) -> None:
    with recorder.step() as step:
        with step.draft():
            pass
        with step.target():
            pass
        for r in range(requests):
            step.round(f"r{r}", drafted=3, accepted=r % 4, emitted=r % 4 + 1)


def test_all_columns_are_canonical() -> None:
    for kind, names in COLUMNS.items():
        known = set(table(f"{kind}s").names)
        stamps = {f"{name}_us" for name in known}
        assert names <= known | stamps, names - known - stamps


def test_a_step_becomes_one_line_a_request(tmp_path: Path) -> None:
    with Recorder(tmp_path, engine="mine", model="m", num_speculative_tokens=3, run_id="r1") as recorder:
        a_step(recorder)
        recorder.request("r0", output_tokens=9, temperature=0.5)
        recorder.window(window_us=1000, steps=1, running=2)
    run, first, second, request, window = lines_of(tmp_path)
    assert (run["record"], run["run_id"], run["engine"], run["num_speculative_tokens"]) == ("run", "r1", "mine", 3)
    assert (first["request_id"], first["drafted"], first["accepted"], first["emitted"]) == ("r0", 3, 0, 1)
    assert first["step_id"] == second["step_id"]
    assert first["step_share"] == 0.5
    assert first["timing_basis"] == "host"
    assert first["draft_us"] + first["target_us"] <= first["step_us"] + 2
    assert request["temperature"] == 0.5
    assert window["running"] == 2


def test_the_times_are_those_of_the_phases(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, recorder.step() as step:
        with step.draft():
            time.sleep(0.01)
        with step.target():
            time.sleep(0.02)
        with step.draft():
            time.sleep(0.01)
        step.round("a", drafted=1, accepted=1)
    (row,) = rounds_of(tmp_path)
    assert 20_000 <= row["draft_us"] < row["step_us"]
    assert row["draft_us"] + row["target_us"] <= row["step_us"]


def test_a_row_that_comes_late_is_not_the_steps(tmp_path: Path) -> None:
    with Recorder(tmp_path, flush_s=30) as recorder:
        with recorder.step() as step:
            step.round("a", drafted=1, accepted=1)
        step.round("late", drafted=1, accepted=1)
    assert [(row["request_id"], row["batch_size"]) for row in rounds_of(tmp_path)] == [("a", 1)]


def _failing_step(recorder: Recorder) -> None:
    with recorder.step() as step:
        step.round("a", drafted=1, accepted=1)
        with step.draft():
            raise ZeroDivisionError


def test_an_exception_of_the_engine_goes_on_and_its_step_is_not_written(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        with pytest.raises(ZeroDivisionError):
            _failing_step(recorder)
        a_step(recorder, 1)
    assert [row["step_id"].rpartition("-")[2] for row in rounds_of(tmp_path)] == ["1"]


def test_wrong_names_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="prompt"):
        Recorder(tmp_path, prompt="x")
    with pytest.raises(ValueError, match="sample"):
        Recorder(tmp_path, sample=0)
    with Recorder(tmp_path) as recorder, recorder.step() as step:
        with pytest.raises(TypeError, match="text"):
            step.round("a", drafted=1, accepted=1, text="secret")
        with pytest.raises(ValueError, match="phase"), step.phase("lunch"):
            pass
    with Recorder(tmp_path) as recorder, pytest.raises(TypeError, match="user"):
        recorder.request("a", user="x")
    assert rounds_of(tmp_path) == []
    with Recorder(tmp_path, sample=0.0001, seed=1) as recorder, recorder.step() as step:
        assert not step.is_written
        with pytest.raises(TypeError, match="txt"):
            step.round("a", drafted=1, accepted=1, txt="secret")


def test_settings_are_given_in_one_way(tmp_path: Path) -> None:
    settings = Settings(tmp_path, sample=0.5)
    for more in ({"sample": 1.0}, {"queue": 3}):
        with pytest.raises(TypeError, match=next(iter(more))):
            Recorder(tmp_path, settings=settings, **more)
    with pytest.raises(TypeError, match="path"):
        Recorder(tmp_path / "other", settings=settings)
    assert Recorder(str(tmp_path), settings=settings).settings == settings


def test_the_task_is_taken_from_the_id_where_none_is_named(tmp_path: Path) -> None:
    with Recorder(tmp_path, task="^([a-z]+)-") as recorder:
        with recorder.step() as step:
            step.round("code-1", drafted=1, accepted=1)
            step.round("code-2", drafted=1, accepted=1, task_type="chat")
            step.round("4711", drafted=1, accepted=1)
        recorder.request("math-3")
    assert [row.get("task_type") for row in lines_of(tmp_path)[1:]] == ["code", "chat", None, "math"]


def test_a_column_of_the_run_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'model'.*Path has no place"):
        Recorder(tmp_path, model=Path("/srv/m"))
    with pytest.raises(TypeError, match="'replica'"):
        Recorder(tmp_path, replica=b"0")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_cannot_be_made_loses_lines_and_counts_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Recorder(tmp_path, model="m") as recorder:
        recorder._run["model"] = object()
        a_step(recorder, 2)
    assert recorder.lost == 2
    assert "cannot be written" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_cannot_be_encoded_is_left_out_alone(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        with recorder.step() as step:
            for request_id in ("a", b"bytes", "c"):
                step.round(request_id, drafted=4, accepted=1)  # type: ignore[arg-type]
        with recorder.step() as step:
            step.round("d", drafted=4, accepted={1})  # type: ignore[arg-type]
    assert [row["request_id"] for row in rounds_of(tmp_path)] == ["a", "c"]
    assert recorder.lost == 2
    assert lines_of(tmp_path)[-1] == {"record": "recorder", "dropped": 0, "lost": 2}


def test_values_are_those_of_the_moment_and_json(tmp_path: Path) -> None:
    import numpy as np

    hist, array = [1, 2], np.array([3, 4])
    with Recorder(tmp_path, flush_s=30) as recorder:
        recorder.request("a", accepted_hist=hist, temperature=np.float32("nan"), top_p=np.float32(0.5))
        recorder.request("b" * 300, accepted_hist=array)
        recorder.request("c\ud800", accepted_hist=[1, float("nan")], ttft_us=float("inf"), rounds=np.int64(3))
        hist.append(9)
        array[0] = 9
    text = next(tmp_path.glob("*.jsonl")).read_text()
    assert "NaN" not in text
    assert "\\ud800" not in text
    first, second, third = lines_of(tmp_path)[1:]
    assert (first["accepted_hist"], first["top_p"], "temperature" in first) == ([1, 2], 0.5, False)
    assert (second["accepted_hist"], second["request_id"]) == ([3, 4], "b" * 256)
    assert (third["request_id"], third["rounds"]) == ("c?", 3)
    assert not {"accepted_hist", "ttft_us"} & third.keys()


class FailingClock:
    """Fails at one of its calls, from the second step on."""

    basis = "device"

    def __init__(self, place: str) -> None:
        self.place, self.is_failing = place, False

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> Any:
            if self.is_failing and name == self.place:
                raise RuntimeError("device lost")
            return {"mark": 5, "is_ready": True, "elapsed_us": 7, "release": None}[name]

        return call


@pytest.mark.parametrize("place", ["mark", "is_ready", "elapsed_us", "release"])
def test_a_clock_that_fails_costs_the_times_of_the_step(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FailingClock(place)
    with caplog.at_level(logging.WARNING), Recorder(tmp_path, clock=clock) as recorder:
        for is_failing in (False, True, True, False):
            clock.is_failing = is_failing
            a_step(recorder, 1)
    assert [row.get("target_us") for row in rounds_of(tmp_path)] == [7, None, None, 7]
    assert caplog.text.count("device lost") == 1


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


def test_sampled_steps_stand_for_all(tmp_path: Path) -> None:
    with Recorder(tmp_path, sample=0.25, seed=5) as recorder:
        for _ in range(4000):
            a_step(recorder, 2)
    rows = rounds_of(tmp_path)
    assert {row["weight"] for row in rows} == {4.0}
    by_step = {row["step_id"] for row in rows}
    assert len(rows) == 2 * len(by_step)  # whole steps
    # Bernoulli: 4000 * 0.25 = 1000 steps, standard deviation 27.
    assert abs(sum(row["weight"] for row in rows) / 8000 - 1) < 0.14


def test_a_full_queue_drops_and_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path, queue=10, flush_s=30)
    for _ in range(25):
        a_step(recorder, 1)
    assert recorder.dropped == 15
    with caplog.at_level(logging.WARNING):
        recorder.close()
    assert "15 steps or requests were dropped" in caplog.text
    assert len(rounds_of(tmp_path)) == 10
    assert lines_of(tmp_path)[-1] == {"record": "recorder", "dropped": 15, "lost": 0}


def test_files_rotate_by_size_and_each_can_be_read_alone(tmp_path: Path) -> None:
    with Recorder(tmp_path, rotate_mb=0.002, keep=3, run_id="r") as recorder:
        for _ in range(40):
            a_step(recorder, 4)
            recorder.flush()
    paths = sorted(tmp_path.glob("*.jsonl"))
    assert len(paths) == 3  # older ones are gone
    for path in paths:
        first, *rest = (json.loads(line) for line in path.read_text().splitlines())
        assert first["record"] == "run"
        assert first["run_id"] == "r"
        assert rest


def test_what_is_missing_is_noted_in_each_file_and_each_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path, queue=2, rotate_mb=0.001, flush_s=30)

    def notes() -> list[tuple[int, int]]:
        return [(n["dropped"], n["lost"]) for n in lines_of(tmp_path) if n["record"] == "recorder"]

    def four_steps() -> None:
        for _ in range(4):
            a_step(recorder, 1)
        recorder.flush()

    four_steps()
    assert notes() == [(2, 0)]  # nobody has closed anything
    four_steps()
    assert notes() == [(2, 0)]
    monkeypatch.setattr(writer, "_NOTE_S", 0.0)
    four_steps()
    assert notes() == [(2, 0), (6, 0)]
    monkeypatch.setattr(writer, "_NOTE_S", 1e9)
    for _ in range(8):
        a_step(recorder, 1)
        recorder.flush()
    assert len({path.name for path in tmp_path.glob("*.jsonl")}) > 2
    for path in tmp_path.glob("*.jsonl"):
        assert '"record":"recorder"' in path.read_text()
    recorder.close()

    from tracelens.ingest.options import IngestOptions
    from tracelens.ingest.run import ingest

    assert ingest([str(tmp_path)], tmp_path / "lake", IngestOptions(jobs=1)).rejects == 0


def test_files_rotate_by_time(tmp_path: Path) -> None:
    with Recorder(tmp_path, rotate_s=0.05) as recorder:
        for _ in range(3):
            a_step(recorder)
            recorder.flush()
            time.sleep(0.06)
    assert len(list(tmp_path.glob("*.jsonl"))) == 3


def test_what_the_thread_writes_needs_no_close(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, flush_s=0.02)
    a_step(recorder)
    deadline = time.monotonic() + 5
    while not list(tmp_path.glob("*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(rounds_of(tmp_path)) == 2
    recorder.close()


def test_a_path_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING), Recorder(tmp_path / "file") as recorder:
        for _ in range(3):
            a_step(recorder)
            recorder.flush()
    assert caplog.text.count("cannot be written") == 1
    assert recorder.lost == 6


def test_a_full_disk_loses_lines_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, full = os.write, [True]

    def write(fd: int, data: bytes) -> int:
        if full[0] and len(data) > 300:
            return real(fd, data[:300])
        if full[0] and len(data) < 300 and b'"record":"run"' not in bytes(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    recorder = Recorder(tmp_path, flush_s=30)
    monkeypatch.setattr(os, "write", write)
    a_step(recorder, 1)
    with caplog.at_level(logging.WARNING):
        recorder.flush()
    assert "No space left" in caplog.text
    assert recorder.lost == 1
    full[0] = False
    recorder.files._retry_at = 0.0
    a_step(recorder, 2)
    recorder.close()
    # A file that got nothing but its head and a torn line is taken away again.
    (whole,) = tmp_path.glob("*.jsonl")
    assert len([json.loads(line) for line in whole.read_text().splitlines()]) == 3 + 1
    assert lines_of(tmp_path)[-1] == {"record": "recorder", "dropped": 0, "lost": 1}


def test_of_a_half_written_batch_the_missing_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.write, [900]

    def write(fd: int, data: bytes) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(fd, data[: left[0]])
        left[0] -= written
        return written

    recorder = Recorder(tmp_path, flush_s=30)
    a_step(recorder, 9)
    monkeypatch.setattr(os, "write", write)
    recorder.flush()
    (path,) = tmp_path.glob("*.jsonl")
    _, *whole = path.read_text().split("\n")[:-1]
    assert 0 < len(whole) < 9
    assert recorder.lost == 9 - len(whole)
    left[0] = 10**6
    recorder.close()


def test_a_full_disk_never_costs_the_records_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path, flush_s=30, keep=3)
    for _ in range(2):
        a_step(recorder, 1)
        recorder.flush()
        recorder.files.close()
    real = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for _ in range(20):
        recorder.files._retry_at = 0.0
        a_step(recorder, 2)
        recorder.flush()
    assert len(list(tmp_path.glob("*.jsonl"))) == len(recorder.files.paths) == 2
    assert recorder.lost == 40
    monkeypatch.setattr(os, "write", real)
    recorder.files._retry_at = 0.0
    a_step(recorder, 1)
    recorder.close()
    assert len(rounds_of(tmp_path)) == 3
    assert sorted(path.stem[-4:] for path in tmp_path.glob("*.jsonl")) == ["0000", "0001", "0002"]


def test_a_folder_that_is_removed_is_told_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "records"
    recorder = Recorder(folder, flush_s=30)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            a_step(recorder, 1)
            recorder.flush()
            assert len(rounds_of(folder)) == 1
            shutil.rmtree(folder)
        a_step(recorder, 1)
        recorder.close()
    assert len(rounds_of(folder)) == 1
    assert caplog.text.count("was removed") == 1


def test_a_record_that_cannot_be_made_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Recorder(tmp_path) as recorder:
        recorder.request("a", output_tokens=object())
        recorder.request("b", output_tokens=3)
    assert "could not be made" in caplog.text
    assert [line.get("request_id") for line in lines_of(tmp_path)[1:]] == ["b", None]
    assert recorder.lost == 1


class Event:
    """A device event on a clock that the test turns."""

    now = 0.0
    made = 0

    def __init__(self) -> None:
        Event.made += 1
        self.at = 0.0

    def record(self) -> None:
        Event.now += 1.0
        self.at = Event.now

    def query(self) -> bool:
        return self.at <= self.reached

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at

    reached = 0.0


def test_device_events_are_read_later_and_used_again(tmp_path: Path) -> None:
    Event.now = Event.reached = 0.0
    Event.made = 0
    recorder = Recorder(tmp_path, clock=DeviceClock(Event), flush_s=30)
    a_step(recorder)
    recorder.flush()
    assert rounds_of(tmp_path) == []  # the device is behind: nobody waits for it
    Event.reached = 2.0
    a_step(recorder)
    recorder.flush()
    assert rounds_of(tmp_path) == []  # only the draft of the first is reached
    for _ in range(20):
        Event.reached = Event.now
        a_step(recorder)
    Event.reached = Event.now
    recorder.close()
    rows = rounds_of(tmp_path)
    assert len(rows) == 44
    assert {(row["draft_us"], row["target_us"], row["timing_basis"]) for row in rows} == {(1000, 1000, "device")}
    assert Event.made <= 12


def test_a_device_that_never_answers_costs_the_times_only(tmp_path: Path) -> None:
    Event.reached = -1.0
    with Recorder(tmp_path, clock=DeviceClock(Event)) as recorder:
        for _ in range(50):
            a_step(recorder, 1)
    rows = rounds_of(tmp_path)
    assert len(rows) == 50
    assert not any("draft_us" in row for row in rows)


def test_no_event_while_a_graph_is_captured(tmp_path: Path) -> None:
    with Recorder(tmp_path, clock=DeviceClock(Event, lambda: True)) as recorder:
        a_step(recorder, 1)
    assert "draft_us" not in rounds_of(tmp_path)[0]


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
    with connect(lake) as db:
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


def test_settings_of_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    assert from_environment({}) is None
    settings = from_environment(
        {
            "TRACELENS_RECORD": "/r",
            "TRACELENS_RECORD_SAMPLE": "0.5",
            "TRACELENS_RECORD_RUN": "x",
            "TRACELENS_RECORD_KEEP": "2",
        }
    )
    assert settings is not None
    assert (settings.folder, settings.sample, settings.run_id, settings.keep) == (Path("/r"), 0.5, "x", 2)
    with caplog.at_level(logging.WARNING):
        settings = from_environment(
            {
                "TRACELENS_RECORD": "/r",
                "TRACELENS_RECORD_SAMPLE": "50%",
                "TRACELENS_RECORD_TASK": "(",
                "TRACELENS_RECORD_QUEUE": "-1",
            }
        )
    assert settings is not None
    assert (settings.sample, settings.task, settings.queue) == (1.0, None, 8192)
    assert caplog.text.count("is not used") == 3


@pytest.mark.parametrize(
    "given",
    [
        {"rotate_mb": float("inf")}, {"rotate_mb": 1e-9}, {"rotate_s": float("inf")}, {"rotate_s": float("nan")},
        {"flush_s": float("inf")}, {"flush_s": float("nan")},
        {"queue": 0}, {"keep": -1},
        {"keep": float("nan")}, {"sample": float("nan")},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(given: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        Recorder(tmp_path, **given)
    name, value = next(iter(given.items()))
    if name != "flush_s":
        settings = from_environment({"TRACELENS_RECORD": "/r", f"TRACELENS_RECORD_{name.upper()}": str(value)})
        assert settings == Settings(Path("/r"))


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(?:a|aa)+(b)",
        r"(a)\1",
        r"((a*)*)*x",
        r"(?:[a-z]+-)*(x)",
        r"a*a*a*a*a*(b)",
        r"(a|b|ab)*c",
        "(a{9}",
        "a",
    ],
)
def test_a_pattern_that_an_id_could_make_slow_is_refused(pattern: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="task"):
        Settings(Path("r"), task=pattern)
    with caplog.at_level(logging.WARNING):
        settings = from_environment({"TRACELENS_RECORD": "/r", "TRACELENS_RECORD_TASK": pattern})
    assert settings is not None
    assert settings.task is None
    assert len(caplog.records) == 1
    assert "TRACELENS_RECORD_TASK is not used" in caplog.text


@pytest.mark.parametrize(
    ("pattern", "request_id", "task"),
    [
        (r"^(?:chatcmpl|cmpl)-([a-z]+)-", "chatcmpl-code-4711", "code"),
        (r"^(?:chatcmpl-|cmpl-)?([a-z]{2,8})(?:-\d+)?$", "chat-12", "chat"),
        (r".*-.*-(\w+)$", "a-b-c", "c"),
        (r"-([a-z]+)$", "x" * 64 + "-code", None),
        (r"a*?a*?a*?(x)", "a" * 5000, None),
        (r"(?:a|b)(?:a|b)[^x]*[^x]*(x)", "ab" * 5000, None),
    ],
)
def test_a_pattern_looks_at_64_characters_and_is_quick(pattern: str, request_id: str, task: str | None) -> None:
    begun = time.process_time()
    assert patterns.task_of(patterns.compiled(pattern), request_id) == task
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/srv/models/draft", "draft"),
        ("org/model", "org/model"),
        ("./x", "x"),
        ("C:\\m\\d", "d"),
        ("m", "m"),
        (None, None),
    ],
)
def test_no_folder_of_a_model_is_written(path: str | None, name: str | None) -> None:
    assert leaf(path) == name
