"""The recorder's files: full queues and disks lose what they must, count it, and cost nothing that was written."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.recorders.recorder_steps import a_step, lines_of, rounds_of
from tracelens.recorders import Recorder, writer


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


def test_a_head_that_cannot_be_made_loses_lines_and_counts_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Recorder(tmp_path, model="m") as recorder:
        recorder._run["model"] = object()
        a_step(recorder, 2)
    assert recorder.lost == 2
    assert "cannot be written" in caplog.text
    assert list(tmp_path.iterdir()) == []
