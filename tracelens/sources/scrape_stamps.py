"""Lines between scrapes that tell when the scrape was taken."""

from __future__ import annotations

import re

# Lines that may be one, found at the price of a look at their first characters: comments that declare no metric, and
# lines that begin with a number, a day of the week or a header of HTTP.
CANDIDATE = r"^[ \t]*(?:#[ \t]*(?:[^HTU \t]|U[^N]|T[^Y]|H[^E])|[0-9]|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b|[Dd]ate:)"

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
_ZONE = r"(?P<zone>Z|[+-]\d\d:?\d\d|[+-]\d\d|[A-Z]{2,5})"
_ISO = re.compile(rf"(?P<date>\d{{4}}-\d\d-\d\d)[Tt ]{_CLOCK}(?: ?{_ZONE})?(?![\w:])")
# `date` says Sun Nov 29 11:41:57 UTC 2026 (or with AM and PM), HTTP Sun, 29 Nov 2026 11:41:57 GMT.
_DATE = re.compile(
    rf"(?:[A-Z][a-z]{{2}}) +(?P<month>[A-Z][a-z]{{2}}) +(?P<day>\d\d?) {_CLOCK}(?: (?P<half>[AP]M))? (?:{_ZONE} )?"
    r"(?P<year>\d{4})(?!\w)"
)
_HTTP = re.compile(rf"[A-Z][a-z]{{2}}, (?P<day>\d\d) (?P<month>[A-Z][a-z]{{2}}) (?P<year>\d{{4}}) {_CLOCK} {_ZONE}")
# Seconds, milli-, micro- or nanoseconds since 1970, alone or behind `t=`, `unix:` and the like.
_EPOCH = re.compile(r"(?:(?<=[=:@\s])|^)(?P<epoch>\d{10}(?:\.\d+)?|\d{13}|\d{16}|\d{19})(?![\w.])")
_UTC = ("Z", "UTC", "GMT")
_DECLARES = re.compile(r"#\s*(?:HELP|TYPE|UNIT|EOF)\b")


def stamp_of(line: str) -> str | None:
    """The time that a line tells, as ISO 8601 text or a number since 1970; None where it tells none.

    A comment may say more than the time; any other line must be the time alone, or the header `Date:`. Times in a zone
    whose letters tell no offset are left without a zone.
    """
    text = line.strip()
    comment = text.startswith("#")
    if comment:
        if _DECLARES.match(text):
            return None
        text = text.lstrip("# \t")
    elif text[:5].lower() == "date:":
        text = text[5:].strip()
    for form in (_ISO, _HTTP, _DATE, _EPOCH):
        found = form.search(text) if comment else form.fullmatch(text)
        if found:
            return found["epoch"] if form is _EPOCH else _iso(found.groupdict())
    return None


def _iso(parts: dict[str, str | None]) -> str | None:
    zone = parts.get("zone") or ""
    tail = "Z" if zone in _UTC else "" if zone.isalpha() else zone
    clock = (parts["clock"] or "").replace(",", ".")
    if parts.get("half"):
        hour = int(clock[:2]) % 12 + (12 if parts["half"] == "PM" else 0)
        clock = f"{hour:02d}{clock[2:]}"
    date = parts.get("date")
    if date is None:
        month = parts["month"]
        if month not in _MONTHS:
            return None
        date = f"{parts['year']}-{_MONTHS.index(month) + 1:02d}-{int(parts['day'] or 0):02d}"
    return f"{date}T{clock}{tail}"
