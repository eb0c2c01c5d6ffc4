"""Secrets in every surface's sample, and none of them in anything that the tool wrote or said.

`TRACELENS_EVERY_CANARY=1` puts a secret in the place of every text of every sample, one after the other.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import canaries
import pyarrow.parquet as pq
import pytest

from tracelens import logs
from tracelens.cli import run
from tracelens.engines import load
from tracelens.ingest.names import SECRET
from tracelens.lake.salt import VARIABLE
from tracelens.lake.schema import FACTS

EVERY = bool(os.environ.get("TRACELENS_EVERY_CANARY"))
FORMATS = ("table", "csv", "svg", "markdown", "parquet", "json", "html")
# One sample of each surface and a site of each kind, where time is short.
QUICK = re.compile(
    r"data/surfaces/|-site/|hostile/|canonical/baseline|data/rtp-llm/(access_r0|dash_sc|engine_main_debug|kmonitor_prom)"
    r"|data/llama-cpp/trace|data/sglang/(server|finish)|data/tensorrt-llm/trtllm_iter|data/vllm/(otlp_spans|.*jsonformat)"
)


@dataclass
class Outcome:
    """What a whole session left: texts by place, and what was planted."""

    texts: dict[str, bytes]
    samples: int
    files: int
    surfaces: set[str]


@contextmanager
def quiet_logs() -> Iterator[None]:
    """`-v` sets up logging for the process; a test leaves it as it was."""
    logger = logging.getLogger(logs.ROOT)
    before = (list(logger.handlers), logger.level, logger.propagate)
    try:
        yield
    finally:
        logger.handlers[:], logger.level, logger.propagate = list(before[0]), before[1], before[2]


def called(texts: dict[str, bytes], *arguments: object) -> int:
    """Run a command in this process; what it says is kept."""
    out, err = StringIO(), StringIO()
    logging.getLogger(logs.ROOT).handlers.clear()  # one of an earlier call writes to that call's stderr
    with redirect_stdout(out), redirect_stderr(err):
        code = run([str(a) for a in arguments])
    texts[f"said by {' '.join(map(str, arguments))[:150]}"] = (out.getvalue() + err.getvalue()).encode()
    return code


def planted_into(folder: Path, samples: list[Path], *, most: int, head: int) -> int:
    """Write the variants of samples; how many they are."""
    folder.mkdir()
    count = 0
    for i, path in enumerate(samples):
        variants = list(canaries.planted(canaries.unpacked(path), most=most, head=head))
        # Of the sample of a surface what is only added to is recognised for certain.
        if not EVERY and "surfaces" in path.parts:
            # AIPerf's sums refuse a histogram to which something was added.
            variants = [variants[0], variants[-1]][: 1 + (i % 3 == 0 or path.stem == "aiperf-run")]
        elif not EVERY:
            variants = variants[-(i % 2) :][:1]
        for j, data in enumerate(variants):
            (folder / f"{i:03d}-{j}.log").write_bytes(data)
            count += 1
    return count


def session(folder: Path) -> Outcome:
    """Plant, ingest, ask everything, make errors: one lake of all surfaces, and one for what takes its time."""
    texts: dict[str, bytes] = {}
    made, every, few = folder / "made", folder / "every", folder / "few"
    made.mkdir()
    samples = canaries.corpus() if EVERY else [p for p in canaries.corpus() if QUICK.search(p.as_posix())]
    size = {"most": 0, "head": 24 << 10} if EVERY else {"most": 1, "head": 2500}
    count = planted_into(every, samples, **size)
    planted_into(few, [p for p in samples if "-site/" in p.as_posix()], **size)
    lake, small = made / "lake", made / "small"
    options = ("--redact-ids", "--debug", "--year", 2026, "--jobs", 1)
    with quiet_logs():
        assert called(texts, "ingest", every, "--lake", lake, *options) == 0
        assert called(texts, "ingest", few, "--lake", small, *options) == 0
        for fmt in FORMATS if EVERY else FORMATS[-2:]:
            chart = ("--chart", "alpha") if fmt == "svg" else ()
            called(texts, "report", "--lake", small, "--format", fmt, "-o", made / f"report.{fmt}", "-v", *chart)
        for command in ("gap", "gate", "sweep") if EVERY else ():
            claim = ("--claim", "alpha=.7,rho=.1,k=5") if command == "gap" else ()
            called(texts, command, "--lake", small, "--json", "--debug", *claim)
        for question in ("from rejects", "from sources", "from runs")[: None if EVERY else 1]:
            assert called(texts, "query", question, "--lake", lake if EVERY else small, "--json") == 0
        called(texts, "inspect", "-v", *sorted((every if EVERY else few).iterdir())[: None if EVERY else 3])
        errors(texts, min(few.iterdir()), small)
    texts |= canaries.written(made)
    surfaces = surfaces_of(lake) | surfaces_of(small)
    return Outcome(texts, len(samples), count, surfaces)


def surfaces_of(lake: Path) -> set[str]:
    """The surfaces of the records that were recognised, and of the rows that were made of them."""
    sources = [row for p in (lake / "sources").iterdir() for row in pq.ParquetFile(p).read().to_pylist()]
    facts = [p for name in FACTS for p in (lake / name).rglob("*.parquet")]
    rows = {surface for p in facts for surface in pq.ParquetFile(p).read(["surface"])["surface"].to_pylist()}
    return rows | {surface for row in sources for surface, n in row["surfaces"] if n}


def errors(texts: dict[str, bytes], log: Path, lake: Path) -> None:
    """Files of secrets in the places of labels, rules, claims, lakes and ledgers."""
    for arguments in (
        ("label", log, "--lake", lake),
        ("ingest", log, "--labels", log, "--lake", lake),
        ("ingest", log, "--rules", log, "--lake", lake),
        ("gap", "--claim", f"@{log}", "--lake", lake),
        ("report", "--lake", log),
        ("ingest", log, "--lake", log.parent),
    ):
        assert called(texts, *arguments, "--debug") == 3, arguments


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "the salt of this test")
        return session(tmp_path_factory.mktemp("canaries"))


def test_no_secret_gets_through(outcome: Outcome) -> None:
    assert canaries.leaks(outcome.texts) == {}


def test_the_session_had_something_to_leak(outcome: Outcome) -> None:
    assert len(canaries.SECRETS) >= 30
    assert outcome.samples > 35
    assert outcome.files > 35
    assert len(outcome.surfaces) >= 30
    assert {s.partition(".")[0] for s in outcome.surfaces} >= {"vllm", "rtp", "sglang", "trtllm", "llama", "generic"}
    assert any(b"decoded" not in t and b"part=ingest" in t for t in outcome.texts.values())  # `-v` spoke
    assert sum(len(t) for t in outcome.texts.values()) > 200_000


def test_every_surface_of_the_registry_has_a_canary(outcome: Outcome) -> None:
    """A new surface needs a sample: `tests/data/surfaces/<surface>`, a few records as its engine writes them."""
    assert {s.name for engine in load() for s in engine.surfaces} - outcome.surfaces == set()


def test_leaks_are_found() -> None:
    """In plain text, quoted, cut, and in Parquet."""
    for kind, text in canaries.SECRETS.items():
        assert kind in canaries.leaks({"a": f"x {text} y".encode()})
    assert set(canaries.leaks({"a": b"\x00sk-proj-T3BlbkFJq7wXzN2mR8vL"})) == {"api key"}
    assert canaries.leaks({"a": b"request 203.0.113.7 of 9 tokens"}) == {}


NAMES = ("Qwen/Qwen2.5-72B-Instruct", "/models/target-72b", "qwen3.gguf", "meta-llama/Llama-3.1-8B:main", "eagle3",
         "APIServer 1", "EngineCore_DP0 pid=17", "stop", "rollback-chat", "DeepSeek-V3 (fp8)", "2",
         "k5_2026-05-06")  # fmt: skip
# Words like those of any name; no engine takes a name from where they stand.
WORDS = ("prompt", "system prompt", "output", "reasoning", "tool arguments", "token text", "host name", "telephone",
         "user name", "password", "street address")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_no_secrets(name: str) -> None:
    import polars as pl

    from tracelens.ingest.names import cleaned

    frame = pl.DataFrame({"model": [name, None], "task_type": [name, name], "process": [None, name]})
    assert cleaned("vllm", "requests", frame).equals(frame)


def test_words_have_their_form() -> None:
    import polars as pl

    from tracelens.ingest.names import cleaned

    frame = pl.DataFrame(
        {"finish_reason": ["stop", "length", "tool_calls", "because of Ottoline", "a\nb"],
         "method": ["eagle3", "draft_model", "ngram", "it is said that", "x" * 65],
         "engine_version": ["0.6.3.1", "0.11.0rc2.dev1+gabc", "b4567 (1a2b3c4)", "1.0; rm", "v" * 101]}
    )  # fmt: skip
    kept = cleaned("sglang", "requests", frame.drop("engine_version")).to_dict(as_series=False)
    assert kept["finish_reason"] == ["stop", "length", "tool_calls", None, None]
    assert kept["method"] == ["eagle3", "draft_model", "ngram", None, None]
    versions = cleaned("sglang", "runs", frame.select("engine_version"))["engine_version"].to_list()
    assert versions == ["0.6.3.1", "0.11.0rc2.dev1+gabc", "b4567 (1a2b3c4)", None, None]


@pytest.mark.parametrize("kind", [k for k in canaries.SECRETS if k not in WORDS])
def test_what_looks_like_a_secret_is_no_name(kind: str) -> None:
    import polars as pl

    from tracelens.ingest.names import cleaned

    secret = canaries.SECRETS[kind]
    assert pl.Series([secret]).str.contains(SECRET).to_list() == [True]
    config = [[{"key": "a", "value": secret}, {"key": "dtype", "value": "bfloat16"}]]
    frame = cleaned("vllm", "runs", pl.DataFrame({"model": [secret, "m"], "config": [config[0], None]}))
    assert frame["model"].to_list() == [None, "m"]
    assert frame["config"].to_list() == [[{"key": "dtype", "value": "bfloat16"}], None]
    generic = pl.DataFrame({"model": [secret]})
    assert cleaned("generic", "rounds", generic).equals(generic)


def test_engines_keep_no_text_of_a_record(outcome: Outcome) -> None:
    """Rejects say what is wrong in words of ours: numbers and names of fields, nothing else of the record."""
    rows = [t for name, t in outcome.texts.items() if "rejects/" in name and "decoded" in name]
    reasons = {m for t in rows for m in re.findall(rb'"reason": "([^"]*)"', t)}
    assert len(reasons) > 3
    assert max(map(len, reasons)) < 200
