"""Advice of `ingest` and `inspect`, and of a report, names nothing that the version in the log does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ingest_logs import log, run

from tracelens.analysis.engine_switches import SWITCH
from tracelens.analysis.report import report
from tracelens.analysis.results import Missing
from tracelens.analysis.switches import switch_on
from tracelens.engines import load
from tracelens.engines.base import Engine, Surface
from tracelens.engines.versions import Range, Versions, build_of
from tracelens.ingest import advice
from tracelens.ingest.holdings import Held
from tracelens.ingest.inspect import inspect as look
from tracelens.ingest.options import IngestOptions

ENGINES = {e.name: e for e in load()}
#: The first version that has a switch.
FIRST = {
    "--enable-per-request-metrics": "0.25", "--per-request-spec-decode-metrics": "0.29",
    "VLLM_CUSTOM_SCOPES_FOR_PROFILING": "0.10.2", "TRACELENS_RECORD": "0.11.1", "VLLM_LOG_STATS_INTERVAL": "0.10.1",
    "--enable-log-requests": "0.10.1", "VLLM_LOG_BATCHSIZE_INTERVAL": "0.7", "--profiler-config": "0.13",
    "--enable-logging-iteration-details": "0.14", "VLLM_USE_V2_MODEL_RUNNER": "0.29", "SGLANG_LOG_MS": "0.5.6",
    "SGLANG_ENABLE_METRICS_DEVICE_TIMER": "0.5.11", "--export-metrics-to-file": "0.5.6",
    "SGLANG_LOG_FORWARD_ITERS": "0.5.5", "return_spec_tokens_details": "0.5.19", "--log-requests-format": "0.5.8",
    "gen_timeline": "2026-03-25", "/start_profile {": "2026-03-25", "LLAMA_TRACE": "2025-12",
}  # fmt: skip
#: The last one that has it.
LAST = {
    "--disable-log-requests": "0.10.0", "VLLM_TORCH_PROFILER_DIR": "0.15", "stage times": "0.9.2",
    "SGLANG_TRACE_LEVEL": "0.5.12",
}  # fmt: skip
LIMIT = re.compile(r"not before (\S+?)[;:]? \(?\(?here ")


def scale(text: str) -> tuple[int, ...]:
    """A version or a date for comparisons, by a way of its own."""
    return tuple(int(n) for n in re.findall(r"\d+", text))


def lies_in(version: str, first: str, last: str) -> bool:
    at, n = scale(version), len(scale(last))
    return (not first or at >= scale(first)) and (not last or at[:n] <= scale(last))


def is_date(text: str) -> bool:
    return text.startswith("20")


def day(text: str) -> str:
    """A whole date, for one that is short of its month or day."""
    return (text + "-01-01")[:10] if is_date(text) else text


def around(text: str) -> Iterator[str]:
    """Versions on both sides of one end of a range, and it itself."""
    parts = list(scale(day(text)))
    if is_date(text):
        year, month, number = parts
        yield f"{year - (month == 1)}-{(month - 2) % 12 + 1:02}-28"
        yield f"{year}-{month:02}-{number:02}"
        yield f"{year + (month == 12)}-{month % 12 + 1:02}-01"
        return
    parts += [0] * (3 - len(parts))
    major, minor, patch = parts[:3]
    yield f"{major}.{minor}.{patch}"
    yield f"{major}.{minor}.{patch + 1}"
    yield f"{major}.{minor}.{patch - 1}" if patch else f"{major}.{minor - 1}.99"
    yield f"{major}.{minor + 1}.0"


def versions_of(engine: Engine) -> list[str]:
    """Versions on each side of every end of every range of every surface and switch."""
    ranges = [r for s in engine.surfaces if isinstance(s.versions, Versions) for r in s.versions.parts]
    ranges += [w.range for s in engine.surfaces if not isinstance(s.switch_on, str) for w in s.switch_on.ways]
    ranges += [w.range for k in SWITCH[engine.name].values() if not isinstance(k, str) for w in k.ways]
    ends = {end for r in ranges if isinstance(r, Range) for end in (r.first, r.last, r.seen) if end}
    return sorted({version for end in ends for version in around(end)})


CASES = [
    (name, version, era)
    for name in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "rtp-llm")
    for version in versions_of(ENGINES[name])
    for era in ((None, "v0", "v1") if name == "vllm" else (None,))
]


def missing(name: str, version: str | None, era: str | None = None) -> list[Missing]:
    """Advice where nothing but a surface without any figure was found."""
    engine = ENGINES[name]
    found = next(s.name for s in engine.surfaces if not advice.of_surface(s, Held({"x": {"counts"}}))[2])
    told = Held() if version is None else Held(versions={(version, era)})
    return advice.missing([engine], [found], {name: told})


def named(item: Missing, engine: Engine) -> Surface:
    told = f" {item.because}"
    return next(s for s in engine.surfaces if f" {s.title} would give it ({s.versions})" in told)


def has(surface: Surface, figure: str, version: str, era: str | None) -> bool | None:
    """Whether a version writes a figure, by what the surface declares; None where one is a date and one a number."""
    if not isinstance(surface.versions, Versions):
        return True
    ranges = surface.versions.ranges(n for n in surface.gives if n in advice.FIGURES[figure])
    if any(is_date(r.first or r.last) != is_date(version) for r in ranges):
        return None
    return not ranges or any(
        lies_in(version, day(r.first), day(r.last)) and not (era and r.era and era != r.era) for r in ranges
    )


def check_switch(text: str, version: str, because: str = "") -> None:
    """No switch is younger than the version, or than the one that it says to upgrade to; none is gone."""
    limit = LIMIT.search(f"{because} {text}")
    at = day(limit[1]) if limit else version
    for flag, first in FIRST.items():
        if flag in text and is_date(first) == is_date(at):
            assert scale(at) >= scale(first)[: len(scale(at))], (version, flag, text)
    for flag, last in LAST.items():
        if flag in text and is_date(last) == is_date(at):
            assert scale(at)[: len(scale(last))] <= scale(last), (version, flag, text)


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in CASES))
def test_no_surface_out_of_its_range(name: str) -> None:
    engine, limited = ENGINES[name], 0
    for version, era in [(v, e) for n, v, e in CASES if n == name]:
        for item in missing(name, version, era):
            if "no log of" in item.because or item.because.startswith(("not after", "not by")):
                assert "canonical JSON" in item.switch_on
                continue
            surface, figure = named(item, engine), item.figure
            givers = [s for s in engine.surfaces if set(s.gives) & set(advice.FIGURES[figure])]
            if "not before" in item.because or "not by" in item.because:
                limited += 1
                assert f"here {version}" in item.because
                assert not [s.name for s in givers if has(s, figure, version, era)], (version, era, item)
                assert item.switch_on.startswith(("upgrade to ", "run V1, then: "))
            else:
                assert has(surface, figure, version, era) is not False, (version, era, item)
            check_switch(item.switch_on, version, item.because)
    # RTP-LLM's steps can be written by a hook of one's own in any version: nothing is out of reach.
    assert limited or name == "rtp-llm", "some version is too old for something"


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in CASES))
def test_no_switch_of_a_report_that_the_version_does_not_have(name: str) -> None:
    for version, era in [(v, e) for n, v, e in CASES if n == name]:
        build = build_of(name, version, era)
        assert build is not None
        for need in SWITCH[name]:
            check_switch(switch_on(need, [name], builds={name: build}), version)


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in CASES))
def test_the_nearest_upgrade_is_enough(name: str) -> None:
    """Who follows the advice and upgrades to the version named is told a switch there, and no further upgrade."""
    for version, era in [(v, e) for n, v, e in CASES if n == name]:
        for item in missing(name, version, era):
            limit = re.search(r"not before (\S+); here", item.because)
            if limit:
                again = {m.figure: m for m in missing(name, limit[1])}[item.figure]
                assert "not before" not in again.because, (version, item, again)
                assert again.switch_on in item.switch_on or named(again, ENGINES[name]) != named(item, ENGINES[name])


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in CASES))
@pytest.mark.parametrize("version", [None, "main", "0.1.dev1+g1234567"])
def test_without_a_version_the_last_declared_is_named_as_ever(name: str, version: str | None) -> None:
    engine = ENGINES[name]
    for item in missing(name, version):
        givers = [s for s in engine.surfaces if set(s.gives) & set(advice.FIGURES[item.figure])]
        if givers:
            assert item.because == f"not in these logs; {givers[-1].title} would give it ({givers[-1].versions})"
            assert item.switch_on == str(givers[-1].switch_on)


V0_LOG = log(
    "INFO 06-01 10:00:00 llm_engine.py:237] Initializing an LLM engine (v0.6.3) with config: model='m', "
    "speculative_config=SpeculativeConfig(draft_model='d', num_spec_tokens=3), tokenizer='m', tensor_parallel_size=1",
    "INFO 06-01 10:00:10 metrics.py:373] Speculative metrics: Draft acceptance rate: 0.600, System efficiency: 0.500, "
    "Number of speculative tokens: 3, Number of accepted tokens: 72, Number of draft tokens: 120, Number of emitted "
    "tokens: 80.",
)
V1_LOG = log(
    "INFO 06-01 10:00:00 [core.py:1] Initializing a V1 LLM engine (v0.8.5) with config: model='m', "
    "speculative_config=SpeculativeConfig(method='draft_model', model='d', num_spec_tokens=3), tokenizer='m'",
    "INFO 06-01 10:00:10 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 50.0%, Mean acceptance length: "
    "1.50, Accepted: 60 tokens, Drafted: 120 tokens, Per-position acceptance rate: 0.750, 0.500, 0.250",
)


@pytest.mark.parametrize(
    ("text", "version", "told"),
    [
        (V0_LOG, "0.6.3", {
            "rho": "SpecDecodeWorker stage times", "tpot_ms": "--otlp-traces-endpoint",
            "temperature": "Received request", "near_k_request_share": "not before 0.29; here 0.6.3",
        }),
        (V1_LOG, "0.8.5", {
            "rho": "VLLM_LOG_BATCHSIZE_INTERVAL", "temperature": "Received request", "tpot_ms": "vllm bench serve",
            "near_k_request_share": "not before 0.29; here 0.8.5",
        }),
    ],
)  # fmt: skip
def test_the_version_of_a_start_line_reaches_every_way_in(
    tmp_path: Path, text: str, version: str, told: dict[str, str]
) -> None:
    (tmp_path / "x.log").write_text(text)
    inspected = look([str(tmp_path / "x.log")], IngestOptions(year=2026)).missing
    lake = tmp_path / "lake"
    summary = run(lake, tmp_path / "x.log", year=2026)
    ingested = advice.missing(load(), summary.surfaces, summary.held)
    assert tuple(ingested) == inspected
    for figure, words in told.items():
        (item,) = [m for m in ingested if m.figure == figure]
        assert words in f"{item.because} {item.switch_on}"
        check_switch(item.switch_on, version, item.because)
    for gap in report(lake).coverage:
        check_switch(gap.switch_on, version)


def test_several_versions_are_advised_for_by_the_newest(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(V0_LOG)
    (tmp_path / "b.log").write_text(V1_LOG)
    summary = run(tmp_path / "lake", tmp_path / "a.log", tmp_path / "b.log", year=2026)
    gaps = advice.missing(load(), summary.surfaces, summary.held)
    assert {m.because for m in gaps if "here" in m.because} <= {m.because for m in gaps if "here 0.8.5" in m.because}
    (rho,) = [m for m in gaps if m.figure == "rho"]
    assert "VLLM_LOG_BATCHSIZE_INTERVAL" in rho.switch_on
    told = " ".join(gap.switch_on for gap in report(tmp_path / "lake").coverage)
    assert "VLLM_LOG_BATCHSIZE_INTERVAL" in told
    assert "here 0.6.3" not in told
