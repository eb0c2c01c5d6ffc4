"""Settings of a recorder: refused where they would stop an engine or write nothing."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from tracelens.recorders import Recorder, Settings, patterns
from tracelens.recorders.settings import from_environment


def test_settings_are_given_in_one_way(tmp_path: Path) -> None:
    settings = Settings(tmp_path, sample=0.5)
    for more in ({"sample": 1.0}, {"queue": 3}):
        with pytest.raises(TypeError, match=next(iter(more))):
            Recorder(tmp_path, settings=settings, **more)
    with pytest.raises(TypeError, match="path"):
        Recorder(tmp_path / "other", settings=settings)
    assert Recorder(str(tmp_path), settings=settings).settings == settings


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
