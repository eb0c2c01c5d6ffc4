"""Ranges of SGLang's releases."""

from __future__ import annotations

from tracelens.engines.versions import Range

_SEEN = "0.5.23"


def since(first: str) -> Range:
    """From a release to the newest that was looked at; later ones are taken to write it, too."""
    return Range(first, seen=_SEEN)
