"""Versions that logs tell against the ranges that surfaces declare."""

from __future__ import annotations

import pickle

import pytest

from tracelens.engines import load
from tracelens.engines.versions import (
    AFTER,
    BEFORE,
    ERA,
    RELEASED,
    Range,
    Switch,
    Versions,
    Way,
    build_of,
    newer_era,
    newest,
    upgrade,
)


@pytest.mark.parametrize(
    ("engine", "version", "found", "missed"),
    [
        ("vllm", "0.6.3", Range("0.8.3", seen="0.33"), BEFORE),
        ("vllm", "0.8.3", Range("0.8.3", seen="0.33"), ""),
        ("vllm", "0.10.0", Range("0.8.3", seen="0.33"), ""),
        # The newest release that was looked at is no end.
        ("vllm", "0.40.1", Range("0.8.3", seen="0.33"), ""),
        ("vllm", "0.9.2", Range("0.5", "0.9"), ""),
        ("vllm", "0.10.0", Range("0.5", "0.9"), AFTER),
        ("vllm", "0.9.2.post1", Range("0.4.2", "0.9.2"), ""),
        ("vllm", "0.9.3", Range("0.4.2", "0.9.2"), AFTER),
        ("vllm", "v0.6.3.post1", Range(last="0.10.0"), ""),
        # A candidate, and a build on the way to a release, are taken for it: they may have it.
        ("vllm", "0.29.0rc1", Range("0.29"), ""),
        ("vllm", "0.11.0rc2.dev1+gabc", Range("0.11.1"), BEFORE),
        ("sglang", "0.5.10", Range("0.5.9"), ""),
        ("sglang", "0.5.10.post2", Range("0.5.11", "0.5.12"), BEFORE),
        ("llama.cpp", "b2995", Range("2024-11"), BEFORE),
        ("llama.cpp", "b7045", Range("2025-12"), BEFORE),
        ("llama.cpp", "b7045 (1a2b3c4)", Range("2025-03"), ""),
        # Between two known builds lies any day between theirs.
        ("llama.cpp", "b7200", Range("2025-12"), ""),
        ("llama.cpp", "b99999", Range("2026-08"), ""),
        ("rtp-llm", "0.2.0", Range("2025-01-09", "2026-03-15"), ""),
        ("rtp-llm", "0.2.0", Range("2026-03-25"), BEFORE),
        ("rtp-llm", "0.1.13", Range("2025-01-09", "2026-03-15"), BEFORE),
        ("rtp-llm", "2026-03-16", Range("2025-01-09", "2026-03-15"), AFTER),
        ("rtp-llm", "2026-03", Range("2025-01-09", "2026-03-15"), ""),
        ("tensorrt-llm", "0.8.0", Range("0.9", seen="2026"), BEFORE),
        ("tensorrt-llm", "0.8.0", Range("2025-03", seen="2026"), BEFORE),
        ("tensorrt-llm", "1.1.0rc3", Range("2025-10", seen="2026"), BEFORE),
        ("tensorrt-llm", "1.1.0", Range("2025-10", seen="2026"), ""),
        # No date of any of its releases is known: a date says nothing.
        ("vllm", "0.6.3", Range("2026-01"), ""),
    ],
)
def test_a_version_and_a_range(engine: str, version: str, found: Range, missed: str) -> None:
    build = build_of(engine, version)
    assert build is not None
    assert found.miss(build) == missed


@pytest.mark.parametrize("version", [None, "", "main", "dev", "0.1.dev1+g1234567", "0.0.0", "nightly-2026", "٣.٤"])
def test_what_is_no_version_rules_nothing_out(version: str | None) -> None:
    assert build_of("vllm", version) is None
    assert Range("0.25").miss(build_of("vllm", version)) == ""


def test_a_version_is_shown_without_what_is_behind_it() -> None:
    build = build_of("vllm", "0.6.3\x1b[31m")
    assert build is not None
    assert build.version == "0.6.3"


def test_two_engines_of_one_release() -> None:
    v0, v1, untold = (build_of("vllm", "0.8.5", era) for era in ("v0", "v1", None))
    stages = Range("0.5.4", "0.9.2", era="v0")
    assert [stages.miss(b) for b in (v0, v1, untold)] == ["", ERA, ""]
    assert v0 is not None
    assert v1 is not None
    line = Range("0.8.3", era="v1")
    assert (newer_era([stages, line], v0), newer_era([stages, line], v1)) == (line, None)


def test_the_newest_of_several_versions_is_advised_for() -> None:
    told = [("0.9.2", "v0"), ("0.10.1", "v1"), (None, None), ("main", None), ("0.8.5", "v1")]
    build = newest("vllm", told)
    assert build is not None
    assert (build.version, build.era) == ("0.10.1", "v1")
    assert newest("vllm", [("main", None)]) is None
    for engine, known in RELEASED.items():
        last = newest(engine, [(version, None) for version, _ in known])
        assert last is not None
        assert last.version == known[-1][0]


def test_the_nearest_upgrade() -> None:
    build = build_of("vllm", "0.8.5")
    assert build is not None
    near, far = Range("0.10.2"), Range("0.25")
    assert upgrade([far, Range("0.4.2", "0.8.0"), near], build) == near
    assert upgrade([Range("0.4.2", "0.8.0")], build) is None


def test_figures_with_a_range_of_their_own() -> None:
    own = Range("0.29", form="{first}+", of=("hazard",))
    known = Versions(Range("0.25", seen="0.33"), " (acceptance ", own, ")", Range("0.30", form="", of=("rho",)))
    assert str(known) == "0.25-0.33 (acceptance 0.29+)"
    assert known.ranges(["hazard"]) == (own,)
    assert [r.first for r in known.ranges(["tpot_ms"])] == ["0.25"]
    assert pickle.loads(pickle.dumps(known)) == known


def test_the_way_of_a_version() -> None:
    switch = Switch("both", Way(Range("0.29"), "new"), Way(Range("0.25"), "old"))
    told = [switch.at(build_of("vllm", version)) for version in (None, "0.24.0", "0.26.0", "0.30.0")]
    assert told == ["both", "both", "old", "new"]


def test_every_release_with_a_date_is_in_order() -> None:
    for engine, known in RELEASED.items():
        builds = [build_of(engine, version) for version, _ in known]
        assert all(build is not None and build.earliest == build.latest for build in builds), engine
        ranks = [build.rank for build in builds if build is not None]
        assert ranks == sorted(ranks), engine


def test_every_engine_with_versions_declares_them_for_a_machine() -> None:
    """Only what has no version of the engine's (any, all, a script, the tool's own version) is text alone."""
    free = {"sglang.bench_speculative", "rtp.query", "rtp.step_json", "rtp.config_dump"}
    for engine in load():
        if engine.name in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "rtp-llm"):
            assert {s.name for s in engine.surfaces if not isinstance(s.versions, Versions)} <= free
