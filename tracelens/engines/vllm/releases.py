"""Ranges of vLLM's releases."""

from __future__ import annotations

from tracelens.engines.versions import Range

#: The column `engine_era`: up to 0.9.2 a release may run either engine, and they do not write the same.
V0, V1 = "v0", "v1"
_SEEN = "0.33"


def since(first: str) -> Range:
    """From a release to the newest that was looked at; later ones are taken to write it, too."""
    return Range(first, seen=_SEEN)


def v1(first: str) -> Range:
    """The same, of what V1 alone writes."""
    return Range(first, seen=_SEEN, era=V1)
