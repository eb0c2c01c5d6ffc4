"""The recorder: what it writes is canonical, and nothing that happens to it reaches the engine."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from tests.recorders.recorder_steps import Event, a_step, lines_of, rounds_of
from tracelens.lake.schema import table
from tracelens.recorders import DeviceClock, Recorder
from tracelens.recorders.columns import COLUMNS, leaf


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


def test_a_record_that_cannot_be_made_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Recorder(tmp_path) as recorder:
        recorder.request("a", output_tokens=object())
        recorder.request("b", output_tokens=3)
    assert "could not be made" in caplog.text
    assert [line.get("request_id") for line in lines_of(tmp_path)[1:]] == ["b", None]
    assert recorder.lost == 1


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
