"""The speedup somebody planned with: the offline acceptance, draft cost and K, and the formula they went into."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tracelens.errors import InputError
from tracelens.model.acceptance import DraftAcceptRatio, TokenAcceptProb
from tracelens.model.gap import EmittedShare, Plan

FORMS = ("article", "article_tokens", "bonus", "iid")
# Nobody plans beyond these, and the formulas keep their digits within them.
_LEAST_ALPHA, _MOST_RHO, _MOST_K = 1e-6, 1e6, 65_536
_LEAST_MS, _MOST_MS = 1e-6, 1e9
_EXAMPLE = "alpha=.72,rho=.1,k=5,form=article"


@dataclass(frozen=True, slots=True)
class Claim:
    """What was planned with (MODEL.md 4 and 5).

    `alpha` is accepted over drafted tokens (`article`, `bonus`), emitted tokens over K (`article_tokens`) or the
    token acceptance probability (`iid`). `baseline_ms` is the plain step it was planned against, where it is known.

    Raises:
        InputError: a value out of its range.
    """

    alpha: float
    rho: float
    k: int
    form: str = "article"
    baseline_ms: float | None = None

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"claim: form={self.form} is unknown; use one of {', '.join(FORMS)}")
        if not 0 <= self.rho <= _MOST_RHO:
            raise InputError(
                f"claim: rho must be 0 or more and up to {_MOST_RHO:g}, not {self.rho}: draft time over target time of "
                "one token"
            )
        if not 1 <= self.k <= _MOST_K:
            raise InputError(f"claim: k must be 1 or more and up to {_MOST_K}, not {self.k}: the drafted tokens")
        most = (self.k + 1) / self.k if self.form == "article_tokens" else 1.0
        if not _LEAST_ALPHA <= self.alpha <= most:
            raise InputError(
                f"claim: alpha must lie above 0 (from {_LEAST_ALPHA:g}) and up to {most:g}, not {self.alpha}"
            )
        if self.baseline_ms is not None and not _LEAST_MS <= self.baseline_ms <= _MOST_MS:
            raise InputError(f"claim: baseline_ms must be above 0, a step in ms, not {self.baseline_ms}")

    @property
    def plan(self) -> Plan:
        """The claim with its acceptance as the only kind that its form takes."""
        match self.form:
            case "iid":
                return Plan(self.form, TokenAcceptProb(self.alpha), self.rho, self.k)
            case "article_tokens":
                return Plan(self.form, EmittedShare(self.alpha), self.rho, self.k)
        return Plan(self.form, DraftAcceptRatio(self.alpha), self.rho, self.k)

    @property
    def speedup(self) -> float:
        """The claimed speedup, `speedup_claimed`."""
        return self.plan.speedup

    def as_mapping(self) -> dict[str, float | int | str | None]:
        """The claim as JSON prints it."""
        return asdict(self)


def parse_claim(text: str) -> Claim:
    """Read `alpha=.72,rho=.1,k=5[,form=…][,baseline_ms=…]`, or `@file.json` with the same keys.

    Raises:
        InputError: not of that form, or a value out of its range.
    """
    pairs = _from_file(Path(text[1:])) if text.startswith("@") else _from_text(text)
    known = {"alpha", "rho", "k", "form", "baseline_ms"}
    unknown = sorted(set(pairs) - known)
    if unknown:
        raise InputError(f"claim: unknown key {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    missing = [key for key in ("alpha", "rho", "k") if key not in pairs]
    if missing:
        raise InputError(f"claim: {', '.join(missing)} missing; write it as {_EXAMPLE}")
    k = _number("k", pairs["k"])
    if k != int(k):
        raise InputError(f"claim: k must be a whole number, not {pairs['k']}")
    baseline = pairs.get("baseline_ms")
    return Claim(
        alpha=_number("alpha", pairs["alpha"]),
        rho=_number("rho", pairs["rho"]),
        k=int(k),
        form=pairs.get("form", "article"),
        baseline_ms=None if baseline is None else _number("baseline_ms", baseline),
    )


def _from_text(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise InputError(f"claim: cannot read {part.strip()!r}; write it as {_EXAMPLE}")
        if key in pairs:
            raise InputError(f"claim: {key} is given twice")
        pairs[key] = value
    return pairs


def _from_file(path: Path) -> dict[str, str]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"claim: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"claim: {path} is no JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise InputError(f"claim: {path} must hold an object such as {{'alpha': 0.72, 'rho': 0.1, 'k': 5}}")
    return {str(key): str(value) for key, value in document.items() if value is not None}


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(f"claim: {name} must be a number, not {text!r}") from error
    if not math.isfinite(value):
        raise InputError(f"claim: {name} must be a finite number, not {text!r}")
    return value
