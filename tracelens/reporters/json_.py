"""JSON: the shape of the CLI contract, valid always (NaN and infinities are null)."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, TextIO

from tracelens.analysis.results import Missing, Report, Stratum, Warning
from tracelens.reporters.format import visible_json

SCHEMA_VERSION = 1


def plain(value: Any) -> Any:
    """`value` as JSON can say it: numbers stay numbers, NaN and infinities are null, times are ISO text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return _decimal(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode("ascii")
        case Mapping():
            return {k if isinstance(k, str) else str(plain(k)): plain(v) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(v) for v in value]
    item = getattr(value, "item", None)  # numpy scalars
    return plain(item()) if callable(item) else str(value)


def _decimal(value: Decimal) -> int | float | None:
    if not value.is_finite():
        return None
    exponent = value.as_tuple().exponent
    return int(value) if isinstance(exponent, int) and exponent >= 0 else float(value)


@cache
def _encoder(indent: int | None, ascii_only: bool) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=ascii_only, allow_nan=False, indent=indent, default=plain)


def dumps(document: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """JSON text that can be shown and stored anywhere; other scripts stay readable unless `ascii_only`."""
    encoder = _encoder(indent, ascii_only)
    try:
        # The fast way for what is plain already; NaN and unusual keys are refused here and go the slow way.
        text = encoder.encode(document)
    except (TypeError, ValueError):
        text = encoder.encode(plain(document))
    return visible_json(text)


def ascii_only(out: TextIO) -> bool:
    """Whether an output cannot carry every script, so that JSON to it must be ASCII."""
    encoding = (getattr(out, "encoding", None) or "utf-8").lower().replace("_", "-")
    return encoding not in ("utf-8", "utf8")


def write(document: Any, out: TextIO, *, indent: int | None = None) -> None:
    """Write `document` and a line end."""
    out.write(dumps(document, indent=indent, ascii_only=ascii_only(out)) + "\n")


class JsonReporter:
    """The report as one JSON object."""

    def render(self, report: Report, out: TextIO) -> None:
        """Write `report` to `out`."""
        write(document(report), out, indent=2)


def document(report: Report) -> dict[str, Any]:
    """The report in the shape of the CLI contract."""
    names = _names(report)
    return {
        "schema_version": SCHEMA_VERSION,
        "by": list(report.by),
        "claim": dict(report.claim) if report.claim is not None else None,
        "selection": dict(report.selection),
        "contains": dict(report.contains),
        "strata": [_row(stratum, names) for stratum in report.strata],
        "total": _row(report.total, names),
        "coverage": coverage(report, names),
        "warnings": warnings(report.warnings),
    }


def warnings(found: Sequence[Warning]) -> list[dict[str, Any]]:
    """Warnings as JSON has them."""
    return [{"code": w.code, "text": w.text, "evidence": dict(w.evidence)} for w in found]


def missing(found: Sequence[Missing]) -> dict[str, dict[str, str | None]]:
    """Why a figure cannot be had and what gives it, by figure."""
    told: dict[str, dict[str, str | None]] = {}
    for figure, item in ((name.strip(), m) for m in found for name in m.figure.split(",")):
        entry = told.setdefault(figure, {"because": item.because, "switch_on": item.switch_on})
        if entry["because"] != item.because:
            entry["because"] = f"{entry['because']}; {item.because}"
            entry["switch_on"] = f"{entry['switch_on']}; {item.switch_on}"
    return told


def _names(report: Report) -> list[str]:
    """Every figure of any stratum, in the order of the total: all rows get the same keys."""
    rows = (report.total, *report.strata)
    return list(dict.fromkeys(name for row in rows for name in row.figures))


def _row(stratum: Stratum, names: list[str]) -> dict[str, Any]:
    return {"key": dict(stratum.key), **{name: stratum.figures.get(name) for name in names}}


def coverage(report: Report, names: list[str] | None = None) -> dict[str, dict[str, str | None]]:
    """Why a figure cannot be had and what gives it, by figure; nulls that the analysis left unexplained too."""
    told = missing(report.coverage)
    rows = (*report.strata, report.total)
    for name in _names(report) if names is None else names:
        base = re.sub("_(low|high)$", "", name)
        without = sum(plain(row.figures.get(name)) is None for row in rows)
        if without and name not in told and base not in told:
            told[name] = {"because": _unexplained(name != base, without, len(rows)), "switch_on": None}
    return told


def _unexplained(bound: bool, without: int, rows: int) -> str:
    where = "every row lacks" if without == rows else f"{without} of {rows} rows (the total is one) lack"
    return f"{where} {'the requests for an interval' if bound else 'the records that this figure needs'}"
