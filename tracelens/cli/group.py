"""The list of commands, and the group that loads a command's module only when that command is called."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer.main
from typer.core import TyperGroup

from tracelens import __version__
from tracelens.cli.options import Debug, Verbose


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command lives, what it answers, and an example that a test parses."""

    target: str
    short: str
    example: str


COMMANDS = {
    "demo": Command(
        "tracelens.cli.demo:demo", "The main job on the packaged samples.", "tracelens demo --lake ./tracelens-demo"
    ),
    "inspect": Command(
        "tracelens.cli.inspect:inspect",
        "What is in these logs, and which figures do they allow? Writes nothing.",
        "tracelens inspect /var/log/vllm",
    ),
    "ingest": Command(
        "tracelens.cli.ingest:ingest",
        "Normalise logs into the lake.",
        "tracelens ingest /var/log/vllm --run prod-k5 --role speculative --lake ./lake",
    ),
    "label": Command(
        "tracelens.cli.label:label",
        "Add labels (task types) to a lake that exists.",
        "tracelens label labels.csv --lake ./lake",
    ),
    "report": Command(
        "tracelens.cli.report:report",
        "Acceptance, draft cost, rollbacks and speedup, by class of traffic.",
        "tracelens report --by task_type,temperature_bucket --claim alpha=.72,rho=.1,k=5 -o report.md",
    ),
    "gap": Command(
        "tracelens.cli.gap:gap",
        "Why is the speedup not the claimed one? The waterfall of causes.",
        "tracelens gap --claim alpha=.72,rho=.1,k=5 --by task_type --run k5 --baseline off",
    ),
    "sweep": Command(
        "tracelens.cli.sweep:sweep",
        "Which draft length K is best? As run, and replayed from the longest.",
        "tracelens sweep --by task_type --k 1,2,3,4,5,7 --lake ./lake",
    ),
    "gate": Command(
        "tracelens.cli.gate:gate",
        "GO, NO_GO or INCONCLUSIVE by class of traffic; writes a policy of K.",
        "tracelens gate --by task_type --run k5 --baseline off --emit-policy policy.json",
    ),
    "compare": Command(
        "tracelens.cli.compare:compare",
        "Two runs, periods or builds: what moved, and is it more than chance?",
        "tracelens compare vllm-k5 vllm-k7 --by task_type",
    ),
    "watch": Command(
        "tracelens.cli.watch:watch",
        "Follow growing logs; the headline table after each change.",
        "tracelens watch /var/log/vllm --run prod-k5 --role speculative --by task_type --prometheus 9108",
    ),
    "compact": Command(
        "tracelens.cli.compact:compact",
        "Merge small files of the lake, and roll up the rounds of old days.",
        "tracelens compact --lake ./lake --older-than 30d",
    ),
    "forget": Command(
        "tracelens.cli.forget:forget",
        "Take sources out of the lake, or all whose files are gone.",
        "tracelens forget server.log --lake ./lake --dry-run",
    ),
    "query": Command(
        "tracelens.cli.query:query",
        "A named query, or SQL over the views of the lake.",
        'tracelens query "SELECT task_type, sum(drafted * weight) AS drafted FROM facts GROUP BY ALL" --json',
    ),
    "schema": Command(
        "tracelens.cli.schema:schema",
        "The canonical tables: columns, types, units, meaning.",
        "tracelens schema rounds",
    ),
}


class PipeClosed(Exception):  # noqa: N818 - no error: the reader of our output has seen enough
    """The reader of stdout went away; kept from the option parser, which would leave with 1."""


class LazyGroup(TyperGroup):
    """A group whose `--help` imports no command."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the list."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load one command; None for a name that is not in the list."""
        command = COMMANDS.get(cmd_name)
        return None if command is None else load(cmd_name, command)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands from their short texts."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.short) for name, command in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; a misspelt name gets a suggestion."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"the commands are {', '.join(COMMANDS)}"
            ctx.fail(f"no command `{args[0]}`: {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Answer `--version`, else run the command."""
        if ctx.params.get("version"):
            typer.echo(f"tracelens {__version__}")
            return 0
        _log(verbose=bool(ctx.params.get("verbose")), debug=bool(ctx.params.get("debug")))
        return super().invoke(ctx)


def load(name: str, command: Command) -> Any:
    """Import a command and make it one of the option parser."""
    module, _, attribute = command.target.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, short_help=command.short, epilog=f"\b\nExample:\n  {command.example}")(with_common(function))
    return typer.main.get_command(app)


def with_common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that all have, `--verbose` and `--debug`, unless it declares them itself."""
    signature = inspect.signature(function, eval_str=True)
    common = {"verbose": Verbose, "debug": Debug}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in common.items()
        if name not in signature.parameters
    ]

    @functools.wraps(function)
    def call(**values: Any) -> Any:
        if values.get("verbose") or values.get("debug"):  # or the group has set it, before the name of the command
            _log(verbose=True, debug=bool(values.get("debug")))
        for parameter in added:
            values.pop(parameter.name, None)
        try:
            return function(**values)
        except BrokenPipeError as error:
            raise PipeClosed from error

    call.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    return call


def _log(*, verbose: bool, debug: bool) -> None:
    from tracelens import logs

    if verbose or debug:
        logs.to_stderr(logging.DEBUG if debug else logging.INFO)
    else:
        logs.off()
