"""The speedup somebody planned with: the offline acceptance, draft cost and K, and the formula they went into.

The acceptance may come from a `speculation_profile.json` (schema 1.0 of Model-Optimizer's specdec_bench), which travels
with a draft checkpoint: `mean_accept_length` are tokens a round with the target's own token, `marginal_accept_rates[i]`
the share of rounds whose first i + 1 drafts were accepted, so that mean = 1 + sum of the rates. It holds no draft cost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.model.acceptance import DraftAcceptRatio, TokenAcceptProb
from tracelens.model.gap import EmittedShare, Plan

FORMS = ("article", "article_tokens", "bonus", "iid")
# Nobody plans beyond these, and the formulas keep their digits within them.
_LEAST_ALPHA, _MOST_RHO, _MOST_K = 1e-6, 1e6, 65_536
_LEAST_MS, _MOST_MS = 1e-6, 1e9
_EXAMPLE = "alpha=.72,rho=.1,k=5,form=article"
_KEYS = ("alpha", "rho", "k", "form", "baseline_ms")
# Any of them makes a file a speculation profile; `validation` allows its mean to miss its rates by as much.
_PROFILE_KEYS = ("mean_accept_length", "marginal_accept_rates", "conditional_accept_rates")
_TOLERANCE = 0.02


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

    The file may be a `speculation_profile.json`: then `alpha` is its acceptance in the convention of `form` (here
    `bonus` unless told, because its mean counts the target's own token), `k` its draft length, and `rho` comes behind
    it: `@speculation_profile.json,rho=.1`. What stands behind a file wins over what is in it.

    Raises:
        InputError: not of that form, a value out of its range, or a profile that was not measured at this K.
    """
    pairs = _from_file(*_file_and_more(text[1:])) if text.startswith("@") else _from_text(text)
    unknown = sorted(set(pairs) - set(_KEYS))
    if unknown:
        raise InputError(f"claim: unknown key {', '.join(unknown)}; known: {', '.join(sorted(_KEYS))}")
    missing = [key for key in ("alpha", "rho", "k") if key not in pairs]
    if missing:
        raise InputError(f"claim: {', '.join(missing)} missing; write it as {_EXAMPLE}")
    baseline = pairs.get("baseline_ms")
    return Claim(
        alpha=_number("alpha", pairs["alpha"]),
        rho=_number("rho", pairs["rho"]),
        k=_whole("k", pairs["k"]),
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


def _file_and_more(text: str) -> tuple[Path, dict[str, str]]:
    """A path, and the pairs behind it; a name may hold commas of its own."""
    if "," not in text or _exists(text):
        return Path(text), {}
    name, _, more = text.partition(",")
    return Path(name), _from_text(more)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return False


def _from_file(path: Path, more: Mapping[str, str]) -> dict[str, str]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"claim: cannot read {str(path)[:200]}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"claim: {str(path)[:200]} is no JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise InputError(f"claim: {path} must hold an object such as {{'alpha': 0.72, 'rho': 0.1, 'k': 5}}")
    if any(key in document for key in _PROFILE_KEYS):
        return _from_profile(path, document, more)
    return {str(key): str(value) for key, value in document.items() if value is not None} | dict(more)


def _from_profile(path: Path, profile: Mapping[str, Any], more: Mapping[str, str]) -> dict[str, str]:
    """The pairs of a speculation profile, its acceptance at the K that is asked for."""
    if profile.get("measured") is False:
        raise InputError(f"claim: {path} is a stub (measured: false); measure its acceptance first (specdec_bench)")
    longest = _of_profile(path, profile, "num_speculative_tokens")
    k = _whole("k", more.get("k", str(longest)))
    if k < 1:
        raise InputError(f"claim: k must be 1 or more, not {k}: the drafted tokens")
    mean = _accept_length(path, profile, _whole("num_speculative_tokens", str(longest)), k)
    form = more.get("form", "bonus")
    pairs = {"alpha": repr(_alpha(mean, k, form)), "k": str(k), "form": form} | dict(more)
    if "rho" not in pairs:
        raise InputError(f"claim: {path} holds no draft cost; write it as @{path},rho=.1")
    return pairs


def _accept_length(path: Path, profile: Mapping[str, Any], longest: int, k: int) -> float:
    """Tokens a round at draft length k, the target's own among them.

    A chain of k drafts is the beginning of a longer one, so the marginal rates tell it (`chain_analytic`); a drafter
    that plans whole blocks is known at the lengths it was measured at (`measured_per_k`).
    """
    rates = profile.get("marginal_accept_rates")
    rates = [_of_list(path, rate) for rate in rates] if isinstance(rates, list) else []
    mean = _of_profile(path, profile, "mean_accept_length")
    if any(a < b for a, b in pairwise([1.0, *rates])):
        raise InputError(f"claim: {path} contradicts itself: marginal_accept_rates must not rise")
    if rates and abs(1 + sum(rates) - mean) > _TOLERANCE:
        raise InputError(
            f"claim: {path} contradicts itself: mean_accept_length is {mean:g}, and 1 + the sum of "
            f"marginal_accept_rates {1 + sum(rates):g}"
        )
    by_k = profile.get("accept_length_by_k")
    if isinstance(by_k, Mapping) and str(k) in by_k:
        mean = _of_list(path, by_k[str(k)])
    elif k != longest:
        if profile.get("accept_length_model") != "chain_analytic" or k > len(rates):
            raise InputError(
                f"claim: {path} was measured at k={longest}, which does not tell of k={k}; measure that too"
            )
        mean = 1 + sum(rates[:k])
    if not 1 <= mean <= k + 1 + _TOLERANCE:
        raise InputError(f"claim: {path}: {mean:g} tokens a round are not possible with k={k}")
    return min(mean, k + 1.0)


def _alpha(mean: float, k: int, form: str) -> float:
    """The acceptance of `form` that gives `mean` tokens a round, the target's own among them (MODEL.md 4)."""
    if form == "article_tokens":
        return mean / k
    if form != "iid":
        return (mean - 1) / k
    if mean >= k + 1:
        return 1.0
    # 1 + a + ... + a^k rises with a: halved until a double can't tell the ends apart.
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(k + 1)) < mean else (low, middle)
    return (low + high) / 2


def _of_profile(path: Path, profile: Mapping[str, Any], name: str) -> float:
    value = profile.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"claim: {path} has no {name}")
    return value


def _of_list(path: Path, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"claim: {path}: an acceptance must be a number, not {value!r}")
    return float(value)


def _whole(name: str, text: str) -> int:
    value = _number(name, text)
    if value != int(value):
        raise InputError(f"claim: {name} must be a whole number, not {text}")
    return int(value)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(f"claim: {name} must be a number, not {text!r}") from error
    if not math.isfinite(value):
        raise InputError(f"claim: {name} must be a finite number, not {text!r}")
    return value
