"""What a result of `vllm bench` says of the server it measured: K, drafter, role and settings.

`vllm bench sweep` writes the parameters it varied into each result under their own names
(`speculative_config.num_speculative_tokens`, `max_num_seqs`, ...), `--metadata KEY=VALUE` any others, as text. What is
told nowhere stays unknown: a result without acceptance is no baseline for that (/metrics may have been out of reach, or
the release older than 0.14).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tracelens.engines.units import LONGEST_DRAFT

Object = Mapping[str, Any]

_K = (
    "speculative_config.num_speculative_tokens",
    "num_speculative_tokens",
    "spec_tokens",
    "num_spec_tokens",
    "speculative_tokens",
    "k",
)
_METHOD = ("speculative_config.method", "spec_method", "method")
_DRAFTER = ("speculative_config.model", "spec_model", "draft_model")
# Names that a user gave a result: the only texts in which words are looked for.
_NAMES = ("label", "_benchmark_name", "name", "run", "run_name", "experiment", "variant", "mode", "config", "tag")
_TRAFFIC = ("backend", "request_rate", "burstiness", "max_concurrency", "num_prompts", "run_number", "label")
_NESTED = ("speculative_config", "extra_body")
_OFF = ("", "none", "null", "off", "false", "disabled")
_K_IN_NAME = re.compile(r"(?:^|[^a-z0-9])k[=_-]?(\d{1,3})(?![a-z0-9.])")
_BASELINE = re.compile(r"(?:^|[^a-z])(?:baseline|no[-_ ]?spec(?:ulation|ulative)?|without[-_ ]spec\w*)(?:$|[^a-z])")
# What may be kept of a setting: a number or one plain word, never a path, an address or a sentence.
_PLAIN = re.compile(r"[A-Za-z0-9][\w.+=-]{0,63}")
_INT32 = 2**31


def server(result: Object, positions: int, drafts: int | None) -> dict[str, Any]:
    """Columns of the run: what the settings, the counts, and then the names of a result tell.

    Args:
        result: the result as written.
        positions: positions whose acceptance it lists (vLLM counts as many as K), 0 where it lists none.
        drafts: rounds with a draft that the server counted, or None.
    """
    told = _settings(result)
    names = [text.lower() for key in _NAMES if isinstance(text := told.get(key), str)]
    k = _first(told, _K)
    off = any(key in told and _is_off(told[key]) for key in ("speculative_config", "spec_method"))
    if k is None and off:
        k = 0
    if k is None:
        k = positions or _in_names(names)
    return {
        "num_speculative_tokens": k or None,
        "method": _word(told, _METHOD),
        "draft_model": _text(told, _DRAFTER),
        "tensor_parallel": _first(told, ("tensor_parallel_size", "tp"), _INT32),
        "data_parallel": _first(told, ("data_parallel_size", "dp"), _INT32),
        "max_num_seqs": _first(told, ("max_num_seqs",), _INT32),
        "role": _role(told, names, k, drafts),
        "task_type": _word(told, ("task_type",)),
        "temperature": _real(told, ("temperature", "extra_body.temperature"), 1e6),
        "top_p": _real(told, ("top_p", "extra_body.top_p"), 1.0),
        "config": [{"key": key, "value": text} for key in _TRAFFIC if (text := _setting(told.get(key))) is not None],
    }


def _settings(result: Object) -> dict[str, Any]:
    """Scalars by name in one spelling (`max-num-seqs` is `max_num_seqs`), nested settings behind a dot."""
    out: dict[str, Any] = {}
    for key, value in result.items():
        name = key.replace("-", "_").lower()
        nested = _nested(value) if name in _NESTED else None
        if nested is not None:
            out.update({f"{name}.{k.replace('-', '_').lower()}": v for k, v in nested.items()})
        elif not isinstance(value, (Mapping, list)):
            out[name] = value
    return out


def _nested(value: Any) -> Object | None:
    """A setting that is an object, or the JSON text of one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return None
    return value if isinstance(value, Mapping) else None


def _role(told: Object, names: list[str], k: int | None, drafts: int | None) -> str | None:
    if told.get("role") in ("speculative", "baseline"):
        return str(told["role"])
    if drafts or k:
        return "speculative"
    if k == 0 or any(_BASELINE.search(name) for name in names):
        return "baseline"
    return None


def _is_off(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str) and value.strip().lower() in _OFF)


def _in_names(names: list[str]) -> int | None:
    """K where a name says it (`k3`, `ngram-K=5`)."""
    found = {int(match) for name in names for match in _K_IN_NAME.findall(name)}
    return found.pop() if len(found) == 1 else None


def _first(told: Object, keys: tuple[str, ...], high: int = LONGEST_DRAFT) -> int | None:
    """The first of some whole numbers; `--metadata` makes text of all of them."""
    for key in keys:
        value = told.get(key)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 12:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < high:
            return value
    return None


def _real(told: Object, keys: tuple[str, ...], high: float) -> float | None:
    for key in keys:
        value = told.get(key)
        try:
            number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else -1.0
        except (ValueError, OverflowError):
            continue
        if 0 <= number <= high:  # NaN is in no range
            return number
    return None


def _text(told: Object, keys: tuple[str, ...]) -> str | None:
    return next((v[:256] for key in keys if isinstance(v := told.get(key), str) and v), None)


def _word(told: Object, keys: tuple[str, ...]) -> str | None:
    text = _text(told, keys)
    return text if text is not None and _PLAIN.fullmatch(text) else None


def _setting(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = f"{value:g}" if isinstance(value, float) else str(value)[:65]
    return text if _PLAIN.fullmatch(text) else None
