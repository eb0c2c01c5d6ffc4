"""Exit codes, errors, help and start-up."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

import tracelens.cli
from tracelens.cli import group, options, run
from tracelens.cli.group import COMMANDS, Command
from tracelens.errors import InputError, NothingRecognisedError, RejectsError

HEAVY = ("polars", "duckdb", "pyarrow", "altair", "scipy", "numpy", "rich", "pydantic")


def raising(error: BaseException) -> Callable[[], None]:
    def probe(text: str = "") -> None:
        """Do nothing but fail."""
        raise error

    return probe


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Put a function in the place of a command named `probe`."""

    def put(function: Callable[..., Any]) -> None:
        monkeypatch.setitem(COMMANDS, "probe", Command(f"{__name__}:PROBE", "A probe.", "tracelens probe"))
        monkeypatch.setattr(sys.modules[__name__], "PROBE", function, raising=False)

    return put


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("no lake at x"), 3),
        (NothingRecognisedError("nothing"), 1),
        (RejectsError("3 rejects"), 1),
        (FileNotFoundError(2, "No such file or directory", "x.log"), 3),
        (typer.BadParameter("bad"), 3),
        (typer.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (ValueError("boom"), 4),
        (KeyError("boom"), 4),
    ],
)
def test_exit_code_of_an_error(
    error: BaseException, code: int, probe: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    probe(raising(error))
    assert run(["probe"]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err


@pytest.mark.parametrize("code", [0, 1, 2])
def test_exit_code_of_an_answer(code: int, probe: Any) -> None:
    def answer() -> int:
        return code

    probe(answer)
    assert run(["probe"]) == code


def test_exit_code_by_exit(probe: Any) -> None:
    probe(raising(typer.Exit(2)))
    assert run(["probe"]) == 2


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["repot"],
        ["report", "--nonsense"],
        ["report", "--near-k", "x"],
        ["report", "--near-k", "-1"],
        ["--nonsense"],
        ["schema", "nonsense"],
        ["schema", "rounds", "extra"],
        ["ingest"],
        ["query", "select 1", "--lake"],
        ["query", "--json", "--format", "csv"],
        ["query", "--format", "html"],
        ["report", "--since", "yesterday", "--lake", "x"],
    ],
)
def test_usage_errors_are_3(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if args[0] == "ingest" and importlib.util.find_spec("tracelens.cli.ingest") is None:
        pytest.skip("ingest is not there yet")
    if args[0] == "report" and importlib.util.find_spec("tracelens.analysis.report") is None:
        pytest.skip("analysis.report is not there yet")
    assert run(args) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("Error: ")
    assert "Traceback" not in told.err


def test_a_misspelt_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    run(["repot"])
    assert "did you mean `report`?" in capsys.readouterr().err


def test_a_fault_tells_no_content(probe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(ValueError("the user's prompt")))
    assert run(["probe"]) == 4
    told = capsys.readouterr().err
    assert "ValueError" in told
    assert "--debug" in told
    assert "prompt" not in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("args", [["probe", "--debug"], ["--debug", "probe"]])
def test_debug_shows_the_traceback(args: list[str], probe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(ValueError("boom")))
    assert run(args) == 4
    assert "Traceback" in capsys.readouterr().err


def test_an_error_message_drives_no_terminal(probe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(InputError("no file \x1b]0;owned\x07\nmake one")))
    run(["probe"])
    assert capsys.readouterr().err == "Error: no file \\x1b]0;owned\\x07\nmake one\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"tracelens {tracelens.__version__}\n"


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in COMMANDS)
    assert told.rstrip().splitlines()[-1].strip().startswith("tracelens ")


def exists(command: Command) -> bool:
    return importlib.util.find_spec(command.target.partition(":")[0]) is not None


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not exists(COMMANDS[name]):
        pytest.skip(f"{name} is not there yet")
    assert run([name, "--help"]) == 0
    told = capsys.readouterr().out
    assert "--debug" in told
    assert "-v, --verbose" in told
    assert told.rstrip().splitlines()[-1].strip() == COMMANDS[name].example
    assert "Args:" not in told


