"""`tracelens inspect`."""

from __future__ import annotations

import sys

from tracelens.cli import options as opt
from tracelens.cli.ingest import EngineName, Paths, Year, Zone
from tracelens.errors import NothingRecognisedError


def inspect(
    paths: Paths,
    engine: EngineName = "auto",
    tz: Zone = None,
    year: Year = None,
    as_json: opt.Json = False,
) -> None:
    """Say what is in these logs and which figures they allow. Writes nothing."""
    from tracelens.ingest.inspect import inspect as look
    from tracelens.ingest.options import IngestOptions
    from tracelens.reporters import ingested

    found = look(paths, IngestOptions(engine=engine, tz=tz, year=year))
    if as_json:
        ingested.inspection_json(found, sys.stdout)
    else:
        ingested.inspection_text(found, sys.stdout)
    if not any(one.surfaces or one.is_reference for one in found.sources):
        raise NothingRecognisedError("nothing recognised: no record of a known engine in these files")
