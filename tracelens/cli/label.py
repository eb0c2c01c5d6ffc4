"""`tracelens label`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tracelens.cli import options as opt
from tracelens.wording import many, noun


def label(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="CSV, JSON lines or Parquet with request_id and any columns; or a tracelens.toml."
        ),
    ],
    lake: opt.LakeDir = opt.DEFAULT_LAKE,
    as_json: opt.Json = False,
) -> None:
    """Add labels (task types) to a lake that exists, without ingesting again.

    Ids match whatever an engine put before or behind them (chatcmpl-…, cmpl-…-0). A label of the file wins over what
    the record says; a rule of a tracelens.toml gives a task type only to rows that have none.
    Redacted ids match, too, where the lake's salt is (see `tracelens ingest --redact-ids`).
    """
    from tracelens.errors import InputError
    from tracelens.ingest.labels import read_labels, read_rules
    from tracelens.ingest.relabel import relabel
    from tracelens.reporters import json_

    if not file.is_file():
        raise InputError(f"{file}: no such file; give labels as CSV, JSON lines or Parquet, or a tracelens.toml")
    rules = file.suffix.lower() == ".toml"
    done = relabel(lake, None if rules else read_labels(file), read_rules(file) if rules else ())
    if as_json:
        document = {
            "rows": done.rows, "files": done.files, "labels": done.labels, "unmatched": done.unmatched,
            "rolled_until": done.rolled,
        }  # fmt: skip
        json_.write(document, sys.stdout)
        return
    rows = ", ".join(many(n, name.removesuffix("s")) for name, n in done.rows.items() if n) or "nothing"
    sys.stdout.write(f"changed {rows} in {many(done.files, 'file')}\n")
    if done.unmatched:
        of = many(done.labels, "labelled id")
        sys.stdout.write(f"{done.unmatched:,} of {of} {noun(done.unmatched, 'is', 'are')} not in the lake\n")
    if done.rolled is not None:
        sys.stdout.write(
            f"rounds of days up to {done.rolled} are rolled up and have no request ids: labels by id don't reach them; "
            "`tracelens ingest --replace LOG --labels FILE` brings them back with labels\n"
        )
