"""The command line. Start-up is cheap: a command's module, and what it needs, is loaded when that command is called."""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import os
import re
import sys
from collections.abc import Sequence

import typer.main

from tracelens import __version__
from tracelens.cli.group import LazyGroup, PipeClosed
from tracelens.cli.waiting import noticed
from tracelens.errors import TracelensError, place_of
from tracelens.reporters.format import fold, visible

USAGE = 3  # usage or input error; the option parser's own 2 would say "gate inconclusive"
FAULT = 4
INTERRUPTED = 130
# Where an object of a bucket lies on this machine, for as long as the command runs (`lake.mirror`).
_FETCHED = re.compile(r"[^'\"]*/tracelens-lake-[^/'\"]+/lake/")
PIPE_CLOSED = 141  # as every Unix tool whose reader went away


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code (CLI contract)."""
    start_lean()
    sys.exit(run(sys.argv[1:] if args is None else args))


def start_lean() -> None:
    """Spare a process what makes its start long; for processes of ours only, not for programs that import tracelens."""
    # Imports make a hundred thousand objects that stay: the collector's walks over them are an eighth of the start.
    gc.set_threshold(200_000, 20, 20)
    # numpy's linear algebra starts a thread a core when it is loaded, which spin; nothing here multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Frames here fit the cache of a core: threads of polars would wake each other three hundred thousand times a GB of
    # log, for the same time on the clock. Many cores are for several processes (`--jobs`).
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    _without_pandas()


class _NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("tracelens does without pandas", name="pandas")


def _without_pandas() -> None:
    """Where pandas is installed, pyarrow loads it (0.3 s of CPU) to see whether an array is one of its own."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are told on stderr."""
    try:
        command = typer.main.get_command(_app())
        with noticed(_say):
            code = command.main(args=list(args) or ["--help"], prog_name="tracelens", standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        if _is_interrupted(error):
            return INTERRUPTED
        return _failed(_of_a_bucket() or error, debug="--debug" in args)
    except KeyboardInterrupt:
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _is_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C came while a statement ran: DuckDB 2.0 makes a RuntimeError of the KeyboardInterrupt."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, RuntimeError) and "interrupted" in str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _app() -> typer.Typer:
    app = typer.Typer(
        cls=LazyGroup,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog="\b\nExample:\n  tracelens demo\n  tracelens ingest /var/log/vllm --role speculative"
        "\n  tracelens report --by task_type",
    )
    app.callback()(_root)
    return app


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and leave.", is_eager=True),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Tell on stderr what is done."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of a fault."),
) -> None:
    """Why speculative decoding is slower in production than its acceptance rate promised.

    Exit codes: 0 done; 1 the answer is no; 2 the gate is inconclusive; 3 usage or input error; 4 a fault of tracelens.
    """


def _failed(error: Exception, *, debug: bool) -> int:
    if isinstance(error, PipeClosed | BrokenPipeError):
        # Nobody reads any more: keep the interpreter's last flush quiet.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if debug:
        import traceback

        traceback.print_exception(error)
    format_message = getattr(error, "format_message", None)
    if callable(format_message):
        return _usage(error, str(format_message()))
    if isinstance(error, TracelensError):
        _say(f"Error: {error}")
        return error.exit_code
    if isinstance(error, OSError) and error.strerror:
        _say(f"Error: {error.filename or 'a file'}: {error.strerror}")
        return USAGE
    if _is_foreign_folder(error):
        first = str(error).splitlines()[0][:300]
        _say(f"Error: a folder of the lake is none of a day (date=YYYY-MM-DD); move it out of the lake. {first}")
        return USAGE
    if _is_broken_lake(error):
        first = str(error).splitlines()[0][:300]
        fetched = _FETCHED.sub("", first)
        if fetched != first:
            from tracelens.lake.damage import IN_A_BUCKET

            _say(f"Error: an object of the lake can't be read: it is broken; {IN_A_BUCKET}. {fetched}")
            return USAGE
        _say(f"Error: a file of the lake can't be {_what_to_do(first)}. {first}")
        return USAGE
    hint = "" if debug else "; run again with --debug and report what it prints"
    # Only the kind and the place: the text of the exception could quote a record.
    _say(f"Error: a fault of tracelens {__version__}: {type(error).__name__} {_place(error)}{hint}")
    return FAULT


def _of_a_bucket() -> Exception | None:
    """What kept DuckDB from reading a lake in a bucket: it wraps it into an error of its own."""
    module = sys.modules.get("tracelens.lake.lakefs")
    troubles: list[Exception] = [] if module is None else module.troubles
    first = troubles[0] if troubles else None
    troubles.clear()  # each of DuckDB's threads may have met it
    return first


def _is_foreign_folder(error: Exception) -> bool:
    """Whether DuckDB meets a Parquet file below a table in a folder that is no day."""
    return type(error).__module__.endswith("duckdb") and "hive partition" in str(error).lower()


def _is_broken_lake(error: Exception) -> bool:
    """Whether DuckDB says that files are not what the lake's files are."""
    if "duckdb" not in sys.modules:
        return False
    import duckdb

    return isinstance(error, duckdb.IOException | duckdb.InvalidInputException) and "parquet" in str(error).lower()


def _what_to_do(said: str) -> str:
    """What stands behind an error of a file: a healthy lake must not be taken apart for a race or a full disk."""
    text = said.lower()
    if "no such file" in text or "no files found" in text:
        return (
            "read: another process took it away meanwhile; run the command again (gone for good: `tracelens forget "
            "--missing`)"
        )
    if "no space left" in text or "quota exceeded" in text:
        return "written: the disk is full; make room and run the command again"
    if "could not write" in text or "write failed" in text or "failed to write" in text:
        return "written: look at the disk, its quota and the limit of a file's size (ulimit -f); run the command again"
    return "read: it is broken, or not tracelens' own; move it away"


def _usage(error: Exception, message: str) -> int:
    context = getattr(error, "ctx", None)
    if context is not None:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{context.get_help()}\n")
            return USAGE
        message += f"\nSee: {context.command_path} --help"
    _say(f"Error: {message}")
    return USAGE


def _place(error: Exception) -> str:
    place = place_of(error)
    return f"at tracelens/{place}" if place else "outside its own code"


def _say(text: str) -> None:
    lines = (visible(line) for line in text.split("\n"))
    print(fold("\n".join(lines), sys.stderr.encoding), file=sys.stderr)
