"""What a user writes for a question, read once for the command line and for Python: columns, times, baselines, K."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from tracelens.arguments import shown
from tracelens.errors import InputError

if TYPE_CHECKING:
    from tracelens.analysis.claim import Claim
    from tracelens.analysis.sides import Word


def encodable(text: str, option: str) -> str:
    """Text that SQL and Parquet can hold. Bytes of a shell that are no UTF-8 come in as halves of surrogate pairs.

    Raises:
        InputError: it holds such a half.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{option} {text!r} holds bytes that are no UTF-8 text: write it anew") from error
    return text


def columns(by: Iterable[str]) -> tuple[str, ...]:
    """The columns of one or several texts such as `task_type,hour`, each once, in order."""
    names = (name.strip() for text in by for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def run_or_ms(text: str | None) -> str | float | None:
    """The value of `--baseline`: a number is a time in ms (`21.3` or `21.3ms`), anything else the name of a run.

    Raises:
        InputError: a number that is no time of a decode step.
    """
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("ms"))
    except ValueError:
        return text
    if not 1e-6 <= value <= 1e9:
        raise InputError(f"--baseline {text}: not a time of a decode step in ms; write e.g. 21.3")
    return value


def moment(value: object, option: str) -> datetime | None:
    """A date, a time or ISO text as UTC; without a zone it is UTC; a bare date is its start, or its end for `--until`.

    Raises:
        InputError: it is no such time.
    """
    if value is None:
        return None
    if not isinstance(value, str | date):
        raise InputError(f"{option} is a date, a time or text such as 2026-05-01T14:30, not {shown(value)}")
    try:
        if not isinstance(value, datetime):
            text = value.isoformat() if isinstance(value, date) else str(value).strip()
            if len(text) <= len("2026-05-01"):
                day = date.fromisoformat(text)
                start = datetime(day.year, day.month, day.day, tzinfo=UTC)
                return _end_of(start, option) if option == "--until" else start
            value = datetime.fromisoformat(text)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except InputError:
        raise
    except OverflowError as error:
        raise InputError(f"{option} {value}: in UTC it lies outside the years 1 to 9999") from error
    except ValueError as error:
        raise InputError(
            f"{option} {value!r} is no time: write 2026-05-01, 2026-05-01T14:30, 2026-05-01T14:30:00Z "
            "or 2026-05-01T14:30:00+08:00"
        ) from error


def _end_of(day: datetime, option: str) -> datetime:
    """The first moment after a day.

    Raises:
        InputError: there is none, for a day is the last of all.
    """
    try:
        return day + timedelta(days=1)
    except OverflowError as error:
        raise InputError(
            f"{option} {day:%Y-%m-%d}: a date alone means the end of its day, and after this one no time can be told; "
            f"leave {option} out"
        ) from error


def claim_of(claim: str | Mapping[str, object] | Claim | None) -> Claim | None:
    """A claim from text such as `alpha=.72,rho=.1,k=5`, from `@FILE.json`, or from a mapping with the same names.

    Raises:
        InputError: it cannot be read, or a value is out of its range.
    """
    from tracelens.analysis.claim import Claim, parse_claim

    if isinstance(claim, Mapping):
        claim = ",".join(f"{name}={value}" for name, value in claim.items() if value is not None)
    if not isinstance(claim, str | Claim | None):
        raise InputError(f"--claim must be text such as alpha=.72,rho=.1,k=5, a dict or a Claim, not {shown(claim)}")
    return parse_claim(claim) if isinstance(claim, str) else claim


def lengths(text: str) -> list[int]:
    """The value of `--k`: whole numbers, separated by commas.

    Raises:
        InputError: something else stands between the commas.
    """
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        if not (part.isascii() and part.isdigit()):
            raise InputError(f"--k {text}: {part!r} is no draft length; write whole numbers such as 1,2,3,5,7")
        found.append(int(part))
    return found


def word(text: str) -> Word:
    """A side of a comparison as the user wrote it; with `..` in it, it may be a period."""
    from tracelens.analysis.sides import Word

    since, dots, until = (part.strip() for part in text.partition(".."))
    if not dots:
        return Word(text)
    if not since and not until:
        return Word(text, why_not="a period needs at least one end")
    try:
        return Word(text, (moment(since or None, "--since"), moment(until or None, "--until")))
    except InputError as error:
        return Word(text, why_not=str(error))