@pytest.mark.parametrize("name", COMMANDS)
def test_example_of_a_command_parses(name: str) -> None:
    command = COMMANDS[name]
    if not exists(command):
        pytest.skip(f"{name} is not there yet")
    program, called, *args = shlex.split(command.example)
    assert (program, called) == ("tracelens", name)
    parsed = group.load(name, command)
    with parsed.make_context(name, args) as context:
        assert context.params


@pytest.mark.parametrize("args", [["--help"], []])
def test_start_up_imports_nothing_heavy(args: list[str]) -> None:
    code = f"""
import sys, tracelens.cli
assert tracelens.cli.run({args!r}) == 0
heavy = [m for m in {HEAVY!r} if m in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("told", "threads"), [(None, "1"), ("3", "3")])
def test_a_command_has_one_thread_of_polars_unless_the_user_says_otherwise(told: str | None, threads: str) -> None:
    code = "from tracelens.cli import start_lean; start_lean(); import polars; print(polars.thread_pool_size())"
    env = {k: v for k, v in os.environ.items() if k != "POLARS_MAX_THREADS"}
    env |= {} if told is None else {"POLARS_MAX_THREADS": told}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == threads


def test_import_of_the_package_is_light() -> None:
    code = f"import sys, tracelens; assert not [m for m in {(*HEAVY, 'typer')!r} if m in sys.modules]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_reader_that_goes_away_is_no_error(lake: Path) -> None:
    tool = [sys.executable, "-c", "import tracelens.cli; tracelens.cli.main()"]
    asked = [*tool, "query", "select range from range(300000)", "--lake", str(lake), "--json"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_ctrl_c_during_a_statement_ends_in_silence(lake: Path) -> None:
    """DuckDB 2.0 makes an error of its own of it."""
    asked = "with recursive t as (select 1 as x union all select x + 1 from t) select count(*) from t"
    code = (
        "import os, signal, sys, threading; from tracelens.cli import main; import duckdb\n"
        "threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "sys.argv = ['tracelens', 'query', *sys.argv[1:]]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, asked, "--lake", str(lake)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        ("2026-05-01", "--since", "2026-05-01T00:00:00+00:00"),
        ("2026-05-01", "--until", "2026-05-02T00:00:00+00:00"),
        ("2026-05-01T14:30", "--until", "2026-05-01T14:30:00+00:00"),
        ("2026-05-01 14:30:01.5", "--since", "2026-05-01T14:30:01.500000+00:00"),
        ("2026-05-01T14:30:00Z", "--since", "2026-05-01T14:30:00+00:00"),
        ("2026-05-01T14:30:00+08:00", "--since", "2026-05-01T06:30:00+00:00"),
    ],
)
def test_moments(text: str, option: str, expected: str) -> None:
    stamp = options.moment(text, option)
    assert stamp is not None
    assert stamp.isoformat() == expected


@pytest.mark.parametrize("text", ["yesterday", "", "01.05.2026", "2026-13-01"])
def test_no_moments(text: str) -> None:
    with pytest.raises(InputError, match="2026-05-01T14:30"):
        options.moment(text, "--until")


def test_a_day_without_an_end_says_so() -> None:
    with pytest.raises(InputError, match="after this one no time can be told"):
        options.moment("9999-12-31", "--until")


def test_formats_come_from_the_name_of_the_file() -> None:
    assert options.chosen_format(None, False) == "table"
    assert options.chosen_format(None, False, Path("x.MD")) == "markdown"
    assert options.chosen_format(None, False, Path("x.html")) == "html"
    assert options.chosen_format("csv", False, Path("x.md")) == "csv"
    assert options.chosen_format(None, True, Path("x.md")) == "json"


def test_columns_of_by() -> None:
    assert options.columns(["task_type, model", "model", ""]) == ("task_type", "model")


def test_the_group_is_lazy() -> None:
    command = typer.main.get_command(tracelens.cli._app())
    assert isinstance(command, group.LazyGroup)
