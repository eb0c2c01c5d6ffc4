"""What tracelens says of its own work (`-v`, `--debug`): one line an event on stderr, keys and values.

    time=2026-11-29T23:50:01.123Z level=info part=ingest.stage event="read line by line" source=server.log rejects=2

Fields are names of files, counts, sizes, seconds and fixed words: never a text out of a log. Programs that use
tracelens as a library get the same records from `logging.getLogger("tracelens")`, the fields under `record.fields`.
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any

ROOT = "tracelens"
#: Characters of a value: a name of a file may be as long as a path.
LONGEST = 300
_BARE = re.compile(r"[\w./:+@%-]+", re.ASCII)


def info(log: logging.Logger, event: str, **fields: Any) -> None:
    """Tell an event of `-v`."""
    log.info(event, extra={"fields": fields})


def debug(log: logging.Logger, event: str, **fields: Any) -> None:
    """Tell an event of `--debug`."""
    log.debug(event, extra={"fields": fields})


class Formatter(logging.Formatter):
    """A record as one line of `key=value`; others than plain ASCII words are spelled as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "part": record.name.removeprefix(f"{ROOT}."),
            "event": record.getMessage(),
        }
        return " ".join(f"{key}={_value(value)}" for key, value in (head | getattr(record, "fields", {})).items())


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
    return text if _BARE.fullmatch(text) else json.dumps(text)


def to_stderr(level: int) -> None:
    """Send events of a level and above to what stderr is now, until `off` or another call."""
    off()
    logger = logging.getLogger(ROOT)
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def off() -> None:
    """Tell nothing more on stderr: a command without `-v` that runs in the process of one with it is silent."""
    logger = logging.getLogger(ROOT)
    ours = [h for h in logger.handlers if isinstance(h.formatter, Formatter)]
    for handler in ours:
        logger.removeHandler(handler)
    if ours:
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def level() -> int | None:
    """The level that is told, for processes of our own; None where nothing is."""
    logger = logging.getLogger(ROOT)
    return logger.level if any(isinstance(h.formatter, Formatter) for h in logger.handlers) else None
