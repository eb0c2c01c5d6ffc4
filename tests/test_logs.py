"""What `-v` says: one line an event, keys and values, on stderr alone."""

from __future__ import annotations

import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracelens import logs
from tracelens.cli import run

LINE = re.compile(
    r'time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=\w+ part=[\w.]+ event=(?:"[^"]+"|\S+)(?: \w+=\S.*)?'
)


def line(event: str, **fields: object) -> str:
    record = logging.LogRecord("tracelens.ingest.stage", logging.INFO, "", 0, event, None, None)
    record.fields = fields
    return logs.Formatter().format(record)


def read(text: str) -> dict[str, str]:
    """The fields of a line, as whoever collects logs reads them."""
    pairs = dict(part.split("=", 1) for part in re.findall(r'(\w+=(?:"(?:[^"\\]|\\.)*"|\S+))', text))
    return {k: json.loads(v) if v.startswith('"') else v for k, v in pairs.items()}


def test_a_line() -> None:
    text = line("source read", source="a b.log", lines=12, seconds=0.12345, odd='x"y\n\x1b[31mé')
    assert LINE.fullmatch(text)
    told = read(text)
    assert told["event"] == "source read"
    assert (told["part"], told["level"], told["lines"], told["seconds"]) == ("ingest.stage", "info", "12", "0.123")
    assert (told["source"], told["odd"]) == ("a b.log", 'x"y\n\x1b[31mé')
    assert text.isascii()
    assert text.isprintable()


def test_long_values_are_cut() -> None:
    told = read(line("x", source="a" * 5000))["source"]
    assert told == "a" * (logs.LONGEST - 3) + "..."


@pytest.fixture
def _as_before() -> Iterator[None]:
    logger = logging.getLogger(logs.ROOT)
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.mark.usefixtures("_as_before")
def test_set_up_twice_is_once() -> None:
    logger = logging.getLogger(logs.ROOT)
    logger.handlers.clear()
    assert logs.level() is None
    logs.to_stderr(logging.INFO)
    logs.to_stderr(logging.DEBUG)
    assert (len(logger.handlers), logs.level()) == (1, logging.DEBUG)


def test_ingest_tells_its_work_on_stderr(tmp_path: Path) -> None:
    """Worker processes tell theirs, too."""
    good = '{"record":"round","request_id":"%s-%d","drafted":3,"accepted":2,"emitted":3}\n'
    for name in ("a b.jsonl", "c.jsonl"):
        (tmp_path / name).write_text(
            "".join(good % (name[0], i) for i in range(20)) + '{"record":"round","accepted":-1}\n'
        )
    script = (
        "import sys; from tracelens.ingest import run; run._PARALLEL_BYTES = 0\n"
        "if __name__ == '__main__':\n    from tracelens.cli import main; main(sys.argv[1:])"
    )
    (tmp_path / "main.py").write_text(script)
    command = [sys.executable, tmp_path / "main.py", "ingest", tmp_path, "--json", "-v", "--jobs", "2"]
    done = subprocess.run(
        [*map(str, command), "--lake", str(tmp_path / "l")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rejects"] == 2
    lines = done.stderr.splitlines()
    assert all(LINE.fullmatch(text) for text in lines), done.stderr
    told = [read(text) for text in lines]
    events = [t["event"] for t in told]
    assert events.count("ingest begins") == 1
    assert "committed" in events
    sources = {t["source"]: t for t in told if t["event"] == "source read"}
    assert {"a b.jsonl", "c.jsonl"} <= {Path(s).name for s in sources}
    one = next(t for s, t in sources.items() if s.endswith("c.jsonl"))
    assert (one["rows_rounds"], one["rejects"], one["lines"]) == ("20", "1", "21")
    assert shlex.split(lines[0])[0].startswith("time=")
    assert [t["records"] for t in told if t["event"] == "records refused"] == ["1", "1"]


@pytest.mark.usefixtures("_as_before")
def test_a_later_command_without_it_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    logs.to_stderr(logging.INFO)
    logs.info(logging.getLogger("tracelens.a"), "told")
    logs.off()
    logs.info(logging.getLogger("tracelens.a"), "not told")
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("words", [["-v", "ingest"], ["ingest", "-v"], ["ingest"]], ids=" ".join)
def test_the_flag_stands_before_or_behind_the_name_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"record": "round", "drafted": 3, "accepted": 1, "emitted": 2}\n')
    assert run([*words, str(tmp_path / "a.jsonl"), "--lake", str(tmp_path / "lake"), "--jobs", "1"]) == 0
    assert ('event="ingest begins"' in capsys.readouterr().err) is ("-v" in words)
