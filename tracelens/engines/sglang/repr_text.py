"""The text form of SGLang's request log: `Finish: obj=GenerateReqInput(...), out={'meta_info': {...}}`.

A Python repr, in which long strings are cut in the middle and printed as they are (log level 2, the default): text of
a user stands there with its own quotes and braces. So it is not evaluated. `meta_info` is the last entry of `out`, and
only numbers, lists of numbers and short plain words behind its last occurrence are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# From 0.5.10 the line has no stamp of its own.
_BEGINS = re.compile(r"\bFinish: obj=\w{1,64}\(")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d++)?+)[^\[\]]*+\]\s*+\Z")
_QUOTED = re.compile(r"['\"`{]")
_META = "'meta_info': {"
# None begins at a quote that is escaped: of what is open to the end of the line, no place is looked at twice.
_STRING = re.compile(r"""(?<!\\)(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")""")
_WORD = re.compile(r"'[\w.:/-]{1,80}'")
_NUMBER = r"-?\d{1,18}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?"
_DIGITS = 400  # beyond it no double is a number any more
_PAIR = re.compile(rf"'(\w{{1,64}})': (?:({_NUMBER})(?=[,}}])|'([^']*)'|\[([\d, ]{{0,20000}})\])")
_SAMPLING = "sampling_params={"
_FINISH = re.compile(r"'finish_reason': \{'type': '(\w{1,32})'")


def finished(content: str) -> Mapping[str, Any] | None:
    """The line as the object that the JSON form would hold, or None when it is no such line."""
    begins = _BEGINS.search(content)
    at = content.rfind(_META)
    if begins is None or at < 0 or _QUOTED.search(content, 0, begins.start()):
        return None
    stamp = _STAMP.search(content[: begins.start()])
    meta = _plain(content[at + len(_META) - 1 :])
    asked: dict[str, Any] = {}
    # Once only: a prompt that quotes it makes the settings doubtful, and a record is good without them.
    if content.count(_SAMPLING) == 1:
        start = content.index(_SAMPLING) + len(_SAMPLING) - 1
        asked = _pairs(_plain(content[start : content.index("}", start) + 1]) if "}" in content[start:] else "")
    values: dict[str, Any] = _pairs(meta)
    reason = _FINISH.search(meta)
    if reason:
        values["finish_reason"] = reason.group(1)
    return {
        "event": "request.finished",
        "timestamp": stamp and stamp[1],
        "obj": {"sampling_params": asked},
        "out": {"meta_info": values},
    }


def _plain(part: str) -> str:
    """Without the strings that are no plain words."""
    return _STRING.sub(lambda hit: hit.group() if _WORD.fullmatch(hit.group()) else "''", part)


def _whole(number: str) -> int | float:
    """A whole number; of more digits than Python reads, as no count has, the nearest that refuses itself: infinity."""
    return int(number) if len(number) < _DIGITS else float(number)


def _pairs(part: str) -> dict[str, Any]:
    """`'key': value` pairs; the first of a name counts."""
    out: dict[str, Any] = {}
    for name, number, word, many in _PAIR.findall(part):
        if number:
            out.setdefault(name, float(number) if re.search(r"[.eE]", number) else _whole(number))
        elif many:
            out.setdefault(name, [_whole(n) for n in many.split(",") if n.strip()])
        elif word:
            out.setdefault(name, word)
    return out
